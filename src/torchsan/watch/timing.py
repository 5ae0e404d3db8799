"""How long each launch takes, and how many bytes it reads and writes; so that a report can show it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchsan.records import CallTimes, LaunchTime
from torchsan.watch.observer import CallWatch, CompiledProgram, Observer, Values

if TYPE_CHECKING:
    from torchsan.recording import Writer
    from torchsan.torch_internals.wrapper import Launch


class Timer(Observer):
    """Times the launches of the calls that the checks look at, and tells of those that they do not."""

    name = "times"

    def __init__(self, writer: Writer, calls: int | None, *, checked: bool) -> None:
        """`calls` is how many calls of each graph are timed, and, if they are `checked`, looked at; None for all."""
        self._writer = writer
        self._limit = calls
        self._checked = checked
        self._passed: Counter[str] = Counter()

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        if self._limit is None or call < self._limit:
            return _Call(self._writer, program, call)
        self._passed[program.record.label] += 1
        return None

    def close(self) -> None:
        for label, count in self._passed.items() if self._checked else ():
            calls = "1 call" if count == 1 else f"{count} calls"
            reason = f"only the first {self._limit} with each set of sizes are checked; --calls N|all for more"
            self._writer.skipped(f"{calls} of graph {label}", reason)


@dataclass(slots=True)
class _Sum:
    launches: int = 0
    seconds: float = 0.0
    read: int = 0
    written: int = 0


class _Call(CallWatch):
    def __init__(self, writer: Writer, program: CompiledProgram, call: int) -> None:
        self._writer = writer
        self._ref = program.ref
        self._call = call
        self._sums: dict[int, _Sum] = {}

    def timed(self, function: str, launch: Launch, seconds: float) -> None:
        total = self._sums.setdefault(launch.nth, _Sum())
        total.launches += 1
        total.seconds += seconds

    def after(self, function: str, launch: Launch, values: Values) -> None:
        total = self._sums[launch.nth]
        total.read += sum(_bytes(values[name]) for name in launch.reads)
        total.written += sum(_bytes(values[name]) for name in launch.writes)

    def close(self, error: BaseException | None) -> None:
        launches = tuple(
            LaunchTime(nth=nth, launches=s.launches, seconds=s.seconds, bytes_read=s.read, bytes_written=s.written)
            for nth, s in self._sums.items()
        )
        times = CallTimes(graph=self._ref.id, direction=self._ref.direction, call=self._call, launches=launches)
        self._writer.event("times", {"times": times})


def _bytes(value: Any) -> int:
    if isinstance(value, tuple | list):
        return sum(map(_bytes, value))
    # Not `nbytes`, which sparse tensors refuse.
    return int(value.numel() * value.element_size()) if hasattr(value, "element_size") else 0
