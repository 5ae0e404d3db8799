"""Which launches are looked at under a budget."""

from __future__ import annotations

from collections import Counter

import pytest

from torchsan.watch.sampling import Sampled, Sampler


class Job:
    """Programs that are called in turn, on a clock of their own. Looking at a launch takes `cost` seconds."""

    def __init__(self, share: float, cost: float, programs: dict[int, int], seed: int = 0, **ranks: int) -> None:
        self.now = 0.0
        self.cost = cost
        self.sampler = Sampler(share, seed, clock=lambda: self.now, **ranks)
        self.looks: Counter[tuple[int, int]] = Counter()
        self.when: list[float] = []
        self.depths: list[bool] = []
        for key, launches in programs.items():
            self.sampler.add(key, f"{key} forward", range(launches))

    def call(self, key: int, seconds: float) -> frozenset[int]:
        self.sampler.called(key, 1)
        look = self.sampler.choose(key)
        self.now += seconds
        if look is None:
            return frozenset()
        cost = self.cost * len(look.launches) * (10 if look.closely else 1)
        self.now += cost
        self.sampler.looked(key, look, look.launches, cost)
        self.looks.update((key, nth) for nth in look.launches)
        self.when.append(self.now)
        self.depths.append(look.closely)
        return look.launches


@pytest.mark.parametrize(("share", "cost", "step"), [(0.01, 0.005, 0.005), (0.01, 0.05, 0.5), (0.1, 0.3, 0.02)])
def test_the_budget_is_kept_and_used(share: float, cost: float, step: float) -> None:
    job = Job(share, cost, {1: 40})
    while job.now < 600:
        job.call(1, step)
    assert 0.8 * share < job.sampler.cost <= share + 10 * cost / 600
    costs = [cost * (10 if closely else 1) for closely in job.depths]
    for end in range(60, 601, 30):  # In any minute, but for the one launch that it may begin with.
        spent = sum(c for t, c in zip(job.when, costs, strict=True) if end - 60 < t <= end)
        assert spent <= share * 61 + 10 * cost


def test_the_first_look_at_a_launch_is_a_close_one_and_later_a_tenth_of_the_time_is() -> None:
    job = Job(0.01, 0.005, {1: 4})
    while job.now < 1000:
        job.call(1, 0.005)
    assert job.depths[:4] == [True] * 4
    later = job.depths[40:]
    close = sum(later) * 10 / (sum(later) * 10 + later.count(False))
    assert 0.05 < close < 0.2


def test_the_launches_take_turns_so_that_none_waits_longer_than_a_round() -> None:
    job = Job(0.5, 0.005, {1: 40})
    chosen = [n for _ in range(40_000) for n in job.call(1, 0.005)]
    rounds = [chosen[i : i + 40] for i in range(0, len(chosen) - 40, 40)]
    assert len(rounds) > 3
    assert all(r == rounds[0] for r in rounds)


def test_the_first_call_is_looked_at_as_a_whole_for_a_while_and_is_not_charged() -> None:
    sampler = Sampler(0.01, clock=lambda: 0.0)
    sampler.add(1, "1 forward", range(4), 12.5)
    sampler.called(1, 1)
    assert sampler.quiet(1) == 0
    look = sampler.choose(1)
    assert look is not None
    assert (look.launches, look.closely, look.charged, look.seconds) == (frozenset(range(4)), True, False, 12.5)
    sampler.looked(1, look, [0, 1, 2], 2.6)  # One was left out, because the time was over.
    assert (sampler.spent, sampler.extra) == (0.0, 2.6)
    look = sampler.choose(1)
    assert look is not None
    assert look.charged
    sampler.add(2, "2 forward", range(4), 0.1)  # Compiled quickly, and there is time left.
    sampler.called(2, 1)
    look = sampler.choose(2)
    assert look is not None
    assert look.seconds == pytest.approx(7.4)


def test_it_says_for_how_many_calls_nothing_will_be_looked_at() -> None:
    job = Job(0.01, 0.01, {1: 4})
    for _ in range(50):
        job.sampler.quiet(1)
        job.call(1, 0.02)
    job.sampler._next = job.now + 1.0
    job.sampler.quiet(1)
    assert 40 <= job.sampler.quiet(1) <= 60


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


def test_a_finding_has_the_whole_of_the_next_calls_looked_at_the_first_times() -> None:
    job = Job(0.01, 0.005, {1: 4, 2: 4})
    job.call(1, 0.1)
    for n in range(5):
        job.sampler.look_closely(1)
        assert job.call(2, 0.01) == frozenset()
        assert [len(job.call(1, 0.01)) for _ in range(3)] == ([4, 4, 0] if n < 3 else [0, 0, 0])
    assert job.sampler.spent == pytest.approx(0.05)


def test_everything_can_be_asked_for() -> None:
    job = Job(0.01, 0.005, {1: 4, 2: 2})
    job.call(1, 0.1)
    job.sampler.look_at_everything()
    assert [len(job.call(key, 0.1)) for key in (1, 2, 1, 2)] == [4, 2, 0, 0]


def test_ranks_look_at_other_launches() -> None:
    jobs = [Job(0.01, 0.005, {1: 40}, rank=rank, world=8) for rank in range(8)]
    seen: set[int] = set()
    for job in jobs:
        while job.looks.total() < 5:
            seen |= job.call(1, 1.0)
    assert len(seen) == 40  # Five looks of each of eight ranks, and none twice.


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
