"""The verdict on a recording: clean, findings or incomplete, and the exit status that goes with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from torchsan.recording import Reader
from torchsan.records import (
    CallTimes,
    Check,
    Direction,
    Finding,
    GraphId,
    InFlight,
    KernelRecord,
    Severity,
    decode,
)
from torchsan.records.program import signal_name
from torchsan.records.suppression import Suppression
from torchsan.report.findings import shown_file

WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
"""Keeps oneDNN's bfloat16 matmuls from the AMX instructions, which some virtual machines offer and do not run."""


class Status(StrEnum):
    """The outcome in one word, as in JSON."""

    CLEAN = "clean"
    FINDINGS = "findings"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome, the exit status that goes with it, and why it is incomplete."""

    status: Status
    exit: int
    reasons: tuple[str, ...] = ()

    def exit_as(self, found: int) -> int:
        """Return the exit status where findings end with `found`, as `--exit-code` asks, instead of 1."""
        return found if self.status is Status.FINDINGS else self.exit


def suppressed_by(recording: Reader, finding: Finding) -> Suppression | None:
    """Return the suppression that a finding of a recording falls under, as of the day of the run; None if it counts."""
    return recording.suppressions.of(finding)


def counting(recording: Reader) -> list[Finding]:
    """Return the findings that are not suppressed."""
    return [f for f in recording.findings() if suppressed_by(recording, f) is None]


def idle_suppressions(recording: Reader) -> Iterator[str]:
    """Return what to tell the user of suppressions that have expired, or that no finding fits."""
    return recording.suppressions.idle()


def verdict(recording: Reader) -> Verdict:
    """Return the outcome of a recording: the policy of `run` and of `report`.

    Errors found come first, but for suppressed ones; then the program's own failure; then whatever makes silence mean
    nothing.
    """
    reasons = _why_incomplete(recording)
    if any(f.severity is Severity.ERROR for f in counting(recording)):
        return Verdict(status=Status.FINDINGS, exit=1, reasons=reasons)
    if recording.failure is not None:
        return Verdict(status=Status.INCOMPLETE, exit=recording.failure.status, reasons=reasons)
    if recording.program.status:
        return Verdict(status=Status.INCOMPLETE, exit=recording.program.status, reasons=reasons)
    if reasons:
        return Verdict(status=Status.INCOMPLETE, exit=4, reasons=reasons)
    return Verdict(status=Status.CLEAN, exit=0)


def _why_incomplete(recording: Reader) -> tuple[str, ...]:
    reasons = []
    program = recording.program
    coverage = recording.coverage()
    if recording.failure is not None:
        return (recording.failure.message,)
    if recording.events("stopped"):
        return ("torchsan ended the program at the first error, as --fail-fast asks",)
    if program.signal is not None:
        reasons.append(f"the program died of {signal_name(program.signal)}{_about(program.signal)}")
        reasons += map(in_flight_text, in_flight(recording)) if in_flight(recording) else _unseen_death(recording)
    elif program.exit:
        reasons.append(f"the program failed with exit status {program.exit}")
    if recording.degraded is not None:
        reasons.append(f"the recording has gaps: {recording.degraded}")
    elif not recording.closed and not program.status:
        reasons.append(
            "the program ended without torchsan (os._exit, or a full disk): the last checks are missing"
            if program.exit == 0
            else "the run was killed, or is still going on"
        )
    elif program.status is None and recording.events("started"):
        reasons.append("torchsan was killed before it recorded how the program ended, or that is missing")
    reasons += recording.missing()
    unchecked = [f"{e.get('what')}: {e.get('reason')}" for e in recording.events("incomplete")]
    reasons += dict.fromkeys(unchecked)
    if coverage.graphs == 0 and not unchecked:
        observed = "nothing" if coverage.ops_checked == 0 else "no compiled program"
        reasons.append(f"nothing was compiled by Inductor, so {observed} was observed")
    elif coverage.graphs and coverage.kernels == 0 and coverage.buffers_checked == 0:
        reasons.append("the compiled graphs launch no kernels, so nothing was observed")
    return (*reasons, *_unchecked_graphs(recording))


def _unchecked_graphs(recording: Reader) -> Iterator[str]:
    """The graphs that ran and of which a check that looks at buffers has looked at none."""
    if not {Check.VALUES, Check.MEMORY} & set(recording.manifest.options.check):
        return
    times = [decode(CallTimes, body.get("times")) for body in recording.events("times")]
    called = {(call.graph, call.direction) for call in times}
    coverage = recording.coverage()
    ran = recording.closed and bool(recording.events("started"))  # A whole program, and not a stretch of one.
    if ran and not called and coverage.kernels and not coverage.buffers_checked:
        yield (
            "the program ran other code, from a compile cache, than a fresh compile gives, so no kernel was checked; "
            "`--check cache` compares, and TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 compiles anew"
            if any(count.seen for count in recording.calls())
            else "no compiled graph was called where torchsan sees it, so no kernel was checked "
            "(an artifact of torch.compiler.precompile runs by itself)"
        )
    for graph in recording.graphs():
        ran = (graph.id, graph.direction) in called
        if ran and graph.kernels and not recording.checked(graph.id, graph.direction):
            n = len(graph.kernels)
            kernels = "its kernel" if n == 1 else f"its {n} kernels"
            yield f"graph {graph.label}: no buffer of {kernels} was checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchInFlight:
    """What a thread of the program did when that died; `kernel` is None if the recording does not know the launch."""

    launch: InFlight
    kernel: KernelRecord | None


def in_flight(recording: Reader) -> list[LaunchInFlight]:
    """Return the launches that were running, or being checked, when the program died."""
    kernels: dict[tuple[GraphId, Direction, int | None], KernelRecord] = {
        (g.id, g.direction, k.nth): k for g in recording.graphs() for k in g.kernels
    }
    launches = [decode(InFlight, body) for body in recording.events("in-flight")]
    return [LaunchInFlight(launch=x, kernel=kernels.get((x.graph, x.direction, x.nth))) for x in launches]


_MOST_LINES = 3


def in_flight_text(found: LaunchInFlight) -> str:
    """Return in words what a thread did when the program died."""
    launch, kernel = found.launch, found.kernel
    if launch.nth is None:
        where = f"graph {launch.graph} {launch.direction} (call {launch.call})"
        return f"torchsan was running the operators of {where}, to compare; with `--check memory` it names the launch"
    what = kernel.name if kernel is not None else f"launch {launch.nth}"
    doing = "torchsan was checking" if launch.checking else "it was running"
    text = f"{doing} {what} (launch {launch.nth} of graph {launch.graph} {launch.direction}, call {launch.call})"
    lines = kernel.source[:_MOST_LINES] if kernel is not None else ()
    return text + "".join(f"; it computes {shown_file(line.file)}:{line.line} {line.code.strip()}" for line in lines)


_CRASHES = ("SIGSEGV", "SIGILL", "SIGABRT", "SIGBUS", "SIGFPE")


def _unseen_death(recording: Reader) -> Iterator[str]:
    """What to do where no launch was seen to run: it may have been one that is not checked."""
    crashed = signal_name(recording.program.signal or 0) in _CRASHES
    if crashed and recording.coverage().kernels and recording.manifest.options.calls is not None:
        yield (
            "no launch of a checked call was running: it died in another call (`--calls all` checks each), or outside "
            "of compiled code, where torchsan runs the graph, too (`--check memory` does not)"
        )


def _about(number: int) -> str:
    """What may be behind a signal, if that is known."""
    if signal_name(number) != "SIGILL":
        return ""
    setting = " ".join(f"{name}={value}" for name, value in WITHOUT_AMX.items())
    return (
        ", an instruction that this processor does not run; if it was a bfloat16 matmul (`torchsan doctor` tries one), "
        f"set {setting}"
    )
