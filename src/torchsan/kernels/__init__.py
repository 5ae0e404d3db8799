"""Is this kernel right?"""
