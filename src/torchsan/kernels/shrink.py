"""Makes the inputs of a failure small, with hypothesis."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from torchsan.kernels.inputs import Example, Trial
from torchsan.kernels.values import ORDINARY

_MOST = 60


def shrunk(example: Example, trial: Trial, fails: Callable[[Trial], bool], seconds: float) -> Trial:
    """Return the smallest trial found that `fails`, in this time; the trial itself if none is smaller.

    Sizes grow smaller, and numbers, layouts and scalars ordinary. Needs hypothesis; without it nothing is tried.
    """
    if example.fixed or seconds <= 0:
        return trial
    try:
        import hypothesis
        from hypothesis import strategies as st
    except ImportError:
        return trial
    until = time.monotonic() + seconds
    sizes = trial.sizes if trial.sizes is not None else example.symbols
    best = trial
    seen: dict[Trial, bool] = {}

    def smaller(candidate: Trial) -> bool:
        nonlocal best
        if candidate in seen:
            return seen[candidate]
        if time.monotonic() > until:
            return False
        seen[candidate] = fails(candidate)
        if seen[candidate] and _weight(candidate, sizes) < _weight(best, sizes):
            best = candidate
        return seen[candidate]

    # The layouts and numbers of the failure itself come last: what is drawn first is what shrinks to.
    anything = st.builds(
        Trial,
        seed=st.just(trial.seed),
        sizes=st.tuples(*(st.integers(min(1, s), s) for s in sizes)),
        values=st.sampled_from(list(dict.fromkeys([ORDINARY, trial.values]))),
        layout=st.sampled_from(list(dict.fromkeys(["as given", trial.layout]))),
        scalars=st.sampled_from(sorted({False, trial.scalars})),
        tied=st.just(trial.tied),
        dtype=st.just(trial.dtype),
    )
    start = replace(trial, sizes=sizes, given=False)
    settings = hypothesis.settings(
        max_examples=_MOST,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    # Where nothing smaller fails, or the time was up in the middle, the best so far is kept.
    with suppress(hypothesis.errors.HypothesisException, AssertionError):
        hypothesis.find(st.one_of(anything, st.just(start)), smaller, settings=settings)
    return best


def _weight(trial: Trial, sizes: tuple[int, ...]) -> tuple[int, int]:
    now = trial.sizes if trial.sizes is not None else sizes
    return sum(now) + (1 if trial.given else 0), (trial.values != ORDINARY) + (
        trial.layout != "as given"
    ) + trial.scalars
