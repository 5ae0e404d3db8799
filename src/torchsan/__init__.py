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
    from torchsan.calls import check_call
    from torchsan.ops import loading_from, probe, realize
    from torchsan.store import Store
    from torchsan.tensors import compare, describe, digest, summarize

_LAZY = {
    "Store": "torchsan.store",
    "aot_compile": "torchsan.aoti.build",
    "check_call": "torchsan.calls",
    "compare": "torchsan.tensors",
    "crossref": "torchsan.checks.metadata.crossref",
    "describe": "torchsan.tensors",
    "digest": "torchsan.tensors",
    "insert_memory_steps": "torchsan.ops",
    "loading_from": "torchsan.ops",
    "memory_step": "torchsan.ops",
    "memory_steps": "torchsan.ops",
    "probe": "torchsan.ops",
    "realize": "torchsan.ops",
    "summarize": "torchsan.tensors",
}

__all__ = [
    "FindingsError",
    "InternalError",
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
    "compare",
    "describe",
    "digest",
    "loading_from",
    "probe",
    "realize",
    "session",
    "summarize",
]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        value: object = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
