"""Recordings in object storage: against a real S3 server, in its absence, and in memory."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import fsspec  # type: ignore[import-untyped]  # it ships no types
import numpy
import pytest
import torch

import torchsan
import torchsan.watch
from tests.samples import finding, graph
from tests.store.s3 import free_port, s3_server
from torchsan.cli.main import main
from torchsan.cli.report import opened
from torchsan.errors import RecordingError, TorchsanError, UsageError
from torchsan.recording import Program, Reader, Shipper, Writer, finalize, local_copy
from torchsan.recording.shipping import DESTINATION, RemoteFolder, read_destination, send
from torchsan.records import Watched
from torchsan.store import Store

pytestmark = pytest.mark.xdist_group("s3")


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/run"


def use_s3(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    use_s3(monkeypatch, s3_endpoint)
    bucket = f"b{uuid.uuid4().hex}"
    fsspec.filesystem("s3").mkdir(bucket)
    return f"s3://{bucket}/some/run"


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def remote(url: str) -> dict[str, int]:
    return RemoteFolder(url).sizes()


def test_a_recording_is_sent_while_it_is_made_and_whole_at_the_end(s3_url: str, tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=["x.py"])
    shipper = Shipper(writer.path, s3_url, growing=0.5)
    large, small = torch.randn(64, 1024), torch.randn(4)
    with Store(str(writer.path / "tensors")) as store:
        store.put("large", large)
        store.put("small", small)
        writer.artifact("kernel.py", "x = 1\n")
        writer.graph(graph())
        writer.finding(finding())
        # Before the end: everything is there, and the program still writes.
        wait_until(lambda: {"sqlite", "log"} <= {key.rpartition(".")[2] for key in remote(s3_url)})
        with local_copy(s3_url) as folder:
            early = Reader(folder)
            assert [f.id for f in early.findings()] == ["F1"]
            assert not early.closed
        assert torch.equal(Store(f"{s3_url}/tensors").get("small"), small)
        writer.finding(finding())
    writer.close()
    finalize(writer.path, None)
    assert shipper.finish()
    with local_copy(s3_url) as folder:
        recording = Reader(folder)
        assert [f.id for f in recording.findings()] == ["F1", "F2"]
        assert recording.closed
        assert recording.artifact("kernel.py") == "x = 1\n"
    there = Store(f"{s3_url}/tensors")
    assert torch.equal(there.get("large"), large)
    assert there.fsck()
    assert DESTINATION not in remote(s3_url)


def test_what_cannot_be_sent_stays_and_is_said_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    shipper = Shipper(writer.path, url, growing=0.0)

    def down(self: RemoteFolder, key: str, file: Path) -> None:
        raise ConnectionError("the network is down")

    with monkeypatch.context() as outage:
        outage.setattr(RemoteFolder, "put", down)
        writer.finding(finding())
        writer.close()
        assert not shipper.finish()
    messages = capsys.readouterr().err
    assert messages.count("the network is down") == 1
    assert f"`torchsan store sync {writer.path} --to {url}` sends it" in messages
    assert list(remote(url)) == ["manifest.json"]
    assert read_destination(writer.path) == url
    assert main(["store", "sync", str(writer.path)]) == 2  # What a recording says is not the user's word.
    assert f"add --to {url}" in capsys.readouterr().err
    assert list(remote(url)) == ["manifest.json"]
    assert main(["store", "sync", str(writer.path), "--to", url]) == 0
    with local_copy(url) as folder:
        assert Reader(folder).closed


@pytest.mark.slow
def test_an_outage_of_a_server_keeps_the_recording_and_sync_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    use_s3(monkeypatch, f"http://127.0.0.1:{port}")
    monkeypatch.setenv("PYTHONPATH", str(Path(torchsan.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)\n")
    bucket = "import fsspec; fsspec.filesystem('s3').mkdir('bucket')"

    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "torchsan", *words]

    with s3_server(port):
        subprocess.run([sys.executable, "-c", bucket], check=True)
        run = subprocess.Popen(
            command("run", "--out", "s3://bucket/run", "script.py"), stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda: list(Path("torchsan-runs").glob("*/events.sqlite")))
    Path("go").touch()  # The server is gone: the program ends, and only then is there something to send.
    _, messages = run.communicate(timeout=120)
    (kept,) = Path("torchsan-runs").iterdir()
    assert "cannot send to s3://bucket/run now" in messages
    assert f"torchsan store sync {tmp_path / kept} --to s3://bucket/run" in messages
    assert run.returncode == 4  # As without the outage: the script compiles nothing.
    assert Reader(kept).closed
    sync = command("store", "sync", str(kept), "--to", "s3://bucket/run")
    failed = subprocess.run(sync, capture_output=True, text=True)
    assert failed.returncode == 2
    assert "nothing is lost, try again" in failed.stderr
    with s3_server(port):  # An empty one.
        subprocess.run([sys.executable, "-c", bucket], check=True)
        done = subprocess.run(sync, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "all of it is there" in done.stdout
        reported = subprocess.run(command("report", "s3://bucket/run"), capture_output=True, text=True)
    assert reported.returncode == 4
    assert "nothing was compiled" in reported.stdout
    assert "recording: s3://bucket/run" in reported.stdout


@pytest.fixture
def no_instruments(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Writer]]:
    from contextlib import contextmanager

    writers: list[Writer] = []

    @contextmanager
    def attach(writer: Writer, *rest: object) -> Iterator[None]:
        writers.append(writer)
        yield

    monkeypatch.setattr(torchsan.watch, "attach", attach)
    yield writers


def test_a_session_sends_too_and_a_rank_below_its_own_name(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_instruments: list[Writer]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with torchsan.session(out=url):
        no_instruments[0].finding(finding())
    assert os.listdir(tmp_path) == []
    with local_copy(url) as folder:
        assert [f.id for f in Reader(folder / "rank-1").findings()] == ["F1"]


def test_a_place_that_is_taken_or_cannot_be_reached_is_refused_and_nothing_is_left(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_instruments: list[Writer]
) -> None:
    monkeypatch.chdir(tmp_path)
    RemoteFolder(url).put_bytes("something", b"x")
    refused = {url: "out-exists", "nonsense://x/y": "unwritable-out", "ftp://me:pw@host/x": "unwritable-out"}
    for out, slug in refused.items():
        with pytest.raises(UsageError) as e:
            torchsan.session(out=out).open()
        assert e.value.slug == slug
    assert os.listdir(tmp_path) == []
    with pytest.raises(RecordingError, match="no recording at"), local_copy(url):
        pass


def test_values_are_read_where_they_are(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    with Store(str(writer.path / "tensors")) as store:
        store.put("x", torch.arange(4.0))
    watched = Watched(
        graph=None,
        direction=None,
        call=0,
        launch=None,
        kernel="(probe)",
        phase="after",
        name="x",
        summary=torchsan.summarize(torch.arange(4.0)),
        stored="x",
    )
    writer.event("watched", {"watched": watched})
    writer.close()
    send(writer.path, url)
    assert main(["values", url]) == 0
    assert "float32[4]" in capsys.readouterr().out
    assert main(["values", url, "--save", str(tmp_path / "out")]) == 0
    (file,) = (tmp_path / "out").iterdir()
    assert numpy.load(file).tolist() == [0, 1, 2, 3]


def test_what_is_there_is_not_sent_again_and_what_has_grown_is(url: str, tmp_path: Path) -> None:
    with Store(str(tmp_path / "store")) as store:
        store.put("large", torch.randn(64, 1024))
        store.put("small", torch.randn(4))
    assert send(tmp_path / "store", url) == 3  # The blob, the manifest and the log; the pack goes with its log.
    with Store(str(tmp_path / "store")) as store:
        store.put("more", torch.arange(5))
    assert send(tmp_path / "store", url) == 2  # The old log once more, since it may have grown, and the new one.
    assert torch.equal(Store(url).get("more"), torch.arange(5))
    assert Store(url).fsck()


@pytest.mark.parametrize("text", ["{", "[]", '{"url": 7}', '{"url": NaN}', '{"url": "s3://b/\\u202ex"}'])
def test_a_damaged_destination_is_refused(tmp_path: Path, text: str) -> None:
    assert read_destination(tmp_path) is None
    (tmp_path / DESTINATION).write_text(text)
    with pytest.raises(RecordingError, match="malformed-record"):
        read_destination(tmp_path)


def test_names_in_a_remote_recording_cannot_leave_its_copy(url: str, tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.close()
    send(writer.path, url)
    fs, root = fsspec.core.url_to_fs(url)
    fs.store[f"{root}/artifacts/..\\..\\x"] = fs.store[f"{root}/manifest.json"]
    fs.store[f"{root}/artifacts/.hidden"] = fs.store[f"{root}/manifest.json"]
    with local_copy(url) as folder:
        assert list((folder / "artifacts").iterdir()) == []


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("what", ["manifest.json", "events.sqlite", "artifacts", "tensors"])
def test_links_in_a_folder_that_a_url_names_are_not_followed(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer.create(tmp_path / "run", command=["x"])
    writer.artifact("secret.py", "secret")
    writer.graph(graph())
    writer.close()
    finalize(writer.path, Program(exit=0))
    for protocol in ("file", "FILE", "local"):
        assert main(["report", "--json", "-", f"{protocol}://{writer.path}"]) != 2
        assert json.loads(capsys.readouterr().out)["coverage"]["graphs"] == 1
    (tmp_path / "elsewhere").mkdir()
    (writer.path / what).rename(tmp_path / "elsewhere" / what)
    (writer.path / what).symlink_to(tmp_path / "elsewhere" / what)
    with opened(f"file://{writer.path}") if what in ("artifacts", "tensors") else nullcontext() as recording:
        if recording is None:
            assert main(["report", f"file://{writer.path}"]) == 2
            return
        with pytest.raises(RecordingError):
            recording.artifact("secret.py") if what == "artifacts" else recording.store


def test_a_recording_cannot_say_where_it_is_sent(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "manifest.json").write_text("mine")
    writer = Writer.create(tmp_path / "run", command=[])
    writer.close()
    for local in (f"file://{home}", f"FILE://{home}", f"local://{home}", str(home), f"simplecache::file://{home}"):
        (writer.path / DESTINATION).write_text(json.dumps({"url": local}))
        for answer in ("", "y\n"):
            monkeypatch.setattr(sys, "stdin", _Terminal(answer))
            monkeypatch.setattr(sys, "stderr", _Terminal())
            assert main(["store", "sync", str(writer.path)]) == 2
    assert {f.name: f.read_text() for f in home.iterdir()} == {"manifest.json": "mine"}
    (writer.path / DESTINATION).write_text(json.dumps({"url": url}))
    for answer, status in (("", 2), ("n\n", 2), ("y\n", 0)):
        assert remote(url) == {}
        monkeypatch.setattr(sys, "stdin", _Terminal(answer))
        assert main(["store", "sync", str(writer.path)]) == status
    assert "manifest.json" in remote(url)


def test_only_files_that_torchsan_writes_are_sent(url: str, tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    with Store(str(writer.path / "tensors")) as store:
        store.put("small", torch.randn(4))
        store.put("large", torch.randn(64, 1024))
    writer.artifact("kernel.py", "x = 1\n")
    writer.close()
    ours = {p.relative_to(writer.path).as_posix() for p in writer.path.rglob("*") if p.is_file()}
    for name in ("authorized_keys", "artifacts/.bashrc", "log/x.txt", "tensors/log/config", "blobs/config", "a/b/c"):
        (writer.path / name).parent.mkdir(parents=True, exist_ok=True)
        (writer.path / name).write_text("not ours")
    (tmp_path / "secret").write_text("secret")
    (writer.path / "artifacts" / "link.py").symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match=r"not sent, such as artifacts/link\.py"):
        send(writer.path, url)
    assert set(remote(url)) == ours - {"events.sqlite-wal", "events.sqlite-shm"}


def test_what_is_no_plain_file_is_not_sent_and_that_is_said(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    for n, key in enumerate(["tensors/log/*.pack", "artifacts", "tensors", "artifacts/a.py", "events.sqlite-wal"]):
        folder = made(tmp_path / f"run-{n}")
        (folder / "events.sqlite-wal").unlink(missing_ok=True)
        place = next(folder.glob(key), folder / key)
        if place.exists():
            place.rename(tmp_path / f"away-{n}")
        place.symlink_to(secret if place.suffix else tmp_path)
        with pytest.raises(TorchsanError):
            send(folder, f"file://{tmp_path / f'there-{n}'}")
        sent = [path for path in (tmp_path / f"there-{n}").rglob("*") if path.is_file()]
        assert all(b"secret" not in path.read_bytes() for path in sent)


@pytest.mark.parametrize("name", ["artifacts/z.py", "artifacts", "tensors/log", "tensors"])
def test_what_becomes_a_link_while_a_recording_is_sent_is_not_followed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, secrets = made(tmp_path / "run"), tmp_path / "secrets"
    for file in ("artifacts/a.py", "artifacts/z.py"):
        (folder / file).write_text("public")
    shutil.copytree(folder, secrets)
    for path in secrets.rglob("*"):
        if path.is_file():
            path.write_bytes(b"secret")
    put = RemoteFolder.put

    def put_and_swap(self: RemoteFolder, key: str, file: Path) -> None:
        put(self, key, file)
        if not (folder / name).is_symlink():
            (folder / name).rename(tmp_path / "away")
            (folder / name).symlink_to(secrets / name)

    monkeypatch.setattr(RemoteFolder, "put", put_and_swap)
    with pytest.raises(TorchsanError):
        send(folder, f"file://{tmp_path / 'there'}")
    sent = [path for path in (tmp_path / "there").rglob("*") if path.is_file()]
    assert sent and all(path.read_bytes() != b"secret" for path in sent)


@pytest.mark.parametrize("name", ["events.sqlite", "events.sqlite-wal", "events.sqlite-journal"])
def test_a_pipe_in_the_place_of_the_log_does_not_block_and_is_said(tmp_path: Path, name: str) -> None:
    folder = made(tmp_path / "run")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(TorchsanError):
        send(folder, f"file://{tmp_path / 'there'}")


def test_a_place_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    folder, there = made(tmp_path / "run"), tmp_path / "there"
    there.mkdir()
    (there / "manifest.json").write_text("mine")
    with pytest.raises(UsageError, match="is not empty, and no copy of"):
        send(folder, f"file://{there}")
    assert (there / "manifest.json").read_text() == "mine"
    (there / "manifest.json").unlink()
    (there / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match="is not empty, and no copy of"):
        send(folder, f"file://{there}")
    (there / "thesis.tex").unlink()
    send(folder, f"file://{there}")
    send(folder, f"file://{there}")  # Again is no harm.
    (tmp_path / "user.txt").write_text("mine")
    (there / "events.sqlite").unlink()
    (there / "events.sqlite").symlink_to(tmp_path / "user.txt")
    with pytest.raises(UsageError, match="is a link"):
        send(folder, f"file://{there}")
    assert (tmp_path / "user.txt").read_text() == "mine"


def made(folder: Path) -> Path:
    writer = Writer.create(folder, command=["x"])
    writer.graph(graph())
    writer.artifact("a.py", "pass")
    with Store(folder / "tensors") as store:
        store.put("x", torch.arange(6.0))
    writer.close()
    finalize(folder, Program(exit=0))
    return folder


@pytest.mark.parametrize("end", ["..", ".", "../"])
def test_the_copy_of_a_url_that_ends_in_dots_stays_in_its_own_folder(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchsan.recording.shipping._fetch", lambda path, folder: folder.mkdir())
    with local_copy(f"memory://runs/{end}") as folder:
        assert folder.name == "recording"
        assert ".." not in folder.parts
