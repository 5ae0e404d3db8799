"""Which launches to look at when only a share of the time may be spent: `--budget`. Importing it imports no torch.

One launch is looked at, and then nothing until so much time has passed that its cost was the share that is allowed: the
budget holds on average, and over any stretch but for the one launch that the stretch may begin with. Of the launches
of a program those come first that were looked at least often, and a program whose launches were all looked at often
leaves room for others, for a while.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from statistics import median

_PATIENCE = 3.0
"""How many pauses long a program that is behind the others is waited for."""


@dataclass(slots=True)
class _Program:
    """What was looked at of one program."""

    label: str
    looks: dict[int, int]
    """How often each launch was looked at."""
    calls: int = 0
    looked: int = 0
    """Calls of which something was looked at."""
    full: int = 0
    """Calls to come of which all launches are looked at."""
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

    def __init__(self, share: float, seed: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """`share` is that of the time which may be spent, such as 0.01."""
        self._share = share
        self._random = random.Random(seed)
        self._clock = clock
        self._lock = threading.Lock()
        self._programs: dict[int, _Program] = {}
        self._pause = 0.0
        self._next = clock()
        self.spent = 0.0
        self._began = clock()

    def add(self, key: int, label: str, launches: Collection[int]) -> None:
        """A program was compiled; these of its launches can be looked at."""
        with self._lock:
            self._programs[key] = _Program(label, dict.fromkeys(launches, 0))

    def choose(self, key: int) -> frozenset[int]:
        """The program is called: return the launches to look at, none most of the time."""
        now = self._clock()
        program = self._programs[key]
        program.calls += 1  # Not under the lock: a count that is one off does no harm, and every call pays for it.
        if now < self._next and not program.full:
            return frozenset()
        with self._lock:
            if program.full:
                program.full -= 1
                return frozenset(program.looks)
            if now < self._next or not program.looks:
                return frozenset()
            least = min(program.looks.values())
            behind = min(least_ for p in self._programs.values() if p.calls and (least_ := _least(p)) is not None)
            if least > behind and now < self._next + _PATIENCE * self._pause:
                return frozenset()
            chosen = self._random.choice([nth for nth, looks in program.looks.items() if looks == least])
            # Until it is told what this one cost, nobody else looks.
            self._next = now + max(self._pause, program.costs.get(chosen, 0.0) / self._share)
            return frozenset([chosen])

    def looked(self, key: int, launches: Collection[int], seconds: float) -> None:
        """Looking at these launches took so long."""
        with self._lock:
            program = self._programs[key]
            program.looked += 1
            for nth in launches:
                program.looks[nth] += 1
                program.costs[nth] = seconds / max(1, len(launches))
            self.spent += seconds
            self._pause = seconds / self._share
            self._next = self._clock() + self._pause

    def look_closely(self, key: int) -> None:
        """Something is wrong with a program: look at the whole of its next call."""
        with self._lock:
            self._programs[key].full = 1

    def look_at_everything(self) -> None:
        """Look at the whole of the next call of every program. Safe in a handler of a signal, so it takes no lock."""
        for program in tuple(self._programs.values()):
            program.full = 1

    def calls_of(self, label: str) -> int:
        """Of how many calls of a program something was looked at."""
        return sum(program.looked for program in tuple(self._programs.values()) if program.label == label)

    @property
    def cost(self) -> float:
        """The share of the time that was spent so far."""
        return self.spent / max(self._clock() - self._began, 1e-9)

    def results(self) -> Iterator[Sampled]:
        """What sampling came to, for each program that was called."""
        for program in self._programs.values():
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


def _least(program: _Program) -> int | None:
    return min(program.looks.values(), default=None)
