"""What a comparison of two recordings gives: frozen records, for every report to show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torchsan.records import Comparison, Skipped, SourceLine


class Status(StrEnum):
    """The outcome in one word."""

    SAME = "same"
    ROUNDING = "rounding"
    DIFFERENT = "different"
    INCOMPLETE = "incomplete"

    @property
    def exit(self) -> int:
        """The exit status that goes with it."""
        return {Status.DIFFERENT: 1, Status.INCOMPLETE: 4}.get(self, 0)


class Judged(StrEnum):
    """What the difference of two values is."""

    SAME = "same"
    ROUNDING = "rounding"
    UNDECIDED = "undecided"
    """More than rounding should give, but nobody can say that it is not."""
    FOLLOWS = "follows"
    """What it is computed from differs already, and explains it."""
    DIFFERENT = "different"


class How(StrEnum):
    """What a judgement rests on."""

    CONTENTS = "contents"
    """The same address in the tensor store; no data was read."""
    ELEMENTS = "elements"
    """Element by element: equal, or a few units in the last place apart."""
    REPLAY = "replay"
    """The operators in between, run again from what both runs had, in their dtypes and in float64."""
    PROPORTION = "proportion"
    """The size of the difference beside those that came before it."""
    SUMMARIES = "summaries"
    """Minimum, maximum, mean and deviation: the elements were not saved."""
    METADATA = "metadata"
    """Shape or dtype differ, so that the elements cannot be compared."""


class Role(StrEnum):
    """What a value is to the program."""

    INPUT = "input"
    NODE = "node"
    OUTPUT = "output"
    INNER = "inner"
    """A variable of the generated program that holds no node's value."""
    PROBE = "probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a value is, in one of the recordings. `graph` is as people write it, None for a probe."""

    graph: str | None
    call: int
    launch: int | None
    kernel: str
    variable: str
    node: str | None = None
    op: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDiff:
    """Two values that stand for each other and are not the same. `text` is the evidence, line by line."""

    role: Role
    name: str
    a: Place
    b: Place
    judged: Judged
    how: How
    comparison: Comparison | None = None
    spread: float | None = None
    """The root mean square of the difference, relative to that of the values."""
    source: tuple[SourceLine, ...] = ()
    text: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDiff:
    """What differs in the metadata of two values that stand for each other."""

    name: str
    graph: str | None
    call: int
    what: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDiff:
    """A part of a graph that is computed otherwise: the nodes as they stand in either graph."""

    graph: str
    a: tuple[str, ...]
    b: tuple[str, ...]
    source: tuple[SourceLine, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDiff:
    """Nodes that are spread over kernels otherwise: the kernels of either program that compute them."""

    graph: str
    a: tuple[str, ...]
    b: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDiff:
    """A figure of the memory of one call that differs, in bytes."""

    graph: str
    call: int
    what: str
    a: int
    b: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One of the two recordings."""

    path: str
    torch: str
    command: tuple[str, ...]
    started: str
    graphs: int
    kernels: int
    findings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstance:
    """Something about the two runs that differs: a version, the command, an option, a variable."""

    what: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Where two recordings part. The differences stand in the order in which the first run met them.

    `compared` counts the pairs of values by what they were judged to be, `how` by what that rests on. `reasons` say
    why it is incomplete, or would be.
    """

    a: Run
    b: Run
    status: Status
    reasons: tuple[str, ...] = ()
    first: ValueDiff | None = None
    compared: dict[str, int]
    how: dict[str, int]
    values: tuple[ValueDiff, ...] = ()
    metadata: tuple[MetadataDiff, ...] = ()
    operators: tuple[OperatorDiff, ...] = ()
    kernels: tuple[KernelDiff, ...] = ()
    memory: tuple[MemoryDiff, ...] = ()
    circumstances: tuple[Circumstance, ...] = ()
    graphs: tuple[tuple[str, ...], ...] = ()
    """The pairs of graphs, as people write them."""
    not_compared: tuple[Skipped, ...] = ()
