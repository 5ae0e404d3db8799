"""Pure functions on tensors: describe, summarize, digest, compare."""
