"""Findings and exhibits made by hand."""

from __future__ import annotations

from typing import Any

from torchsan.records import Check, Exhibit, Finding, Given, Kind, OperatorCall, Severity, Stage


def finding(**fields: Any) -> Finding:
    given: dict[str, Any] = {
        "id": "F1",
        "kind": Kind.WRONG_VALUES,
        "severity": Severity.ERROR,
        "check": Check.VALUES,
        "stage": Stage.KERNEL,
        "ops": ("aten.sin.default",),
        "message": "wrong",
    }
    return Finding(**(given | fields))


def call(name: str, op: str, *args: Any, **kwargs: Any) -> OperatorCall:
    return OperatorCall(name=name, op=op, args=args, kwargs=kwargs)


def node(name: str) -> dict[str, str]:
    return {"node": name}


def given(name: str, *size: int, **fields: Any) -> Given:
    stride, step = [], 1
    for n in reversed(size):
        stride.append(step)
        step *= n
    fields = {"dtype": "float32", "stride": tuple(reversed(stride))} | fields
    return Given(name=name, size=size, **fields)


def exhibit(**fields: Any) -> Exhibit:
    """x → sin → (+ 1) → (* y)."""
    made: dict[str, Any] = {
        "finding": "F1",
        "check": Check.VALUES,
        "nodes": (
            call("sin", "aten.sin.default", node("x")),
            call("add", "aten.add.Tensor", node("sin"), 1),
            call("mul", "aten.mul.Tensor", node("add"), node("y")),
        ),
        "inputs": (given("x", 4, 8), given("y", 4, 8)),
        "outputs": ("mul",),
    }
    return Exhibit(**(made | fields))
