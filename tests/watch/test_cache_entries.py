"""What a compile cache has for a graph is described, and never unpickled."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torchsan.recording import Reader, Recorder, Writer
from torchsan.records import ArtifactKind, ArtifactRecord, Direction, GraphId, GraphRef, decode
from torchsan.watch.cache_entries import keep_cache_entry

REF = GraphRef(id=GraphId(0), direction=Direction.FORWARD)


def test_an_entry_is_a_text_with_its_file_and_digest(tmp_path: Path) -> None:
    folder = tmp_path / "entry"
    folder.mkdir()
    (folder / "x").write_bytes(b"not a pickle")
    writer = Writer.create(tmp_path / "run", command=[])
    keep_cache_entry(writer, REF, cache="FX graph cache", key="fabc", folder=folder)
    keep_cache_entry(writer, REF, cache="FX graph cache", key="f", folder=tmp_path / "gone", read=True, code="x = 1")
    keep_cache_entry(writer, None, cache="FX graph cache", key="of no graph", folder=folder)
    writer.close()
    recording = Reader(tmp_path / "run")
    written, read = (decode(ArtifactRecord, e["artifact"]) for e in recording.events("artifact"))
    assert written.kind is ArtifactKind.CACHE_ENTRY
    assert (written.facts["key"], written.facts["how"]) == ("fabc", "written by this compile")
    assert written.facts["entry sha256"] == hashlib.sha256(b"not a pickle").hexdigest()
    assert read.facts["code"] == "other code than a fresh compile gives"
    assert recording.artifact(read.name).endswith("\nx = 1\n")
    assert not recording.missing()


def test_in_memory_nothing_is_kept(tmp_path: Path) -> None:
    recorder = Recorder()
    keep_cache_entry(recorder, REF, cache="FX graph cache", key="fabc", folder=tmp_path)
    assert not recorder.keeps_artifacts
