"""What came of a trial is remembered, unless it had no chance."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsan.repro.trial_server import Stopped
from torchsan.repro.trials import Limits, Trials, leave_out


def too_slow(candidate: str, folder: Path, limit: float) -> bool:
    raise TimeoutError


def contains_x(candidate: str, folder: Path, limit: float) -> bool:
    (folder / "output.txt").write_text("much")
    return "x" in candidate


def trials(folder: Path, *, limit: float = 5, total: float = 100, slow: bool = False) -> Trials[str]:
    return Trials(
        shows=too_slow if slow else contains_x,
        folder=folder,
        limits=Limits(jobs=2, trial=limit, total=total),
        key=str,
        describe=str,
        progress=lambda text: None,
    )


def test_the_first_that_shows_it_is_found_in_the_order_of_the_candidates(tmp_path: Path) -> None:
    some = trials(tmp_path)
    assert some.first(["a", "b", "c", "bx", "x", "cx"]) == "bx"
    assert some.known == {"a": False, "b": False, "c": False, "bx": True}
    assert some.first(["a", "b"]) is None
    assert some.count == 4, "what is known is not tried again"
    assert not list(tmp_path.iterdir())


def test_a_trial_that_takes_too_long_does_not_show_the_finding(tmp_path: Path) -> None:
    some = trials(tmp_path, limit=5, total=100, slow=True)
    assert some.first(["x"]) is None
    assert some.known == {"x": False}


def test_nothing_is_known_of_a_trial_that_the_end_of_all_time_cut_short(tmp_path: Path) -> None:
    some = trials(tmp_path, limit=100, total=5, slow=True)
    with pytest.raises(Stopped, match="the time limit"):
        some.first(["x"])
    assert some.known == {}


def test_nothing_is_tried_when_the_time_is_up(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="the time limit"):
        trials(tmp_path, total=-1).first(["x"])


def test_items_are_left_out_for_as_long_as_that_is_taken() -> None:
    left, tried = list(range(16)), 0

    def take(rests: list[list[int]]) -> bool:
        nonlocal left, tried
        for rest in rests:
            tried += 1
            if {3, 11} <= set(rest):
                left = rest
                return True
        return False

    leave_out(lambda: left, take)
    assert left == [3, 11]
    assert tried < 40
