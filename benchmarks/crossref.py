"""Training steps of a small transformer: plain eager, under `torchsan.crossref()`, and under torch's CrossRefFakeMode.

Run with `python -m benchmarks.crossref`. The three take turns, so that a busy machine slows all of them; the best step
of each counts. The first step under a check, in which every kind of call is new, is shown by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_utils import CrossRefFakeMode

from torchsan.checks.metadata.crossref import crossref

ROUNDS = 5
STEPS = 6


def training(width: int, layers: int, batch: int, length: int) -> Callable[[], None]:
    """Return one step: forward, backward, AdamW."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(batch, length, width)

    def step() -> None:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    return step


def timed(step: Callable[[], None]) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def measure(step: Callable[[], None]) -> dict[str, tuple[float, float]]:
    """For each way of running: seconds of the first step inside, and of the best one after it."""
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "plain eager": nullcontext,
        "torchsan.crossref()": crossref,
        "CrossRefFakeMode": CrossRefFakeMode,
    }
    found: dict[str, tuple[float, float]] = {}
    step()
    for n in range(ROUNDS):
        for name, context in ways.items():
            if n > 1 and name == "CrossRefFakeMode":
                continue  # Seconds a step, and far from the goal either way.
            with context():
                first = timed(step)
                later = min(timed(step) for _ in range(STEPS if name != "CrossRefFakeMode" else 1))
            known = found.get(name, (first, later))
            found[name] = (min(first, known[0]), min(later, known[1]))
    return found


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)  # What is measured is Python; threads would only add noise.
    print("second and later steps of a training loop, best of each; lower is better\n")
    for width, layers, batch, length in ((128, 2, 8, 64), (256, 2, 8, 64)):
        found = measure(training(width, layers, batch, length))
        plain = found["plain eager"][1]
        other = found["CrossRefFakeMode"][1]
        print(f"transformer: width {width}, {layers} layers, batch {batch} x {length}")
        for name, (first, later) in found.items():
            print(
                f"  {name:22} first {first * 1e3:8.1f} ms   later {later * 1e3:8.1f} ms   {later / plain:6.2f} x plain"
            )
        ours = found["torchsan.crossref()"][1]
        print(f"  goals: <= 2 x plain: {ours / plain:.2f}   <= 0.5 x CrossRefFakeMode: {ours / other:.3f}\n")


if __name__ == "__main__":
    main()
