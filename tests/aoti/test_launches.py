"""What a package writes is read back, whole or cut off, and what is not of a package is refused."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import torch

from torchsan.aoti.launches import Launched, Seen, as_recording, launch_files, read_launches
from torchsan.cli.values import watched_values
from torchsan.errors import RecordingError
from torchsan.recording import Reader, Writer
from torchsan.records import Direction, GraphId, GraphRecord, KernelKind, KernelRecord, encode
from torchsan.store import Store

START = b"TSANPKG\n" + struct.pack("<II", 1, 0x01020304)
HEAD = struct.pack("<QQQ", 0, 7, 1)


def record(kind: int, body: bytes) -> bytes:
    return struct.pack("<QB", len(HEAD) + len(body), kind) + HEAD + body


def text(value: str) -> bytes:
    return struct.pack("<I", len(value.encode())) + value.encode()


def launch(site: int, phase: int, kernel: str = "cpp_fused_relu_0") -> bytes:
    return record(2, struct.pack("<iB", site, phase) + text(kernel))


def tensor(site: int, phase: int, name: str, t: torch.Tensor) -> bytes:
    layout = b"".join(struct.pack("<qq", n, s) for n, s in zip(t.shape, t.stride(), strict=True))
    memory = bytes(t.contiguous().view(torch.uint8).numpy())
    body = struct.pack("<iB", site, phase) + text(name) + struct.pack("<iiiqI", 6, 0, -1, 0, t.dim()) + layout
    return record(3, body + struct.pack("<BQ", 2, len(memory)) + memory)


def counted(site: int, name: str) -> bytes:
    body = struct.pack("<iB", site, 1) + text(name) + struct.pack("<iiiqI", 6, 0, -1, 0, 1) + struct.pack("<qq", 5, 1)
    return record(3, body + struct.pack("<BQQQQQdddd", 1, 1, 0, 0, 2, 4, -1.0, 3.0, 0.5, 1.5))


X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
CALL = START + record(1, b"") + launch(0, 0) + tensor(0, 0, "buf0", X) + launch(0, 1) + tensor(0, 1, "buf1", X.relu())


def write(folder: Path, launches: bytes, *, watch: str = "save", **fields: object) -> Path:
    kernel = KernelRecord(name="cpp_fused_relu_0", nth=0, kind=KernelKind.FUSED)
    graph = GraphRecord(id=GraphId(0), direction=Direction.INFERENCE, kernels=(kernel,), artifacts={})
    described = {"schema": 1, "watch": watch, "graph": encode(graph), "nodes": {"0": {"buf1": "relu"}}}
    (folder / "package-1-0.json").write_text(json.dumps(described | fields))
    (folder / "package-1-0.launches").write_bytes(launches)
    return folder


def test_a_folder_of_a_package_is_a_recording(tmp_path: Path) -> None:
    recording = Reader(as_recording(write(tmp_path, CALL + record(5, b""))))
    first, second = watched_values(recording)
    assert (first.kernel, first.phase, first.name, first.node) == ("cpp_fused_relu_0", "before", "buf0", None)
    assert (second.phase, second.name, second.node) == ("after", "buf1", "relu")
    with Store(recording.tensors) as store:
        assert torch.equal(store.get(str(second.stored)), X.relu())
    assert [k.name for k in recording.graphs()[0].kernels] == ["cpp_fused_relu_0"]


def test_it_is_made_once_and_again_when_there_is_more(tmp_path: Path) -> None:
    made = as_recording(write(tmp_path, CALL))
    before = (made / "manifest.json").stat().st_mtime_ns
    assert as_recording(tmp_path) == made
    assert (made / "manifest.json").stat().st_mtime_ns == before
    write(tmp_path, CALL + counted(0, "more"))
    assert [w.name for w in watched_values(Reader(as_recording(tmp_path)))] == ["buf0", "buf1", "more"]


def test_what_was_only_counted_has_its_statistics(tmp_path: Path) -> None:
    (watched,) = watched_values(Reader(as_recording(write(tmp_path, START + counted(0, "buf1"), watch="print"))))
    assert watched.summary is not None
    assert (watched.summary.minimum, watched.summary.maximum, watched.summary.nan) == (-1.0, 3.0, 1)
    assert (watched.summary.zeros, watched.summary.count, watched.stored) == (2, 5, None)


def test_the_launch_that_a_process_died_in_is_the_last(tmp_path: Path) -> None:
    values = watched_values(Reader(as_recording(write(tmp_path, CALL + launch(0, 0)))))
    assert (values[-1].kernel, values[-1].phase, values[-1].name) == ("cpp_fused_relu_0", "before", "")
    assert values[-1].launch == 1


@pytest.mark.parametrize("size", range(0, len(CALL), 7))
def test_a_file_may_end_anywhere(size: int, tmp_path: Path) -> None:
    write(tmp_path, CALL[:size])
    whole = list(read_launches(write(tmp_path, CALL) / "package-1-0.launches"))
    (tmp_path / "package-1-0.launches").write_bytes(CALL[:size])
    found = list(read_launches(tmp_path / "package-1-0.launches"))
    assert found == whole[: len(found)]
    assert len(found) < len(whole)


def test_threads_and_calls_are_told_apart(tmp_path: Path) -> None:
    second = launch(0, 0).replace(HEAD, struct.pack("<QQQ", 1, 8, 2))
    found = list(read_launches(write(tmp_path, CALL + second) / "package-1-0.launches"))
    assert [r.call for r in found if isinstance(r, Launched)] == [0, 0, 1]
    assert isinstance(found[1], Seen)


@pytest.mark.parametrize(
    "launches",
    [
        b"PK\x03\x04" + bytes(100),
        START[:8] + struct.pack("<II", 9, 0x01020304) + bytes(9),
        START + struct.pack("<QB", 4, 3) + bytes(4),
        START + record(2, struct.pack("<iB", 0, 9) + text("k")),
        START + record(3, struct.pack("<iB", 0, 0) + struct.pack("<I", 1 << 30)),
        START + tensor(0, 0, "x", X).replace(struct.pack("<qq", 2, 2), struct.pack("<qq", -2, 2)),
    ],
    ids=["another file", "newer", "too short", "no phase", "a text too long", "a negative size"],
)
def test_what_is_damaged_is_said_so(launches: bytes, tmp_path: Path) -> None:
    with pytest.raises(RecordingError):
        as_recording(write(tmp_path, launches))


def test_a_description_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="version 2"):
        as_recording(write(tmp_path, CALL, schema=2))


def test_links_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path, CALL)
    (tmp_path / "package-2-0.launches").symlink_to(tmp_path / "package-1-0.launches")
    assert [f.name for f in launch_files(tmp_path)] == ["package-1-0.launches"]


def test_another_folder_is_left_as_it_is(tmp_path: Path) -> None:
    assert as_recording(tmp_path) == tmp_path
    assert not list(tmp_path.iterdir())


def test_a_description_that_is_a_pipe_or_nested_without_end_is_refused(tmp_path: Path) -> None:
    description = write(tmp_path, CALL) / "package-1-0.json"
    description.write_text("[" * 100_000)
    with pytest.raises(RecordingError, match="nested too deeply"):
        as_recording(tmp_path)
    description.unlink()
    os.mkfifo(description)
    with pytest.raises(RecordingError, match="not a plain file"):
        as_recording(tmp_path)


def test_what_could_not_be_read_to_its_end_is_not_taken_for_a_recording(tmp_path: Path) -> None:
    write(tmp_path, CALL + record(2, struct.pack("<iB", 0, 9) + text("k")))
    for _ in range(2):
        with pytest.raises(RecordingError):
            as_recording(tmp_path)


@pytest.mark.parametrize("kind", ["a link to an empty folder", "a link to a recording", "somebody's folder"])
def test_a_folder_of_that_name_which_is_not_ours_is_left_alone(kind: str, tmp_path: Path) -> None:
    write(tmp_path, CALL)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if kind == "somebody's folder":
        elsewhere.rename(tmp_path / "recording")
        (tmp_path / "recording" / "mine.txt").write_text("mine")
    else:
        if "recording" in kind:
            Writer.create(elsewhere, command=["other.py"]).close()
        (tmp_path / "recording").symlink_to(elsewhere)
    before = sorted(p.name for p in (tmp_path / "recording").iterdir())
    made = Reader(as_recording(tmp_path))
    assert made.path.parent != tmp_path
    assert made.manifest.command == (str(tmp_path),)
    assert sorted(p.name for p in (tmp_path / "recording").iterdir()) == before


@pytest.mark.parametrize("sizes", [(1 << 40, 1), (1 << 62, 1 << 62)])
def test_a_tensor_that_is_expanded_to_more_than_a_disk_holds_is_refused(sizes: tuple[int, int], tmp_path: Path) -> None:
    layout = struct.pack("<qqqq", sizes[0], 0, sizes[1], 0)
    body = struct.pack("<iB", 0, 1) + text("x") + struct.pack("<iiiqI", 6, 0, -1, 0, 2) + layout
    with pytest.raises(RecordingError, match="another size than its shape"):
        as_recording(write(tmp_path, CALL + record(3, body + struct.pack("<BQ", 2, 4) + bytes(4))))


def test_a_count_that_is_infinite_is_damage(tmp_path: Path) -> None:
    body = struct.pack("<iB", 0, 1) + text("x") + struct.pack("<iiiqI", 4, 0, -1, 0, 1) + struct.pack("<qq", 5, 1)
    counts = struct.pack("<BQQQQQdddd", 1, 1, 0, 0, 2, 4, float("-inf"), 3.0, 0.5, 1.5)
    with pytest.raises(RecordingError, match="infinity"):
        as_recording(write(tmp_path, CALL + record(3, body + counts)))
