"""What `torchsan.crossref()` costs.

Training steps of small transformers (forward, backward and AdamW), beside plain eager and torch's `CrossRefFakeMode`;
on one thread, since what is measured is Python. The steps after the first count, in which no kind of call is new; the
first one stands beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_utils import CrossRefFakeMode

from benchmarks.row import Kind, Limit, Record, Row
from benchmarks.timing import in_turns, timed
from torchsan.calls import crossref

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 3

_ROUNDS = 5
_STEPS = 6
_WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "eager": nullcontext,
    "ours": crossref,
    "theirs": CrossRefFakeMode,
}


def measure(quick: bool) -> Iterator[Record]:
    """Measure each size of transformer; the three ways take turns."""
    torch.set_num_threads(1)
    for width in (128,) if quick else (128, 256):
        found = _steps(_training(width), 2 if quick else _ROUNDS)
        eager, ours, theirs = (found[way][1] * 1e3 for way in _WAYS)
        what = f"a later step, 2 layers of width {width}"
        first = f"the first step {found['ours'][0] * 1e3:.0f} ms"
        yield Row(what=what, kind=Kind.COST, unit="ms", ours=ours, peer="plain eager", theirs=eager, goal=2, note=first)
        first = f"its first step {found['theirs'][0] * 1e3:.0f} ms"
        peer = "`CrossRefFakeMode`"
        yield Row(what=what, kind=Kind.COST, unit="ms", ours=ours, peer=peer, theirs=theirs, goal=0.5, note=first)
    yield from _LIMITS


def _training(width: int) -> Callable[[], None]:
    """Return one step: forward, backward, AdamW."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(8, 64, width)

    def step() -> None:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    return step


def _steps(step: Callable[[], None], rounds: int) -> dict[str, tuple[float, float]]:
    """For each way of running: seconds of the first step inside, and of the best one after it."""
    found = dict.fromkeys(_WAYS, (float("inf"), float("inf")))
    step()
    for n in range(rounds):
        for way, context in _WAYS.items():
            slow = way == "theirs"
            if slow and n > 1:
                continue  # Seconds a step, and far from the goal either way.
            with context():
                first = timed(step)
                later = in_turns({way: step}, 1 if slow else _STEPS)[way]
            found[way] = (min(first, found[way][0]), min(later, found[way][1]))
    return found


_LIMITS = (
    Limit(
        who="`CrossRefFakeMode`",
        cannot="go on after the first mismatch, compare offsets, devices, aliases or undeclared mutations, or look "
        "inside `torch.compile`",
    ),
    Limit(
        who="`torchsan.crossref()`",
        cannot="look at every call again: a kind of call that was seen is not compared a second time",
    ),
)
