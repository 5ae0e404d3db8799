"""From the folder that a package wrote to a recording, which every command reads."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from torchsan.aoti.log import Launched, Number, Seen, launch_files, read_description, read_launches
from torchsan.errors import RecordingError, UsageError
from torchsan.options import Options, Watch
from torchsan.recording import Writer
from torchsan.recording.folder import MANIFEST
from torchsan.records import GraphId, GraphRecord, TensorSummary, Watched, decode

if TYPE_CHECKING:
    import torch

_PLACE = "recording"
INPUTS, OUTPUTS = "(inputs)", "(outputs)"


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
    if (made / MANIFEST).is_file() and (made / MANIFEST).stat().st_mtime_ns > newest:
        return made
    try:
        shutil.rmtree(made, ignore_errors=True)
        writer = Writer.create(made, command=(str(folder),), options=Options(watch=Watch.SAVE))
    except UsageError:
        made = Path(tempfile.mkdtemp(prefix="torchsan-")) / _PLACE
        writer = Writer.create(made, command=(str(folder),), options=Options(watch=Watch.SAVE))
    try:
        for file in files:
            _Conversion(writer, file).run()
    finally:
        writer.close()
    return made


class _Conversion:
    """One file of launches: one process, one package."""

    def __init__(self, writer: Writer, file: Path) -> None:
        from torchsan.watch.output import WatchOutput

        self._writer = writer
        self._file = file
        described = read_description(file)
        self._graph = self._record(described)
        self._nodes = _nodes(described.get("nodes"))
        self._kernels = {k.nth: k.name for k in self._graph.kernels}
        self._sink = WatchOutput(writer, Options(watch=Watch.SAVE))
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
            self._writer.skipped(
                f"a launch of graph {id_}", f"statement not understood, not recorded: {statement!s:.200}"
            )
        record = GraphRecord(
            id=GraphId(id_),
            direction=record.direction,
            kernels=record.kernels,
            buffers=record.buffers,
            inputs=record.inputs,
            artifacts=artifacts,
        )
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
                        watched = self._watched(record.call, record.site, "before", record.name)
                        self._writer.event("watched", {"watched": replace(watched, value=record.value)})
            if isinstance(record, Launched) and not self._names:
                # The process ended in this launch, and nothing else tells so.
                self._name(record)
        self._sink.close()

    def _launched(self, record: Launched) -> None:
        if record.phase == "before" or self._running.pop(record.call, None) != record.site:
            self._launches[record.call] = self._launches.get(record.call, -1) + 1
        if record.phase == "before":
            self._running[record.call] = record.site
        if self._names:
            self._name(record)

    def _name(self, record: Launched) -> None:
        self._writer.event("watched", {"watched": self._watched(record.call, record.site, record.phase, "")})

    def _seen(self, record: Seen, data: BinaryIO) -> None:
        watched = self._watched(record.call, record.site, record.phase, record.name)
        if record.data is not None:
            tensor = saved_tensor(record, data)
            if tensor is not None:
                self._sink.value(watched, tensor)
                return
        summary = _summary(record)
        self._writer.event("watched", {"watched": replace(watched, summary=summary)})

    def _watched(self, call: int, site: int, phase: str, name: str) -> Watched:
        kernel = {-1: INPUTS, -2: OUTPUTS}.get(site) or self._kernels.get(site, f"launch {site}")
        return Watched(
            graph=self._graph.id,
            direction=self._graph.direction,
            call=call,
            launch=None if site < 0 else self._launches.get(call, 0),
            site=None if site < 0 else site,
            kernel=kernel,
            phase=phase,
            name=name,
            node=self._nodes.get(site, {}).get(name) if phase == "after" else None,
        )


def _nodes(value: Any) -> dict[int, dict[str, str]]:
    if not isinstance(value, dict):
        raise RecordingError("malformed description of a package; it is damaged", slug="malformed-record")
    return {int(site): {str(k): str(v) for k, v in nodes.items()} for site, nodes in value.items()}


def saved_tensor(record: Seen, data: BinaryIO) -> torch.Tensor | None:
    """The tensor as it was saved; None if its dtype is not known here."""
    import torch

    dtype = getattr(torch, record.meta.dtype, None)
    assert record.data is not None
    place, size = record.data
    if not isinstance(dtype, torch.dtype):
        return None
    shape, stride = [n or 0 for n in record.meta.shape], [n or 0 for n in record.meta.stride]
    span = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    if min([*shape, *stride, 0]) < 0 or span * dtype.itemsize != size:
        raise RecordingError(
            f"a tensor of {record.name!r:.80} has another size than its shape", slug="malformed-record"
        )
    data.seek(place)
    memory = torch.frombuffer(bytearray(data.read(size)), dtype=dtype) if size else torch.empty(0, dtype=dtype)
    return memory.as_strided(shape, stride)


def _summary(record: Seen) -> TensorSummary:
    count = math.prod(n or 0 for n in record.meta.shape)
    s = record.statistics
    if s is None:
        why = "its elements are not on the CPU" if record.meta.device != "cpu" else "its elements were not recorded"
        return TensorSummary(meta=record.meta, count=count, reason=why)
    whole = "int" in record.meta.dtype or record.meta.dtype == "bool"
    low, high = (int(x) if whole else x for x in (s.low, s.high)) if s.finite else (None, None)
    return TensorSummary(
        meta=record.meta,
        count=count,
        minimum=low,
        maximum=high,
        mean=s.mean if s.finite else None,
        std=s.std if s.finite else None,
        nan=s.nan,
        posinf=s.posinf,
        neginf=s.neginf,
        zeros=s.zeros,
    )
