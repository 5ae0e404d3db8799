"""Are operators what they say? Fake kernels, schemas and aliasing against what operators do."""
