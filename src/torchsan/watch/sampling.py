"""Which launches to look at when only a share of the time may be spent: `--budget`. Importing it imports no torch.

The first call of a program is looked at as a whole, for no longer than its compile took, or some seconds. From then on
one launch is looked at, and then nothing until so much time has passed that its cost was the share that is allowed: the
budget holds on average, and over any stretch but for the one launch that the stretch may begin with. The launches of a
program take turns in an order that the seed decides, and a program that is ahead of the others leaves room for them,
for a while.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from statistics import median

_PATIENCE = 3.0
"""How many pauses long a program that is behind the others is waited for."""
_CLOSELY = 0.1
"""The part of the time spent that goes into looking closely."""
_LATE = 1.0
"""Seconds of pause that a look which came late makes up for, at most."""
_FIRST = 10.0
"""Seconds that first calls may take together, where compiling the programs, from a cache say, took less."""
_ALARMS = 3
"""How many findings in a program have the whole of its next calls looked at."""
_AFTERWARDS = 2
"""How many of its next calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What to look at in a call: these launches, each `closely` or just for whether it is as usual.

    Nothing more is begun once `seconds` were spent. What is not `charged` does not count for the budget: the first
    call, and what a finding or the user asked for.
    """

    launches: frozenset[int]
    closely: bool
    charged: bool = True
    seconds: float = float("inf")


@dataclass(slots=True)
class _Program:
    """What was looked at of one program."""

    label: str
    order: deque[int]
    looks: dict[int, int]
    """How often each launch was looked at."""
    seconds: float
    """What the first call may take."""
    calls: int = 0
    looked: int = 0
    """Calls of which something was looked at."""
    full: int = 0
    """Calls to come of which all launches are looked at."""
    alarms: int = 0
    least: int = 0
    """How often that launch was looked at which was looked at least often."""
    asked: tuple[float, int] | None = None
    """When `quiet` was asked last, and how many calls there were by then."""
    interval: float = 0.0
    """Seconds from one call to the next, about."""
    costs: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What sampling came to: for a program, how many calls there were, and how often each launch was looked at."""

    label: str
    calls: int
    launches: int
    looks: int
    least: int
    middle: float

    @property
    def every(self) -> float | None:
        """A launch was looked at about once in so many calls; None if one never was."""
        return self.calls / self.middle if self.least else None

    def seen(self, one_in: int) -> float:
        """How probable it was to see an error that a kernel makes in one of so many calls."""
        return float(1 - (1 - 1 / one_in) ** self.least)


class Sampler:
    """Chooses launches under a budget. One for a session, used from any thread."""

    def __init__(
        self,
        share: float,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        *,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        """`share` is that of the time which may be spent, such as 0.01. Each `rank` begins elsewhere."""
        self.share = share
        self.seed = seed
        self._begin = rank / max(1, world)
        self._random = random.Random(seed)
        self._clock = clock
        self._lock = threading.Lock()
        self._programs: dict[int, _Program] = {}
        self._pause = 0.0
        self._next = self._due = clock()
        self._closely = 0.0
        self.spent = 0.0
        """Seconds, of what counts for the budget."""
        self.extra = 0.0
        """Seconds, of what does not."""
        self._began = clock()

    def add(self, key: int, label: str, launches: Collection[int], seconds: float | None = None) -> None:
        """A program was compiled; these of its launches can be looked at.

        All are in its first call, if `seconds` is given: for as long, or while there is time for first calls.
        """
        with self._lock:
            order = deque(self._random.sample(list(launches), len(launches)))
            order.rotate(-int(self._begin * len(order)))
            looks = dict.fromkeys(order, 0)
            self._programs[key] = _Program(label, order, looks, seconds or 0.0, full=int(seconds is not None))

    def called(self, key: int, calls: int) -> None:
        """The program was called so many times more."""
        self._programs[key].calls += calls

    def quiet(self, key: int) -> int:
        """For about how many calls of the program nothing will be looked at."""
        program = self._programs[key]
        now, calls = self._clock(), program.calls
        if program.asked is not None and calls > program.asked[1]:
            program.interval = (now - program.asked[0]) / (calls - program.asked[1])
        program.asked = now, calls
        if program.full or now >= self._next:
            return 0
        return int((self._next - now) / max(program.interval, 1e-6))

    def choose(self, key: int) -> Look | None:
        """The program is called: return what to look at, nothing most of the time."""
        now = self._clock()
        program = self._programs[key]
        if now < self._next and not program.full:
            return None
        with self._lock:
            if program.full:
                program.full -= 1
                first = program.looked == 0
                seconds = max(program.seconds, _FIRST - self.extra) if first else float("inf")
                return Look(launches=frozenset(program.looks), closely=True, charged=False, seconds=seconds)
            if now < self._next or not program.looks:
                return None
            behind = min((p.least for p in self._programs.values() if p.calls and p.looks), default=0)
            if program.least > behind and now < self._next + _PATIENCE * self._pause:
                return None
            self._due = self._next
            chosen = program.order[0]
            # Until it is told what this one cost, nobody else looks.
            self._next = now + max(self._pause, program.costs.get(chosen, 0.0) / self.share)
            closely = not program.looks[chosen] or self._closely < _CLOSELY * self.spent
            return Look(launches=frozenset([chosen]), closely=closely)

    def looked(self, key: int, look: Look, launches: Collection[int], seconds: float) -> None:
        """These of the launches ran and were looked at, and it took so long."""
        with self._lock:
            program = self._programs[key]
            program.looked += 1
            for nth in launches:
                program.looks[nth] += 1
            program.least = min(program.looks.values(), default=0)
            if not look.charged:
                self.extra += seconds
                return
            for nth in look.launches:  # One that did not run has had its turn, too.
                program.order.remove(nth)
                program.order.append(nth)
                program.costs[nth] = seconds / len(look.launches)
            self.spent += seconds
            self._closely += seconds * look.closely
            self._pause = seconds / self.share
            # From when it was due: a call is not always there when one is, and what is due then is not lost.
            now = self._clock()
            self._next = max(self._due, now - _LATE) + self._pause

    def look_closely(self, key: int) -> None:
        """Something is wrong with a program: look at the whole of its next calls, if it is one of the first times."""
        with self._lock:
            program = self._programs[key]
            program.alarms += 1
            if program.alarms <= _ALARMS:
                program.full = _AFTERWARDS

    def look_at_everything(self) -> None:
        """Look at the whole of the next call of every program. Safe in a handler of a signal, so it takes no lock."""
        for program in tuple(self._programs.values()):
            program.full = max(program.full, 1)

    def calls_of(self, label: str) -> int:
        """Of how many calls of a program something was looked at."""
        return sum(program.looked for program in tuple(self._programs.values()) if program.label == label)

    @property
    def cost(self) -> float:
        """The share of the time that was spent so far."""
        return self.spent / max(self._clock() - self._began, 1e-9)

    def figures(self) -> dict[str, float | int | None]:
        """What it came to so far, in numbers: seconds spent, the share of the time, launches looked at, the seed.

        `every` is the number of calls between two looks at a launch, in the program where it is largest.
        """
        results = list(self.results())
        looks = sum(sampled.looks for sampled in results)
        between = [sampled.every for sampled in results]
        every = max((e for e in between if e is not None), default=None) if None not in between else None
        return {
            "budget": self.share,
            "share": self.cost,
            "seconds": self.spent,
            "extra_seconds": self.extra,
            "looks": looks,
            "every": every,
            "seed": self.seed,
        }

    def results(self) -> Iterator[Sampled]:
        """What sampling came to, for each program that was called."""
        for program in tuple(self._programs.values()):
            looks = list(program.looks.values())
            if program.calls and looks:
                yield Sampled(
                    label=program.label,
                    calls=program.calls,
                    launches=len(looks),
                    looks=sum(looks),
                    least=min(looks),
                    middle=median(looks),
                )
