"""Shows a run while it goes on: what it has seen so far, and each finding when it is made."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TextIO

from torchsan.errors import RecordingError
from torchsan.recording import Reader
from torchsan.recording.folder import EVENTS
from torchsan.report.findings import clean, count, finding_lines, seen_text, severities_text
from torchsan.report.printing import print_lines
from torchsan.report.verdict import Verdict, verdict

_PAUSE = 1.0
"""Seconds between two looks; longer where reading takes its time, so that watching costs a tenth of a core at most."""

_PATIENCE = 10
"""How often to look again for how the program ended: `torchsan run` records it after the program closed its log."""


def follow(folder: Path, stream: TextIO, sleep: Callable[[float], None] = time.sleep) -> Verdict:
    """Show the run that is recorded in `folder` until it ends, and return its verdict.

    On a terminal the last line is what was seen so far, and is written anew; elsewhere it is written when it changes.
    Raise RecordingError if there is no recording.
    """
    shown: set[str] = set()
    said = ""
    terminal = stream.isatty()
    patience = _PATIENCE
    while True:
        began = time.monotonic()
        stamp = _stamp(folder)
        recording = Reader(folder)
        if patience and _ended(recording) and recording.program.status is None and recording.events("started"):
            patience -= 1
            sleep(_PAUSE)
            continue
        if terminal and said:
            stream.write("\r\x1b[K")
        for finding in recording.findings():
            if finding.id not in shown:
                shown.add(finding.id)
                print_lines(finding_lines(finding), stream)
        line = _state(recording)
        if terminal or line != said:
            stream.write(line if terminal else f"{line}\n")
            stream.flush()
            said = line
        if _ended(recording):
            if terminal:
                stream.write("\n")
            return verdict(recording)
        sleep(max(_PAUSE, 10 * (time.monotonic() - began)))
        # Nothing new is nothing to read, but a clock goes on.
        while _stamp(folder) == stamp and not terminal and not _gone(recording):
            sleep(_PAUSE)


def _ended(recording: Reader) -> bool:
    return recording.closed or recording.program.status is not None or _gone(recording)


def _gone(recording: Reader) -> bool:
    """Whether the process that records is known to be there no more, as after `kill -9`."""
    if recording.manifest.host != platform.node() or recording.manifest.pid <= 0:
        return False  # It runs elsewhere: nobody can tell.
    try:
        os.kill(recording.manifest.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _stamp(folder: Path) -> tuple[tuple[int, int], ...]:
    """What changes when something is recorded."""
    found = []
    for name in (EVENTS, f"{EVENTS}-wal", "manifest.json"):
        try:
            status = (folder / name).stat()
        except FileNotFoundError:
            found.append((0, 0))
        except OSError as e:
            raise RecordingError(f"the recording in {folder} is gone: {e.strerror}", slug="no-recording") from e
        else:
            found.append((status.st_mtime_ns, status.st_size))
    return tuple(found)


def _state(recording: Reader) -> str:
    """What was seen so far, in one line."""
    calls = len(recording.events("times"))
    steps = len(recording.events("replica-step"))
    parts = [
        _age(recording),
        seen_text(recording),
        count(calls, "timed call"),
        *([count(steps, "optimizer step")] if steps else []),
        *_sampled(recording),
        severities_text(recording.findings()) or "no findings",
    ]
    return clean("torchsan: " + ", ".join(parts), 300)


def _sampled(recording: Reader) -> list[str]:
    """What sampling under a budget has looked at so far, and what it cost."""
    found = recording.events("sampling")
    looks, share = (found[-1].get("looks"), found[-1].get("share")) if found else (None, None)
    if type(looks) is not int or type(share) not in (int, float):
        return []
    return [f"{looks} launches checked for {share:.2%} of the time"]


def _age(recording: Reader) -> str:
    try:
        started = datetime.fromisoformat(recording.manifest.started)
        times = [timed.time for timed in recording.timed()]
        ended = _ended(recording)
        now = datetime.fromtimestamp(times[-1], started.tzinfo) if ended and times else datetime.now(started.tzinfo)
        seconds = max(0, int((now - started).total_seconds()))
    except (ValueError, OverflowError, OSError, TypeError):
        return "running"
    word = "ended after" if ended else "running for"
    return f"{word} {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
