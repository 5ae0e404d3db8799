"""From observations to findings: one for each thing that is wrong, with the smallest inputs that show it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from torchsan.errors import InternalError, TorchsanError
from torchsan.kernels.contain import Channel, Gone, adopt_orphans, end_orphans
from torchsan.kernels.inputs import Trial
from torchsan.kernels.observe import Case, Observation, Said
from torchsan.kernels.referee import Ended, Referee, Task
from torchsan.kernels.shrink import shrunk
from torchsan.kernels.suspicion import Suspicion, lost_precision
from torchsan.records import Check, Finding, Kind, Severity, SourceLine, Stage, encode

_KEPT = 24
_ORDER = (
    Kind.CHEAT,
    Kind.OUT_OF_BOUNDS_WRITE,
    Kind.OUT_OF_BOUNDS_READ,
    Kind.RACE,
    Kind.UNINITIALIZED_READ,
    Kind.UNDECLARED_MUTATION,
    Kind.UNDECLARED_ALIAS,
    Kind.NONDETERMINISTIC,
    Kind.METADATA_MISMATCH,
    Kind.PRECISION_LOSS,
    Kind.WRONG_VALUES,
)
"""Causes before what they cause."""
_REPEATED = (Kind.UNINITIALIZED_READ, Kind.RACE, Kind.OUT_OF_BOUNDS_READ)
"""What may take several runs with the same inputs to be seen."""
_SHRUNK = frozenset(_ORDER) - {Kind.CHEAT, Kind.NONDETERMINISTIC}


def referee(task: Task, channel: Channel) -> None:
    """Referee a kernel, and send what was found: a message for an error of usage, or findings and what was tried."""
    adopt_orphans()
    try:
        referee = _asking_what_is_right(task)
        try:
            findings = _findings(referee)
        finally:
            referee.stop()
            end_orphans()
        channel.send(
            {
                "findings": [encode(f) for f in findings],
                "tried": asdict(referee.tried),
                "about": referee.about,
                "operators": dict(referee.reference.operators),
            }
        )
    except TorchsanError as e:
        channel.send({"usage": str(e).rpartition(" [")[0] or str(e), "slug": e.slug})
    except Exception:  # noqa: BLE001  # ours: said in the process that the user sees
        channel.send({"usage": traceback.format_exc()[-1500:], "slug": "internal-error"})


def _asking_what_is_right(task: Task) -> Referee:
    """The referee, without a reference that was a guess if the example does not bear it out."""
    referee = Referee(task)
    nothing = task.tentative
    if nothing is None:
        return referee
    try:
        good = referee.borne_out()
    except (Gone, Ended):
        good = False
    finally:
        referee.stop()
    return referee if good else Referee(replace(task, reference=lambda _: nothing, tentative=None))


def _findings(referee: Referee) -> list[Finding]:
    kept: list[tuple[Case, Said, list[Observation]]] = []
    suspicion = Suspicion(referee, kept)
    try:
        referee.start()
        _watch_trials(referee, kept)
        seen = referee.run()
        seen += suspicion.history()
        seen += suspicion.patterns()
        seen = suspicion.precision(seen)
        seen += suspicion.library()
    except Ended:
        seen = referee.seen
        referee.tried.skipped["the other inputs"] = "the kernel took its process down too often"
    except Gone as gone:
        if "Traceback" in gone.said:
            raise InternalError(f"the kernel's process failed: {gone.said[-800:]}", slug="internal-error") from gone
        seen = referee.seen
        trial = Trial(seed=0, given=True)
        message = f"its process ends before it is called: {gone}"
        seen.append(Observation(kind=Kind.CHEAT, message=message, trial=trial, evidence={"said": gone.said[-300:]}))
    seen += suspicion.conduct() if referee.about else ()
    return list(_grouped(referee, seen))


def _watch_trials(referee: Referee, kept: list[tuple[Case, Said, list[Observation]]]) -> None:
    """Keep what the first trials gave, for those who look again."""
    original = referee.trials

    def trials() -> Iterator[tuple[Case, Said, list[Observation]]]:
        for each in original():
            if len(kept) < _KEPT:
                kept.append(each)
            yield each

    referee.trials = trials  # type: ignore[method-assign]  # one object's
    return


def _grouped(referee: Referee, seen: list[Observation]) -> Iterator[Finding]:
    for kind in _ORDER:
        own = [o for o in seen if o.kind is kind]
        errors = [o for o in own if not o.exotic and not o.note]
        warnings = [o for o in own if o.exotic and not o.note]
        notes = [o for o in own if o.note]
        if errors:
            for first in _apart(errors):
                yield _finding(referee, first, Severity.ERROR, errors)
        elif warnings:
            yield _finding(referee, warnings[0], Severity.WARNING, warnings)
        if notes and not errors:
            yield _finding(referee, notes[0], Severity.NOTE, notes)


def _apart(errors: list[Observation]) -> list[Observation]:
    """The first observation of each line or tensor, and of each message where there is neither."""
    first: dict[Any, Observation] = {}
    for o in errors:
        place: Any = (o.source[0].file, o.source[0].line) if o.source else o.buffer
        if o.kind is Kind.CHEAT:
            place = o.message
        elif o.kind in (Kind.OUT_OF_BOUNDS_READ, Kind.OUT_OF_BOUNDS_WRITE, Kind.UNINITIALIZED_READ) and not o.source:
            place = "somewhere"
        first.setdefault(place, o)
    return list(first.values())[:6]


def _finding(referee: Referee, first: Observation, severity: Severity, all_: list[Observation]) -> Finding:
    smallest = first
    if severity is Severity.ERROR and first.kind in _SHRUNK and not first.evidence.get("said"):
        smallest = _smallest(referee, first)
    about = referee.about
    trial = smallest.trial
    case = referee.case(trial)
    inputs = case.text() if case is not None else "as given"
    text = [f"inputs: {inputs}"]
    if severity is Severity.WARNING:
        text.append(f"only for inputs that the example does not imply: {_conditions(all_)}")
    source = smallest.source
    if not source and about.get("file"):
        source = (SourceLine(file=about["file"], line=about["line"]),)
    name = str(about.get("name") or "the kernel")
    message = smallest.message if smallest.message.startswith(f"{name}: ") else f"{name}: {smallest.message}"
    shown = [f"{name}: {value}" for name, value in smallest.evidence.items()]
    return Finding(
        kind=smallest.kind,
        severity=severity,
        check=Check.KERNELS,
        message=message,
        stage=Stage.KERNEL,
        kernel=about.get("name"),
        buffer=smallest.buffer,
        source=source,
        evidence={
            **encode(smallest.evidence),
            "trial": asdict(trial),
            "inputs": inputs,
            "seen": len(all_),
            "text": [*text, *shown],
        },
    )


def _conditions(observations: list[Observation]) -> str:
    found: dict[str, None] = {}
    for o in observations:
        t = o.trial
        if t.sizes is not None and 0 in t.sizes:
            found["empty"] = None
        elif t.dtype or t.layout != "as given":
            found[t.dtype or t.layout] = None
        elif t.values != "normal":
            found[t.values] = None
        else:
            found[f"sizes {', '.join(map(str, t.sizes or ()))}"] = None
    return "; ".join(list(found)[:6])


def _smallest(referee: Referee, first: Observation) -> Observation:
    """The same failure with the smallest inputs that there is time to find."""
    best = [first]

    def fails(trial: Trial) -> bool:
        if trial.exotic != first.trial.exotic:
            return False
        case = referee.case(trial)
        if case is None:
            return False
        try:
            said, found = referee.look(case)
            shown = any(o.kind is first.kind and not o.note for o in found)
            if first.kind in _REPEATED and not shown and said is not None and "raised" not in said.values:
                found += referee.repeat(case, said)
        except (Gone, Ended):
            return False
        alike = [o for o in found if _alike(o, first)]
        if alike:
            best.append(alike[0])
        return bool(alike)

    trial = shrunk(referee.example, first.trial, fails, min(4.0, referee.left() * 0.25))
    found = next((o for o in reversed(best) if o.trial == trial), first)
    return lost_precision(found) if first.kind is Kind.PRECISION_LOSS else replace(found, kind=first.kind)


def _alike(o: Observation, first: Observation) -> bool:
    values = (Kind.WRONG_VALUES, Kind.PRECISION_LOSS)
    same = o.kind is first.kind or (o.kind in values and first.kind in values)
    return same and not o.note and o.exotic == first.exotic and (not first.source or o.source == first.source)
