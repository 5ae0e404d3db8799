"""The checks: they judge what the watches see, and never patch torch. Importing them imports no torch.

`REGISTRY` has one entry for each check. The command line, the JSON schema, pytest, reproducers and the tests of the
docs read it, or `records.Check`, which has the names. A new check needs

- a member of `records.Check`, and members of `records.Kind` for what no other check reports;
- a folder here: `check` (an Observer that is made once a session; importing it imports no torch), `watch` (looks at one
  call of one program), and `plan` (decided once a compile), `findings` and `exhibit` as far as there is something to
  say; what it finds goes to the `Collector`;
- an entry in `REGISTRY`;
- its page in docs/reference, its line in README.md, and tests in tests/checks and tests/planted.

tests/checks/test_checks.py fails for what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from torchsan.checks.cache.check import CacheCheck
from torchsan.checks.collector import Collector
from torchsan.checks.kernels.check import KernelsCheck
from torchsan.checks.memory.check import MemoryCheck
from torchsan.checks.metadata.check import MetadataCheck
from torchsan.checks.stages.check import StagesCheck
from torchsan.checks.values.check import ValuesCheck
from torchsan.recording import Recorder, Writer
from torchsan.records import Check, Kind

if TYPE_CHECKING:
    from torchsan.checks.collector import OnError
    from torchsan.options import Options
    from torchsan.watch.observer import Observer

__all__ = ["REGISTRY", "CheckEntry", "Observed", "Reproduction", "observers"]


class Observed(StrEnum):
    """What a check looks at."""

    LAUNCHES = "the launches of compiled programs"
    OPERATORS = "operator calls, in eager code too"
    STAGES = "the graphs between the stages of a compile"
    CACHES = "what compile caches hold"


class Reproduction(StrEnum):
    """What a script does to show a finding."""

    COMPILED = "compiles the operator calls of the exhibit, and passes when they run eagerly"
    OPERATOR = "calls the one operator of the exhibit, and compiles nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEntry:
    """What the rest of torchsan has to know of a check."""

    summary: str
    """What it does, as README.md says it."""
    page: str
    """Its documentation, from the root of the repository."""
    observes: frozenset[Observed]
    kinds: frozenset[Kind]
    """What it reports."""
    reproduction: Reproduction
    make: Callable[[Options, Collector], Observer]
    """Makes the check for one session."""
    sampled: bool = False
    """Whether it can look at single launches, under a budget."""


_VALUES = frozenset({Kind.WRONG_VALUES, Kind.PRECISION_LOSS, Kind.NON_FINITE})

REGISTRY: Mapping[Check, CheckEntry] = {
    Check.VALUES: CheckEntry(
        summary="every kernel is replayed from the inputs it actually had, in eager and in float64; "
        "rounding is told from bugs without tolerances to tune",
        page="docs/reference/values.md",
        observes=frozenset({Observed.LAUNCHES}),
        kinds=_VALUES | {Kind.NONDETERMINISTIC, Kind.OUT_OF_BOUNDS_READ},
        reproduction=Reproduction.COMPILED,
        sampled=True,
        make=lambda options, collector: ValuesCheck(
            collector, options.calls, budget=options.budget, max_memory=options.max_memory
        ),
    ),
    Check.STAGES: CheckEntry(
        summary="which step of the compiler changed the meaning: Dynamo, AOTAutograd, each graph pass",
        page="docs/reference/stages.md",
        observes=frozenset({Observed.STAGES}),
        kinds=_VALUES | {Kind.METADATA_MISMATCH, Kind.UNDECLARED_ALIAS, Kind.REORDERED_EFFECT},
        reproduction=Reproduction.COMPILED,
        make=lambda options, collector: StagesCheck(
            collector, options.calls, kernels_elsewhere=Check.VALUES in options.check
        ),
    ),
    Check.METADATA: CheckEntry(
        summary="every operator's fake kernel, schema and aliasing against what it really does",
        page="docs/reference/metadata.md",
        observes=frozenset({Observed.LAUNCHES, Observed.OPERATORS}),
        kinds=frozenset({Kind.METADATA_MISMATCH, Kind.UNDECLARED_MUTATION, Kind.UNDECLARED_ALIAS, Kind.WRONG_VALUES}),
        reproduction=Reproduction.OPERATOR,
        make=lambda options, collector: MetadataCheck(collector, options.calls),
    ),
    Check.MEMORY: CheckEntry(
        summary="writes out of bounds, reads of uninitialised elements, clobbered, leaked and early freed buffers",
        page="docs/reference/memory.md",
        observes=frozenset({Observed.LAUNCHES}),
        kinds=frozenset(
            {
                Kind.OUT_OF_BOUNDS_WRITE,
                Kind.UNINITIALIZED_READ,
                Kind.CLOBBERED_BUFFER,
                Kind.LEAKED_BUFFER,
                Kind.EARLY_FREE,
                Kind.UNEXPECTED_ALLOCATION,
            }
        ),
        reproduction=Reproduction.COMPILED,
        make=lambda options, collector: MemoryCheck(collector, options.calls, guards=not options.no_guards),
    ),
    Check.CACHE: CheckEntry(
        summary="what a compile cache gives the program against a fresh compile",
        page="docs/reference/cache.md",
        observes=frozenset({Observed.CACHES}),
        kinds=frozenset({Kind.STALE_CACHE}),
        reproduction=Reproduction.COMPILED,
        make=lambda options, collector: CacheCheck(
            collector, len(options.calls) if isinstance(options.calls, tuple) else options.calls
        ),
    ),
    Check.KERNELS: CheckEntry(
        summary="kernels that you wrote, operators and Triton, refereed when they are met: "
        "bounds, races, uninitialised reads, kept results",
        page="docs/reference/kernels.md",
        observes=frozenset({Observed.LAUNCHES, Observed.OPERATORS}),
        kinds=frozenset(
            {
                *_VALUES - {Kind.NON_FINITE},
                *(Kind.METADATA_MISMATCH, Kind.UNDECLARED_MUTATION, Kind.UNDECLARED_ALIAS, Kind.NONDETERMINISTIC),
                *(Kind.OUT_OF_BOUNDS_WRITE, Kind.OUT_OF_BOUNDS_READ, Kind.UNINITIALIZED_READ, Kind.RACE, Kind.CHEAT),
            }
        ),
        reproduction=Reproduction.OPERATOR,
        make=lambda options, collector: KernelsCheck(collector, options.calls, alone=options.check == (Check.KERNELS,)),
    ),
}


def observers(options: Options, recorder: Writer | Recorder, on_error: OnError | None = None) -> tuple[Observer, ...]:
    """Return the checks that the options ask for, and the collector of what they find; `on_error` is the policy.

    Exhibits are kept where there is a recording on disk.
    """
    tensors = recorder.path / "tensors" if isinstance(recorder, Writer) else None
    collector = Collector(recorder, tensors=tensors, max_bytes=options.max_bytes, on_error=on_error)
    chosen = [check for check in options.check if options.budget is None or REGISTRY[check].sampled]
    for check in sorted({*options.check} - {*chosen}):
        recorder.skipped(f"{check} check", "only launches are sampled under --budget; run without it for this check")
    return (*(REGISTRY[check].make(options, collector) for check in chosen), collector)
