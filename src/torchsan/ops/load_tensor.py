"""`torch.ops.torchsan.load_tensor`: reads a tensor from a store inside a graph."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from blake3 import blake3

from torchsan.errors import StoreError, UsageError
from torchsan.store import Store

Missing = Literal["error", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where `load_tensor` reads from, and what it may make up or convert."""

    store: Store | None
    missing: Missing
    convert_dtype: bool


class _Active(threading.local):
    def __init__(self) -> None:
        self.sources: list[_Source] = []


_active = _Active()


@contextmanager
def loading_from(
    store: Store | None = None, *, missing: Missing = "error", convert_dtype: bool = False
) -> Iterator[None]:
    """Let `load_tensor` read from `store` while the context lasts, in this thread; the innermost context counts.

    `missing="random"` makes a tensor that the store does not have, or every one when there is no store: random data
    in the size and stride that were asked for, the same for the same name. `convert_dtype` allows another dtype than
    the stored one. A thread of its own, such as one of autograd's for an accelerator, needs a context of its own.

    >>> import torch, torchsan
    >>> with torchsan.Store("memory://weights") as store, torchsan.loading_from(store):
    ...     store.put("x", torch.arange(3))
    ...     torch.ops.torchsan.load_tensor("x", [3], [1], dtype=torch.int64, device="cpu")
    tensor([0, 1, 2])
    """
    if missing not in get_args(Missing):
        raise UsageError(f"missing={missing!r} is neither 'error' nor 'random'", slug="bad-option")
    if store is None and missing == "error":
        raise UsageError("loading_from needs a store, or missing='random' to make data up", slug="bad-option")
    _active.sources.append(_Source(store=store, missing=missing, convert_dtype=convert_dtype))
    try:
        yield
    finally:
        _active.sources.pop()


@torch.library.custom_op(
    "torchsan::load_tensor",
    mutates_args=(),
    # Two loads of one name are two tensors: without this tag, passes would merge them into one.
    tags=(torch.Tag.nondeterministic_seeded,),
)
def load_tensor(
    name: str, size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the tensor `name` of the store that `loading_from` names, in a storage that aliases nothing.

    Raise StoreError unless its size, stride, dtype and device are those asked for.
    """
    if not _active.sources:
        raise StoreError(
            f"load_tensor({name!r}) has no store; call it inside `with torchsan.loading_from(store):`, in this thread",
            slug="no-store",
        )
    source = _active.sources[-1]
    if source.store is None or (source.missing == "random" and name not in source.store):
        return _random(name, size, stride, dtype, device)
    meta = source.store.describe(name)
    kind = str(dtype).removeprefix("torch.")
    asked = {"size": list(size), "stride": list(stride), "dtype": kind, "device": str(device)}
    stored = {"size": list(meta.shape), "stride": list(meta.stride), "dtype": meta.dtype, "device": meta.device}
    differ = [key for key in asked if not _agree(key, asked[key], stored[key])]
    if source.convert_dtype and "dtype" in differ:
        differ.remove("dtype")
    if differ or meta.layout != "strided":
        raise StoreError(
            f"load_tensor({name!r}): {', '.join(differ) or 'layout'} differ: asked for {_show(asked)}; "
            f"{source.store.url} has {_show(stored)}{'' if meta.layout == 'strided' else f', layout {meta.layout}'}"
            + ("; loading_from(…, convert_dtype=True) converts" if differ == ["dtype"] else ""),
            slug="tensor-mismatch",
        )
    tensor = source.store.get(name, device, fresh=True).detach()
    if tensor.dtype != dtype or tensor.storage_offset() or tensor.is_conj() or tensor.is_neg():
        # As a graph expects it: offset 0 and no bits. The whole span is copied, so that expanded strides stay.
        span = tensor.as_strided((_reach(size, stride),), (1,))
        tensor = span.resolve_conj().resolve_neg().to(dtype, copy=True).as_strided(list(size), list(stride))
    return tensor


def _agree(key: str, asked: object, stored: object) -> bool:
    if key == "device":
        # "cuda" and "cuda:0" are the same on a machine with one of them; the index matters when both name one.
        one, other = torch.device(str(asked)), torch.device(str(stored))
        return one.type == other.type and (one.index is None or other.index is None or one.index == other.index)
    return asked == stored


def _show(meta: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in meta.items())


def _reach(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many elements a storage needs for `size` and `stride`."""
    if math.prod(size) == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def _random(
    name: str, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return data that depend on `name` only, and leave torch's own generators alone."""
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(blake3(name.encode()).digest(7), "little"))
    count = _reach(size, stride)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        values = torch.randn(count, dtype=wide, generator=generator, device="cpu")
    else:
        values = torch.randint(0, 2 if dtype is torch.bool else 100, (count,), generator=generator, device="cpu")
    return values.to(dtype).to(device).as_strided(list(size), list(stride))


@load_tensor.register_fake
def _(
    name: str, size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)
