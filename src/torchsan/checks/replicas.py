"""Judges what ranks recorded of their copies: the first optimizer step after which they are no longer copies.

Needs no torch and no data: digests are compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchsan.errors import RecordingError
from torchsan.records import Check, Finding, Kind, ReplicaRecord, Severity, StepRecord, decode


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSteps:
    """What one rank recorded: the replicas of each optimizer, and its steps by optimizer and number."""

    replicas: Mapping[int, tuple[ReplicaRecord, ...]]
    steps: Mapping[tuple[int, int], StepRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Met:
    optimizer: int
    replicas: tuple[ReplicaRecord, ...]


def read_steps(replicas: Sequence[Any], steps: Sequence[Any]) -> RankSteps:
    """Return the bodies of a rank's events `replicas` and `replica-step` as records. Raise RecordingError."""
    met = [decode(_Met, body) for body in replicas]
    known = {m.optimizer: m.replicas for m in met}
    records = [decode(StepRecord, body.get("step")) for body in steps]
    for record in records:
        lengths = {len(d) for d in (record.before, record.gradients, record.parameters)} - {0}
        if lengths - {len(known.get(record.optimizer, ()))}:
            raise RecordingError("a step has other digests than its optimizer has replicas", slug="malformed-record")
    return RankSteps(replicas=known, steps={(r.step, r.optimizer): r for r in records})


_PHASES = (
    (
        "before",
        Kind.WRONG_VALUES,
        "parameter {name} differs before step {step}",
        "{last}it was changed outside of the optimizer",
    ),
    (
        "gradients",
        Kind.WRONG_VALUES,
        "the gradient of {name} differs in step {step}",
        "the parameters were equal: it was not reduced over all ranks, or changed after that",
    ),
    (
        "parameters",
        Kind.NONDETERMINISTIC,
        "parameter {name} differs after step {step}",
        "it was equal before, and so was its gradient: the step computed other values from the same",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """The copies of one tensor that are none."""

    name: str
    digests: Mapping[int, str]
    changed: frozenset[int] = frozenset()
    """The ranks that saw it change themselves."""

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks to blame: those that saw it change, or are not with the majority; empty if nobody can say."""
        if 0 < len(self.changed) < len(self.digests):
            return tuple(sorted(self.changed))
        counts = Counter(self.digests.values()).most_common()
        if len(counts) > 1 and counts[0][1] == counts[1][1]:
            return ()
        return tuple(sorted(rank for rank, d in self.digests.items() if d != counts[0][0]))


def drift(ranks: Mapping[int, RankSteps]) -> Finding | None:
    """Return the first difference between copies, or None; what comes after it follows from it.

    Only what was recorded is compared: a rank that was killed is compared up to that step.
    """
    for step, optimizer in sorted({key for r in ranks.values() for key in r.steps}):
        there = {rank: r for rank, r in ranks.items() if (step, optimizer) in r.steps}
        for phase, kind, what, why in _PHASES:
            found = list(_differences(there, (step, optimizer), phase))
            if found:
                earlier = [s for r in ranks.values() for s, o in r.steps if o == optimizer and s < step]
                before = max(earlier, default=None)
                return _finding(found, step, before, optimizer, phase, kind, what, why)
    return None


def _differences(ranks: Mapping[int, RankSteps], key: tuple[int, int], phase: str) -> Iterator[_Difference]:
    groups: dict[tuple[str, tuple[int, ...]], dict[int, str]] = defaultdict(dict)
    changed: set[tuple[str, int]] = set()
    for rank, steps in ranks.items():
        record = steps.steps[key]
        digests = getattr(record, phase)
        if phase == "before":
            # One that is as its rank left it is not there; its digest is what the last step left.
            last = steps.steps.get((key[0] - 1, key[1]))
            left = last.parameters if last is not None else ("",) * len(record.parameters)
            names = [replica.name for replica in steps.replicas.get(key[1], ())]
            changed |= {(name, rank) for name, digest in zip(names, digests, strict=False) if digest}
            digests = tuple(b or p for b, p in zip(digests or ("",) * len(left), left, strict=True))
        for replica, digest in zip(steps.replicas.get(key[1], ()), digests, strict=False):
            # What a step left that is not recorded, or no more, nobody knows.
            if digest or phase != "before":
                groups[replica.name, replica.ranks][rank] = digest
    for (name, _ranks), digests in groups.items():
        if len(set(digests.values())) > 1:
            yield _Difference(name=name, digests=digests, changed=frozenset(r for r in digests if (name, r) in changed))


def _finding(
    found: list[_Difference],
    step: int,
    before: int | None,
    optimizer: int,
    phase: str,
    kind: Kind,
    what: str,
    why: str,
) -> Finding:
    first = found[0]
    place = what.format(name=first.name, step=step)
    last = f"it was equal after step {before}: " if before is not None else ""
    last = last or ("" if step else "copies are equal when training begins: ")
    ranks = ", ".join(map(str, first.odd))
    who = f"on rank{'s' if len(first.odd) > 1 else ''} {ranks}" if first.odd else "between the ranks"
    text = [f"rank {rank}: {digest or 'none'}" for rank, digest in sorted(first.digests.items())]
    if len(found) > 1:
        more = ", ".join(d.name for d in found[1:9]) + (", …" if len(found) > 9 else "")
        text.append(f"in the same step also: {more}")
    return Finding(
        kind=kind,
        severity=Severity.ERROR,
        check=Check.VALUES,
        message=f"{place} {who}; {why.format(last=last)}",
        evidence={
            "text": text,
            "ranks": list(first.odd),
            "step": step,
            "optimizer": optimizer,
            "tensor": first.name,
            "what": phase,
            "also": [d.name for d in found[1:]],
            "digests": {str(rank): digest for rank, digest in sorted(first.digests.items())},
        },
    )
