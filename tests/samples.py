"""Records as a run would make them, for tests that need no compiler."""

from __future__ import annotations

from typing import Any

from torchsan.records import (
    Check,
    Direction,
    Finding,
    GraphId,
    GraphRecord,
    GraphRef,
    KernelKind,
    KernelRecord,
    Kind,
    Severity,
    SourceLine,
    Stage,
)

SOURCE = (SourceLine(file="model.py", line=12, code="x = self.act(x)", module="layers.0"),)


def graph(id: int = 0, direction: Direction = Direction.FORWARD, kernels: int = 2) -> GraphRecord:
    return GraphRecord(
        id=GraphId(id),
        direction=direction,
        kernels=tuple(
            KernelRecord(
                name=f"cpp_fused_relu_{n}",
                nth=n,
                kind=KernelKind.FUSED,
                reads=("arg0_1",),
                writes=(f"buf{n}",),
                nodes=("relu",),
                ops=("aten.relu.default",),
                source=SOURCE,
            )
            for n in range(kernels)
        ),
        buffers=tuple(f"buf{n}" for n in range(kernels)),
        inputs=("arg0_1",),
        artifacts={},
        compile_seconds=0.5,
    )


def finding(severity: Severity = Severity.ERROR, **changes: Any) -> Finding:
    values: dict[str, Any] = {
        "kind": Kind.WRONG_VALUES,
        "check": Check.VALUES,
        "message": "the kernel computes other values than eager",
        "stage": Stage.KERNEL,
        "graph": GraphRef(id=GraphId(0), direction=Direction.FORWARD),
        "kernel": "cpp_fused_relu_0",
        "buffer": "buf0",
        "nodes": ("relu",),
        "ops": ("aten.relu.default",),
        "source": SOURCE,
        "time": 1_750_000_000.0,
        "evidence": {"max_abs": 0.5, "first_bad": [0, 3]},
    }
    return Finding(severity=severity, **(values | changes))
