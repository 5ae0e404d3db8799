"""What may be looked at beyond the first calls, and how much of the time that takes."""

from __future__ import annotations

from torchsan.watch.pace import MOST_KINDS, Attention, Pace


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_pace_keeps_to_its_share() -> None:
    clock = Clock()
    pace = Pace(0.1, clock)
    done = 0
    for _ in range(1000):
        clock.now += 1
        if pace.allows():
            done += 1
            clock.now += 2
            pace.spent(2)
    assert 0.05 < 2 * done / clock.now < 0.1


def test_kinds_are_checked_up_to_a_number_and_then_at_a_pace() -> None:
    clock = Clock()
    attention = Attention(2, Pace(0.1, clock))
    wanted = []
    for n in range(100):
        clock.now += 1
        if attention.wants(lambda n=n: n):  # type: ignore[misc]  # bound now
            wanted.append(n)
            attention.checked(1)
    assert wanted[:MOST_KINDS] == list(range(MOST_KINDS))
    assert 5 < len(wanted) - MOST_KINDS < 11


def test_the_first_calls_and_powers_of_two_are_checked() -> None:
    attention = Attention(2, Pace(), powers=True)
    assert [n for n in range(70) if attention.wants(lambda: "same")] == [0, 1, 16, 32, 64]


def test_calls_run_unseen_when_looking_at_them_costs_too_much() -> None:
    attention = Attention(1, Pace())
    for _ in range(40):
        attention.wants(lambda: "same")
        assert not attention.idle
        attention.unchecked(1e-6, 1.0)  # Looking costs next to nothing.
    before = attention.count
    attention.unchecked(1e-4, 1e-3)
    assert attention.idle == 49
    assert attention.count == before + 49


def test_a_call_that_was_asked_for_is_not_slept_through() -> None:
    attention = Attention((0, 40), Pace())
    for _ in range(35):
        attention.wants(lambda: "same")
    attention.unchecked(1.0, 1e-3)
    assert attention.count == 40
    assert attention.wants(lambda: "same")
    everything = Attention(None, Pace())
    for _ in range(35):
        assert everything.wants(lambda: "same")
    everything.unchecked(1.0, 1e-3)
    assert not everything.idle
