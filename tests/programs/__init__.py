"""Programs that nobody should find fault with, and models that nobody wrote for torchsan."""
