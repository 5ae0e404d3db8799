"""The check `kernels`."""
