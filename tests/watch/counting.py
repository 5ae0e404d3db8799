"""Counts the kernels that generated programs run, without torchsan: by standing in for them in their namespace."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

import torch
from torch._inductor.codecache import PyCodeCache


class Counted:
    """Something that is called, or whose attributes are: each call counts under its dotted name."""

    def __init__(self, target: Any, name: str, counts: Counter[str]) -> None:
        self._target, self._name, self._counts = target, name, counts

    def __getattr__(self, name: str) -> Any:
        return Counted(getattr(self._target, name), f"{self._name}.{name}", self._counts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._counts[self._name] += 1
        return self._target(*args, **kwargs)


class _Torch:
    """The module `torch`, with its operators counted."""

    def __init__(self, counts: Counter[str]) -> None:
        self.ops = Counted(torch.ops, "torch.ops", counts)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def generated_modules() -> list[ModuleType]:
    return [m for m in PyCodeCache.modules if hasattr(m, "Runner") or "call" in vars(m)]


def count_kernels(modules: list[ModuleType]) -> Counter[str]:
    """From now on, count what the functions of `modules` launch."""
    counts: Counter[str] = Counter()
    for module in modules:
        namespace = vars(module)
        for name, value in list(namespace.items()):
            if name.startswith("cpp_fused"):
                namespace[name] = Counted(value, name, counts)
        for name in ("extern_kernels", "aten", "inductor_ops"):
            namespace[name] = Counted(namespace[name], name, counts)
        namespace["torch"] = _Torch(counts)
    return counts
