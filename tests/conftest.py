"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell that starts the tests in the background, or nohup, ignores these for them and for all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
