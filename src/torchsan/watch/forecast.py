"""Tells early that checking takes long: during a checked call by its first launches, or after it for those to come."""

from __future__ import annotations

import time
from collections.abc import Callable

from torchsan.options import Calls
from torchsan.records import Forecast, GraphRef

_PATIENCE = 5.0
"""Seconds of a checked call before it is said how long the rest of it takes."""
_LONG = 20.0
"""Seconds still to come of which one wants to know."""
_TIMES = 3.0
"""How many times as long as by itself a checked call takes, if that is the checks' doing."""
_NOTICED = 0.5
"""Seconds that a checked call takes at least, if it is a matter that all are checked."""


class Outlook:
    """What the first checked calls say of those to come. One for a session; it tells once."""

    def __init__(
        self, tell: Callable[[Forecast], None], calls: Calls, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`tell` is given the forecast; `calls` are those that are checked of each graph."""
        self.clock = clock
        self._tell = tell
        self._calls = calls
        self._told = False

    def consider(self, seen: Forecast) -> None:
        """Tell what is seen of a call under way, or at its end, if it is worth telling."""
        if self._told or seen.seconds < _TIMES * seen.plain:
            return
        if seen.done < seen.launches:
            worth = seen.seconds >= _PATIENCE and (seen.left or 0.0) >= _LONG
        else:
            worth = seen.seconds >= _NOTICED and (seen.left is None or seen.left >= _LONG)
        if worth:
            self._told = True
            self._tell(seen)

    def to_come(self, call: int) -> int | None:
        """How many calls after this one are checked of a graph; None if there is no end to them."""
        if isinstance(self._calls, tuple):
            return sum(number > call for number in self._calls)
        return None if self._calls is None else max(0, self._calls - call - 1)


class CallOutlook:
    """One checked call: told of each launch when the checks are done with it."""

    __slots__ = ("_began", "_call", "_done", "_launches", "_outlook", "_plain", "_ref")

    def __init__(self, outlook: Outlook, ref: GraphRef, call: int, launches: int) -> None:
        self._outlook = outlook
        self._ref = ref
        self._call = call
        self._launches = launches
        self._began = outlook.clock()
        self._plain = 0.0
        self._done = 0

    def launched(self, seconds: float) -> None:
        """A launch took so long by itself."""
        self._plain += seconds

    def checked(self) -> None:
        """The checks are done with a launch."""
        self._done += 1
        took = self._outlook.clock() - self._began
        if took >= _PATIENCE and self._done < self._launches:
            self._outlook.consider(self._seen(took, took / self._done * (self._launches - self._done)))

    def over(self) -> None:
        """The call is over. The first one is looked at more closely than others, and says little of them."""
        if self._call and self._done:
            took, calls = self._outlook.clock() - self._began, self._outlook.to_come(self._call)
            self._done = self._launches
            self._outlook.consider(self._seen(took, None if calls is None else calls * took))

    def _seen(self, took: float, left: float | None) -> Forecast:
        return Forecast(
            graph=self._ref.id,
            direction=self._ref.direction,
            call=self._call,
            done=self._done,
            launches=self._launches,
            seconds=took,
            plain=self._plain,
            left=left,
        )
