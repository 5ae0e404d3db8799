"""The dispatch mode that everything of torchsan's derives from. Importing this module imports torch."""

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode"]
