"""What a Triton kernel that the user wrote gives, in any arithmetic: its own source, run by Triton's interpreter.

A graph has an operator in the place of each launch. That can be run as the program runs it, on memory with guard zones;
or interpreted, in the program's dtypes, in float64 or with random last bits, which is what the compiled kernel is
judged by. Where the interpreter cannot run a kernel there is no reference for it, and `NoReference` says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchsan.torch_internals.operators import (
    OutsideOfTensors,
    UsersLaunch,
    run_users_kernel,
    undisturbed,
    users_launch,
)

if TYPE_CHECKING:
    from torchsan.torch_internals.triton_interpreter import Array

_MOST_PROGRAMS = 4096
"""The largest grid that is interpreted: a program takes milliseconds."""
_ZONE = 4096
_AMPLITUDE = 4.0

_dtypes: dict[tuple[int, int], dict[str, torch.dtype]] = {}
"""What each launch is given when it runs in the program's own dtypes, which is first: float64 does not show it."""


class NoReference(Exception):
    """The kernel cannot be run again; the message says why."""


def went_outside(error: BaseException) -> OutsideOfTensors | None:
    """What a kernel did outside of its tensors, if that is why there is no reference."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OutsideOfTensors):
        cause = cause.__cause__
    return cause


class Exact:
    """Nothing is rounded."""

    tf32 = False

    def __call__(self, data: Array, dtype: torch.dtype, size: Array | None = None, terms: int = 1) -> Array:
        return data


class ToType(Exact):
    """Everything is rounded to its type."""

    def __init__(self, *, tf32: bool) -> None:
        """`tf32`: products of float32 are made by tensor cores."""
        self.tf32 = tf32

    def __call__(self, data: Array, dtype: torch.dtype, size: Array | None = None, terms: int = 1) -> Array:
        flat = torch.from_numpy(np.ascontiguousarray(data))
        return flat.to(dtype).to(torch.float64).numpy().reshape(np.shape(data))


class Nudged(ToType):
    """Everything is moved by a few units in its last place, and rounded."""

    def __init__(self, seed: int, *, tf32: bool) -> None:
        super().__init__(tf32=tf32)
        self._generator = np.random.default_rng(seed)

    def _noise(self, data: Array) -> Array:
        return self._generator.uniform(-1.0, 1.0, np.shape(data))

    def __call__(self, data: Array, dtype: torch.dtype, size: Array | None = None, terms: int = 1) -> Array:
        ulps = _AMPLITUDE if terms else 1.0
        moved = data * (1 + self._noise(data) * (ulps * torch.finfo(dtype).eps))
        if size is not None:
            # Each partial sum may be rounded, in whatever order they are formed; half precision is summed in single.
            eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps * math.sqrt(terms)
            spread = np.abs(data) + size / 8 + size / math.sqrt(terms)
            moved = moved + np.where(np.isfinite(spread), spread, 0.0) * eps * self._noise(data)
        return super().__call__(moved, dtype)


class Rough(Nudged):
    """Everything is moved by as much as float32 rounds, and not rounded."""

    def __call__(self, data: Array, dtype: torch.dtype, size: Array | None = None, terms: int = 1) -> Array:
        return data * (1 + self._noise(data) * (torch.finfo(torch.float32).eps / 2))


def interpreted(call: dict[str, Any], rounding: Callable[[bool], Any]) -> dict[str, Any] | None:
    """Run the launch by Triton's interpreter; `rounding` is told whether the program runs it on a GPU.

    The tensors are overwritten, or new ones returned, as the operator in the graph does. Raise NoReference if that
    cannot be done; the tensors are then as before.
    """
    call, results = _functional(call)
    name = "it"
    try:
        from torchsan.torch_internals.triton_arithmetic import interpret

        launch = users_launch(call)
        name = launch.name
        if math.prod(launch.grid) > _MOST_PROGRAMS:
            raise NoReference(f"{name} runs {math.prod(launch.grid)} programs, which takes an interpreter too long")
        tensors = {n: a for n, a in launch.arguments.items() if isinstance(a, torch.Tensor)}
        blocks = {n: (tensors[n], shape) for n, shape in launch.descriptors.items()}
        gpu = any(t.is_cuda for t in tensors.values())
        with undisturbed():
            interpret(
                launch.function,
                launch.grid,
                {**launch.arguments, **blocks},
                _own_dtypes(launch, tensors),
                rounding(gpu),
            )
    except NoReference:
        raise
    except Exception as e:  # whatever the kernel does that the interpreter cannot
        cause = e.__cause__ or e
        text = (str(cause).splitlines() or [type(cause).__name__])[0][:160]
        raise NoReference(f"Triton's interpreter cannot run {name}: {text}") from e
    return results


def _own_dtypes(launch: UsersLaunch, tensors: dict[str, torch.Tensor]) -> dict[str, torch.dtype]:
    """The dtypes that the tensors have in the program, if a run in those has come before."""
    now = {n: t.dtype for n, t in tensors.items()}
    known = _dtypes.get(launch.site)
    wide = known is not None and all(
        d is known.get(n) or (d is torch.float64 and known[n].is_floating_point) for n, d in now.items()
    )
    if known is not None and wide:
        return known
    _dtypes[launch.site] = now
    return now


def guarded(call: dict[str, Any]) -> dict[str, Any] | None:
    """Run the launch as the program does, on copies with zones around them. Raise NoReference if it writes to those.

    Where it cannot be launched so, as by an autotuner that has nothing to time it with, its source is interpreted.
    """
    original = call
    call, results = _functional(call)
    tensors = {n: t for n, t in call["kwargs"].items() if isinstance(t, torch.Tensor)}
    copies = {s.data_ptr(): _Guarded(s) for s in (t.untyped_storage() for t in tensors.values())}
    twins = {n: copies[t.untyped_storage().data_ptr()].twin(t) for n, t in tensors.items()}
    run = {**call, "kwargs": {**call["kwargs"], **twins}}
    with undisturbed():
        try:
            run_users_kernel(run)
        except Exception:
            with suppress(NoReference):
                return interpreted(original, lambda gpu: ToType(tf32=gpu))
            raise
        if not all(copy.intact() for copy in copies.values()):
            raise NoReference(f"{users_launch(call).name} writes outside of its tensors")
        for copy in copies.values():
            copy.write_back()
    return results


def _functional(call: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The call on copies of what the operator leaves alone and returns, and these; None if it overwrites."""
    call = dict(call)
    new: Iterable[str] | None = call.pop("tensors_to_clone", None)
    if new is None:
        return call, None
    copies = {n: copied(call["kwargs"][n]) for n in new}
    return {**call, "kwargs": {**call["kwargs"], **copies}}, copies


def copied(t: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy laid out in the same way, with all that lies around it: a kernel goes by strides, and may read that."""
    whole = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.detach().untyped_storage())
    return whole.to(dtype or t.dtype, copy=True).as_strided(t.shape, t.stride(), t.storage_offset())


class _Guarded:
    """A copy of a storage between two zones."""

    def __init__(self, storage: Any) -> None:
        self._original = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        self._zone = (torch.arange(_ZONE, device=storage.device) * 37 % 251).to(torch.uint8)
        self._memory = torch.cat([self._zone, self._original, self._zone])

    def twin(self, t: torch.Tensor) -> torch.Tensor:
        """The tensor in this memory."""
        offset = _ZONE // t.element_size() + t.storage_offset()
        twin = torch.empty(0, dtype=t.dtype, device=t.device)
        return twin.set_(self._memory.untyped_storage(), offset, t.size(), t.stride())

    def intact(self) -> bool:
        """Whether nothing was written into the zones."""
        both = (self._memory[:_ZONE], self._memory[-_ZONE:])
        return all(torch.equal(zone, self._zone) for zone in both)

    def write_back(self) -> None:
        self._original.copy_(self._memory[_ZONE:-_ZONE])
