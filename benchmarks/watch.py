"""What `--watch` costs.

A compiled training step (forward, backward, SGD) of 24.9 million parameters, 4 × 128 tokens (10 million with
`--quick`), beside what PyTorch has for looking at values: `aot_inductor.debug_intermediate_value_printer`, which prints
(level 2) or saves (1), and `DebugMode`, which records every operator that is called at run time, with
`log_tensor_hashes()` also the sum of magnitudes of each output. There is no goal for these: what each shows differs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch.utils._debug_mode import DebugMode  # what PyTorch offers, to compare with

from benchmarks.models import training, unwatched
from benchmarks.row import Kind, Limit, Record, Row, Skipped
from benchmarks.timing import in_turns
from benchmarks.watch_peers import ROUNDS, Debugged, debug_mode, output_to, printed
from torchsan.cli.values import watched_values
from torchsan.errors import UsageError
from torchsan.options import Options, Watch
from torchsan.recording import Reader
from torchsan.session import Session

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 2

_GOALS = {Watch.NAMES: 1.05, Watch.PRINT: 1.2, Watch.SAVE: 1.5}
_REASONS = {
    Watch.PRINT: "Every tensor is hashed, summarized and written as an event, on the cores that the step needs.",
    Watch.SAVE: "Every tensor is hashed and written, in each step anew, on the cores that the step needs.",
}
_PRINTER_LIMIT = Limit(
    who="`debug_intermediate_value_printer`",
    cannot="print names only on the CPU, keep saved files from overwriting each other, or print an empty tensor",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    """Seconds of a plain and of a watched step, the launches shown, how many of them are fused, all kernels."""

    plain: float
    seconds: float
    shown: int
    fused: int
    kernels: int


def measure(quick: bool) -> Iterator[Record]:
    """Measure each level of `--watch`, then DebugMode and PyTorch's printer."""
    layers = 1 if quick else 4
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[Watch, _Watched] = {}
        for level in list(_GOALS)[: 2 if quick else None]:
            found[level] = _watched(level, layers, folder)
            yield _cost(level, found[level])
        debugged = debug_mode(layers)
        yield from _beside_debug_mode(found, debugged)
        yield _uncomparable(debugged, layers)
        yield from _beside_printer(2, found[Watch.PRINT], debugged.plain, layers, folder)
        if quick:
            yield Skipped(what="saving, with either", why="each compiles the model once more")
        else:
            yield from _beside_printer(1, found[Watch.SAVE], debugged.plain, layers, folder)
        yield _PRINTER_LIMIT
        yield from _eager(layers, folder)


def _watched(level: Watch, layers: int, folder: Path) -> _Watched:
    """Measure a step under `--watch level`."""
    # No checks: they look at the first calls only, and this is about watching.
    session = Session(Options(check=(), watch=level, out=str(folder / level)))
    with output_to(folder / f"{level}.txt"), session:
        step = training(layers)
        least = in_turns({"plain": unwatched(step), "watched": step}, ROUNDS)
    recording = Reader(folder / level)
    launches = {(w.graph, w.direction, w.site): w.kernel for w in watched_values(recording) if w.site is not None}
    return _Watched(
        plain=least["plain"],
        seconds=least["watched"],
        shown=len(launches),
        fused=sum(kernel.startswith("cpp_fused") for kernel in launches.values()),
        kernels=recording.coverage().kernels,
    )


def _cost(level: Watch, ours: _Watched) -> Row:
    return Row(
        what=f"a step under `--watch {level}`",
        kind=Kind.COST,
        unit="s",
        ours=ours.seconds,
        peer="not watched",
        theirs=ours.plain,
        goal=_GOALS[level],
        reason=_REASONS.get(level, ""),
        note=f"shows {ours.shown} of {ours.kernels} kernels",
    )


def _beside(level: Watch, ours: _Watched, peer: str, theirs: float, shows: str) -> Row:
    """Compare by what a step costs on either side as a multiple of a plain one."""
    return Row(
        what=f"what `--watch {level}` costs",
        kind=Kind.COST,
        unit="×",
        ours=ours.seconds / ours.plain,
        peer=peer,
        theirs=theirs,
        note=f"it shows {shows}, `--watch` {ours.shown} of {ours.kernels} kernels",
    )


def _beside_debug_mode(found: dict[Watch, _Watched], theirs: Debugged) -> Iterator[Record]:
    names = found[Watch.NAMES]
    fused = sum("cpp_fused" in str(call) for call in theirs.logs)
    shows = f"{fused} of {names.fused} fused kernels"
    yield _beside(Watch.NAMES, names, "`DebugMode`", theirs.recorded / theirs.plain, shows)
    hashed = theirs.hashed / theirs.plain
    yield _beside(Watch.PRINT, found[Watch.PRINT], "`DebugMode` with hashes", hashed, shows)
    if not fused:
        cannot = f"show a fused kernel: {shows} in a step; it shows operators, those too that compiled code calls"
        yield Limit(who="`DebugMode`", cannot=cannot)


def _uncomparable(compiled: Debugged, layers: int) -> Record:
    """Whether DebugMode can tell a compiled step from an eager one."""
    step, eager = training(layers, eager=True), DebugMode()
    with eager:
        step()
    what = "compare a compiled step with an eager one"
    try:
        DebugMode.check_hash_mismatches(eager.logs, compiled.logs)
    except ValueError as e:
        return Limit(who="`DebugMode`", cannot=f"{what} (`{e}`)")
    return Skipped(what=f"`DebugMode` to {what}", why="it raises nothing")


def _beside_printer(number: int, ours: _Watched, plain: float, layers: int, folder: Path) -> Iterator[Record]:
    level = Watch.PRINT if number == 2 else Watch.SAVE
    seconds, shown = printed(number, layers, folder)
    peer = f"`debug_intermediate_value_printer`, level {number}"
    yield _beside(level, ours, peer, seconds / plain, f"{shown} names of kernels")
    if shown < ours.kernels:
        verb = "prints" if level is Watch.PRINT else "saves"
        cannot = f"show fused C++ kernels: it {verb} {shown} names of kernels, of {ours.kernels} kernels"
        yield Limit(who=peer, cannot=cannot)


def _eager(layers: int, folder: Path) -> Iterator[Limit]:
    """Whether `--watch` shows anything of an eager step, as DebugMode does."""
    step = training(layers, eager=True)
    with Session(Options(check=(), watch=Watch.NAMES, out=str(folder / "eager"))):
        step()
    try:
        watched_values(Reader(folder / "eager"))
    except UsageError:
        yield Limit(who="`--watch`", cannot="show anything of eager code, which `DebugMode` records")
