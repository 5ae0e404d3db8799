"""What a recorder in an AOTInductor package costs: plain, built in and off, and on at each level.

`python -m benchmarks packages`. A feed-forward network of 2 million parameters, one call after another in turns. Each
level is a package of its own, so this compiles four times.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._inductor
from torch import nn

import torchsan

__all__ = ["main"]

_ROUNDS = 40


def main() -> None:
    """Measure, and print each as a ratio of the plain package."""
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
            "instrumented, off": _call(built["save"], x, None),
            **{f"instrumented, {w}": _call(p, x, here / w) for w, p in built.items()},
        }
        least = dict.fromkeys(calls, float("inf"))
        for _ in range(_ROUNDS):
            for name, call in calls.items():
                least[name] = min(least[name], call())
    print("a call of a package with 2 million parameters    ms   of the plain one's")
    for name, seconds in least.items():
        print(f"{name:<44}{1000 * seconds:>8.3f}{seconds / least['plain']:>10.2f}x")


def _call(package: str, x: torch.Tensor, out: Path | None) -> Callable[[], float]:
    runner: Any = torch._inductor.aoti_load_package(package)

    def call() -> float:
        if out is not None:
            os.environ["TORCHSAN_OUT"] = str(out)
        try:
            start = time.perf_counter()
            runner(x)
            return time.perf_counter() - start
        finally:
            os.environ.pop("TORCHSAN_OUT", None)

    call()
    return call


if __name__ == "__main__":
    main()
