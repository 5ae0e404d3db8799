"""How much time may go into looking at calls, beyond the first ones. Importing it imports no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from torchsan.options import Calls, calls_until, selects_call

MOST_KINDS = 16
"""How many kinds of calls of one function, such as sets of sizes, are checked whatever that costs."""
_ALWAYS = 32
"""Calls at the beginning whose arguments are looked at, whatever that costs."""
_LOOKING = 0.002
"""The part of a call's time that looking at its arguments may take, on average, afterwards."""
_MOST_IDLE = 4096
_REST = 256


class Pace:
    """Lets something be done now and then, so that it takes no more than a share of the time."""

    def __init__(self, share: float = 0.02, clock: Callable[[], float] = time.perf_counter) -> None:
        self._share = share
        self._clock = clock
        self._next = clock()

    def allows(self) -> bool:
        """Whether enough time has passed since it was done last."""
        return self._clock() >= self._next

    def spent(self, seconds: float) -> None:
        """It was done, and took so long."""
        self._next = self._clock() + seconds / self._share


class Attention:
    """Which calls of one function to check: the first, those that look like none before, and now and then one.

    Looking at the arguments costs time, too: after the first calls most run unseen, so that it is a small share.
    """

    def __init__(self, calls: Calls, pace: Pace, *, powers: bool = False) -> None:
        """With `powers`, the calls number 16, 32, 64 and so on are checked as well."""
        self.idle = 0
        """How many calls run unseen before the next that is shown."""
        self._calls = calls
        self._pace = pace
        self._powers = powers
        self.count = 0
        """How many calls there were."""
        self.later = False
        """Whether the call that is checked is one of the first ones, and like one before it."""
        self._seen: set[Hashable] = set()

    def wants(self, look: Callable[[], Hashable]) -> bool:
        """Whether to check this call; `look` tells what it looks like."""
        number, self.count = self.count, self.count + 1
        kind = look()
        self.later = False
        new = kind not in self._seen
        if new and len(self._seen) < MOST_KINDS:
            self._seen.add(kind)
            return True
        power = self._powers and number >= 16 and number & (number - 1) == 0
        selected = selects_call(self._calls, number)
        self.later = selected and not new
        return selected or power or (new and self._pace.allows())

    def checked(self, seconds: float) -> None:
        """To check a call took so long."""
        if len(self._seen) >= MOST_KINDS:
            self._pace.spent(seconds)

    def unchecked(self, looking: float, calling: float) -> None:
        """A call was looked at for so long, then ran for so long, unchecked: some calls may run unseen now."""
        if self.count > _ALWAYS:
            quiet = calls_until(self._calls, self.count)
            self.idle = min(int(looking / (_LOOKING * calling + 1e-9)), _MOST_IDLE, quiet)
            self.count += self.idle

    def rest(self) -> None:
        """Check nothing; what else is done now and then between calls goes on."""
        self.idle = _REST
