"""That checking will take long is said early, once, and only where it is so."""

from __future__ import annotations

import pytest

from torchsan.options import Calls
from torchsan.records import Direction, Forecast, GraphId, GraphRef
from torchsan.watch.forecast import CallOutlook, Outlook

REF = GraphRef(id=GraphId(1), direction=Direction.FORWARD)


def told(
    calls: Calls,
    seconds: list[float],
    *,
    launches: int = 100,
    plain: float = 0.001,
    number: int = 0,
    over: bool = False,
) -> list[Forecast]:
    """What is told of a call whose launches take so long to check."""
    now, found = [0.0], list[Forecast]()
    call = CallOutlook(Outlook(found.append, calls, lambda: now[0]), REF, number, launches)
    for each in seconds:
        now[0] += each
        call.launched(plain)
        call.checked()
    if over:
        call.over()
    return found


def test_the_first_launches_tell_how_long_the_rest_takes() -> None:
    (seen,) = told(2, [1.0] * 20)
    assert (seen.done, seen.seconds, seen.left) == (5, 5.0, 95.0)
    assert seen.plain == pytest.approx(0.005)


def test_what_is_soon_over_or_no_slower_than_by_itself_is_not_told() -> None:
    assert told(2, [0.01] * 100) == []
    assert told(2, [1.0] * 20, launches=20) == []
    assert told(2, [1.0] * 20, plain=0.5) == []


@pytest.mark.parametrize(("calls", "left"), [(None, None), (30, 56.0), ((1, 2, 50), None)])
def test_a_later_call_tells_of_those_to_come(calls: Calls, left: float | None) -> None:
    found = told(calls, [0.02] * 100, number=1, over=True)
    if isinstance(calls, tuple):  # Two calls more: four seconds.
        assert found == []
    else:
        assert [seen.left for seen in found] == [pytest.approx(left)]


def test_a_first_call_says_little_of_later_ones_and_the_last_nothing() -> None:
    assert told(None, [0.02] * 100, over=True) == []
    assert told(2, [0.02] * 100, number=1, over=True) == []
