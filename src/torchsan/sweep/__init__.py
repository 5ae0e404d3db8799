"""What else is wrong? Many programs, each in a process of its own under all checks, and what they find together.

`programs` says what is run; `engine` runs it; `results` keeps what came of it; `triage` puts together what is the same
and says what of it is new; `report` tells it.
"""
