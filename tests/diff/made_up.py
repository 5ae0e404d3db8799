"""Recordings of a small program made without a compiler: its graph as text, and the values that its kernels left."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchsan.options import Options, Watch
from torchsan.recording import Program, Reader, Writer, finalize
from torchsan.records import (
    Direction,
    GraphId,
    GraphNodes,
    GraphRecord,
    KernelKind,
    KernelRecord,
    NodeRecord,
    Watched,
)
from torchsan.watch.output import WatchOutput

TEXT = """\
class <lambda>(torch.nn.Module):
    def forward(self, arg0_1: "f32[4, 8]", arg1_1: "f32[8, 8]"):
        # File: /home/user/model.py:7 in forward, code: h = (x @ w) * scale
        mm: "f32[4, 8]" = torch.ops.aten.mm.default(arg0_1, arg1_1);  arg0_1 = arg1_1 = None
        mul: "f32[4, 8]" = torch.ops.aten.mul.Tensor(mm, 0.5);  mm = None

        # File: /home/user/model.py:8 in forward, code: h = h.relu()
        relu: "f32[4, 8]" = torch.ops.aten.relu.default(mul);  mul = None

        # File: /home/user/model.py:9 in forward, code: return h.sum(-1)
        sum_1: "f32[4]" = torch.ops.aten.sum.dim_IntList(relu, [-1]);  relu = None
        return (sum_1,)
"""

Values = dict[str, Any]


def inputs(seed: int = 0) -> Values:
    """Whole numbers of a few bits, so that products and sums are exact, on every machine and in every order."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "arg0_1": torch.randint(-8, 9, (4, 8), generator=generator).float(),
        "arg1_1": torch.randint(-8, 9, (8, 8), generator=generator).float(),
    }


def run(given: Values, scale: float = 0.5, act: Callable[[torch.Tensor], torch.Tensor] = torch.relu) -> Values:
    """What the program of TEXT computes."""
    mm = given["arg0_1"] @ given["arg1_1"]
    relu = act(mm * scale)
    return {**given, "mm": mm, "relu": relu, "sum_1": relu.sum(-1)}


def graph(nodes: Sequence[str], given: Sequence[str], id_: int = 0, kernels: str = "cpp_fused_{}_{}") -> GraphRecord:
    return GraphRecord(
        id=GraphId(id_),
        direction=Direction.INFERENCE,
        kernels=tuple(
            KernelRecord(name=kernels.format(name, n), nth=n, kind=KernelKind.FUSED, writes=(f"buf{n}",), nodes=(name,))
            for n, name in enumerate(nodes)
        ),
        buffers=tuple(f"buf{n}" for n in range(len(nodes))),
        inputs=tuple(given),
        artifacts={},
    )


def record(
    path: Path,
    calls: Sequence[Values],
    *,
    text: str | None = TEXT,
    watch: Watch = Watch.SAVE,
    probes: Mapping[str, torch.Tensor] | None = None,
    program: Program | None = None,
    closed: bool = True,
    command: Sequence[str] = ("model.py",),
    memory: int = 1024,
    called: Mapping[str, str] | None = None,
) -> Reader:
    """Write a recording in which each node of `calls` was left by a kernel of its own, and read it again."""
    writer = Writer.create(path, command=command, options=Options(watch=watch))
    first: Values = calls[0] if calls else {}
    given = [name for name in first if name.startswith("arg")]
    nodes = [name for name in first if name not in given]
    if calls:
        made = graph(nodes, given)
        artifacts = {"graph": writer.artifact("graph0-inference.fx.py", text)} if text is not None else {}
        writer.graph(
            GraphRecord(
                id=made.id,
                direction=made.direction,
                kernels=made.kernels,
                buffers=made.buffers,
                inputs=made.inputs,
                artifacts=artifacts,
            )
        )
        inputs_ = tuple(NodeRecord(name=n, op="placeholder", called=c) for n, c in (called or {}).items())
        if inputs_:
            writer.event("nodes", {"nodes": GraphNodes(graph=made.id, direction=made.direction, nodes=inputs_)})
    sink = WatchOutput(writer, Options(watch=watch))
    for call, values in enumerate(calls if watch is not Watch.OFF else ()):
        for name in given:
            sink.value(_watched(call, None, "(inputs)", "before", name), values[name])
        for n, name in enumerate(nodes):
            sink.value(_watched(call, n, f"cpp_fused_{name}_{n}", "after", f"buf{n}", name), values[name])
        figures = dict.fromkeys(("given", "allocated", "planned_peak", "peak", "saved", "returned"), memory)
        place = {"graph": 0, "direction": "inference", "call": call, "by_source": []}
        writer.event("memory", {**place, **figures})
    for name, value in (probes or {}).items():
        sink.value(
            Watched(graph=None, direction=None, call=0, launch=None, kernel="(probe)", phase="after", name=name), value
        )
    sink.close()
    if closed:
        writer.close()
    else:
        writer._drop()
    finalize(writer.path, Program(exit=0) if program is None else program)
    fix_manifest(path)
    return Reader(path)


def _watched(call: int, launch: int | None, kernel: str, phase: str, name: str, node: str | None = None) -> Watched:
    return Watched(
        graph=GraphId(0),
        direction=Direction.INFERENCE,
        call=call,
        launch=launch,
        site=launch,
        kernel=kernel,
        phase=phase,
        name=name,
        node=node,
    )


def fix_manifest(path: Path) -> None:
    """Replace what depends on the machine and the time."""
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest |= {
        "torch": "2.13.0+cpu",
        "torchsan": "0.1.0",
        "python": "3.12.0",
        "platform": "Linux",
        "cwd": "/home/user",
        "started": "2026-01-31T12:00:00.000+00:00",
        "pid": 1,
        "environment": {},
    }
    file.write_text(json.dumps(manifest))
