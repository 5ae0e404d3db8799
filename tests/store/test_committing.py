"""Killed writers, many writers, full disks: what was put stays."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it ships no types
import pytest
import torch

import torchsan
from tests.store.conftest import Place
from torchsan.errors import StoreError
from torchsan.store import Store

# Each tensor's contents follow from its name, so that a reader can tell a right one from a wrong one.
# The process forks a writer per request: a fork has torch in memory, where a fresh process would take seconds.
WRITER = textwrap.dedent("""
    import os, sys, traceback, zlib, torch
    from torchsan.store import Store

    torch.set_num_threads(1)

    def make(name):
        seed = zlib.crc32(name.split("/")[-1].encode())
        size = (5, 300, 20_000, 60_000)[seed % 4]
        return torch.randn(size, generator=torch.Generator().manual_seed(seed))

    def write(path, who, first, count, collect, out):
        store = Store(path)
        for n in range(first, first + count):
            # Half of the names are shared between the writers, and all contents are.
            name = f"shared/{n}" if n % 2 else f"{who}/{n}"
            store.put(name, make(name), wait=n % 3 != 0)
            if n % 3 == 0:
                store.flush()
            os.write(out, f"{name}\\n".encode())
            if collect and n % 14 == 6:
                store.delete(name)
                os.write(out, f"-{name}\\n".encode())
                store.gc()
        store.close()

    def serve():
        for line in sys.stdin:
            path, who, first, count, collect, output = line.split()
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    out = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
                    write(path, who, int(first), int(count), int(collect), out)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            print(child, flush=True)

    if __name__ == "__main__":
        serve()
""")


class Writers:
    """Starts writers, and knows what they said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "store_writer.py"
        self.script.write_text(WRITER)
        source = str(Path(torchsan.__file__).parents[1])
        self._server = subprocess.Popen(
            [sys.executable, str(self.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": source},
        )

    def start(self, path: Path, who: str, first: int, count: int, *, collect: bool = False) -> tuple[int, Path]:
        """Start a writer; return its process and the file in which it reports."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        output = self.folder / f"{path.parent.name}-{who}"
        self._server.stdin.write(f"{path} {who} {first} {count} {int(collect)} {output}\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline()), output

    def stop(self) -> None:
        with self._server:
            self._server.kill()


@pytest.fixture(scope="module")
def writers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writers]:
    found = Writers(tmp_path_factory.mktemp("writers"))
    yield found
    found.stop()


def running(process: int) -> bool:
    # The server does not wait for its children, so that their numbers are not reused; the dead stay as zombies.
    return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)


def make(name: str) -> torch.Tensor:
    scope: dict[str, Any] = {"__name__": "writer"}
    exec(WRITER, scope)
    made = scope["make"](name)
    assert isinstance(made, torch.Tensor)
    return made


def check(path: Path, done: set[str], gone: set[str]) -> None:
    """Check that the store is clean and holds all of `done`, less what was deleted."""
    store = Store(path)
    report = store.fsck()
    assert report, report.problems
    names = set(store.names())
    assert done - gone <= names, sorted(done - gone - names)[:5]
    for name, tensor in store.get_many(sorted(names), verify=False).items():
        assert torch.equal(tensor, make(name)), name


def said(output: Path) -> tuple[set[str], set[str]]:
    """Return the names that a writer put and those that it deleted."""
    words = output.read_text().split() if output.exists() else []
    return {word for word in words if not word.startswith("-")}, {word[1:] for word in words if word.startswith("-")}


def kill_rounds(writers: Writers, path: Path, rounds: int) -> None:
    """Start a writer, kill it at a random moment once it writes, check; all in one store. Every third collects too."""
    rng = random.Random(0)
    done: set[str] = set()
    gone: set[str] = set()
    for number in range(rounds):
        process, output = writers.start(path, f"w{number}", number * 10, 100_000, collect=number % 3 == 2)
        deadline = time.monotonic() + 60
        while not output.exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.2)
        os.kill(process, signal.SIGKILL)
        while running(process):
            time.sleep(0.001)
        put, deleted = said(output)
        done |= put
        # It may have been killed between deleting the last name it put and saying so.
        gone |= deleted | ({output.read_text().split()[-1]} if number % 3 == 2 and put else set())
        if number % 10 == 9 or number == rounds - 1:
            check(path, done, gone)
    assert Store(path).gc(grace=0).dropped == ()
    check(path, done, gone)
    assert not list((path / "tmp").glob("*"))


def test_a_killed_writer_loses_no_completed_put(writers: Writers, tmp_path: Path) -> None:
    kill_rounds(writers, tmp_path / "store", 20)


@pytest.mark.slow
def test_two_hundred_killed_writers_lose_no_completed_put(writers: Writers, tmp_path: Path) -> None:
    kill_rounds(writers, tmp_path / "store", 200)


@pytest.mark.parametrize("collect", [False, True], ids=["writing", "collecting"])
def test_eight_processes_write_at_once(writers: Writers, tmp_path: Path, collect: bool) -> None:
    path = tmp_path / "store"
    started = [writers.start(path, f"w{n}", 0, 28, collect=collect) for n in range(8)]
    done: set[str] = set()
    gone: set[str] = set()
    for process, output in started:
        deadline = time.monotonic() + 120
        while running(process):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        put, deleted = said(output)
        assert len(put) == 28, "a writer failed"
        done |= put
        gone |= deleted
    check(path, done, gone)
    if not collect:
        large = {name.split("/")[-1] for name in done if make(name).numel() * 4 > 65536}
        assert len(list(path.glob("blobs/*/*"))) == len(large), "the same bytes are stored once, whoever puts them"


FILLER = textwrap.dedent("""
    import resource, sys, torch
    from torchsan.errors import StoreError
    from torchsan.store import Store

    store = Store(sys.argv[1])
    store.put_many({"before": torch.arange(10.), "large-before": torch.arange(30_000.)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
    failed = 0
    for n in range(40):
        for tensor in (torch.arange(100_000.) + n, torch.arange(8_000.) + n):
            try:
                store.put(f"after/{n}/{len(tensor)}", tensor)
                print(f"after/{n}/{len(tensor)}", flush=True)
            except StoreError as e:
                assert e.slug == "disk-full", e
                failed += 1
    store.put("async", torch.arange(100_000.), wait=False)
    try:
        store.flush()
    except StoreError as e:
        assert e.slug == "disk-full", e
        failed += 1
    assert failed > 40, failed
""")


def test_a_file_system_that_refuses_more_bytes_costs_only_what_did_not_fit(tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(Path(torchsan.__file__).parents[1])}
    path = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-c", FILLER, str(path)], capture_output=True, text=True, env=env, timeout=120
    )
    assert done.returncode == 0, done.stderr
    store = Store(path)
    assert store.fsck()
    assert {"before", "large-before", *done.stdout.split()} == set(store.names())
    assert torch.equal(store.get("large-before"), torch.arange(30_000.0))
    assert not list(path.glob("tmp/*"))


def test_a_full_disk_fails_the_put_and_leaves_the_store_valid(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.decode().strip()}")
    try:
        store = Store(disk / "store")
        done: dict[str, torch.Tensor] = {}
        with pytest.raises(StoreError, match="disk-full"):
            for n in range(1000):
                tensor = torch.full(((20_000, 2_000)[n % 2],), float(n))
                store.put(f"{n}", tensor)
                done[f"{n}"] = tensor
        assert len(done) > 5
        with pytest.raises(StoreError, match="disk-full"):
            store.put("more", torch.randn(200_000))
        for opened in (store, Store(disk / "store")):
            assert opened.fsck()
            assert opened.names() == sorted(done)
            assert all(torch.equal(t, done[name]) for name, t in opened.get_many(done).items())
        store.close()
        del opened, store
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("count", [10, 50_000])
def test_an_error_of_the_disk_is_explained_and_undone(
    local: Place, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = local.open()
    store.put("before", torch.ones(3))
    write = os.write

    def full(fd: int, data: memoryview) -> int:
        if len(data) > 20:
            return write(fd, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match=r"no space left.*disk-full"):
        store.put("x", torch.ones(count))
    store.put("y", torch.ones(count), wait=False)
    with pytest.raises(StoreError, match=r"'y'.*disk-full"):
        store.flush()
    monkeypatch.undo()
    assert store.names() == ["before"]
    assert store.fsck()
    store.put("x", torch.ones(count))
    assert local.open().names() == ["before", "x"]
    assert local.open().fsck()


def test_a_forked_child_writes_beside_its_parent(local: Place) -> None:
    script = textwrap.dedent("""
        import os, sys, torch
        from torchsan.store import Store

        store = Store(sys.argv[1])
        store.put("parent", torch.zeros(3))
        store.put("queued", torch.zeros(3), wait=False)
        child = os.fork()
        me = "child" if child == 0 else "again"
        for n in range(50):
            store.put(f"{me}/{n}", torch.full((3,), float(n)), wait=n % 2 == 0)
        store.close()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """)
    env = os.environ | {"PYTHONPATH": str(Path(torchsan.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", script, local.url], check=True, env=env, timeout=60)
    store = local.open()
    assert len(store.names()) == 102
    assert store.fsck()
    assert store.get("child/7")[0] == 7


def test_what_is_queued_is_written_when_the_program_ends(local: Place) -> None:
    script = "import sys, torch; from torchsan.store import Store; s = Store(sys.argv[1])\n"
    script += "for n in range(50): s.put(f'{n}', torch.full((n * 1000 + 1,), 1.0), wait=False)"
    env = os.environ | {"PYTHONPATH": str(Path(torchsan.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", script, local.url], check=True, env=env, timeout=60)
    assert len(local.open().names()) == 50


def test_a_durable_store_works_the_same(local: Place) -> None:
    with local.open(durable=True) as store:
        store.put_many({"a": torch.ones(3), "b": torch.ones(50_000)})
    assert local.open().fsck()


def test_memory_of_the_queue_is_bounded(local: Place) -> None:
    store = local.open(queue_bytes=4 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tensor = torch.zeros(250_000)
    for n in range(200):
        store.put(f"{n}", tensor.fill_(n), wait=False)
    store.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert store.get("123")[0] == 123
    shutil.rmtree(local.url)
