"""Recordings for the tests of the page, made without a compiler: an ordinary one, a hostile one and a big one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.samples import finding
from torchsan.recording import Program, Writer, finalize
from torchsan.records import (
    ArtifactKind,
    ArtifactRecord,
    BufferLife,
    BytesByLine,
    CallTimes,
    Check,
    Direction,
    GraphId,
    GraphNodes,
    GraphRecord,
    KernelKind,
    KernelRecord,
    Kind,
    LaunchTime,
    MemoryCall,
    NamedBytes,
    NodeRecord,
    Severity,
    SourceLine,
    Stage,
    TensorMeta,
    TensorSummary,
    Watched,
    encode,
)

FORWARD = Direction.FORWARD


def line(n: int, module: str = "layers.0", file: str = "/home/ada/project/model.py") -> SourceLine:
    return SourceLine(file=file, line=n, code=f"x = step_{n}(x)", module=module)


def short_body(name: str) -> str:
    return "out_ptr0[0] = in_ptr0[0];"


def wrapper(kernels: Iterable[str], body: Callable[[str], str] = short_body) -> str:
    """A wrapper as Inductor writes it: each kernel reads what the one before it wrote."""
    names = list(kernels)
    defined = "\n\n".join(
        f"""{name} = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void kernel(const float* in_ptr0, float* out_ptr0)
{{
    {body(name)}  // {name}
}}
''')"""
        for name in names
    )
    steps = "\n".join(
        f"        buf{n} = empty_strided_cpu((4, 8), (8, 1), torch.float32)\n"
        f"        {name}({f'buf{n - 1}' if n else 'arg0_1'}, buf{n})"
        for n, name in enumerate(names)
    )
    return f"""async_compile = AsyncCompile()

{defined}

class Runner:
    def call(self, args):
        arg0_1, = args
        args.clear()
{steps}
        return (buf{len(names) - 1}, )
"""


def fx(nodes: Iterable[str]) -> str:
    rows = "\n".join(f'        {name}: "f32[4, 8]" = torch.ops.aten.relu.default(arg0_1)' for name in nodes)
    return (
        f'class GraphModule(torch.nn.Module):\n    def forward(self, arg0_1: "f32[4, 8]"):\n{rows}\n        return ()\n'
    )


def kernel(n: int, name: str, source: tuple[SourceLine, ...]) -> KernelRecord:
    return KernelRecord(
        name=name,
        nth=n,
        kind=KernelKind.FUSED,
        reads=(f"buf{n - 1}" if n else "arg0_1",),
        writes=(f"buf{n}",),
        nodes=(f"relu_{n}",),
        ops=("aten.relu.default",),
        source=source,
    )


def watched(n: int, kernel: str, *, nan: int = 0, call: int = 0) -> Watched:
    summary = TensorSummary(
        meta=TensorMeta(dtype="float32", shape=(4, 8), stride=(8, 1)),
        count=32,
        minimum=-1.25 - n % 7,
        maximum=2.5 + n % 11,
        mean=0.123456789,
        std=1.0,
        nan=nan,
        zeros=3,
    )
    return Watched(
        graph=GraphId(0),
        direction=FORWARD,
        call=call,
        launch=n,
        site=n,
        kernel=kernel,
        phase="after",
        name=f"buf{n}",
        node=f"relu_{n}",
        summary=summary,
    )


MAP = {"rows": 4, "columns": 8, "down": 4, "across": 8, "cells": [0] * 24 + [1] * 8}
PICTURE = {
    "map": MAP,
    "samples": [{"at": [3, 0], "compiled": 1.5, "eager": 0.5, "float64": 0.5, "allowed": 1e-7}],
    "errors": {"decades": [-2, -1, 0, 1], "counts": [0, 1, 2, 0, 8], "same": 21},
}


def record_made(writer: Writer, last: str) -> None:
    """The graphs of the stages before the last, and what a cache has."""
    captured = writer.artifact("graph0-forward.1-capture.fx.py", fx(["relu_0", "relu_1"]))
    entry = writer.artifact("graph0-forward.cache.py", "# cache: FX graph cache\n")
    about: dict[str, Any] = {"graph": GraphId(0), "direction": FORWARD}
    graph = ArtifactKind.STAGE_GRAPH
    for record in (
        ArtifactRecord(kind=graph, name=captured, stage=Stage.CAPTURE, **about),
        ArtifactRecord(kind=graph, name=last, stage=Stage.POST_GRAD_PASSES, passes=("remove_noop_ops",), **about),
        ArtifactRecord(kind=ArtifactKind.CACHE_ENTRY, name=entry, facts={"key": "fabc"}, **about),
    ):
        writer.event("artifact", {"artifact": record})


def record_graph(writer: Writer, names: list[str], body: Callable[[str], str] = short_body) -> None:
    """Everything that is recorded of one graph and one call of it."""
    lines = tuple(line(10 + n % 40, f"layers.{n % 5}") for n in range(len(names)))
    artifacts = {
        "wrapper": writer.artifact("graph0-forward.wrapper.py", wrapper(names, body)),
        "graph": writer.artifact("graph0-forward.fx.py", fx(f"relu_{n}" for n in range(len(names)))),
    }
    writer.graph(
        GraphRecord(
            id=GraphId(0),
            direction=FORWARD,
            kernels=tuple(kernel(n, name, (lines[n],)) for n, name in enumerate(names)),
            buffers=tuple(f"buf{n}" for n in range(len(names))),
            inputs=("arg0_1",),
            artifacts=artifacts,
            compile_seconds=1.5,
        )
    )
    record_made(writer, artifacts["graph"])
    nodes = (
        NodeRecord(name="arg0_1", op="placeholder", type="float32[4, 8]"),
        *(
            NodeRecord(name=f"relu_{n}", op="aten.relu.default", inputs=("arg0_1",), type="float32[4, 8]", source=n)
            for n in range(len(names))
        ),
    )
    writer.event("nodes", {"nodes": GraphNodes(graph=GraphId(0), direction=FORWARD, nodes=nodes, sources=lines)})
    for seconds in (2e-3, 1e-3):
        times = tuple(
            LaunchTime(nth=n, launches=1, seconds=seconds, bytes_read=128, bytes_written=128) for n in range(len(names))
        )
        writer.event("times", {"times": CallTimes(graph=GraphId(0), direction=FORWARD, call=0, launches=times)})
    writer.checked(GraphId(0), FORWARD, [f"buf{n}" for n in range(len(names)) if n != 1])
    timeline = tuple((20 + n, 128 * (n % 9), 128 * (n % 9) + 64) for n in range(min(2000, 2 * len(names))))
    memory = MemoryCall(
        graph=GraphId(0),
        direction=FORWARD,
        call=0,
        given=128,
        allocated=1024,
        planned_peak=1024,
        peak=1088,
        saved=0,
        returned=128,
        at_peak=(NamedBytes(buffer="buf0", bytes=128),),
        by_source=(BytesByLine(file=lines[0].file, line=lines[0].line, module="layers.0", bytes=128),),
        timeline=timeline,
        lives=(BufferLife(buffer="buf0", bytes=128, born=0, freed=3, died=None, module="layers.0"),),
    )
    writer.event("memory", encode(memory))


def ordinary(folder: Path) -> Path:
    """A run with a finding of each kind that has a picture."""
    writer = Writer.create(folder, command=["model.py"])
    names = [f"cpp_fused_relu_{n}" for n in range(6)]
    record_graph(writer, names)
    for n, name in enumerate(names):
        writer.event("watched", {"watched": watched(n, name, nan=4 if n == 3 else 0)})
    evidence: dict[str, Any] = {
        "bad": 8,
        "elements": 32,
        "shape": [4, 8],
        "pattern": "all of index 3 of dimension 0",
        "first_bad": [3, 0],
        "compiled": 1.5,
        "eager": 0.5,
        "float64": 0.5,
        "allowed": 1e-7,
        "picture": PICTURE,
        "launch": 2,
        "text": ["wrong: all of index 3 of dimension 0 of float32[4, 8] (8 of 32)"],
    }
    writer.finding(
        finding(kernel=names[2], buffer="buf2", nodes=("relu_2",), source=(line(12, "layers.2"),), evidence=evidence)
    )
    diff = "--- before\n+++ after\n-a = aten.add.Tensor(x, y)\n+a = aten.sub.Tensor(x, y)"
    writer.finding(
        finding(
            check=Check.STAGES, stage=Stage.JOINT_PASSES, pass_="pass_pattern_0", kernel=None, evidence={"diff": diff}
        )
    )
    memory: dict[str, Any] = {"check": Check.MEMORY, "kernel": names[4], "buffer": "buf4"}
    writer.finding(
        finding(
            kind=Kind.LEAKED_BUFFER,
            evidence={"bytes": 128, "held by": ["global kept of model", "kept[0]", "a tensor of shape (4, 8)"]},
            **memory,
        )
    )
    writer.finding(
        finding(kind=Kind.OUT_OF_BOUNDS_WRITE, evidence={"elements": 32, "elements after the end": 14}, **memory)
    )
    difference = {"what": "output", "field": "dtype", "real": "float64", "believed": "float32", "against": "fake"}
    writer.finding(
        finding(
            Severity.WARNING,
            kind=Kind.METADATA_MISMATCH,
            check=Check.METADATA,
            graph=None,
            kernel=None,
            evidence={"differences": [difference]},
        )
    )
    writer.skipped("buf1", "its node depends on something that the kernel does not read")
    return _close(writer)


HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror=window.hacked=2>",
    "javascript:window.hacked=3",
    "\"'><svg onload=window.hacked=4>",
    "<!--<script>",
    "%DATA% %SCRIPT% %STYLE%",
    "__proto__",
    "\u2028\u2029\x00\x1b[31m\ud800",
]


def hostile(folder: Path, long: int = 10_000_000) -> Path:
    """A recording whose every text tries to be more than text; some are very long."""
    bad = " ".join(HOSTILE[:6])
    writer = Writer.create(folder, command=[bad, HOSTILE[0]])
    names = [*(text[:60] for text in HOSTILE[:7]), "A" * 1000]
    lines = tuple(SourceLine(file=text, line=n, code=text, module=text) for n, text in enumerate(HOSTILE[:7]))
    wrapper_ = writer.artifact(
        "graph0-forward.wrapper.py", wrapper(["cpp_fused_relu_0"], body=lambda _: bad) + "#" + "x" * long
    )
    graph_ = writer.artifact("graph0-forward.fx.py", fx(["relu_0"]) + "\n".join(HOSTILE[:6]) * 3)
    writer.graph(
        GraphRecord(
            id=GraphId(0),
            direction=FORWARD,
            kernels=tuple(
                KernelRecord(
                    name=name,
                    nth=n,
                    kind=KernelKind.FUSED,
                    reads=(name, "constructor"),
                    writes=(f"{name}!",),
                    nodes=tuple(names),
                    ops=tuple(names),
                    source=lines,
                )
                for n, name in enumerate(names)
            ),
            buffers=tuple(names),
            inputs=tuple(names),
            artifacts={"wrapper": wrapper_, "graph": graph_, "<b>": "../../etc/passwd", "constructor": "missing"},
        )
    )
    nodes = tuple(NodeRecord(name=n, op=n, inputs=tuple(names), type=n, source=i) for i, n in enumerate(names))
    writer.event("nodes", {"nodes": GraphNodes(graph=GraphId(0), direction=FORWARD, nodes=nodes, sources=lines)})
    picture = {"map": {**MAP, "cells": ["<b>"] * 32}, "samples": "no", "errors": {"decades": [1], "counts": []}}
    evidence = {
        bad: bad,
        "picture": picture,
        "text": [bad, "y" * long],
        "diff": "-" + bad + "\n+" + "z" * (long // 10),
        "held by": [bad],
        "deep": [[[[[[[[[[[[[[[[bad]]]]]]]]]]]]]]]],
        "huge": list(range(100_000)),
    }
    writer.finding(finding(message=bad + "m" * long, kernel=names[0], buffer=bad, pass_=bad, evidence=evidence))
    writer.finding(finding(kernel=names[2], nodes=tuple(names), ops=tuple(names), source=lines))
    for n, name in enumerate(names):
        value = watched(n, name)
        writer.event("watched", {"watched": value})
    writer.event(
        "watched", {"watched": Watched(graph=None, direction=None, call=0, launch=None, kernel=bad, phase=bad)}
    )
    writer.skipped(bad, bad + "s" * long)
    return _close(writer)


def long_body(name: str) -> str:
    """As long as a kernel that fuses a dozen operators, and no two alike."""
    dice = random.Random(name)
    operators = ("minimum", "maximum", "clamp_min", "fmadd", "exp_u20", "reciprocal", "blendv")
    return "\n".join(
        f"    auto tmp{i} = at::vec::{dice.choice(operators)}(tmp{dice.randrange(i + 1)}, "
        f"at::vec::Vectorized<float>::loadu(in_ptr{dice.randrange(9)} + "
        f"static_cast<int64_t>(x{dice.randrange(4)} + {dice.randrange(1 << 20)}L*x0)));"
        for i in range(40)
    )


def big(folder: Path, kernels: int = 2000, values: int = 20_000) -> Path:
    """As many kernels and values as a large model has, with sources as long as theirs."""
    writer = Writer.create(folder, command=["big.py"])
    names = [f"cpp_fused_add_mul_native_layer_norm_relu_view_{n}" for n in range(kernels)]
    record_graph(writer, names, long_body)
    for n in range(values):
        value = watched(n % kernels, names[n % kernels], nan=int(n % 997 == 0), call=n // kernels)
        writer.event("watched", {"watched": value})
    for n in range(20):
        writer.finding(finding(kernel=names[n], buffer=f"buf{n}", nodes=(f"relu_{n}",), evidence={"picture": PICTURE}))
    return _close(writer)


def _close(writer: Writer) -> Path:
    writer.close()
    finalize(writer.path, Program(exit=0))
    return writer.path
