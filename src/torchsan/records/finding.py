"""What torchsan says about a program: findings, and what it could and could not look at."""

from __future__ import annotations

import hashlib
import html
import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torchsan.records.program import Direction, Gap, GraphId, SourceLine


class Severity(StrEnum):
    """How sure and how bad."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """A number that is higher for what is graver."""
        return {Severity.NOTE: 0, Severity.WARNING: 1, Severity.ERROR: 2}[self]


class Check(StrEnum):
    """The checks a user can ask for."""

    VALUES = "values"
    STAGES = "stages"
    METADATA = "metadata"
    MEMORY = "memory"
    CACHE = "cache"
    KERNELS = "kernels"


DEFAULT_CHECKS = (Check.VALUES, Check.STAGES, Check.METADATA, Check.MEMORY, Check.CACHE)
"""Those that `run` makes unless it is told which; `kernels` takes seconds for each kernel, and is to be asked for."""


class Stage(StrEnum):
    """Where in the compiler, from the source down; `EAGER` is outside compiled code."""

    EAGER = "eager"
    CAPTURE = "capture"
    AOT = "aot"
    JOINT_PASSES = "joint-passes"
    POST_GRAD_PASSES = "post-grad-passes"
    KERNEL = "kernel"
    CACHE = "cache"


class Kind(StrEnum):
    """What is wrong."""

    WRONG_VALUES = "wrong-values"
    PRECISION_LOSS = "precision-loss"
    NON_FINITE = "non-finite"
    NONDETERMINISTIC = "nondeterministic"
    METADATA_MISMATCH = "metadata-mismatch"
    UNDECLARED_MUTATION = "undeclared-mutation"
    UNDECLARED_ALIAS = "undeclared-alias"
    OUT_OF_BOUNDS_WRITE = "out-of-bounds-write"
    OUT_OF_BOUNDS_READ = "out-of-bounds-read"
    UNINITIALIZED_READ = "uninitialized-read"
    CLOBBERED_BUFFER = "clobbered-buffer"
    LEAKED_BUFFER = "leaked-buffer"
    EARLY_FREE = "early-free"
    UNEXPECTED_ALLOCATION = "unexpected-allocation"
    REORDERED_EFFECT = "reordered-effect"
    STALE_CACHE = "stale-cache"
    RACE = "race"
    CHEAT = "cheat"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRef:
    """Which compiled graph a finding is about."""

    id: GraphId
    direction: Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong. Data: what follows from it is the caller's policy.

    `pass_` is called `pass` in JSON. `id` is given by the recording ("F1", "F2", …) and empty before that.
    `call` is that of its graph in which it was found, from 0, `step` how many steps the optimizer had taken, and `time`
    the seconds since 1970 when it was recorded; None where that is not known.
    `evidence` holds JSON values only; `evidence["text"]`, if there, is what of it people should read, line by line.
    """

    kind: Kind
    severity: Severity
    check: Check
    message: str
    stage: Stage | None = None
    pass_: str | None = None
    graph: GraphRef | None = None
    kernel: str | None = None
    buffer: str | None = None
    nodes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    source: tuple[SourceLine, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    call: int | None = None
    step: int | None = None
    time: float | None = None

    def _repr_html_(self) -> str:
        """The finding in a notebook; whatever it says is text there."""
        lines = [f"{line.file}:{line.line}  {line.code.strip()}" for line in self.source]
        text = self.evidence.get("text")
        lines += [str(line) for line in text[:20]] if isinstance(text, list) else []
        lines += [f"{name} {value}" for name, value in (("kernel", self.kernel), ("pass", self.pass_)) if value]
        colour = {Severity.ERROR: "#c0392b", Severity.WARNING: "#b7791f", Severity.NOTE: "#2b6cb0"}[self.severity]
        cause = self.evidence.get("follows")
        name = f"{self.id or 'F?'} follows from {cause}" if cause else self.id or "F?"
        head = html.escape(f"{name}: {self.severity}: {self.kind}")
        return (
            f'<div style="border-left: 4px solid {colour}; padding-left: 8px; margin: 6px 0"><b>{head}</b>'
            f"<br>{html.escape(self.message[:2000])}"
            f'<pre style="white-space: pre-wrap">{html.escape(chr(10).join(lines)[:4000])}</pre></div>'
        )


def fingerprint(finding: Finding) -> str:
    """Return a name for what a finding is about, the same in every run, rank and version that has it.

    It is made of what is wrong and where: no numbers of graphs, kernels or lines, which change with the code around.
    """
    source = [(line.file.replace("\\", "/").rsplit("/", 1)[-1], line.code.strip()) for line in finding.source]
    kernel = re.sub(r"_\d+$", "", finding.kernel or "")
    return _named(finding, kernel, source)


def cause(finding: Finding) -> str:
    """Return a fingerprint that findings of one bug share in different programs: it knows the dtype, and no source.

    The kernel's name does not count either: it is made of all that was fused into it.
    """
    dtype = finding.evidence.get("dtype")
    return _named(finding, dtype if isinstance(dtype, str) else None)


def _named(finding: Finding, *where: object) -> str:
    what = (finding.check, finding.kind, finding.stage, finding.pass_, *where[:1], sorted(set(finding.ops)), *where[1:])
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Something that was not checked, and why."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What a run looked at, and what of the user's program there was no compiled code to look at."""

    graphs: int = 0
    kernels: int = 0
    buffers: int = 0
    buffers_checked: int = 0
    ops_checked: int = 0
    skipped: tuple[Skipped, ...] = ()
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One tensor that the calls begin with.

    `stored` is the name of its values in the recording's store. Inputs with the same `base` share memory: `stored` is
    then the whole of it, in one dimension, in which `size`, `stride` and `offset` find the input. `fill` says what to
    make the values from where there are none, or none are needed: `full VALUE`, `randn SEED`, `randint LOW HIGH SEED`.
    """

    name: str
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    requires_grad: bool = False
    stored: str | None = None
    base: str | None = None
    fill: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """One call: `op` as `aten.amin.default`, or `getitem` for one of several results."""

    name: str
    op: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """Enough to run again what a finding is about. `suspects` are the nodes that it blames.

    `earlier` are the inputs of calls that came before the one with the finding. `backward`: gradients are taken, too.
    `config` are settings of Inductor that were not the default. `notes` say what was left out, and why.
    """

    finding: str
    check: Check
    nodes: tuple[OperatorCall, ...]
    inputs: tuple[Given, ...]
    outputs: tuple[str, ...]
    suspects: tuple[str, ...] = ()
    earlier: tuple[tuple[Given, ...], ...] = ()
    backend: str = "inductor"
    dynamic: bool = False
    backward: bool = False
    grad: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
