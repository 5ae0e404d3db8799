"""Results that nobody ran."""

from __future__ import annotations

from typing import Any

from torchsan.records import Check, Finding, Kind, Severity, Stage
from torchsan.sweep.programs import Program, address
from torchsan.sweep.results import Outcome, Result

KEY = "key"


def finding(op: str = "aten.amin.default", dtype: str = "uint8", **changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "kind": Kind.WRONG_VALUES,
        "severity": Severity.ERROR,
        "check": Check.VALUES,
        "stage": Stage.KERNEL,
        "message": f"{op} has wrong values",
        "ops": (op,),
        "evidence": {"dtype": dtype},
    }
    return Finding(**(fields | changes))


def result(name: str, *findings: Finding, outcome: Outcome | None = None, text: str = "", **changes: Any) -> Result:
    program = Program(name=name, text=text or f"# {name}\n")
    ended = outcome or (Outcome.FINDINGS if findings else Outcome.CLEAN)
    return Result(
        address=address(program, KEY), program=program, outcome=ended, seconds=0.5, findings=findings, **changes
    )
