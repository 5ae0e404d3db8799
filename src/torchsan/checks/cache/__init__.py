"""The check `cache`."""
