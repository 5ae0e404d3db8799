"""`python -m benchmarks.sensitivity [--quick] [--curves] [--page FILE]`: how small an error is found, and who errs.

One operator of a small program is too large by a factor, at each site where a compiler can go wrong, in each shape of
computation and dtype. Beside torchsan: `torch.testing.assert_close` with its defaults, and what the accuracy minifier
calls the same (`torch._dynamo.utils.same`, tolerance 1e-3). Then the healthy programs of the tests, of which nothing is
to be said. All of it in one process, on graphs of a few nodes.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import torch
import torch._dynamo.utils
import torch._inductor.config
from tests.planted.scaled import SHAPES, SITES, Shape, called
from tests.programs.healthy import HEALTHY

import torchsan
from torchsan.records import Finding, Severity

LADDERS = {
    torch.float64: (1e-2, 1e-7, 1e-10, 1e-12),
    torch.float32: (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6),
    torch.bfloat16: (1e-1, 4e-2, 2e-2, 1e-2, 4e-3),
    torch.float16: (1e-1, 2e-2, 4e-3),
}
"""The planted relative errors, from large to small."""
IN_KERNELS = (
    *(("kernel", shape) for shape in ("pointwise", "larger addend", "sum of 100", "sum of 100000")),
    *(("kernel", shape) for shape in ("normalisation", "softmax", "gradient")),
    ("library", "matmul"),
    ("library", "library gradient"),
)
IN_GRAPHS = (
    ("decomposition", "decomposed"),
    ("decomposition", "decomposed gradient"),
    *((site, shape) for site in ("joint", "post-grad") for shape in ("pointwise", "gradient")),
)
"""These are judged in float64 whatever the program's dtype, so that two dtypes do."""
WHO = ("torchsan", "assert_close", "minifier")
_COLOURS = {"torchsan": "#1a7f37", "assert_close": "#bc4c00", "minifier": "#8250df"}
_ELEMENTS = 128
"""Rows of 32 elements: 4,096 of them share the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One site, shape of computation and dtype: for each of WHO the errors that it found, and whether it was wrong.

    `alarms` are those that complained of the healthy program.
    """

    site: str
    shape: str
    dtype: torch.dtype
    found: dict[str, list[float]]
    alarms: tuple[str, ...]

    @property
    def is_monotonic(self) -> bool:
        """Whether torchsan found no error that is smaller than one that it did not find."""
        ladder = LADDERS[self.dtype]
        return self.found["torchsan"] == list(ladder[: len(self.found["torchsan"])])

    def smallest(self, who: str) -> float | None:
        """The smallest error down to which everything was found; None if not even the largest was."""
        if who in self.alarms:
            return None
        reached = None
        for error in LADDERS[self.dtype]:
            if error not in self.found[who]:
                break
            reached = error
        return reached


def measure(site: str, shape: str, dtype: torch.dtype) -> Curve:
    """Plant errors from large to small until nobody finds them, and none."""
    form = SHAPES[shape]
    rows = 4 if "100000" in shape else _ELEMENTS
    eager, exact = called(form, dtype, rows, lambda f: f), called(form, dtype, rows, lambda f: f, exact=True)
    found: dict[str, list[float]] = {who: [] for who in WHO}
    for error in LADDERS[dtype]:
        seen = _seen(site, form, dtype, rows, error, eager, exact)
        for who in seen:
            found[who].append(error)
        if not seen:
            break
    alarms = _seen(site, form, dtype, rows, 0.0, eager, exact)
    return Curve(site=site, shape=shape, dtype=dtype, found=found, alarms=alarms)


def _seen(
    site: str,
    form: Shape,
    dtype: torch.dtype,
    rows: int,
    error: float,
    eager: list[torch.Tensor],
    exact: list[torch.Tensor],
) -> tuple[str, ...]:
    """Who complains of the program with this error in it."""
    torch._dynamo.reset()
    with torchsan.session(check=("values", "stages")) as run, SITES[site][0](form.op, error):
        compiled = called(form, dtype, rows, torch.compile)
    said = {
        "torchsan": _is_named(run.findings, form.op) if error else _is_alarm(run.findings),
        "assert_close": not all(map(_close, compiled, eager)),
        "minifier": not torch._dynamo.utils.same(eager, compiled, exact, tol=1e-3, equal_nan=True),
    }
    return tuple(who for who, complains in said.items() if complains)


def _is_named(findings: Sequence[Finding], op: str) -> bool:
    """Whether what is wrong is an error that names the operator."""
    return any(f.severity is Severity.ERROR and f"aten.{op}.default" in f.ops for f in findings)


def _is_alarm(findings: Sequence[Finding]) -> bool:
    """Whether something is said of a healthy program; a warning is a false alarm, too."""
    return any(f.severity is not Severity.NOTE for f in findings)


def false_alarms() -> list[str]:
    """The healthy programs of which something is said."""
    found = []
    for name, program in HEALTHY.items():
        torch._dynamo.reset()
        torch.manual_seed(0)
        with torchsan.session(check=("values", "stages")) as run:
            program()
        if _is_alarm(run.findings):
            found.append(name)
        print(f"healthy: {name}: {'ALARM' if name in found else 'nothing'}", flush=True)
    return found


def _close(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(actual, expected)
    except AssertionError:
        return False
    return True


def lines(curves: Sequence[Curve]) -> Iterator[str]:
    """The table, in Markdown."""
    yield "| dtype | site | shape of computation | torchsan | `assert_close` | accuracy minifier |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for curve in curves:
        cells = [_cell(curve, who) for who in WHO]
        yield f"| {_name(curve.dtype)} | {curve.site} | {curve.shape} | {' | '.join(cells)} |"
    alarms = {who: sum(who in curve.alarms for curve in curves) for who in WHO}
    yield ""
    yield f"False alarms on the {len(curves)} healthy twins: " + ", ".join(f"{w} {n}" for w, n in alarms.items()) + "."
    missed = sum(not curve.is_monotonic for curve in curves)
    yield f"Rows in which torchsan found an error and missed a larger one: {missed}."


def _cell(curve: Curve, who: str) -> str:
    if who in curve.alarms:
        return "complains without it"
    smallest = curve.smallest(who)
    return "nothing" if smallest is None else f"{smallest:.0e}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def plot(curves: Sequence[Curve]) -> str:
    """What each finds, as an SVG: a line per site and shape from the largest error to the smallest that is found."""
    height, left, width = 16, 270, 460
    shapes = [f'<text x="{left}" y="16" font-weight="bold">smallest relative error that is found, by dtype</text>']
    y = 30
    for i, who in enumerate(WHO):
        x = left + i * 130
        shapes.append(
            f'<circle cx="{x}" cy="{y}" r="4" fill="{_COLOURS[who]}"/><text x="{x + 8}" y="{y + 4}">{who}</text>'
        )
    y += 20
    for dtype, ladder in LADDERS.items():
        rows = [c for c in curves if c.dtype is dtype]
        if not rows:
            continue
        step = width / (len(ladder) - 1)
        shapes.append(f'<text x="8" y="{y + 4}" font-weight="bold">{_name(dtype)}</text>')
        for k, error in enumerate(ladder):
            shapes.append(f'<text x="{left + k * step:.0f}" y="{y + 4}" text-anchor="middle">{error:.0e}</text>')
        for curve in rows:
            y += height
            shapes.append(f'<text x="8" y="{y + 4}">{escape(f"{curve.site}: {curve.shape}")}</text>')
            shapes.append(f'<line x1="{left}" x2="{left + width}" y1="{y}" y2="{y}" stroke="#d0d7de"/>')
            for n, who in enumerate(WHO):
                smallest = curve.smallest(who)
                if smallest is not None:
                    end, at = left + ladder.index(smallest) * step, y + (n - 1) * 4
                    shapes.append(f'<line x1="{left}" x2="{end:.0f}" y1="{at}" y2="{at}" stroke="{_COLOURS[who]}"/>')
                    shapes.append(_dot(end, at, who))
        y += 26
    size = f'viewBox="0 0 {left + width + 40} {y}" font-family="sans-serif" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *shapes, "</svg>"]) + "\n"


def _dot(x: float, y: float, who: str) -> str:
    return f'<circle cx="{x:.0f}" cy="{y}" r="3.5" fill="{_COLOURS[who]}"/>'


ABOUT = """# How small an error is found

One operator of a small program is too large by a factor. The table has the smallest such error, relative to the
operator's result, down to which every larger one is found: by torchsan with the values and the stages check, as an
`error` that names the operator; by `torch.testing.assert_close` of the compiled and the eager results, with the
tolerances that PyTorch has for each dtype; and by what the accuracy minifier calls the same. 4,096 elements share the
error, or 128 sums of 100 terms, or 4 sums of 100,000. No smaller errors were tried than 1e-12 in float64, 1e-6 in
float32 and 4e-3 in half precision. "Complains without it" is said of what reports the healthy program too. Errors of
decompositions and passes are judged in float64 in every dtype, so that these rows are there for two of them.
`make bench` measures it; [Rounding told from bugs](rounding.md) explains it.

![Smallest relative errors found](sensitivity.svg)

"""


def main(words: Sequence[str]) -> int:
    """Measure, print the table, and write the page; the exit status is 1 if torchsan has a false alarm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sensitivity", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="float32 and bfloat16 only, without the healthy programs")
    parser.add_argument("--curves", action="store_true", help="without the healthy programs, which take as long again")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write the page there, and its plot beside it")
    options = parser.parse_args(words)
    warnings.simplefilter("ignore")
    # What a cache keeps of a planted fault would be given to the healthy program.
    torch._inductor.config.force_disable_caches = True
    start, curves = time.monotonic(), []
    for dtype in (torch.float32, torch.bfloat16) if options.quick else LADDERS:
        graphs = IN_GRAPHS if dtype in (torch.float32, torch.bfloat16) else ()
        for site, shape in (*IN_KERNELS, *graphs):
            curves.append(measure(site, shape, dtype))
            print(*list(lines(curves[-1:]))[2:3], f"{time.monotonic() - start:.0f} s", flush=True)
            if options.page:  # What is measured stays, if the rest is interrupted.
                options.page.write_text(ABOUT + "\n".join(lines(curves)) + "\n", encoding="utf-8")
                options.page.with_suffix(".svg").write_text(plot(curves), encoding="utf-8")
    print(*list(lines(curves))[-2:])
    alarms = []
    if not options.quick and not options.curves:
        alarms = false_alarms()
        said = f"torchsan's false alarms on {len(HEALTHY)} more healthy programs: {len(alarms)}{alarms or ''}."
        print(said)
        if options.page:
            options.page.write_text(ABOUT + "\n".join([*lines(curves), said]) + "\n", encoding="utf-8")
    return 1 if alarms or any("torchsan" in curve.alarms for curve in curves) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
