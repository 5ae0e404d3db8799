"""The only package that imports private torch modules. One file a concern; `version` is the door.

Importing it imports no torch: what a program does not use, it does not pay for.
"""

from __future__ import annotations

from torchsan.torch_internals.compiles import Buffer, Compile, LoweredGraph, observe_compiles
from torchsan.torch_internals.seams import check_version

__all__ = ["Buffer", "Compile", "LoweredGraph", "check_version", "observe_compiles"]
