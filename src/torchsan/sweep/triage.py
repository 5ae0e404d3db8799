"""From the results of programs to finds: the same bug once, and whether it is known, new or flaky.

Importing it imports no torch.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any

from torchsan.errors import UsageError
from torchsan.records import Finding, Severity, Stage, decode
from torchsan.records.finding import cause
from torchsan.sweep.results import BROKEN, Outcome, Result


class State(StrEnum):
    """What is to be thought of a find."""

    NEW = "new"
    KNOWN = "known"
    """It is in the list of known bugs that comes with torchsan."""
    BASELINE = "baseline"
    """It is in the report that `--baseline` names."""
    FLAKY = "flaky"
    """It did not come again in a process of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Find:
    """One thing that is wrong, in one program or in many.

    `kind` is that of its finding, or the outcome of programs that break. `finding` is that of the smallest program,
    None where the program broke; `example` is that program's result.
    """

    fingerprint: str
    kind: str
    severity: Severity
    message: str
    dtype: str | None
    finding: Finding | None
    example: Result
    programs: tuple[str, ...]
    state: State = State.NEW
    reason: str = ""
    """Why it is known; or what verified it, and where its reproducer is."""
    reproducer: str | None = None

    @property
    def counts(self) -> bool:
        """Whether it decides the exit status: an error that is new, also one that does not come every time."""
        return self.severity is Severity.ERROR and self.state in (State.NEW, State.FLAKY)


def finds_of(results: Iterable[Result]) -> list[Find]:
    """Return what the results have found, each once: errors first, then what the most programs have.

    Of equals an operator that is wrong by itself comes first: what was compiled with it may be wrong for that reason.
    """
    groups: dict[str, list[tuple[Result, Finding | None]]] = defaultdict(list)
    for result in results:
        for finding in result.findings:
            groups[cause(finding)].append((result, finding))
        if result.outcome in BROKEN:
            groups[_print_of_broken(result)].append((result, None))
    found = [_find(name, seen) for name, seen in groups.items()]

    def order(find: Find) -> tuple[Any, ...]:
        by_itself = find.finding is not None and find.finding.stage is Stage.EAGER
        return (-find.severity.rank, -len(find.programs), not by_itself, find.fingerprint)

    return sorted(found, key=order)


def prints_of(result: Result) -> set[str]:
    """Return the fingerprints of all that one result has found."""
    return {find.fingerprint for find in finds_of([result])}


def _find(name: str, seen: list[tuple[Result, Finding | None]]) -> Find:
    example, finding = min(seen, key=lambda pair: (len(pair[0].program.text), pair[0].address))
    severities = [f.severity for _, f in seen if f is not None]
    dtype = finding.evidence.get("dtype") if finding is not None else None
    return Find(
        fingerprint=name,
        kind=str(finding.kind if finding is not None else example.outcome),
        severity=max(severities, key=lambda s: s.rank) if severities else _severity(example),
        message=finding.message if finding is not None else _said(example),
        dtype=dtype if isinstance(dtype, str) else None,
        finding=finding,
        example=example,
        programs=tuple(dict.fromkeys(result.program.name for result, _ in seen)),
    )


def _severity(broken: Result) -> Severity:
    """A program that is as slow eagerly may just be slow."""
    return Severity.WARNING if broken.outcome is Outcome.HUNG and broken.eagerly else Severity.ERROR


def _said(result: Result) -> str:
    """What a program that broke said last, or how it ended."""
    from torchsan.records.program import signal_name

    lines = [line.strip() for line in result.output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Failed|Unsupported)\b", line)]
    last = errors[-1] if errors else (lines[-1] if lines else "")
    if got := re.search(r"\): (got \w+\(.*)", result.output):  # So Dynamo tells what an operator's metadata raised.
        last = got[1].partition("\\n")[0]
    match result.outcome:
        case Outcome.HUNG:
            how = "does not end in time"
        case Outcome.CRASHED:
            how = f"dies of {signal_name(result.signal or 0)}"
        case _:
            return f"compiled, it fails; eagerly it does not: {last}"[:500]
    return f"it {how}, compiled and eagerly" if result.eagerly else f"compiled, it {how}; eagerly it does not"


def _print_of_broken(result: Result) -> str:
    """Two programs break alike if they end in the same way and say the same but for names and numbers."""
    said = re.sub(r"\d+|0x[0-9a-f]+|'[^']*'|\"[^\"]*\"", "#", _said(result))
    operator = "" if result.outcome is Outcome.FAILED else " ".join(sorted(result.covers))
    return hashlib.sha256(f"{result.outcome} {result.signal} {said} {operator}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A bug that is known: every field but None has to fit. `op`, `program` and `message` are globs.

    `torch` is the first release that no longer has it.
    """

    reason: str
    kind: str | None = None
    stage: str | None = None
    op: str | None = None
    dtype: str | None = None
    program: str | None = None
    message: str | None = None
    torch: str | None = None

    def fits(self, find: Find, release: tuple[int, ...]) -> bool:
        """Return whether a find, in this release of PyTorch, is the bug."""
        finding = find.finding
        ops = finding.ops if finding is not None else ()
        stage = finding.stage if finding is not None else None
        return (
            self.kind in (None, find.kind)
            and self.stage in (None, stage)
            and self.dtype in (None, find.dtype)
            and (self.op is None or any(fnmatch.fnmatchcase(op, self.op) for op in ops))
            and (self.program is None or all(fnmatch.fnmatchcase(name, self.program) for name in find.programs))
            and (self.message is None or fnmatch.fnmatchcase(find.message, self.message))
            and (self.torch is None or release < _release(self.torch))
        )


def known_bugs() -> tuple[Known, ...]:
    """Return the list that comes with torchsan: what docs/found-bugs.md tells, for programs."""
    text = resources.files("torchsan.sweep").joinpath("known.json").read_text(encoding="utf-8")
    return tuple(decode(Known, entry) for entry in json.loads(text))


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:2])


def read_baseline(file: str) -> frozenset[str]:
    """Return the fingerprints of an earlier report. Raise UsageError if it is none."""
    try:
        report: Any = json.loads(Path(file).read_text(encoding="utf-8"))
        return frozenset(str(find["fingerprint"]) for find in report["findings"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise UsageError(
            f"--baseline {file} is no report that `torchsan sweep --json` wrote: {type(e).__name__}: {e}",
            slug="bad-option",
        ) from e


def sorted_out(finds: Iterable[Find], baseline: frozenset[str], torch: str) -> Iterator[Find]:
    """Yield the finds with their states, as far as those are known without running anything."""
    known, release = known_bugs(), _release(torch)
    for find in finds:
        fitting = next((k for k in known if k.fits(find, release)), None)
        if find.fingerprint in baseline:
            yield replace(find, state=State.BASELINE, reason="in the baseline")
        elif fitting is not None:
            yield replace(find, state=State.KNOWN, reason=fitting.reason)
        else:
            yield find
