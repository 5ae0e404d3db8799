"""Watches Triton's interpreter: who wrote and read which byte, in which order the programs run, what is out of bounds.

The programs of a launch run one after the other here, in an order that is chosen; on a GPU they run at the same time.
So an element that one program writes and another one touches is a race, unless both touch it by atomics, or atomics
order the two. Importing this imports triton.
"""

from __future__ import annotations

import ctypes
import linecache
import math
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
import triton
from triton.runtime import interpreter

from torchsan.kernels.arena import Block

Addresses = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

ORDERS = ("forward", "backward", "shuffled")
_SYNCHRONISING_LANES = 4
"""An atomic of this few lanes may be a lock or a flag; one of more adds numbers up."""
_NOBODY = -1
_MINE = (str(Path(triton.__file__).parent), str(Path(__file__).parent), str(Path(np.__file__).parent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something wrong with an access of a launch; `ordered` if atomics order the two programs of a race."""

    kind: str
    kernel: str
    tensor: str
    file: str
    line: int
    code: str
    text: str
    ordered: bool = False


class Shadow:
    """The bytes of one or several tensors that share memory: who touched them, and whether they hold a value."""

    def __init__(self, name: str, start: int, end: int, itemsize: int, block: Block | None) -> None:
        self.name, self.start, self.end, self.itemsize = name, start, end, itemsize
        size = end - start
        self.writer = np.full(size, _NOBODY, np.int32)
        self.reader = np.full(size, _NOBODY, np.int32)
        self.written = np.zeros(size, np.int64)
        self.read = np.zeros(size, np.int64)
        # The last reader that is not `reader`: a program that reads before it writes is its own last reader.
        self.reader_before = np.full(size, _NOBODY, np.int32)
        self.read_before = np.zeros(size, np.int64)
        self.atomic = np.zeros(size, bool)
        self.known = np.ones(size, bool)
        if block is not None and not block.initialised and not (start - block.address) % itemsize:
            offset = start - block.address
            content = block.bytes()[offset : offset + size]
            whole = content[: size // itemsize * itemsize].reshape(-1, itemsize)
            self.known[: whole.size] = np.repeat((whole != block.pattern).any(1), itemsize)

    def element(self, byte: int) -> int:
        """The number of the element that a byte belongs to."""
        return byte // self.itemsize


@dataclass(slots=True)
class _Program:
    """What the program that runs now did with atomics: the addresses, and when last."""

    number: int = 0
    atomics: dict[int, int] = field(default_factory=dict)


class LaunchWatch:
    """Watches the launches of one call."""

    def __init__(self, order: str, seed: int, blocks: Callable[[], list[Block]]) -> None:
        """`blocks` are the pieces of memory that are known."""
        self.events: dict[tuple[str, str, str, int], Event] = {}
        self.launches: list[str] = []
        self.synchronises = False
        self._order, self._seed, self._blocks = order, seed, blocks
        self._shadows: list[Shadow] = []
        self._program = _Program()
        self._atomics: dict[int, dict[int, int]] = {}
        self._sequence: list[int] = []
        self._nth = 0
        self._clock = 0
        self._kernel = ""

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Watch every launch in the block."""
        builder, grid = interpreter.InterpreterBuilder, interpreter.GridExecutor
        changes: list[tuple[Any, str, Any]] = [
            (builder, "create_masked_load", self._load(builder.create_masked_load)),
            (builder, "create_masked_store", self._store(builder.create_masked_store)),
            (builder, "create_atomic_rmw", self._rmw(builder.create_atomic_rmw)),
            (builder, "create_atomic_cas", self._cas(builder.create_atomic_cas)),
            (builder, "set_grid_dim", self._grid(builder.set_grid_dim)),
            (builder, "set_grid_idx", self._index(builder.set_grid_idx)),
            (grid, "_init_args_hst", self._begin(grid._init_args_hst)),
        ]
        with ExitStack() as stack:
            for owner, name, new in changes:
                stack.enter_context(patch.object(owner, name, new))
            yield

    # The interpreter's hooks

    def _begin(self, original: Any) -> Any:
        def begin(executor: Any, args: Any, kwargs: Any) -> Any:
            hosted = original(executor, args, kwargs)
            self._kernel = getattr(executor.fn, "__name__", "kernel")
            named = {**dict(zip(executor.arg_names, hosted[0], strict=False)), **hosted[1]}
            self._shadows = _shadows(named, self._blocks())
            self._atomics, self._program = {}, _Program()
            return hosted

        return begin

    def _grid(self, original: Any) -> Any:
        def dimensions(builder: Any, *grid: int) -> None:
            original(builder, *grid)
            self.launches.append(f"{self._kernel}[{', '.join(map(str, grid))}]")
            self._sequence = list(range(math.prod(grid)))
            if self._order == "backward":
                self._sequence.reverse()
            elif self._order == "shuffled":
                random.Random(self._seed).shuffle(self._sequence)
            self._nth, self._dimensions = 0, grid

        return dimensions

    def _index(self, original: Any) -> Any:
        def index(builder: Any, *_: int) -> None:
            number = self._sequence[self._nth]
            self._nth += 1
            self._program = _Program(number)
            self._atomics[number] = self._program.atomics
            original(builder, *(int(i) for i in np.unravel_index(number, self._dimensions)))

        return index

    def _load(self, original: Any) -> Any:
        def load(builder: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
            return original(builder, pointers, _handle(self._access(pointers, mask.data, "load")), other, *rest)

        return load

    def _store(self, original: Any) -> Any:
        def store(builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            safe = self._access(pointers, mask.data, "store", value.data)
            return original(builder, pointers, value, _handle(safe), *rest)

        return store

    def _rmw(self, original: Any) -> Any:
        def rmw(builder: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self.synchronises |= "XCHG" in str(operation).upper()
            safe = self._access(pointers, mask.data, "atomic")
            return original(builder, operation, pointers, value, _handle(safe), *rest)

        return rmw

    def _cas(self, original: Any) -> Any:
        def cas(builder: Any, pointer: Any, compared: Any, value: Any, *rest: Any) -> Any:
            self.synchronises = True
            safe = self._access(pointer, np.ones(np.shape(pointer.data), bool), "atomic")
            if not safe.all():
                raise IndexError("an atomic out of bounds")
            return original(builder, pointer, compared, value, *rest)

        return cas

    # What an access means

    def _access(self, pointers: Any, mask: Any, kind: str, value: Any = None) -> Mask:
        """Look at one access; return which of its lanes are safe to run."""
        self._clock += 1
        width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        shape = np.shape(pointers.data)
        at = np.asarray(pointers.data).astype(np.int64).ravel()
        live = np.broadcast_to(np.asarray(mask, bool), shape).ravel()
        values = None if value is None else np.ascontiguousarray(np.broadcast_to(value, shape)).reshape(-1)
        safe = np.zeros(at.shape, bool)
        for shadow in self._shadows:
            inside = live & (at >= shadow.start) & (at + width <= shadow.end)
            if inside.any():
                safe |= inside
                self._inside(shadow, at[inside] - shadow.start, width, kind, None if values is None else values[inside])
        outside = live & ~safe
        if outside.any():
            outside &= ~self._elsewhere(at, width)
            safe |= live & ~outside
            if outside.any():
                self._out_of_bounds(at, outside, kind)
        return safe.reshape(shape)

    def _elsewhere(self, at: Addresses, width: int) -> Mask:
        """Which addresses lie in memory that is known but was not given to the launch: a table of pointers, say."""
        found = np.zeros(at.shape, bool)
        for block in self._blocks():
            found |= (at >= block.address) & (at + width <= block.address + block.size)
        return found

    def _inside(self, shadow: Shadow, at: Addresses, width: int, kind: str, values: Any) -> None:
        me, now = self._program.number, self._clock
        places = (at[:, None] + np.arange(width)).ravel()
        if kind == "store":
            self._lanes(shadow, at, values)
        writer, reader = shadow.writer[places], shadow.reader[places]
        others = (writer != _NOBODY) & (writer != me)
        if kind == "atomic":
            others &= ~shadow.atomic[places]
            if len(at) <= _SYNCHRONISING_LANES:
                self._program.atomics.update(dict.fromkeys((at + shadow.start).tolist(), now))
        elif kind == "load" and bool((others & shadow.atomic[places]).any()):
            self.synchronises = True
        if kind == "store" and others.any() and values is not None:
            others &= ~_already_there(shadow, places, values)
        if others.any():
            i = int(np.argmax(others))
            self._race(shadow, int(places[i]), int(writer[i]), int(shadow.written[places[i]]), f"{kind}s what", "wrote")
        if kind != "load":
            mine = reader == me
            when = np.where(mine, shadow.read_before[places], shadow.read[places])
            reader = np.where(mine, shadow.reader_before[places], reader)
            read = reader != _NOBODY
            if kind == "store" and values is not None:
                read &= ~_already_there(shadow, places, values)
            if kind == "atomic":
                read &= ~shadow.atomic[places]
            if read.any():
                i = int(np.argmax(read))
                self._race(shadow, int(places[i]), int(reader[i]), int(when[i]), f"{kind}s what", "read")
        if kind != "store" and not shadow.known[places].all():
            element = shadow.element(int(places[np.argmin(shadow.known[places])]))
            self._report("uninitialized-read", shadow, f"element {element} was never written before it is read")
        if kind == "load":
            moved = places[(reader != me) & (reader != _NOBODY)]
            shadow.reader_before[moved], shadow.read_before[moved] = shadow.reader[moved], shadow.read[moved]
            shadow.reader[places], shadow.read[places] = me, now
        else:
            shadow.writer[places], shadow.written[places] = me, now
            shadow.atomic[places], shadow.known[places] = kind == "atomic", True

    def _lanes(self, shadow: Shadow, at: Addresses, values: Any) -> None:
        """Lanes of one store that write different values to one element: which of them wins is not defined."""
        order = np.argsort(at, kind="stable")
        twice = at[order][1:] == at[order][:-1]
        if values is None or not twice.any():
            return
        sorted_values = values[order]
        first, second = sorted_values[:-1][twice], sorted_values[1:][twice]
        with np.errstate(invalid="ignore"):
            differ = (first != second) & ~((first != first) & (second != second))
        if differ.any():
            element = shadow.element(int(at[order][1:][twice][np.argmax(differ)]))
            text = f"lanes of program {self._program.number} store different values to element {element}"
            self._report("race", shadow, text)

    def _race(self, shadow: Shadow, byte: int, other: int, when: int, does: str, did: str) -> None:
        me = self._program.number
        theirs, mine = self._atomics.get(other, {}), self._program.atomics
        ordered = any(when < t < mine.get(address, 0) for address, t in theirs.items())
        why = "only atomics order them" if ordered else "nothing orders them"
        text = f"program {me} {does} program {other} {did}, element {shadow.element(byte)}, and {why}"
        self._report("race", shadow, text, ordered=ordered)

    def _out_of_bounds(self, at: Addresses, outside: Mask, kind: str) -> None:
        address = int(at[np.flatnonzero(outside)[0]])
        what = "read" if kind == "load" else "write"
        lanes = f"{int(outside.sum())} of {len(at)} lanes"
        near = min(self._shadows, key=lambda s: min(abs(address - s.start), abs(address - s.end)), default=None)
        if near is None:
            near = Shadow("an empty tensor", address, address, 1, None)
        element, count = (address - near.start) // near.itemsize, (near.end - near.start) // near.itemsize
        text = f"program {self._program.number} {what}s element {element} of {near.name}, which has {count} ({lanes})"
        self._report(f"out-of-bounds-{what}", near, text)

    def _report(self, kind: str, shadow: Shadow, text: str, *, ordered: bool = False) -> None:
        file, line = _place()
        key = (f"{kind}{ordered}", shadow.name, file, line)
        if key not in self.events:
            self.events[key] = Event(
                kind=kind,
                kernel=self._kernel,
                tensor=shadow.name,
                file=file,
                line=line,
                code=linecache.getline(file, line).strip(),
                text=text,
                ordered=ordered,
            )


def _already_there(shadow: Shadow, places: Addresses, values: Any) -> Mask:
    """Which bytes of a store the memory holds already: a write that changes nothing races with nobody."""
    memory = np.ctypeslib.as_array((ctypes.c_ubyte * (shadow.end - shadow.start)).from_address(shadow.start))
    stored = np.ascontiguousarray(values).view(np.uint8).ravel()
    if len(stored) != len(places):
        return np.zeros(places.shape, bool)
    return np.asarray(memory[places] == stored)


def _handle(mask: Mask) -> Any:
    return interpreter.TensorHandle(mask, interpreter.tl.int1)


def _place() -> tuple[str, int]:
    """The innermost line that is neither Triton's nor ours."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_MINE) and not name.startswith("<frozen") and "unittest" not in name:
            return name, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, tuple | list):
        for i, item in enumerate(value):
            yield from _tensors(f"{name}[{i}]", item)
    elif isinstance(getattr(value, "base", None), torch.Tensor):
        yield name, value.base  # A tensor descriptor, or a tensor under another dtype.


def _shadows(named: dict[str, Any], blocks: list[Block]) -> list[Shadow]:
    """One shadow for each stretch of memory that the arguments span."""
    spans: list[tuple[int, int, str, int]] = []
    for name, value in named.items():
        for label, t in _tensors(name, value):
            if t.numel():
                last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
                start, width = t.data_ptr(), t.element_size()
                spans.append((start, start + (last + 1) * width, label, width))
    merged: list[tuple[int, int, str, int]] = []
    for span in sorted(spans):
        if merged and span[0] < merged[-1][1]:
            start, end, label, width = merged[-1]
            merged[-1] = (start, max(end, span[1]), label if label == span[2] else f"{label}, {span[2]}", width)
        else:
            merged.append(span)
    found = []
    for start, end, label, width in merged:
        own = next((b for b in blocks if b.address <= start and end <= b.address + b.size), None)
        found.append(Shadow(label, start, end, width, own))
    return found
