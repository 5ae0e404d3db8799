"""Is memory used as it was planned? Bounds, initialisation, reuse and lifetime of compiled buffers."""
