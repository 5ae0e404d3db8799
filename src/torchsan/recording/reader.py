"""Reads a recording: of a finished run, of one that is still running, or of one that was killed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torchsan.errors import RecordingError
from torchsan.recording.folder import (
    ARTIFACT,
    ARTIFACTS,
    EVENTS,
    TENSORS,
    join_url,
    loads_strictly,
    read_manifest,
    read_plain,
)
from torchsan.recording.log import read_events
from torchsan.recording.recorder import COUNTED, KINDS, Program, State
from torchsan.records import CallCount, Check, Coverage, Direction, Finding, GraphId, GraphRecord, decode
from torchsan.records.suppression import Suppressions

_FINDING = re.compile(r"F[0-9]{1,9}", re.ASCII)
"""The id that a recorder gives to a finding: it may become the name of a folder."""
_MAX_ARTIFACT = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why torchsan did not run the program: `status` is 2 for the user's mistake, 3 for torchsan's."""

    message: str
    status: int
    slug: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One event: when it was written, in seconds since 1970, and by which thread. `text` is its JSON."""

    time: float
    thread: int
    kind: str
    text: str

    @property
    def body(self) -> Any:
        """Its JSON value, parsed anew each time: all of them at once may be large."""
        return loads_strictly(self.text)


class Reader:
    """What a recording says. Read once, when it is opened; raises RecordingError for what is no recording."""

    def __init__(self, path: str | Path) -> None:
        """Read the recording in the folder `path`."""
        self.path = Path(path).absolute()
        self.place: str | None = None
        """The URL that this is a copy of, if it is one."""
        self.manifest = read_manifest(self.path)
        self.program = Program()
        self.closed = False
        """Whether the session ended in good order; not so when the process was killed or left by `os._exit`."""
        self.degraded: str | None = None
        self.failure: Failure | None = None
        self.seed: int | None = self.manifest.seed
        self._state = State()
        self._others: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._rows = read_events(self.path)
        for _, _, _, kind, body, _ in self._rows:
            self._add(kind, body)

    def graphs(self) -> list[GraphRecord]:
        """The compiled graphs in the order they were first seen."""
        return list(self._state.graphs.values())

    def findings(self) -> list[Finding]:
        """The findings in the order they were made."""
        return list(self._state.findings)

    def reproducible(self) -> set[str]:
        """The ids of the findings of which enough was kept for `torchsan repro`."""
        exhibits = [body.get("exhibit") for body in self.events("exhibit")]
        return {e["finding"] for e in exhibits if isinstance(e, dict) and isinstance(e.get("finding"), str)}

    @cached_property
    def suppressions(self) -> Suppressions:
        """Which of the findings do not count. Raise RecordingError if there are too many to tell."""
        return Suppressions(self.manifest.options.suppress, self.manifest.started[:10], self._state.findings)

    def coverage(self) -> Coverage:
        """What was looked at."""
        return self._state.coverage

    def checked(self, graph: GraphId, direction: Direction, by: Check | None = None) -> frozenset[str]:
        """The buffers of a graph that were checked, by one check or by any."""
        return self._state.checked_of(graph, direction, by)

    def calls(self) -> list[CallCount]:
        """How often each graph was called, and how many of the calls were checked, as far as it was counted."""
        return list(self._state.calls.values())

    def kernels_checked(self) -> int:
        """How many kernels wrote something that was checked."""
        each = ((g.kernels, self.checked(g.id, g.direction)) for g in self.graphs())
        return sum(not names.isdisjoint(kernel.writes) for kernels, names in each for kernel in kernels)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The bodies of the events of a kind that only its author knows."""
        return list(self._others.get(kind, ()))

    def timed(self) -> Iterator[Timed]:
        """Every event that has a time, in the order they were written."""
        for _, time, thread, kind, text, _ in self._rows:
            if type(time) is float and type(thread) is int and isinstance(kind, str) and isinstance(text, str):
                yield Timed(time=time, thread=thread, kind=kind, text=text)

    def missing(self) -> list[str]:
        """What says that the log is not as it was written: events that are gone, altered, or that nobody knows."""
        found = []
        findings = self._state.findings
        altered = sum(1 for row in self._rows if not row[-1])
        if altered:
            found.append(f"the recording is damaged: {altered} of its events are not what was written")
        if any(row[0] != n for n, row in enumerate(self._rows, start=1)):  # A damaged page may show one twice.
            found.append("the recording is damaged: some of its events are missing")
        elif any(finding.id != f"F{n}" for n, finding in enumerate(findings, start=1)):
            found.append("the recording is damaged: some of its findings are missing")
        unknown = [kind for kind in self._others if kind not in KINDS]
        if unknown:
            names = ", ".join(f"{kind!r:.40}" for kind in unknown[:3])
            found.append(f"the recording is damaged, or newer than this torchsan: what are its events {names}?")
        return found

    @property
    def tensors(self) -> Path:
        """The folder of the tensor store."""
        return self.path / TENSORS

    def artifacts(self) -> list[str]:
        """The names of the texts that the recording has, in their order."""
        try:
            return sorted(entry.name for entry in (self.path / ARTIFACTS).iterdir() if ARTIFACT.fullmatch(entry.name))
        except OSError:
            return []

    @property
    def size(self) -> int:
        """The bytes of its log and its texts."""
        files = [self.path / EVENTS, *(self.path / ARTIFACTS / name for name in self.artifacts())]
        total = 0
        for file in files:
            with suppress(OSError):
                total += file.lstat().st_size
        return total

    @property
    def store(self) -> str:
        """The folder or URL of the tensor store; a copy of what a URL holds is without tensors.

        Raise RecordingError if the folder is a link: it could lead out of the recording.
        """
        if self.tensors.is_symlink():
            raise RecordingError(f"{self.tensors} is a link; the recording is damaged", slug="malformed-record")
        return str(self.tensors) if self.place is None else join_url(self.place, TENSORS)

    def artifact(self, name: str) -> str:
        """Return the text kept under `name`; raise RecordingError for a name or a file that is not one of ours."""
        if not ARTIFACT.fullmatch(name):
            raise RecordingError(f"{name!r:.100} is no name of an artifact", slug="malformed-record")
        folder = self.path / ARTIFACTS
        try:
            if folder.is_symlink():
                raise ValueError(f"{ARTIFACTS} is a link")
            return read_plain(folder / name, _MAX_ARTIFACT)
        except (OSError, ValueError) as e:
            raise RecordingError(f"cannot read artifact {name} of {self.path}: {e}", slug="malformed-record") from e

    def _add(self, kind: object, text: object) -> None:
        if not isinstance(kind, str) or not isinstance(text, str):
            raise RecordingError(f"an event of {self.path} is not text; it is damaged", slug="malformed-record")
        try:
            body = loads_strictly(text)
        except ValueError as e:
            raise RecordingError(
                f"malformed {kind:.40} in {self.path}: {e}; it is damaged", slug="malformed-record"
            ) from e
        if kind in COUNTED:
            record = decode(COUNTED[kind], body)
            if isinstance(record, Finding) and not _FINDING.fullmatch(record.id):
                raise RecordingError(
                    f"malformed id of a finding in {self.path}: {record.id!r:.100}; it is damaged",
                    slug="malformed-record",
                )
            self._state.add(kind, record)
        else:
            self._add_about_the_run(kind, body)

    def _add_about_the_run(self, kind: str, body: Any) -> None:
        if not isinstance(body, dict):
            raise RecordingError(f"malformed {kind:.40} in {self.path}; it is damaged", slug="malformed-record")
        match kind:
            case "program":
                self.program = decode(Program, body)
            case "failed":
                self.failure = decode(Failure, body)
            case "closed":
                self.closed = True
            case "degraded":
                self.degraded = str(body.get("reason"))
            case "seed" if type(body.get("torch")) is int:
                self.seed = body["torch"]
            case _:
                self._others[kind].append(body)
