"""The inputs of one call: what they look like, and copies of them that overlap as they do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torchsan.reference.arithmetic import Unavailable, wide_dtype

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def unsupported(args: Iterable[Any]) -> str | None:
    """Why a call with these arguments cannot be run again; None if it can."""
    for arg in args:
        if isinstance(arg, torch.Tensor):
            if type(arg) not in _PLAIN and not isinstance(arg, torch.nn.Buffer):
                return f"an input is a {type(arg).__name__}, a tensor subclass"
            if arg.layout is not torch.strided or arg.is_quantized or arg.device.type == "meta":
                return f"an input is {arg.layout} on {arg.device}"
        elif not isinstance(arg, int | float | bool | complex | str | None):
            return f"an input is a {type(arg).__name__}"
    return None


def fingerprint(args: Sequence[Any]) -> tuple[Any, ...]:
    """What a graph may have been specialised on without a guard: layouts, dtypes, and which inputs share memory."""
    found: list[Any] = []
    storages: dict[int, tuple[int, Any]] = {}
    for i, arg in enumerate(args):
        if type(arg) is torch.nn.Parameter or not isinstance(arg, torch.Tensor):
            continue
        found.append((arg.shape, arg.stride(), arg.dtype, arg.requires_grad))
        storage = arg.untyped_storage().data_ptr()
        if storage in storages:
            first, offset = storages[storage]
            found.append((first, i, arg.storage_offset() - offset))
        else:
            storages[storage] = (i, arg.storage_offset())
    return tuple(found)


class Inputs:
    """The arguments as they are now; `copies` gives them anew, as often as one likes, also after they have changed.

    Parameters that the graph does not write are held, not copied. Two inputs that overlap still do.
    """

    def __init__(self, args: Sequence[Any], mutated: frozenset[int]) -> None:
        self._args = [self._held(a, i in mutated) for i, a in enumerate(args)]
        groups: dict[int, list[int]] = {}
        for i, arg in enumerate(args):
            if isinstance(arg, torch.Tensor) and arg.numel():
                groups.setdefault(arg.untyped_storage().data_ptr(), []).append(i)
        self._groups = [g for g in groups.values() if len(g) > 1 and not self._independent([args[i] for i in g])]
        self._leaf = [isinstance(a, torch.Tensor) and a.is_leaf for a in args]
        self._requires_grad = [isinstance(a, torch.Tensor) and a.requires_grad for a in args]
        self._mutated = mutated
        self._bases = {i: storage for g in self._groups for storage in [self._storage(args[g[0]])] for i in g}
        self._geometry = [
            (a.size(), a.stride(), a.storage_offset(), a._is_view()) if isinstance(a, torch.Tensor) else None
            for a in args
        ]
        self._versions = [a._version if self._shares(a, i) else None for i, a in enumerate(args)]

    def stale(self) -> bool:
        """Whether an input that is held, not copied, was written since."""
        return any(v is not None and a._version != v for a, v in zip(self._args, self._versions, strict=True))

    def copies(self, *, wide: bool) -> tuple[list[Any], list[torch.Tensor | None]]:
        """New arguments, in float64 if `wide`, and for each the leaf that its gradient is taken of.

        Raise Unavailable if overlapping inputs have several dtypes.
        """
        result: list[Any] = list(self._args)
        leaves: list[torch.Tensor | None] = [None] * len(result)
        storages: dict[int, torch.Tensor] = {}
        for i, arg in enumerate(self._args):
            if not isinstance(arg, torch.Tensor):
                continue
            if i in self._bases:
                result[i] = leaf = self._view(i, arg, storages, wide)
            else:
                result[i], leaf = self._alone(i, arg, wide)
            leaves[i] = leaf if leaf.requires_grad and leaf.is_leaf else None
        return result, leaves

    def writable(self, i: int) -> bool:
        """Whether the copies of this input are its own."""
        return i in self._mutated or not isinstance(self._args[i], torch.nn.Parameter)

    def _held(self, arg: Any, mutated: bool) -> Any:
        if not isinstance(arg, torch.Tensor) or (isinstance(arg, torch.nn.Parameter) and not mutated):
            return arg
        return _copy(arg, arg.dtype)

    def _shares(self, arg: Any, i: int) -> bool:
        return isinstance(arg, torch.nn.Parameter) and i not in self._mutated and not arg.is_inference()

    @staticmethod
    def _independent(group: list[torch.Tensor]) -> bool:
        """The same parameter twice, which nobody writes, is no overlap worth keeping."""
        return all(isinstance(t, torch.nn.Parameter) for t in group)

    @staticmethod
    def _storage(t: torch.Tensor) -> torch.Tensor:
        whole = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.detach().untyped_storage())
        return whole.clone()

    def _view(self, i: int, arg: torch.Tensor, storages: dict[int, torch.Tensor], wide: bool) -> torch.Tensor:
        base = self._bases[i]
        if arg.dtype != base.dtype:
            raise Unavailable("inputs of several dtypes share memory")
        key = id(base)
        if key not in storages:
            storages[key] = base.to(wide_dtype(base.dtype) if wide else base.dtype, copy=True)
        geometry = self._geometry[i]
        assert geometry is not None
        size, stride, offset, is_view = geometry
        if is_view:
            view = storages[key].as_strided(size, stride, offset)
        else:
            view = torch.empty(0, dtype=storages[key].dtype).set_(storages[key].untyped_storage(), offset, size, stride)
        return view.requires_grad_() if self._requires_grad[i] and view.is_leaf else view

    def _alone(self, i: int, arg: torch.Tensor, wide: bool) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = wide_dtype(arg.dtype) if wide else arg.dtype
        copy = _copy(arg, dtype) if self.writable(i) or dtype is not arg.dtype else arg.detach()
        if self._requires_grad[i]:
            leaf = copy.requires_grad_()
            # What the program changes in place, it could: it was no leaf.
            return (leaf.clone() if not self._leaf[i] and i in self._mutated else leaf), leaf
        return copy, copy


def share_memory(a: torch.Tensor, b: Any) -> bool:
    """Whether two tensors that are not empty lie in one storage; False if `b` is none."""
    if not isinstance(b, torch.Tensor) or not a.numel() or not b.numel():
        return False
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _copy(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy with the same strides; with the same overlap inside, too."""
    t = t.detach()
    if t.numel() == 0:
        return torch.empty_strided(t.size(), t.stride(), dtype=dtype, device=t.device)
    span = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    if span == t.numel():
        return t.to(dtype, copy=True, memory_format=torch.preserve_format)
    return t.as_strided((span,), (1,)).to(dtype, copy=True).as_strided(t.size(), t.stride())
