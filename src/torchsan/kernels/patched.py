"""Functions that somebody else replaced: PyTorch's own, and the clocks that benchmarks read."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
_NAMES = ("torch", "torch.nn.functional", "torch.linalg", "torch.special", "torch.cuda", "torch.testing", "time")
_LATER = ("triton", "triton.testing", "torch.utils.benchmark", "torch.autograd.profiler")


class Names:
    """What the public names meant when this was made."""

    def __init__(self) -> None:
        self._before: dict[str, dict[str, Any]] = {}
        for name in (*_NAMES, *_LATER):
            if name in _NAMES or name in sys.modules:
                module = sys.modules.get(name)
                if module is not None:
                    self._before[name] = dict(vars(module))
        self._before["torch.Tensor"] = dict(vars(torch.Tensor))
        self._before["torch.cuda.Event"] = dict(vars(torch.cuda.Event))

    def patched(self) -> list[str]:
        """The names that mean something else now, and something that is not PyTorch's own."""
        found = []
        for owner, before in self._before.items():
            now = vars(_owner(owner))
            for name, old in before.items():
                new = now.get(name, old)
                if new is not old and callable(old) and not isinstance(old, ModuleType) and not _is_own(new):
                    found.append(f"{owner}.{name}")
        return found[:20]


def _owner(name: str) -> Any:
    if name == "torch.Tensor":
        return torch.Tensor
    return torch.cuda.Event if name == "torch.cuda.Event" else sys.modules[name]


def _is_own(value: Any) -> bool:
    code = getattr(value, "__code__", None)
    if not isinstance(code, CodeType):
        # A builtin, or an object that is called: where its class is from tells.
        module = getattr(value, "__module__", None) or type(value).__module__
        return str(module).split(".")[0] in ("torch", "triton", "torchsan", "builtins")
    return bool(code.co_filename.startswith(_OWN)) or "/triton/" in code.co_filename


def replaced_by(file: str) -> list[str]:
    """The names of PyTorch and of `time` that mean functions of this file, whoever put them there."""
    found = []
    for owner in (*_NAMES, "torch.Tensor"):
        for name, value in list(vars(_owner(owner) if owner != "time" else time).items()):
            code = getattr(value, "__code__", None)
            if isinstance(code, CodeType) and code.co_filename == file:
                found.append(f"{owner}.{name}")
    return found
