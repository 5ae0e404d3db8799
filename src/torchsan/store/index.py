"""What the logs of a store say: which names there are, and where packed bytes lie."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import xxhash

from torchsan.store.backend import Backend, Commit, log_key
from torchsan.store.metadata import BlobRef, Digest, SegmentId, TensorRecord, blob_from_json, is_segment, to_json

log = logging.getLogger(__name__)

MAX_LINE = 1 << 20
"""Bytes. A real record has some hundreds; what is longer is damage, and is not collected in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One record of a log: at `time`, `name` was put, `tensor` being its unchecked JSON, or deleted."""

    name: str
    time: int
    deleted: bool
    tensor: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The newest record of a name. Its line is kept, not its values: a store may have a million names."""

    time: int
    line: bytes
    deleted: bool

    @property
    def tensor(self) -> Any:
        """The unchecked JSON of the tensor; None when the name was deleted."""
        entry = parse_line(self.line)
        return None if entry is None else entry.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A record to append, and the blobs that it speaks of."""

    name: str
    known: Known
    blobs: tuple[BlobRef, ...] = ()

    @property
    def line(self) -> bytes:
        """What to append, with its newline."""
        return self.known.line + b"\n"


def put_line(name: str, time: int, record: TensorRecord) -> Written:
    """Return the line that says that `name` is `record` from `time` on."""
    line = _line({"name": name, "time": time, "tensor": to_json(record)})
    return Written(name=name, known=Known(time=time, line=line, deleted=False), blobs=record.blobs)


def delete_line(name: str, time: int) -> Written:
    """Return the line that says that `name` is gone from `time` on."""
    line = _line({"name": name, "time": time, "deleted": True})
    return Written(name=name, known=Known(time=time, line=line, deleted=True))


def _line(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%016x %b" % (xxhash.xxh3_64_intdigest(text), text)


def parse_line(line: bytes) -> Entry | None:
    """Return what `line`, without its newline, says; None if it is damaged."""
    if len(line) < 18 or line[16:17] != b" " or b"%016x" % xxhash.xxh3_64_intdigest(line[17:]) != line[:16]:
        return None
    try:
        value = json.loads(line[17:])
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    time = value.get("time")
    deleted = value.get("deleted") is True
    if type(time) is not int or time < 0 or ("tensor" in value) == deleted:
        return None
    return Entry(name=value["name"], time=time, deleted=deleted, tensor=value.get("tensor"))


class Lines:
    """Cuts what is read of a log into lines; unfinished ends wait for more, overlong ones are dropped."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield each line that `data` completes; an empty one stands for an overlong line."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            if self._skipping or len(self._rest) + end - start > MAX_LINE:
                yield b""
            else:
                yield bytes(self._rest) + data[start:end]
            self._rest.clear()
            self._skipping = False
            start = end + 1
        self._rest += data[start:]
        if len(self._rest) > MAX_LINE:
            self._rest.clear()
            self._skipping = True

    @property
    def unfinished(self) -> bool:
        """True when the log ends inside a line."""
        return bool(self._rest) or self._skipping


_READ = 1 << 20


@dataclass(slots=True)
class _Log:
    """How far one log was read."""

    position: int = 0
    lines: Lines = field(default_factory=Lines)
    damaged: int = 0
    damaged_last: bool = False
    """Whether damage came after the last readable record, which would have bounded the damaged one's time."""


class Index:
    """Reads logs as far as they go, again and again. Not safe to use from two threads at once.

    The newest record of a name wins. Times come from the writers' clocks, but are always later than everything the
    writer had read, so a put that follows another one wins whatever the clocks say.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._clear()

    def _clear(self) -> None:
        self._logs: dict[SegmentId, _Log] = {}
        self._names: dict[str, Known] = {}
        self._packed: dict[Digest, dict[SegmentId, BlobRef]] = {}
        self._probes: set[tuple[int, str]] = set()
        self._damaged_before = 0
        self.newest = 0

    def refresh(self) -> None:
        """Read what was added to the logs since. Start again if a log is gone, as a collection leaves it."""
        for _ in range(10):
            try:
                self._refresh()
                return
            except FileNotFoundError:
                continue  # renamed or collected between listing and reading
        self._refresh()

    def _refresh(self) -> None:
        sizes: dict[SegmentId, tuple[int, bool]] = {}
        for name, size in self._backend.list("log").items():
            segment, _, kind = name.rpartition(".")
            if kind in ("log", "old") and is_segment(segment):  # Others are none of ours, whoever put them there.
                sizes[SegmentId(segment)] = (size, kind == "old")
        if not self._logs.keys() <= sizes.keys():
            self._clear()
        for segment in sorted(sizes):
            size, old = sizes[segment]
            state = self._logs.setdefault(segment, _Log())
            while state.position < size:
                buffer = bytearray(min(_READ, size - state.position))
                count = self._backend.read_into(log_key(segment, old=old), state.position, memoryview(buffer))
                if not count:
                    break
                self._add(segment, state, bytes(buffer[:count]))

    def feed(self, commit: Commit, written: Iterable[Written]) -> None:
        """Take in one's own commit without reading it back, if all before it was read."""
        state = self._logs.setdefault(commit.segment, _Log())
        if state.position == commit.offset:
            state.position += commit.nbytes
            for item in written:
                self._enter(item.name, item.known, item.blobs)

    def _add(self, segment: SegmentId, state: _Log, data: bytes) -> None:
        state.position += len(data)
        for line in state.lines.feed(data):
            entry = parse_line(line)
            if entry is None:
                state.damaged += 1
                state.damaged_last = True
                log.warning("%s: a record in %s is damaged", self._backend.url, log_key(segment))
                continue
            if state.damaged_last:
                self._damaged_before = max(self._damaged_before, entry.time)
                state.damaged_last = False
            known = Known(time=entry.time, line=line, deleted=entry.deleted)
            self._enter(entry.name, known, blobs_in(entry.tensor))

    def _enter(self, name: str, known: Known, blobs: Iterable[BlobRef]) -> None:
        self.newest = max(self.newest, known.time)
        before = self._names.get(name)
        if before is None or before.time <= known.time:
            self._names[name] = known
        for blob in blobs:
            if blob.pack is not None:
                self._packed.setdefault(blob.digest, {})[blob.pack] = blob
            elif blob.probe is not None:
                self._probes.add((blob.nbytes, blob.probe))

    def find(self, name: str) -> Known | None:
        """Return the newest record of `name`, or None if there is none or it was deleted."""
        known = self._names.get(name)
        return None if known is None or known.deleted else known

    def tensors(self) -> Iterator[tuple[str, Known]]:
        """Yield the names of all tensors, in no order, with their newest records."""
        return ((name, known) for name, known in self._names.items() if not known.deleted)

    def names(self) -> Iterator[str]:
        """Yield the names of all tensors, in no order."""
        return (name for name, _ in self.tensors())

    def deletions(self) -> Iterator[tuple[str, int]]:
        """Yield the names that are gone, with the time of their deletion."""
        return ((name, known.time) for name, known in self._names.items() if known.deleted)

    def doubtful(self, known: Known) -> bool:
        """Return whether a damaged record may have been a newer one of the same name."""
        return known.time < self.damaged_before

    @property
    def damaged_before(self) -> float:
        """Records before this time may have had a successor that is damaged now."""
        return math.inf if any(state.damaged_last for state in self._logs.values()) else self._damaged_before

    @property
    def damaged(self) -> dict[SegmentId, int]:
        """The number of damaged records in each log that has any."""
        return {segment: state.damaged for segment, state in self._logs.items() if state.damaged}

    @property
    def unfinished(self) -> list[SegmentId]:
        """The logs that end inside a record: puts that were killed, or that are being written now."""
        return [segment for segment, state in self._logs.items() if state.lines.unfinished]

    @property
    def segments(self) -> list[SegmentId]:
        """All logs that were read."""
        return list(self._logs)

    def packed(self, digest: Digest) -> list[BlobRef]:
        """Return the places in packs that hold `digest`, newest segment first."""
        return [ref for _, ref in sorted(self._packed.get(digest, {}).items(), reverse=True)]

    def maybe_stored(self, nbytes: int, probe: str) -> bool:
        """Return whether a large blob with these samples was put before."""
        return (nbytes, probe) in self._probes


def blobs_in(tensor: Any) -> list[BlobRef]:
    """Return the well-formed blobs in the unchecked JSON of a tensor."""
    found = []
    if isinstance(tensor, dict):
        parts = tensor.get("parts")
        for part in parts.values() if isinstance(parts, dict) else [tensor]:
            try:
                found.append(blob_from_json(part["blob"]))
            except (KeyError, TypeError, ValueError):
                continue  # reading the tensor reports it
    return found
