"""torchsan: the sanitizer for compiled PyTorch.

`import torchsan` imports no torch: names that need it are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from torchsan._version import __version__
from torchsan.errors import (
    FindingsError,
    InternalError,
    RecordingError,
    SessionError,
    StoreError,
    TorchsanError,
    TorchsanWarning,
    UnsupportedTorchError,
    UsageError,
)

# Not lazy: importing the module `torchsan.session` later would put the module in the place of the function.
from torchsan.session import session

if TYPE_CHECKING:
    from torchsan.aoti.build import aot_compile
    from torchsan.calls import check_call, crossref
    from torchsan.kernel_report import KernelReport, check_kernel
    from torchsan.ops import insert_memory_steps, loading_from, memory_step, memory_steps, probe, realize
    from torchsan.store import Store
    from torchsan.tensors import compare, describe, digest, summarize

# Names that need torch, by the module they are in; type checkers take them from above.
_MODULES = {
    "torchsan.aoti.build": ("aot_compile",),
    "torchsan.calls": ("check_call", "crossref"),
    "torchsan.kernel_report": ("KernelReport", "check_kernel"),
    "torchsan.ops": ("insert_memory_steps", "loading_from", "memory_step", "memory_steps", "probe", "realize"),
    "torchsan.store": ("Store",),
    "torchsan.tensors": ("compare", "describe", "digest", "summarize"),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "FindingsError",
    "InternalError",
    "KernelReport",
    "RecordingError",
    "SessionError",
    "Store",
    "StoreError",
    "TorchsanError",
    "TorchsanWarning",
    "UnsupportedTorchError",
    "UsageError",
    "__version__",
    "aot_compile",
    "check_call",
    "check_kernel",
    "compare",
    "crossref",
    "describe",
    "digest",
    "insert_memory_steps",
    "loading_from",
    "memory_step",
    "memory_steps",
    "probe",
    "realize",
    "session",
    "summarize",
]


if not TYPE_CHECKING:  # To a type checker this would make every name a name of ours.

    def __getattr__(name: str) -> object:
        if name in _LAZY:
            value: object = getattr(importlib.import_module(_LAZY[name]), name)
            globals()[name] = value
            return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: object) -> None:
    """What `%load_ext torchsan` calls: adds the magic `%%torchsan`."""
    from torchsan.notebook import load_magic

    load_magic(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
