"""Referees a kernel in a process of its own, and says what was found and what was tried."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass, field, replace
from typing import Any

from torchsan._version import __version__
from torchsan.errors import InternalError, UsageError
from torchsan.kernels.contain import Child, Gone
from torchsan.kernels.referee import Task
from torchsan.kernels.verdict import referee
from torchsan.recording import Recorder
from torchsan.records import Check, Coverage, Finding, Kind, Severity, Skipped, Stage, decode, encode
from torchsan.torch_internals.seams import torch_version

_GRACE = 90.0
_FEWEST = 8
"""Results for fewer inputs than these show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refereed:
    """What was found about a kernel; truthy when it is right.

    `tried` says what was tried: the trials with their seeds and outcomes, the inputs that the kernel refused, its
    launches, the versions, and a digest of it all.
    """

    kernel: str
    findings: tuple[Finding, ...]
    coverage: Coverage
    tried: dict[str, Any] = field(repr=False)

    def __bool__(self) -> bool:
        return self.status == "clean"

    @property
    def status(self) -> str:
        """`findings` if there is an error, `incomplete` if too few values were compared, `clean` otherwise."""
        if any(f.severity is Severity.ERROR for f in self.findings):
            return "findings"
        return "clean" if _judged(self.tried) >= _FEWEST and not self.tried["unchecked"] else "incomplete"

    @property
    def exit(self) -> int:
        """The exit status that goes with it: 0, 1 or 4."""
        return {"clean": 0, "findings": 1, "incomplete": 4}[self.status]

    def __str__(self) -> str:
        counts = f"{self.kernel}: {self.status}, {len(self.tried['trials'])} inputs tried"
        return "\n".join([counts, *(f"{f.id}: {f.severity}: {f.kind}: {f.message}" for f in self.findings)])


def run(task: Task, *, name: str, reference: str) -> Refereed:
    """Referee in a process of its own, and report. Raise UsageError for inputs or files that cannot be used."""
    with Child(lambda channel: referee(task, channel), memory=2 * task.memory) as child:
        try:
            values, _ = child.answer(seconds=task.seconds + _GRACE)
        except Gone as gone:
            return _lost(gone, name, reference)
    if "usage" in values:
        if values["slug"] == "internal-error":
            raise InternalError(values["usage"], slug="internal-error")
        raise UsageError(values["usage"], slug=values["slug"])
    about = values["about"]
    numbered = Recorder()
    findings = tuple(numbered.finding(decode(Finding, f)) for f in values["findings"])
    tried = {
        "kernel": {k: about.get(k) for k in ("name", "file", "line", "digest", "operator")},
        "reference": reference,
        **values["tried"],
        "seeds": sorted({t["seed"] for t in values["tried"]["trials"]}),
        "versions": versions(),
    }
    return _report(about.get("name") or name, findings, tried)


def _report(name: str, findings: tuple[Finding, ...], tried: dict[str, Any]) -> Refereed:
    skipped = [Skipped(what=what, reason=reason) for what, reason in tried["skipped"].items()]
    skipped += [Skipped(what=what, reason=f"the kernel raises {why}") for why, what in tried["rejected"].items()]
    coverage = Coverage(
        kernels=1,
        buffers=len(tried["trials"]),
        buffers_checked=_judged(tried),
        ops_checked=int(bool(tried["kernel"]["operator"])),
        skipped=tuple(skipped),
    )
    told = [encode(replace(f, time=None)) for f in findings]  # When it was found is not what was found.
    text = json.dumps([told, tried], sort_keys=True, default=str)
    tried = {**tried, "digest": hashlib.sha256(text.encode()).hexdigest()}
    return Refereed(kernel=name, findings=findings, coverage=coverage, tried=tried)


def _judged(tried: dict[str, Any]) -> int:
    """How many inputs gave results that could be compared."""
    return sum(t["outcome"] not in ("refused", "raised", "no result") for t in tried["trials"])


def _lost(gone: Gone, name: str, reference: str) -> Refereed:
    """The judging process itself is gone: the reference took it down, or the kernel did."""
    finding = Finding(
        kind=Kind.CHEAT,
        severity=Severity.WARNING,
        check=Check.KERNELS,
        message=f"{name}: the judging process is gone: {gone}; the reference crashes or hangs, or the kernel ended it",
        stage=Stage.KERNEL,
        kernel=name,
        evidence={"said": gone.said[-500:]},
    )
    tried = {
        "kernel": dict.fromkeys(("name", "file", "line", "digest", "operator")) | {"name": name},
        "reference": reference,
        "trials": [],
        "rejected": {},
        "skipped": {"everything": str(gone)},
        "launches": {},
        "operators": {},
        "unchecked": ["values"],
        "seeds": [],
        "versions": versions(),
    }
    return _report(name, (Recorder().finding(finding),), tried)


def versions() -> dict[str, str]:
    """What the verdict depends on besides the kernel."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"torchsan": __version__, "torch": torch_version() or "", "python": platform.python_version()}
    for package in ("triton", "numpy", "hypothesis"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found
