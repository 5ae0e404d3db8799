"""A recording as a trace that Perfetto and chrome://tracing open: the JSON format of Chrome's trace events.

Only what the recording holds is drawn. What was recorded without times stands in processes of its own, whose names say
so, with one microsecond for a step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TextIO

from torchsan.errors import RecordingError
from torchsan.recording import Reader, Timed
from torchsan.records import CallTimes, GraphRecord, KernelRecord, MemoryCall, Watched, decode
from torchsan.records.tensor import describe_value, launch_label
from torchsan.report.exporter import Exporter
from torchsan.report.findings import clean, count

_TIMES, _DURATIONS, _LAUNCHES, _STEPS = 1, 2, 3, 4
"""The processes of the trace: by the clock, launches by their duration, launches in their order, memory by step."""
_COMPILES, _FINDINGS = 1, 2
"""Threads of the first process that are none of the program's, whose numbers are higher."""
_PER_PROCESS = 1_000_000
"""How many threads of ours a process can have: Perfetto tells threads apart by their number alone, whatever process."""


_PROGRAMS_OWN = 2**31
"""Threads of the program are numbered from here on."""


@dataclass(slots=True)
class _Trace:
    start: float
    events: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, ph: str, pid: int, tid: int, name: str, args: Mapping[str, Any], **rest: Any) -> None:
        """Add an event of Chrome's format; `ph` is the letter of its kind."""
        thread = tid if tid >= _PROGRAMS_OWN else pid * _PER_PROCESS + tid % _PER_PROCESS
        self.events.append({"ph": ph, "name": name, "pid": pid, "tid": thread, **rest, "args": args})

    def name(self, pid: int, text: str, tid: int | None = None) -> None:
        """Name a process, or a thread of it."""
        what = "process_name" if tid is None else "thread_name"
        self.add("M", pid, tid or 0, what, {"name": clean(text, 200)})

    def slice(self, pid: int, tid: int, name: str, ts: float, dur: float, args: dict[str, Any]) -> None:
        self.add("X", pid, tid, clean(name, 200), args, ts=ts, dur=max(dur, 0.0))

    def instant(self, tid: int, name: str, ts: float, args: dict[str, Any]) -> None:
        self.add("i", _TIMES, tid, clean(name, 200), args, s="t", ts=ts)

    def counter(self, pid: int, name: str, ts: float, values: dict[str, int]) -> None:
        self.add("C", pid, 0, clean(name, 200), values, ts=ts)

    def microseconds(self, time: float) -> float:
        return _microseconds(time - self.start)


_LONGEST = 1e9
"""Seconds that a trace can show, which are 30 years: a recording can hold any number."""


def _microseconds(seconds: float) -> float:
    return round(max(-_LONGEST, min(seconds, _LONGEST)) * 1e6, 3) if not math.isnan(seconds) else 0.0


class PerfettoExporter(Exporter[Reader]):
    """Writes the trace of a recording, and says what is in it and what has no times."""

    name = "perfetto"
    help = "write launches and memory as a trace for ui.perfetto.dev"

    def render(self, subject: Reader) -> str:
        return _text(as_trace(subject))

    def write(self, subject: Reader, target: str, messages: TextIO) -> None:
        trace = as_trace(subject)
        self.put(_text(trace), target)
        messages.write(f"torchsan: wrote {clean(target)}; open it at ui.perfetto.dev\n")
        for note in trace["otherData"]["notes"]:
            messages.write(f"  {note}\n")


def _text(trace: dict[str, Any]) -> str:
    return json.dumps(trace, allow_nan=False) + "\n"


def as_trace(recording: Reader) -> dict[str, Any]:
    """Return the trace as JSON values."""
    events = [e for e in recording.timed() if math.isfinite(e.time)]
    # A compile is recorded when it is over.
    starts = [e.time - (_seconds(e) if e.kind == "graph" else 0.0) for e in events]
    trace = _Trace(min(starts, default=0.0))
    trace.name(_TIMES, "timeline, in real time")
    _compiles(trace, events)
    _findings(trace, events)
    _watched(trace, events)
    _memory(trace, events)
    _launches(trace, events, recording.graphs())
    return {
        "traceEvents": trace.events,
        "displayTimeUnit": "ms",
        "otherData": {"torchsan": recording.manifest.torchsan, "notes": trace.notes},
    }


def _seconds(event: Timed) -> float:
    seconds = event.body.get("compile_seconds", 0.0)
    return float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < math.inf else 0.0


def _compiles(trace: _Trace, events: Iterable[Timed]) -> None:
    found = [(e, decode(GraphRecord, e.body)) for e in events if e.kind == "graph"]
    if not found:
        return
    trace.name(_TIMES, "compiles by Inductor", _COMPILES)
    for event, graph in found:
        start = trace.microseconds(event.time - _seconds(event))
        trace.slice(
            _TIMES,
            _COMPILES,
            f"compile graph {graph.label}",
            start,
            _microseconds(_seconds(event)),
            {"kernels": [clean(k.name, 100) for k in graph.kernels], "buffers": len(graph.buffers)},
        )
    trace.notes.append(f"{count(len(found), 'compile')} by the clock")


def _findings(trace: _Trace, events: Iterable[Timed]) -> None:
    found = [e for e in events if e.kind == "finding"]
    if found:
        trace.name(_TIMES, "findings", _FINDINGS)
    for event in found:
        body = event.body
        args = {name: clean(body.get(name)) for name in ("kind", "severity", "message", "kernel", "buffer")}
        trace.instant(_FINDINGS, f"{body.get('id')}: {body.get('kind')}", trace.microseconds(event.time), args)


def _watched(trace: _Trace, events: Iterable[Timed]) -> None:
    """Draw each launch from the first to the last value that the watch saw of it."""
    seen = [(e, decode(Watched, e.body.get("watched"))) for e in events if e.kind == "watched"]
    seen.sort(key=lambda pair: pair[0].thread)
    launches = instants = 0
    for thread, of_thread in groupby(seen, key=lambda pair: pair[0].thread):
        trace.name(_TIMES, f"launches on thread {thread}", _own(thread))
        for label, group in groupby(of_thread, key=lambda pair: (launch_label(pair[1]), pair[1].kernel)):
            values = list(group)
            start, end = values[0][0].time, values[-1][0].time
            args = {f"{w.phase} {clean(w.name, 100)}".strip(): clean(describe_value(w), 300) for _, w in values}
            args["launch"] = label[0]
            name = label[1]
            if len({w.phase for _, w in values}) > 1:
                trace.slice(_TIMES, _own(thread), name, trace.microseconds(start), _microseconds(end - start), args)
                launches += 1
            else:
                trace.instant(_own(thread), name, trace.microseconds(start), args)
                instants += 1
    if launches:
        trace.notes.append(
            f"launches by the clock: {launches}, each from the first value that the watch recorded before it to the "
            "last after it; looking at the values is part of that time"
        )
    if instants:
        trace.notes.append(f"{count(instants, 'moment')} of which only one side of the launch was watched")


def _own(thread: int) -> int:
    """A number for a thread of the program that is none of ours, in the range that Perfetto takes."""
    return _PROGRAMS_OWN + thread % 2**31


def _launches(trace: _Trace, events: Iterable[Timed], graphs: Iterable[GraphRecord]) -> None:
    """Draw the launches of each call that was timed, one after the other; of a graph that was not, in their order."""
    known = {(g.id, g.direction): g for g in graphs if g.kernels}
    calls = [decode(CallTimes, e.body.get("times")) for e in events if e.kind == "times"]
    timed = [c for c in calls if (c.graph, c.direction) in known and c.launches]
    if timed:
        trace.name(_DURATIONS, "launches with the time each took; when they began was not recorded")
        trace.notes.append(f"launches of {count(len(timed), 'call')} with the time each took, one after the other")
    for tid, call in enumerate(timed, start=1):
        trace.name(_DURATIONS, f"graph {call.graph} {call.direction} call {call.call}", tid)
        _durations(trace, tid, call, {k.nth: k for k in known[call.graph, call.direction].kernels})
    seen = {(c.graph, c.direction) for c in timed}
    rest = [g for key, g in known.items() if key not in seen]
    if rest:
        trace.name(_LAUNCHES, "launches in their order; no times were recorded, 1 µs is one launch")
        what = count(len(rest), "graph")
        trace.notes.append(f"launches of {what} in their order, without times: no call of it was timed")
    for tid, graph in enumerate(rest, start=1):
        trace.name(_LAUNCHES, f"graph {graph.label}", tid)
        for n, kernel in enumerate(graph.kernels):
            trace.slice(_LAUNCHES, tid, kernel.name, float(n), 1.0, _about(kernel))


def _durations(trace: _Trace, tid: int, call: CallTimes, kernels: Mapping[int, KernelRecord]) -> None:
    at = 0.0
    for launch in call.launches:
        kernel = kernels.get(launch.nth)
        dur = max(_microseconds(launch.seconds), 0.0) if math.isfinite(launch.seconds) else 0.0
        args = {"launches": launch.launches, "bytes read": launch.bytes_read, "bytes written": launch.bytes_written}
        name = kernel.name if kernel is not None else f"launch {launch.nth}"
        trace.slice(_DURATIONS, tid, name, round(at, 3), dur, args | _about(kernel))
        at += dur


def _about(kernel: KernelRecord | None) -> dict[str, Any]:
    if kernel is None:
        return {}
    source = [f"{clean(s.file)}:{s.line} {clean(s.code, 100)}" for s in kernel.source]
    return {"reads": list(kernel.reads), "writes": list(kernel.writes), "source": source}


def _memory(trace: _Trace, events: Iterable[Timed]) -> None:
    found = [e for e in events if e.kind == "memory"]
    if not found:
        return
    trace.name(_STEPS, "memory by step of the program; no times were recorded, 1 µs is one step")
    for event in found:
        call = decode(MemoryCall, event.body)
        label = f"graph {call.graph} {call.direction}"
        peaks = {"peak": call.peak, "planned": call.planned_peak}
        trace.counter(_TIMES, f"bytes at the peak of a call of {label}", trace.microseconds(event.time), peaks)
        for step, point in enumerate(call.timeline):
            if len(point) != 3:
                raise RecordingError("malformed memory event; the recording is damaged", slug="malformed-record")
            values = {"planned": point[1], "actual": point[2]}
            trace.counter(_STEPS, f"bytes in {label} call {call.call}", float(step), values)
    trace.notes.append(
        f"memory of {count(len(found), 'call')}: the peak by the clock, and the bytes after each step without times"
    )
