"""What a recorder in an AOTInductor package costs.

Calls of a feed-forward network of 2 million parameters: a plain package, and packages with a recorder, off and on at
each level. Each level is a package of its own, and all take turns.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._inductor
from torch import nn

import torchsan
from benchmarks.row import Kind, Limit, Record, Row, Skipped
from benchmarks.timing import in_turns

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 2

_ROUNDS = 40
_GOALS = {"print": 2.0, "save": 1.6}
_REASON = "Every tensor of a call is hashed, and summarized or written, before the next kernel is launched."


def measure(quick: bool) -> Iterator[Record]:
    """Build the packages, and measure calls of each in turns; with `quick`, nothing."""
    if quick:
        yield Skipped(what="calls of packages", why="there are four to compile")
        return
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)) for _ in range(2)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(64, 512)
    program = torch.export.export(model, (x,))
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        plain = torch._inductor.aoti_compile_and_package(program, package_path=str(here / "plain.pt2"))
        built = {w: torchsan.aot_compile(program, here / f"{w}.pt2", watch=w) for w in ("names", "print", "save")}
        calls = {
            "plain": _call(plain, x, None),
            "off": _call(built["save"], x, None),
            **{w: _call(package, x, here / w) for w, package in built.items()},
        }
        least = in_turns(calls, _ROUNDS)
    for name, seconds in list(least.items())[1:]:
        what = "recorder built in, off" if name == "off" else f"recording at level `{name}`"
        yield Row(
            what=f"a call, {what}",
            kind=Kind.COST,
            unit="ms",
            ours=seconds * 1e3,
            peer="plain package",
            theirs=least["plain"] * 1e3,
            goal=_GOALS.get(name),
            reason=_REASON,
        )
    yield Limit(who="torchsan's recorder", cannot="change its level in a package that is built: each is a package")


def _call(package: str, x: torch.Tensor, out: Path | None) -> Callable[[], None]:
    """Load a package and return a call of it that records to `out`, after one to warm up."""
    runner: Any = torch._inductor.aoti_load_package(package)

    def call() -> None:
        if out is not None:
            os.environ["TORCHSAN_OUT"] = str(out)
        try:
            runner(x)
        finally:
            os.environ.pop("TORCHSAN_OUT", None)

    call()
    return call
