"""Which kernel computes something else than its nodes?"""
