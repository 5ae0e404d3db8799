"""What an instrumented package wrote: one record for each launch, tensor and number, and the recording of them.

docs/reference/packages.md has the format. A file may end anywhere: its process may have been killed. Importing it
imports no torch.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from torchsan.errors import RecordingError, UsageError
from torchsan.files import open_plain
from torchsan.options import Options, Watch
from torchsan.recording import Writer
from torchsan.recording.folder import ARTIFACTS, EVENTS, MANIFEST, TENSORS, loads_strictly, read_plain
from torchsan.records import GraphId, GraphRecord, TensorMeta, TensorSummary, Watched, decode

if TYPE_CHECKING:
    import torch

_MAGIC = b"TSANPKG\n"
_VERSION = 1
_MOST_HEAD = 1 << 20
_MOST_DESCRIPTION = 256 << 20
_MOST_SHARED = 64 << 20
_PLACE = "recording"
_PHASES = ("before", "after")
INPUT, OUTPUT = -1, -2
"""The sites of what goes into the model and comes out."""
_OUTSIDE = {INPUT: "(inputs)", OUTPUT: "(outputs)"}

_DTYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16", 23: "float8_e5m2",
    24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz", 27: "uint16", 28: "uint32", 29: "uint64",
}  # fmt: skip
_DEVICES = {0: "cpu", 1: "cuda", 12: "xpu", 13: "mps"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A launch of a call, before or after it."""

    call: int
    site: int
    phase: str
    kernel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A tensor beside a launch, with what the package counted of it if it did not save it.

    `data` is the place of its memory in the file, and its length, if it was saved.
    """

    call: int
    site: int
    phase: str
    name: str
    summary: TensorSummary
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
        described = loads_strictly(read_plain(file, _MOST_DESCRIPTION))
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
    with os.fdopen(open_plain(file, follow=False), "rb") as stream:
        start = stream.read(16)
        if len(start) < 16:
            return
        magic, version, order = struct.unpack("<8sII", start)
        if magic != _MAGIC or order != 0x01020304:
            raise _damaged(file, "it does not begin as one")
        if version != _VERSION:
            raise RecordingError(f"{file} is of a newer version; update torchsan", slug="newer-recording")
        size = file.stat().st_size
        while len(head := stream.read(9)) == 9:
            length, kind = struct.unpack("<QB", head)
            begin = stream.tell()
            if begin + length > size:
                return
            try:
                record = _record(kind, _Fields(stream, length))
            except (struct.error, UnicodeDecodeError, IndexError, ValueError, OverflowError) as e:
                raise _damaged(file, f"a record at byte {begin}: {e}") from e
            if record is not None:
                yield record
            stream.seek(begin + length)


class _Fields:
    """Takes the fields of a record one after the other."""

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


def _record(kind: int, fields: _Fields) -> Record | None:
    call, _thread, _time = fields.take("QQQ")
    match kind:
        case 2:
            site, phase = fields.take("iB")
            return Launched(call=call, site=site, phase=_PHASES[phase], kernel=fields.text())
        case 3:
            return _seen(call, fields)
        case 4:
            return Number(call=call, site=fields.take("i"), name=fields.text(), value=fields.take("d"))
    return None


def _seen(call: int, fields: _Fields) -> Seen:
    site, phase = fields.take("iB")
    name = fields.text()
    dtype, device, index, offset, dim = fields.take("iiiqI")
    if dim > 64:
        raise ValueError("a tensor of more than 64 dimensions")
    layout = [fields.take("qq") for _ in range(dim)]
    where = _DEVICES.get(device, f"device{device}")
    meta = TensorMeta(
        dtype=_DTYPES.get(dtype, f"dtype{dtype}"),
        shape=tuple(size for size, _ in layout),
        stride=tuple(stride for _, stride in layout),
        offset=offset,
        device=where if where == "cpu" else f"{where}:{index}",
    )
    how = fields.take("B")
    summary = _summary(meta, fields.take("QQQQQdddd") if how == 1 else None)
    size = fields.take("Q") if how == 2 else None
    data = (fields.position, size) if size is not None else None
    return Seen(call=call, site=site, phase=_PHASES[phase], name=name, summary=summary, data=data)


def _summary(meta: TensorMeta, counted: tuple[Any, ...] | None) -> TensorSummary:
    count = math.prod(n or 0 for n in meta.shape)
    if counted is None:
        why = "its elements are not on the CPU" if meta.device != "cpu" else "its elements were not recorded"
        return TensorSummary(meta=meta, count=count, reason=why)
    nan, posinf, neginf, zeros, finite, *statistics = counted
    known: list[Any] = statistics if finite else [None] * 4
    low, high, mean, std = known
    if finite and ("int" in meta.dtype or meta.dtype == "bool"):
        low, high = int(low), int(high)
    return TensorSummary(
        meta=meta,
        count=count,
        minimum=low,
        maximum=high,
        mean=mean,
        std=std,
        nan=nan,
        posinf=posinf,
        neginf=neginf,
        zeros=zeros,
    )


def _damaged(file: Path, why: str) -> RecordingError:
    return RecordingError(
        f"{file} is no record of a package's launches, or damaged: {why:.200}", slug="malformed-record"
    )


def saved_tensor(record: Seen, data: BinaryIO) -> torch.Tensor | None:
    """The tensor as it was saved; None if its dtype is not known here."""
    import torch

    meta = record.summary.meta
    dtype = getattr(torch, meta.dtype, None)
    assert record.data is not None
    place, size = record.data
    if not isinstance(dtype, torch.dtype):
        return None
    shape, stride = [n or 0 for n in meta.shape], [n or 0 for n in meta.stride]
    span = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    whole = math.prod(n or 1 for n in shape) * dtype.itemsize
    expanded = whole > max(_MOST_SHARED, 64 * size)  # To more than a disk holds, perhaps.
    if min([*shape, *stride, 0]) < 0 or span * dtype.itemsize != size or expanded:
        raise RecordingError(
            f"a tensor of {record.name!r:.80} has another size than its shape", slug="malformed-record"
        )
    data.seek(place)
    memory = torch.frombuffer(bytearray(data.read(size)), dtype=dtype) if size else torch.empty(0, dtype=dtype)
    return memory.as_strided(shape, stride)


def as_recording(path: str | Path) -> Path:
    """The recording at `path`; of a folder that packages wrote to, the recording of it, made if there is none yet.

    It is put into that folder, or, if that cannot be written, into a temporary one.
    """
    folder = Path(path)
    files = launch_files(folder) if folder.is_dir() and not (folder / MANIFEST).exists() else []
    if not files:
        return folder
    made = folder / _PLACE
    newest = max(f.stat().st_mtime_ns for f in files)
    ours = _is_ours(made)
    if ours and (made / MANIFEST).is_file() and (made / MANIFEST).stat().st_mtime_ns > newest:
        return made
    try:
        if ours:
            shutil.rmtree(made, ignore_errors=True)
        elif made.is_symlink():
            raise UsageError(f"{made} is a link", slug="unwritable-out")
        writer = Writer.create(made, command=(str(folder),), options=Options(watch=Watch.SAVE))
    except UsageError:
        made = Path(tempfile.mkdtemp(prefix="torchsan-")) / _PLACE
        writer = Writer.create(made, command=(str(folder),), options=Options(watch=Watch.SAVE))
    try:
        for file in files:
            _Conversion(writer, file).run()
    except BaseException:
        writer.close()
        shutil.rmtree(made, ignore_errors=True)  # The next who asks would take the half of it for all.
        raise
    writer.close()
    return made


def _is_ours(folder: Path) -> bool:
    """Whether a folder holds nothing but what a recording has: it may be someone's, or lead elsewhere."""
    known = {MANIFEST, ARTIFACTS, TENSORS, EVENTS, f"{EVENTS}-wal", f"{EVENTS}-shm"}
    if folder.is_symlink() or not folder.is_dir():
        return False
    return {entry.name for entry in folder.iterdir()} <= known


class _Conversion:
    """One file of launches: one process, one package."""

    def __init__(self, writer: Writer, file: Path) -> None:
        from torchsan.watch.output import WatchOutput

        self._writer = writer
        self._file = file
        described = read_description(file)
        self._graph = self._record(described)
        self._nodes = _nodes(described.get("nodes"))
        self._kernels = _OUTSIDE | {k.nth: k.name for k in self._graph.kernels}
        self._output = WatchOutput(writer, Options(watch=Watch.SAVE))
        self._names = described.get("watch") == Watch.NAMES
        self._launches: dict[int, int] = {}
        self._running: dict[int, int] = {}

    def _record(self, described: Mapping[str, Any]) -> GraphRecord:
        record = decode(GraphRecord, described.get("graph"))
        id_ = self._writer.new_graph()
        text = described.get("text")
        artifacts = {}
        if isinstance(text, str):
            artifacts["graph"] = self._writer.artifact(f"graph{id_}-{record.direction}.fx.py", text)
        for statement in described.get("skipped") or ():
            reason = f"statement not understood, not recorded: {statement!s:.200}"
            self._writer.skipped(f"a launch of graph {id_}", reason)
        record = replace(record, id=GraphId(id_), artifacts=artifacts)
        self._writer.graph(record)
        return record

    def run(self) -> None:
        """Record everything that the file holds."""
        with self._file.open("rb") as data:
            record = None
            for record in read_launches(self._file):
                match record:
                    case Launched():
                        self._launched(record)
                    case Seen():
                        self._seen(record, data)
                    case Number():
                        self._show(self._watched(record, "before", record.name), value=record.value)
            if isinstance(record, Launched) and not self._names:
                # The process ended in this launch, and nothing else tells so.
                self._show(self._watched(record, record.phase, ""))
        self._output.close()

    def _launched(self, record: Launched) -> None:
        if record.phase == "before" or self._running.pop(record.call, None) != record.site:
            self._launches[record.call] = self._launches.get(record.call, -1) + 1
        if record.phase == "before":
            self._running[record.call] = record.site
        if self._names:
            self._show(self._watched(record, record.phase, ""))

    def _seen(self, record: Seen, data: BinaryIO) -> None:
        watched = self._watched(record, record.phase, record.name)
        tensor = saved_tensor(record, data) if record.data is not None else None
        if tensor is not None:
            self._output.value(watched, tensor)
        else:
            self._show(watched, summary=record.summary)

    def _show(self, watched: Watched, **fields: Any) -> None:
        self._writer.event("watched", {"watched": replace(watched, **fields)})

    def _watched(self, record: Record, phase: str, name: str) -> Watched:
        call, site = record.call, record.site
        return Watched(
            graph=self._graph.id,
            direction=self._graph.direction,
            call=call,
            launch=None if site < 0 else self._launches.get(call, 0),
            site=None if site < 0 else site,
            kernel=self._kernels.get(site, f"launch {site}"),
            phase=phase,
            name=name,
            node=self._nodes.get(site, {}).get(name) if phase == "after" else None,
        )


def _nodes(value: Any) -> dict[int, dict[str, str]]:
    if not isinstance(value, dict):
        raise RecordingError("malformed description of a package; it is damaged", slug="malformed-record")
    return {int(site): {str(k): str(v) for k, v in nodes.items()} for site, nodes in value.items()}
