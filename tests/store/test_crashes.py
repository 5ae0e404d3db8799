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
from pathlib import Path

import pytest
import torch

import torchsan
from tests.store.conftest import Place
from torchsan.errors import StoreError
from torchsan.store import Store

# Each tensor's contents follow from its name, so that a reader can tell a right one from a wrong one.
WRITER = textwrap.dedent("""
    import sys, zlib, torch
    from torchsan.store import Store

    def make(name):
        seed = zlib.crc32(name.split("/")[-1].encode())
        size = (5, 300, 20_000, 60_000)[seed % 4]
        return torch.randn(size, generator=torch.Generator().manual_seed(seed))

    if __name__ == "__main__":
        path, who, first, count, collect = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
        store = Store(path)
        for n in range(first, first + count):
            # Half of the names are shared between the writers, and all contents are.
            name = f"shared/{n}" if n % 2 else f"{who}/{n}"
            store.put(name, make(name), wait=n % 3 != 0)
            if n % 3 == 0:
                store.flush()
            print(name, flush=True)
            if collect and n % 7 == 6:
                store.delete(name)
                print("-" + name, flush=True)
                store.gc()
        store.close()
""")


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("writer") / "store_writer.py"
    path.write_text(WRITER)
    return path


def start(writer: Path, store: Path, who: str, first: int, count: int, collect: bool) -> subprocess.Popen[str]:
    source = str(Path(torchsan.__file__).parents[1])
    env = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(writer), str(store), who, str(first), str(count), str(int(collect))]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env)


def make(writer: Path, name: str) -> torch.Tensor:
    scope: dict[str, object] = {"__name__": "writer"}
    exec(compile(writer.read_text(), str(writer), "exec"), scope)
    made = scope["make"](name)  # type: ignore[operator]  # the function that the text above defines
    assert isinstance(made, torch.Tensor)
    return made


def check(writer: Path, path: Path, done: set[str], gone: set[str]) -> None:
    """Check that the store is clean and holds all of `done`, less what was deleted."""
    store = Store(path)
    report = store.fsck()
    assert report, report.problems
    names = set(store.names())
    assert done - gone <= names
    for name, tensor in store.get_many(sorted(names), verify=False).items():
        assert torch.equal(tensor, make(writer, name)), name


def lines(output: str) -> tuple[set[str], set[str]]:
    # The last line may be cut; it is no completed put then.
    said = output[: output.rfind("\n") + 1].split()
    return {name for name in said if not name.startswith("-")}, {name[1:] for name in said if name.startswith("-")}


def kill_rounds(writer: Path, path: Path, rounds: int) -> None:
    """Start a writer, kill it at a random moment once it writes, check; all in one store. Every third collects too."""
    rng = random.Random(0)
    done: set[str] = set()
    gone: set[str] = set()
    for number in range(rounds):
        process = start(writer, path, f"w{number}", number * 10, 10_000, collect=number % 3 == 2)
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(rng.random() * 0.25)
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        put, deleted = lines(first + rest)
        assert put, "the writer was killed before its first put"
        done |= put
        # A name that is shared may have been deleted by this writer after an earlier one put it.
        gone |= deleted | {name for name in put if name.startswith("shared/")} if number % 3 == 2 else deleted
        if number % 10 == 9 or number == rounds - 1:
            check(writer, path, done, gone)
    assert Store(path).gc(grace=0).dropped == ()
    check(writer, path, done, gone)
    assert not list((path / "tmp").glob("*"))


def test_a_killed_writer_loses_no_completed_put(writer: Path, tmp_path: Path) -> None:
    kill_rounds(writer, tmp_path / "store", 6)


@pytest.mark.slow
def test_two_hundred_killed_writers_lose_no_completed_put(writer: Path, tmp_path: Path) -> None:
    kill_rounds(writer, tmp_path / "store", 200)


@pytest.mark.parametrize("collect", [False, True], ids=["writing", "collecting"])
def test_eight_processes_write_at_once(writer: Path, tmp_path: Path, collect: bool) -> None:
    path = tmp_path / "store"
    processes = [start(writer, path, f"w{n}", 0, 28, collect) for n in range(8)]
    done: set[str] = set()
    gone: set[str] = set()
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        put, deleted = lines(output)
        done |= put
        # Of a shared name, whoever put or deleted last decides.
        gone |= deleted
    check(writer, path, done, gone)
    if not collect:
        sizes = {make(writer, name).untyped_storage().nbytes() for name in done}
        large = {name.split("/")[-1] for name in done if make(writer, name).numel() * 4 > 65536}
        assert len(sizes) > 2
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
        for name in list(done)[:4]:
            store.delete(name) if n % 2 else None
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
