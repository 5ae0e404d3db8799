"""Calls that PyTorch refuses and compiled code makes all the same: which step lost the refusal.

Dynamo's graph may fail on copies of a call's inputs for reasons of torchsan's own. So it counts only if the user's own
Python, run beside the compiled call, raises the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

from torchsan.checks.stages.findings import Difference, difference_finding, stage_finding
from torchsan.checks.stages.localise import Search
from torchsan.records import Direction, Finding, GraphRef, Kind, Severity, Stage
from torchsan.reference.arithmetic import Unavailable

Ref = Callable[[Direction], GraphRef | None]
KernelOf = Callable[[GraphRef | None, str], str | None]


_NO_KERNEL = re.compile(r"not implemented for '(Half|BFloat16|ComplexHalf|Float8\w*|UInt16|UInt32|UInt64)'")


class Refusals:
    """What graphs refused in the compiled call under way, until it is known whether its Python does."""

    def __init__(self) -> None:
        self._reports: dict[str, Callable[[], None]] = {}

    def forget(self) -> None:
        """A call begins."""
        self._reports.clear()

    def note(self, error: str, report: Callable[[], None]) -> None:
        """Let `report` be called if the program raises this error.

        Not for what a setting of the program makes of a call that is right, and compiled code does otherwise: warnings
        that are errors, and operators without a deterministic form. Nor for a dtype that PyTorch has no kernel for,
        though it has one for others of its kind, where the compiler makes one.
        """
        setting = error.partition(":")[0].endswith("Warning") or "deterministic" in error
        if not setting and not _NO_KERNEL.search(error):
            self._reports.setdefault(error, report)

    def confirm(self, error: str) -> bool:
        """The program raises this. Report the graph that does, too; return whether there is one."""
        report = self._reports.get(error)
        if report is not None:
            report()
        return report is not None


def refusal_finding(search: Search, error: str, backend: str, ref: Ref, kernel_of: KernelOf) -> Finding:
    """Return the finding for a call that Dynamo's graph refuses with an error, and that was made."""
    made, about = search.accepting(error)
    what = f"it returns where the program raises {error}"
    difference = Difference(name="the call", kind=Kind.WRONG_VALUES, message=what)
    if made is not None:
        return stage_finding(made, [difference], ref(made.direction), about)
    graph = ref(Direction.FORWARD)
    kernel = next((k for n in about if (k := kernel_of(graph, n.name)) is not None), None)
    fields: dict[str, Any] = {"stage": Stage.KERNEL, "severity": Severity.ERROR, "graph": graph, "kernel": kernel}
    what = f"the code that {backend} generated does something else than the graph that it was given"
    return difference_finding(what, [difference], about=about, **fields)


def no_result(*_: Any) -> NoReturn:
    """Why such a finding has no exhibit."""
    raise Unavailable("eager refuses the call, so there is no result that a reproducer could compare with")
