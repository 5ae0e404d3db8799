"""The lines of a log: a checksum, a space, JSON, a newline. A line counts once its newline is there.

Logs are append-only and each has one writer, so a process that is killed leaves at most one unfinished line, the last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import xxhash

from torchsan.store.metadata import BlobRef, TensorRecord, to_json

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
class Written:
    """A line to append, with its newline, and what it says."""

    name: str
    time: int
    deleted: bool
    blobs: tuple[BlobRef, ...]
    line: bytes


def put_line(name: str, time: int, record: TensorRecord) -> Written:
    """Return the line that says that `name` is `record` from `time` on."""
    line = _line({"name": name, "time": time, "tensor": to_json(record)})
    return Written(name=name, time=time, deleted=False, blobs=record.blobs, line=line)


def delete_line(name: str, time: int) -> Written:
    """Return the line that says that `name` is gone from `time` on."""
    line = _line({"name": name, "time": time, "deleted": True})
    return Written(name=name, time=time, deleted=True, blobs=(), line=line)


def _line(value: dict[str, Any]) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%016x %b\n" % (xxhash.xxh3_64_intdigest(text), text)


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
