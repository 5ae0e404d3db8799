"""The tensors of a candidate: from a store, sliced, made up or computed; and the file that lies beside a script."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from torchsan.errors import RecordingError, UsageError
from torchsan.graphs.data import foreign_operators
from torchsan.graphs.rebuild import argument, dtype_named, find_operator
from torchsan.records import Exhibit, Given, decode, encode
from torchsan.store import Store

log = logging.getLogger(__name__)


def contiguous_stride(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor of this size without gaps, the last dimension closest."""
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def span(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """How many elements of memory a tensor reaches over."""
    return 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def is_uniform(memory: torch.Tensor) -> bool:
    """Whether all elements have the same bits."""
    rows = memory.contiguous().view(torch.uint8).reshape(memory.numel(), -1) if memory.numel() else memory
    return memory.numel() == 0 or bool((rows == rows[0]).all())


def default_fill(dtype: torch.dtype) -> str:
    """What stands in for values that nobody kept: an index is only safe when it is zero."""
    if dtype.is_floating_point or dtype.is_complex:
        return "randn 0"
    return "randint 0 2 0" if dtype is torch.bool else "full 0"


class Tensors:
    """The stored values of inputs, read once each. What is smaller than what was stored is its first part."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[str, torch.Tensor] = {}

    def memory(self, given: Given) -> torch.Tensor | None:
        """The elements that the input reaches over, in one dimension; of all that share memory, the whole of it.

        None if there are no values.
        """
        if given.stored is None or given.fill is not None:
            return None
        whole = self._get(given.stored)
        if given.base is not None:
            return whole
        if whole.dtype != dtype_named(given.dtype) or whole.dim() < len(given.size):
            raise UsageError(f"the stored values of {given.name} are of another shape", slug="malformed-record")
        whole = whole[(0,) * (whole.dim() - len(given.size))]
        part = whole[tuple(slice(0, n) for n in given.size)]
        if part.shape != given.size:
            raise UsageError(f"the stored values of {given.name} are too few", slug="malformed-record")
        if given.stride == part.stride():
            return part.as_strided((span(given.size, given.stride),), (1,)).clone()
        laid = torch.zeros(span(given.size, given.stride), dtype=part.dtype)
        laid.as_strided(given.size, given.stride).copy_(part)
        return laid

    def _get(self, name: str) -> torch.Tensor:
        if name not in self._read:
            self._read[name] = self._store.get(name, device="cpu").detach()
        return self._read[name]


def evaluate(folder: Path) -> None:
    """Read `exhibit.json`, run it once, eagerly, and put the value of each node into the store `tensors`.

    Write `operators.json`, the operators of other libraries that are registered, and `values.json`, which maps names
    of nodes to inputs that hold their values. What cannot be run is left out.
    """
    exhibit = decode(Exhibit, json.loads((folder / "exhibit.json").read_text()))
    registered = []
    for op in foreign_operators(exhibit):
        with suppress(RecordingError):
            find_operator(op)
            registered.append(op)
    (folder / "operators.json").write_text(json.dumps(registered))
    found: dict[str, Given] = {}
    with Store(folder / "tensors") as store, torch.no_grad():
        tensors = Tensors(store)
        values: dict[str, Any] = {g.name: _made(g, tensors) for g in exhibit.inputs}
        for node in exhibit.nodes:
            try:
                kwargs = {k: argument(v, values) for k, v in node.kwargs.items()}
                values[node.name] = find_operator(node.op)(*argument(node.args, values), **kwargs)
            except Exception:  # what cannot be run here may still be compiled
                log.debug("cannot run %s", node.name, exc_info=True)
                continue
            value = values[node.name]
            if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu":
                name = f"node/{node.name}"
                store.put(name, value.clone(memory_format=torch.preserve_format))
                found[node.name] = Given(
                    name=node.name,
                    dtype=str(value.dtype).removeprefix("torch."),
                    size=tuple(value.shape),
                    stride=value.stride(),
                    stored=name,
                )
    (folder / "values.json").write_text(json.dumps({k: encode(v) for k, v in found.items()}))


def _made(given: Given, tensors: Tensors) -> torch.Tensor:
    memory = tensors.memory(given)
    if memory is None:
        dtype = dtype_named(given.dtype)
        fill = (given.fill or default_fill(dtype)).split()[0]
        count = given.offset + span(given.size, given.stride)
        memory = torch.randn(count).to(dtype) if fill == "randn" else torch.zeros(count, dtype=dtype)
    return memory.as_strided(given.size, given.stride, given.offset if given.base is not None else 0)


def write_safetensors(file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write one-dimensional tensors in the safetensors format, which needs no package to be written or read."""
    header: dict[str, Any] = {}
    offset = 0
    for name, t in tensors.items():
        size = t.numel() * t.element_size()
        header[name] = {"dtype": _FORMAT[t.dtype], "shape": list(t.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            stream.write(bytes(t.contiguous().view(torch.uint8).numpy()) if t.numel() else b"")


_FORMAT = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
