"""Runs the calls of an exhibit once, eagerly, so that any of them can be replaced by the value it gives."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import torch

from torchsan.graphs.rebuild import argument, dtype_named, find_operator
from torchsan.records import Exhibit, Given, decode, encode
from torchsan.repro.render import default_fill
from torchsan.repro.values import Tensors, span
from torchsan.store import Store

log = logging.getLogger(__name__)


def evaluate(folder: Path) -> None:
    """Read `exhibit.json`, run it, put the value of each node into the store `tensors` and write `values.json`.

    The file maps names of nodes to inputs that hold their values. What cannot be run is left out.
    """
    exhibit = decode(Exhibit, json.loads((folder / "exhibit.json").read_text()))
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
