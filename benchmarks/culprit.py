"""From a wrong compiled model to the culprit and to a reproducer.

A transformer of two layers (d=64, batch 4, length 16; one layer with `--quick`), forward and backward, with the bug of
relu that Inductor can plant in itself; from the start of the program, in processes and with caches of their own.
`CompilerBisector` gets the forward alone, with a test of its result. PyTorch's accuracy minifier runs with
`TORCHDYNAMO_REPRO_AFTER=aot` and level 4, once for both comparisons with it. Each runs once a repetition. Beside tools
that end at one culprit torchsan does so, too (`--fail-fast`).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.row import Kind, Limit, Record, Row, Skipped
from benchmarks.transformer import LIMIT, Ended, Programs, minify, run

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 2

_FIRST = "from start to named culprit"
_MINIFIER = "accuracy minifier"
_BISECTOR = "`CompilerBisector`"
_NO_TOOL = "compile and run, no tool"
_RUN = ["-m", "torchsan", "run", "--quiet", "--check", "values"]
_FLOOR = (
    "Most of our time is importing torch and compiling once, which is the floor: compiling and running without a tool "
    "takes about as long."
)
_BISECTED = f"The bisector needs few compiles of so small a model. {_FLOOR}"


def measure(quick: bool) -> Iterator[Record]:
    """Measure finding, with and without tools, then reproducing. What takes longer than its limit is ended."""
    programs = Programs(layers=1 if quick else 2)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        plain = run(here, programs.plain, [])
        ours = run(here, programs.plain, _RUN)
        yield from _costs(plain, ours)
        if quick:
            yield Skipped(
                what="`CompilerBisector`, the minifier and reproducers", why="each compiles the model again and again"
            )
        else:
            yield from _beside_tools(here, programs, plain)
    yield Limit(who="torchsan", cannot="see a mistake that eager makes too; the bisector takes any test of a result")


def _beside_tools(here: Path, programs: Programs, plain: Ended) -> Iterator[Record]:
    first = run(here, programs.plain, [*_RUN, "--fail-fast"])
    minified, smallest = minify(here, programs.plain, LIMIT)
    yield _first_culprit(first, plain)
    yield from _minifier(first, minified, smallest)
    yield from _bisector(first, run(here, programs.bisect, []))
    yield from _reproducer(run(here, programs.plain, [*_RUN, "--repro"]), minified, smallest)


def _costs(plain: Ended, ours: Ended) -> Iterator[Row]:
    note = _named(ours)
    for what, unit, mine, other in (
        ("from start to all that is wrong", "s", ours.seconds, plain.seconds),
        ("peak memory until then", "MB", ours.memory, plain.memory),
    ):
        yield Row(what=what, kind=Kind.COST, unit=unit, ours=mine, peer=_NO_TOOL, theirs=other, goal=2, note=note)
        note = ""


def _first_culprit(ours: Ended, plain: Ended) -> Row:
    return Row(
        what=f"{_FIRST}, the program ended there",
        kind=Kind.COST,
        unit="s",
        ours=ours.seconds,
        peer=_NO_TOOL,
        theirs=plain.seconds,
        goal=0.6,
        reason="The forward is compiled before its kernels can be launched, and all of PyTorch is imported before.",
        note=_named(ours),
    )


def _named(ours: Ended) -> str:
    found = "relu" in ours.said and "program.py" in ours.said
    return "names kernel, operator and line of source" if found else "does NOT find it"


def _bisector(ours: Ended, bisected: Ended) -> Iterator[Record]:
    result = re.search(r"BisectionResult\(.*\)", bisected.said)
    said = f"says `{result[0]}`" if result else _when_ended(bisected) or "says nothing"
    yield _faster(_FIRST, ours, _BISECTOR, bisected, 6, reason=_BISECTED, note=said)
    yield Limit(who=_BISECTOR, cannot="work without a test of the result, which one writes oneself")
    if bisected.done and "program.py" not in bisected.said and "cpp_fused" not in bisected.said:
        yield Limit(who=_BISECTOR, cannot=f"name the kernel or the line of source: it {said}")


def _minifier(ours: Ended, minified: Ended, smallest: str | None) -> Iterator[Record]:
    note = _when_ended(minified) or _named(ours)
    yield _faster(_FIRST, ours, _MINIFIER, minified, 20, reason=_FLOOR, note=note)
    if minified.done and smallest is not None and "program.py" not in smallest + minified.said:
        yield Limit(who=_MINIFIER, cannot="name the line of source: neither its output nor its reproducer does")


def _reproducer(reproduced: Ended, minified: Ended, smallest: str | None) -> Iterator[Record]:
    made = re.search(r"(\d+) operator calls?, \d+ lines[^)]*", reproduced.said)
    if made is None:
        yield Skipped(what="reproducers", why=f"ours made none: {_when_ended(reproduced) or reproduced.said[-200:]}")
        return
    verified = "verified" in reproduced.said and "NOT verified" not in reproduced.said
    note = f"{made[0]}; {'verified' if verified else 'NOT verified'}"
    yield _faster("from start to a verified minimal reproducer", reproduced, _MINIFIER, minified, 8, note=note)
    nodes = None if smallest is None else smallest.count(" = torch.ops.")
    yield Row(
        what="operator calls in the reproducer",
        kind=Kind.LESS,
        unit="",
        ours=float(made[1]),
        peer=_MINIFIER,
        theirs=nodes,
        goal=None if nodes is None or not minified.done else nodes - 1,
        note="fewer than its is the goal" if minified.done else "its when it was ended",
    )


def _when_ended(ended: Ended) -> str:
    return "" if ended.done else f"not within {ended.seconds:.0f} s"


def _faster(what: str, ours: Ended, peer: str, theirs: Ended, goal: float, **texts: str) -> Row:
    return Row(
        what=what,
        kind=Kind.SPEED,
        unit="s",
        ours=ours.seconds,
        peer=peer,
        theirs=theirs.seconds,
        goal=goal,
        ended=not theirs.done,
        **texts,
    )
