"""Which launches are looked at under a budget."""

from __future__ import annotations

from collections import Counter

import pytest

from torchsan.watch.sampling import Sampled, Sampler


class Job:
    """Programs that are called in turn, on a clock of their own. Looking at a launch takes `cost` seconds."""

    def __init__(self, share: float, cost: float, programs: dict[int, int], seed: int = 0) -> None:
        self.now = 0.0
        self.cost = cost
        self.sampler = Sampler(share, seed, clock=lambda: self.now)
        self.looks: Counter[tuple[int, int]] = Counter()
        self.when: list[float] = []
        for key, launches in programs.items():
            self.sampler.add(key, f"{key} forward", range(launches))

    def call(self, key: int, seconds: float) -> frozenset[int]:
        chosen = self.sampler.choose(key)
        self.now += seconds
        if chosen:
            self.now += self.cost * len(chosen)
            self.sampler.looked(key, chosen, self.cost * len(chosen))
            self.looks.update((key, nth) for nth in chosen)
            self.when.append(self.now)
        return chosen


@pytest.mark.parametrize(("share", "cost", "step"), [(0.01, 0.005, 0.005), (0.01, 0.05, 0.5), (0.1, 0.3, 0.02)])
def test_the_budget_is_kept_and_used(share: float, cost: float, step: float) -> None:
    job = Job(share, cost, {1: 40})
    while job.now < 600:
        job.call(1, step)
    assert 0.6 * share < job.sampler.cost <= share + cost / 600
    for end in range(60, 601, 30):  # In any minute, but for the one launch that it may begin with.
        assert sum(end - 60 < t <= end for t in job.when) * cost <= share * 60 + cost


def test_every_kernel_is_seen_again_and_again() -> None:
    job = Job(0.01, 0.005, {1: 40})
    while job.now < 300:
        job.call(1, 0.005)
    assert len(job.looks) == 40
    assert max(job.looks.values()) - min(job.looks.values()) <= 1


def test_a_program_that_is_called_rarely_is_not_forgotten() -> None:
    job = Job(0.01, 0.005, {1: 4, 2: 4})
    for n in range(60_000):
        job.call(1, 0.005)
        if n % 60 == 0:
            job.call(2, 0.005)
    rare, often = (sum(v for (key, _), v in job.looks.items() if key == k) for k in (2, 1))
    assert rare > often / 3


def test_a_finding_is_looked_at_closely_once() -> None:
    job = Job(0.01, 0.005, {1: 4, 2: 4})
    job.call(1, 0.1)
    job.sampler.look_closely(1)
    assert job.call(2, 0.1) == frozenset()
    assert job.call(1, 0.1) == frozenset(range(4))
    assert job.call(1, 0.1) == frozenset()


def test_everything_can_be_asked_for() -> None:
    job = Job(0.01, 0.005, {1: 4, 2: 2})
    job.call(1, 0.1)
    job.sampler.look_at_everything()
    assert [len(job.call(key, 0.1)) for key in (1, 2, 1, 2)] == [4, 2, 0, 0]


def test_ranks_look_at_other_launches() -> None:
    chosen = [next(iter(Job(0.01, 0.005, {1: 40}, seed=rank).call(1, 1.0))) for rank in range(8)]
    assert len(set(chosen)) > 4


def test_what_it_came_to() -> None:
    job = Job(0.5, 0.01, {1: 2, 2: 1, 3: 1})
    for _ in range(100):
        job.call(1, 0.01)
    job.sampler.add(4, "4 forward", [])
    (one,) = job.sampler.results()
    assert (one.label, one.calls, one.launches, one.looks) == ("1 forward", 100, 2, sum(job.looks.values()))
    assert one.every == pytest.approx(100 / one.middle)
    never = Sampled(label="x", calls=9, launches=2, looks=1, least=0, middle=0.5)
    assert never.every is None
    assert never.seen(10) == 0
    seven = Sampled(label="x", calls=9, launches=1, looks=7, least=7, middle=7)
    assert seven.seen(10) == pytest.approx(0.5217, abs=1e-4)
