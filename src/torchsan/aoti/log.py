"""What an instrumented package wrote, as data: one record for each launch, tensor and number. Imports no torch.

docs/reference/packages.md has the format. A file may end anywhere: its process may have been killed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from torchsan.errors import RecordingError
from torchsan.records import TensorMeta

_MAGIC = b"TSANPKG\n"
_VERSION = 1
_MOST_HEAD = 1 << 20
_MOST_DESCRIPTION = 256 << 20
_HEAD = struct.Struct("<QQQ")

DTYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16", 23: "float8_e5m2",
    24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz", 27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip
_DEVICES = {0: "cpu", 1: "cuda", 12: "xpu", 13: "mps"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What the package counted of a tensor that it did not save."""

    nan: int
    posinf: int
    neginf: int
    zeros: int
    finite: int
    low: float
    high: float
    mean: float
    std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A launch of a call, before or after it."""

    call: int
    site: int
    phase: str
    kernel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A tensor beside a launch; `site` is -1 for inputs of the model and -2 for outputs.

    `data` is the place of its memory in the file, and its length, if it was saved.
    """

    call: int
    site: int
    phase: str
    name: str
    meta: TensorMeta
    statistics: Statistics | None = None
    data: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number that a launch was given."""

    call: int
    site: int
    name: str
    value: float


Record = Launched | Seen | Number


def launch_files(folder: Path) -> list[Path]:
    """The files of launches in a folder that TORCHSAN_OUT named, oldest first; empty if it is none."""
    found = [p for p in folder.glob("package-*.launches") if p.is_file() and not p.is_symlink()]
    return sorted(found, key=lambda p: (p.stat().st_mtime_ns, p.name))


def read_description(launches: Path) -> dict[str, Any]:
    """What the package says of its program. Raise RecordingError for what is damaged or of another version."""
    file = launches.with_suffix(".json")
    try:
        if file.is_symlink() or file.stat().st_size > _MOST_DESCRIPTION:
            raise ValueError("not a plain file of a fitting size")
        described = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(described, dict):
            raise ValueError("no object")
    except (OSError, ValueError) as e:
        raise _damaged(file, str(e)) from e
    if described.get("schema") != _VERSION:
        raise RecordingError(
            f"{file} was written by a package of version {described.get('schema')!r:.20}; this torchsan reads "
            f"{_VERSION}: use the torchsan that built it",
            slug="newer-recording",
        )
    return described


def read_launches(file: Path) -> Iterator[Record]:
    """Each record in the order it was written. What is cut off at the end is left out."""
    with file.open("rb") as stream:
        start = stream.read(16)
        if len(start) < 16:
            return
        if start[:8] != _MAGIC or struct.unpack("<I", start[12:]) != (0x01020304,):
            raise _damaged(file, "it does not begin as one")
        if struct.unpack("<I", start[8:12])[0] != _VERSION:
            raise RecordingError(f"{file} is of a newer version; update torchsan", slug="newer-recording")
        size = file.stat().st_size
        while len(head := stream.read(9)) == 9:
            length, kind = struct.unpack("<QB", head)
            begin = stream.tell()
            if begin + length > size:
                return
            try:
                record = _record(kind, stream, length)
            except (struct.error, UnicodeDecodeError, KeyError, ValueError) as e:
                raise _damaged(file, f"a record at byte {begin}: {e}") from e
            if record is not None:
                yield record
            stream.seek(begin + length)


class _Fields:
    def __init__(self, stream: BinaryIO, length: int) -> None:
        self._start = stream.tell()
        self._bytes = stream.read(min(length, _MOST_HEAD))
        self._at = 0

    def take(self, format_: str) -> Any:
        layout = struct.Struct(f"<{format_}")
        values = layout.unpack_from(self._bytes, self._at)
        self._at += layout.size
        return values[0] if len(values) == 1 else values

    def text(self) -> str:
        size = self.take("I")
        if self._at + size > len(self._bytes):
            raise ValueError("a text that is cut off")
        self._at += size
        return self._bytes[self._at - size : self._at].decode()

    @property
    def position(self) -> int:
        return self._start + self._at


def _record(kind: int, stream: BinaryIO, length: int) -> Record | None:
    fields = _Fields(stream, length)
    call, _thread, _time = fields.take("QQQ")
    match kind:
        case 2:
            site, phase = fields.take("iB")
            return Launched(call=call, site=site, phase=_phase(phase), kernel=fields.text())
        case 3:
            return _seen(call, fields, length, stream)
        case 4:
            site = fields.take("i")
            return Number(call=call, site=site, name=fields.text(), value=fields.take("d"))
    return None


def _seen(call: int, fields: _Fields, length: int, stream: BinaryIO) -> Seen:
    site, phase = fields.take("iB")
    name = fields.text()
    dtype, device, index, offset, dim = fields.take("iiiqI")
    if dim > 64:
        raise ValueError("a tensor of more than 64 dimensions")
    layout = [fields.take("qq") for _ in range(dim)]
    where = _DEVICES.get(device, f"device{device}")
    meta = TensorMeta(
        dtype=DTYPES.get(dtype, f"dtype{dtype}"),
        shape=tuple(size for size, _ in layout),
        stride=tuple(stride for _, stride in layout),
        offset=offset,
        device=where if where == "cpu" else f"{where}:{index}",
    )
    statistics, data = None, None
    match fields.take("B"):
        case 1:
            keys = ("nan", "posinf", "neginf", "zeros", "finite", "low", "high", "mean", "std")
            statistics = Statistics(**dict(zip(keys, fields.take("QQQQQdddd"), strict=True)))
        case 2:
            size = fields.take("Q")
            data = (fields.position, size)
    return Seen(call=call, site=site, phase=_phase(phase), name=name, meta=meta, statistics=statistics, data=data)


def _phase(code: int) -> str:
    return {0: "before", 1: "after"}[code]


def _damaged(file: Path, why: str) -> RecordingError:
    return RecordingError(
        f"{file} is no record of a package's launches, or damaged: {why:.200}", slug="malformed-record"
    )
