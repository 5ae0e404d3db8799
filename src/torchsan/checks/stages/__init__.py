"""Which step of the compiler changed the meaning of the program?"""
