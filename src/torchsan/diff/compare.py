"""Compares two recordings: pairs their graphs and values, judges the values, and lists what else differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

from torchsan.diff.align import Pairing, pair_graphs
from torchsan.diff.judging import Judging, Result
from torchsan.diff.programs import kernel_diffs, memory_diffs, operator_diffs, sources_of
from torchsan.diff.result import Circumstance, Diff, Judged, MetadataDiff, Role, Run, Status, ValueDiff
from torchsan.diff.values import Call, Contents, SeenValues, Value, pair_values, seen_in
from torchsan.errors import UsageError
from torchsan.recording import Reader
from torchsan.records import Skipped, SourceLine, encode
from torchsan.report.findings import shown_place
from torchsan.report.verdict import signal_name

SECONDS = 120.0
"""How long to replay, unless asked for otherwise."""

Progress = Callable[[int, int], None]


def compare_recordings(a: Reader, b: Reader, *, seconds: float = SECONDS, progress: Progress | None = None) -> Diff:
    """Compare two recordings of one program. Raise UsageError if they have nothing in common."""
    pairing = pair_graphs(a, b)
    mine, other = seen_in(a), seen_in(b)
    calls, uneven = pair_values(pairing.pairs, mine, other)
    if not pairing.pairs and not calls and a.graphs() and b.graphs():
        raise _strangers(a, b)
    gaps = [*_gaps(a, "A"), *_gaps(b, "B"), *_one_sided(pairing), *uneven]
    with closing(Contents(a)) as x, closing(Contents(b)) as y:
        tally = _Tally(Judging(x, y, seconds=seconds))
        for n, call in enumerate(calls):
            if progress is not None:
                progress(n, len(calls))
            tally.add(call)
        tally.close(seconds)
        gaps += [
            f"{len(side.damaged)} tensors of {name} cannot be read: {next(iter(side.damaged.values()))}"
            for name, side in (("A", x), ("B", y))
            if side.damaged
        ]
    if not tally.judged.total():
        gaps += _nothing({"A": (a, mine), "B": (b, other)})
    elif not tally.computed:
        gaps.append(
            "nothing but inputs could be compared: record both with --watch save, all kernels, and after launches"
        )
    return Diff(
        a=_run(a),
        b=_run(b),
        status=_status(tally.judged, gaps),
        reasons=tuple(gaps),
        first=next((v for v in tally.values if v.judged is Judged.DIFFERENT), None),
        compared={str(j): tally.judged[j] for j in Judged},
        how={str(how): n for how, n in sorted(tally.how.items())},
        values=tuple(tally.values),
        metadata=tuple(tally.metadata),
        operators=tuple(o for pair in pairing.pairs for o in operator_diffs(pair)),
        kernels=tuple(k for pair in pairing.pairs for k in kernel_diffs(pair)),
        memory=tuple(memory_diffs(a, b, pairing.pairs)),
        circumstances=tuple(_circumstances(a, b)),
        graphs=tuple((pair.a.record.label, pair.b.record.label) for pair in pairing.pairs),
        not_compared=tuple(tally.skipped),
    )


def _run(recording: Reader) -> Run:
    manifest, coverage = recording.manifest, recording.coverage()
    return Run(
        path=shown_place(recording),
        torch=manifest.torch,
        command=manifest.command,
        started=manifest.started,
        graphs=coverage.graphs,
        kernels=coverage.kernels,
        findings=len(recording.findings()),
    )


class _Tally:
    """What came of the pairs so far."""

    def __init__(self, judging: Judging) -> None:
        self._judging = judging
        self._alone = [0, 0]
        self.judged: Counter[Judged] = Counter()
        self.how: Counter[str] = Counter()
        self.values: list[ValueDiff] = []
        self.metadata: list[MetadataDiff] = []
        self.skipped: list[Skipped] = []
        self.computed = 0
        """How many of the compared values are not just inputs."""

    def add(self, call: Call) -> None:
        self._alone = [n + more for n, more in zip(self._alone, call.alone, strict=True)]
        for a, b, result in self._judging.judge(call):
            self.metadata += _layouts(a, b)
            if result.judged is None:
                self._skip(a.shown, result.text[0] if result.text else "")
                continue
            self.judged[result.judged] += 1
            self.computed += a.role is not Role.INPUT
            self.how[str(result.how)] += 1
            if result.judged is not Judged.SAME:
                self.values.append(_value_diff(call, a, b, result))

    def close(self, seconds: float) -> None:
        """Say what could not be compared, or not as well, for reasons that are not those of one value."""
        late = self._judging.out_of_time
        if late:
            reason = f"the {seconds:g} s for replays were over: judged by proportion; more with --time-limit"
            self._skip(f"{late} values", reason)
        for name, n in zip("AB", self._alone, strict=True):
            if n:
                self._skip(f"{n} values of {name}", "nothing stands for them in the other")

    def _skip(self, what: str, reason: str) -> None:
        self.skipped.append(Skipped(what=what, reason=reason))


def _value_diff(call: Call, a: Value, b: Value, result: Result) -> ValueDiff:
    source: tuple[SourceLine, ...] = ()
    if call.graphs is not None:
        source = sources_of(call.graphs.a, result.blamed or (a.node or "",), a.watched.kernel, a.watched.site)
    assert result.judged is not None
    return ValueDiff(
        role=a.role,
        name=a.shown,
        a=a.place,
        b=b.place,
        judged=result.judged,
        how=result.how,
        comparison=result.comparison,
        spread=result.spread,
        source=source,
        text=result.text,
    )


def _layouts(a: Value, b: Value) -> Iterator[MetadataDiff]:
    """Yield what differs in dtype, shape, stride and device."""
    mine, other = a.watched.summary, b.watched.summary
    if mine is None or other is None or a.role is Role.PROBE:
        return
    for what in ("dtype", "shape", "stride", "device"):
        x, y = getattr(mine.meta, what), getattr(other.meta, what)
        if x != y:
            yield MetadataDiff(name=a.shown, graph=a.place.graph, call=a.watched.call, what=what, a=str(x), b=str(y))
            if what in ("dtype", "shape"):
                return


def _strangers(a: Reader, b: Reader) -> UsageError:
    return UsageError(
        f"{shown_place(a)} and {shown_place(b)} do not belong together: no graph of one is like a graph of the "
        f"other (A ran {_command(a)}, B ran {_command(b)}); name two recordings of one program",
        slug="unrelated-recordings",
    )


def _command(recording: Reader) -> str:
    return " ".join(recording.manifest.command)[:80] or "a session"


def _one_sided(pairing: Pairing) -> Iterator[str]:
    # A run that compiled nothing is compared at its probes: then it is no gap that the other one compiled.
    if not pairing.pairs:
        return
    for name, graphs in (("A", pairing.only_a), ("B", pairing.only_b)):
        if graphs:
            more = ", …" if len(graphs) > 4 else ""
            yield f"only {name} has graph {', '.join(g.record.label for g in graphs[:4])}{more}"


def _gaps(recording: Reader, name: str) -> Iterator[str]:
    program = recording.program
    if recording.degraded is not None:
        yield f"the recording of {name} has gaps: {recording.degraded}"
    if program.signal is not None:
        yield f"the program of {name} died of {signal_name(program.signal)}"
    elif program.exit:
        yield f"the program of {name} failed with exit status {program.exit}"
    elif not recording.closed:
        yield f"the recording of {name} ends before its program did, or is still being written"


def _nothing(sides: Mapping[str, tuple[Reader, SeenValues]]) -> Iterator[str]:
    """Why no two values were compared."""
    silent = {name: recording for name, (recording, seen) in sides.items() if not seen.calls and not seen.probes}
    for name, recording in silent.items():
        eager = "" if recording.graphs() else "; it compiled nothing, and eager code is watched at torchsan.probe only"
        yield f"no values were recorded in {name}: record it with --watch save{eager}"
    if not silent:
        yield "no value of one stands for a value of the other: record both with --watch save and without --when before"


def _status(judged: Counter[Judged], gaps: list[str]) -> Status:
    if judged[Judged.DIFFERENT]:
        return Status.DIFFERENT
    if gaps:
        return Status.INCOMPLETE
    return Status.SAME if judged.total() == judged[Judged.SAME] else Status.ROUNDING


def _circumstances(a: Reader, b: Reader) -> Iterator[Circumstance]:
    mine, other = a.manifest, b.manifest
    for what in ("torch", "torchsan", "python", "platform"):
        yield from _differing(what, getattr(mine, what), getattr(other, what))
    yield from _differing("command", " ".join(mine.command), " ".join(other.command))
    for name in sorted({*mine.environment, *other.environment}):
        yield from _differing(name, mine.environment.get(name, "not set"), other.environment.get(name, "not set"))
    options = encode(mine.options), encode(other.options)
    for name in options[0]:
        if name not in ("out", "json", "html", "quiet"):
            yield from _differing(f"--{name.replace('_', '-')}", *(str(o[name]) for o in options))
    yield from _differing("findings", str(len(a.findings())), str(len(b.findings())))


def _differing(what: str, a: str, b: str) -> Iterator[Circumstance]:
    if a != b:
        yield Circumstance(what=what, a=a, b=b)
