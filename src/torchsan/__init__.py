"""torchsan: the sanitizer for compiled PyTorch."""

__version__ = "0.1.0"
