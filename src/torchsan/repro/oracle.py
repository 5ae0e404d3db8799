"""Whether a trial shows the finding that is being reproduced: the same one, never some failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchsan.checks import REGISTRY, Reproduction
from torchsan.records import Finding, Kind, Severity, Stage
from torchsan.repro.exhibits import overflow_of

_OF_VALUES = frozenset([Kind.WRONG_VALUES, Kind.NON_FINITE, Kind.NONDETERMINISTIC])
_PLACES = frozenset(["last", "first", "edges", "index"])


def find_same(wanted: Finding, found: Sequence[Finding]) -> Finding | None:
    """The wanted finding among those of a trial; None if it is not there.

    What a kernel that writes out of bounds does to its values is another thing every time: wrong, not finite, or not
    the same twice.
    """
    for f in found:
        unsteady = {f.kind, wanted.kind} <= _OF_VALUES and overflow_of(f, found) is not None
        if same_finding(wanted, replace(f, kind=wanted.kind) if unsteady else f):
            return f
    return None


def same_finding(wanted: Finding, found: Finding) -> bool:
    """Whether two runs found the same: check, kind, stage, the pass that fired, an operator in common, and the place.

    What is wrong at the end, the start or the edges of a dimension, or at one index of it, has to stay so: a kernel
    whose every element is wrong is another bug. Which elements are wrong for their values' sake may change.
    Kernels, buffers and graphs have other names in another program, and are not compared. Neither is the place, or the
    pass, of a finding from a recording that is too old to have `place`, or `pass`, in its evidence.
    """
    if (found.check, found.kind) != (wanted.check, wanted.kind) or _rank(found) < _rank(wanted):
        return False
    if wanted.stage is not None and str(wanted.stage) not in _stages(found):
        return False
    if _passes(wanted) and not _passes(wanted) & _passes(found):
        return False
    if _place(wanted) is not None and _place(found) != _place(wanted):
        return False
    by_step = REGISTRY[wanted.check].reproduction is Reproduction.COMPILED and wanted.stage is not Stage.KERNEL
    # A step that was found by what it did to the whole graph names nodes of that graph.
    return by_step or not wanted.ops or bool(set(wanted.ops) & set(found.ops))


def _place(finding: Finding) -> str | None:
    """Which end of a tensor is wrong; None if it is no particular place, or not known."""
    match finding.evidence.get("place"):
        case {"count": int(count), "of": int(size)} if 2 * count > size:
            return None  # All but a few is no end.
        case {"side": str(side)} if side in _PLACES and finding.kind is not Kind.NONDETERMINISTIC:
            return side
    return None


def _rank(finding: Finding) -> int:
    return {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}[finding.severity]


def _stages(finding: Finding) -> set[str]:
    """The metadata check counts one finding at all the stages where it sees it."""
    seen = finding.evidence.get("seen")
    return {str(finding.stage), *(seen if isinstance(seen, dict) else ())}


def _passes(finding: Finding) -> set[str]:
    """The patterns that fired in the pass to blame, or the pass itself if it has none; nothing if it is not known."""
    match finding.evidence.get("pass"):
        case {"patterns": [_, *_] as patterns}:
            return set(map(str, patterns))
        case {"name": str(name)}:
            return {name}
    return set()
