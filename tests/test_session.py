"""Sessions open, close and say what was found; the last tests are about what they leave of torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from torch._dynamo.utils import counters
from torch._functorch import aot_autograd
from torch._functorch._aot_autograd import graph_compile
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config
from torch._inductor.codecache import PyCodeCache
from torch._inductor.graph import GraphLowering

import torchsan
import torchsan.watch
from tests.samples import finding, graph
from torchsan.options import Options
from torchsan.recording import Reader, Recorder, Writer
from torchsan.records import Finding, Severity
from torchsan.session import Session

attached: list[Writer] = []


@pytest.fixture(autouse=True)
def instruments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the instruments: what is attached must be detached."""
    attached.clear()

    @contextmanager
    def attach(writer: Writer, *rest: object) -> Iterator[None]:
        attached.append(writer)
        try:
            yield
        finally:
            attached.remove(writer)

    monkeypatch.setattr(torchsan.watch, "attach", attach)


def test_a_session_keeps_its_recording_where_it_was_told(tmp_path: Path) -> None:
    with torchsan.session(check=("values", "memory"), watch="print", out=tmp_path / "run") as run:
        attached[0].graph(graph())
        attached[0].finding(finding())
        assert len(run.findings) == 1
    assert run.path == tmp_path / "run"
    assert not attached
    reader = Reader(tmp_path / "run")
    assert reader.closed
    assert tuple(reader.findings()) == run.findings
    assert reader.coverage() == run.coverage
    assert not (tmp_path / "run" / "events.sqlite-wal").exists()


def test_a_session_without_a_place_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with torchsan.session() as run:
        assert os.listdir(tmp_path)
        attached[0].finding(finding())
        assert run.path is None
    assert not os.listdir(tmp_path)
    assert [f.id for f in run.findings] == ["F1"]


def test_errors_raise_with_the_findings_as_text() -> None:
    with torchsan.session() as run:
        attached[0].finding(finding(Severity.WARNING))
        run.raise_if_findings()
        attached[0].finding(finding())
    with pytest.raises(torchsan.FindingsError) as e:
        run.raise_if_findings()
    text = str(e.value)
    assert "F2: error: wrong-values" in text
    assert "model.py:12" in text
    assert "x = self.act(x)" in text
    assert "F1" not in text


def test_sessions_do_not_nest_also_not_across_threads() -> None:
    errors: list[BaseException] = []

    def other() -> None:
        try:
            torchsan.session().open()
        except torchsan.SessionError as e:
            errors.append(e)

    with torchsan.session():
        with pytest.raises(torchsan.SessionError, match="do not nest"), torchsan.session():
            pass
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(attached) == 1
    assert len(errors) == 1
    with torchsan.session():
        pass


def test_a_session_is_used_once() -> None:
    run = torchsan.session()
    with run:
        pass
    with pytest.raises(torchsan.SessionError, match="used already"):
        run.open()
    with torchsan.session():
        pass


def test_an_exception_detaches_everything() -> None:
    with pytest.raises(ZeroDivisionError), torchsan.session():
        _ = 1 / 0
    assert not attached
    with torchsan.session():
        pass


def test_a_session_that_cannot_start_leaves_the_way_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(torchsan.UsageError, match="--out"):
        torchsan.session(out=tmp_path / "file").open()

    def broken(writer: Writer, *rest: object) -> None:
        raise torchsan.UnsupportedTorchError("no", slug="unsupported-torch")

    with monkeypatch.context() as patch:
        patch.setattr(torchsan.watch, "attach", broken)
        with pytest.raises(torchsan.UnsupportedTorchError):
            torchsan.session().open()
    with torchsan.session():
        pass


def test_a_session_that_cannot_start_leaves_the_recorder_open_to_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(writer: Writer, *rest: object) -> None:
        raise torchsan.UnsupportedTorchError("no", slug="unsupported-torch")

    monkeypatch.setattr(torchsan.watch, "attach", broken)
    writer = Writer.create(tmp_path / "run", command=["script.py"])
    with pytest.raises(torchsan.UnsupportedTorchError):
        Session(Options(), recorder=writer).open()
    writer.event("failed", {"message": "no", "status": 3, "slug": "unsupported-torch"})
    writer.close()
    failure = Reader(tmp_path / "run").failure
    assert failure is not None
    assert failure.message == "no"


def test_what_is_done_about_a_finding_is_the_callers(tmp_path: Path) -> None:
    found: list[Finding] = []
    memory = Recorder()
    with Session(Options(check=()), recorder=memory, on_finding=found.append) as run:
        memory.finding(finding())
    assert tuple(found) == run.findings
    assert run.path is None


@pytest.mark.parametrize("bad", [{"check": "value"}, {"watch": "loud"}, {"calls": 0}, {"max_bytes": "x"}])
def test_bad_options_are_refused_when_the_session_is_made(bad: dict[str, str]) -> None:
    with pytest.raises(torchsan.UsageError, match=r"in session\(\)"):
        torchsan.session(**bad)  # type: ignore[arg-type]  # wrong on purpose


def test_importing_and_running_a_session_imports_no_torch() -> None:
    code = """
import sys, torchsan
import torchsan.session
assert callable(torchsan.session), torchsan.session
with torchsan.session() as run: pass
heavy = {"torch", "numpy", "rich"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


REAL = pytest.mark.parametrize("instruments", ["real"])
"""In the place of the fixture, whose stand-ins these tests do without."""


def state() -> dict[str, Any]:
    """What of torch a session touches, as it is now."""
    probe = sys.modules.get("torchsan.ops.realize")
    return {
        "lowering": vars(GraphLowering)["_compile_to_module"],
        "inner": compile_fx._compile_fx_inner,
        "caches": [
            {n: v for n, v in vars(m).items() if n.startswith("should_use_")} for m in (aot_autograd, graph_compile)
        ],
        "inductor": torch._inductor.config.save_config_portable(),
        "functorch": torch._functorch.config.save_config_portable(),
        "finders": list(sys.meta_path),
        "listener": getattr(probe, "_listener", None),
    }


def f(x: torch.Tensor) -> torch.Tensor:
    return x.sin().cos() @ x


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Caches of our own, to look into."""
    folder = tmp_path_factory.mktemp("inductor")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        torch._dynamo.reset()
        with inductor_config.patch(fx_graph_cache=True):
            yield folder
        torch._dynamo.reset()


def cached(folder: Path) -> set[str]:
    """The entries of the FX graph cache and of the AOTAutograd cache."""
    return {str(p.relative_to(folder)) for kind in ("fxgraph", "aotautograd") for p in folder.glob(f"{kind}/**/*")}


def calls() -> list[Callable[..., Any]]:
    return [m.call for m in PyCodeCache.modules if hasattr(m, "call")]


@REAL
def test_a_session_changes_nothing_for_good(instruments: str, folder: Path, tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 16).view(4, 4)
    compiled = torch.compile(f)
    before = compiled(x)
    entries, attached, old = cached(folder), state(), calls()
    assert entries, "the caches are not used here, so this tests nothing"
    missed = counters["inductor"]["fxgraph_cache_miss"]
    with torchsan.session(check="values", watch="save", out=tmp_path / "run") as run:
        # Compiled before the session, compiled anew inside it, although the caches have it.
        inside = compiled(x)
        assert run.coverage.kernels == 2
        assert state()["lowering"] is not attached["lowering"]
    assert cached(folder) == entries
    assert counters["inductor"]["fxgraph_cache_miss"] == missed
    assert torch.equal(before, inside)
    assert state() == attached
    assert calls()[: len(old)] == old
    assert not any("torchsan" in type(call).__module__ for call in calls())
    # Afterwards it is compiled once more, as it was, and nobody watches.
    assert torch.equal(compiled(x), before)
    assert run.coverage.kernels == 2
    assert cached(folder) == entries


@REAL
def test_a_session_that_is_left_by_an_exception_detaches_too(instruments: str, folder: Path) -> None:
    attached = state()
    with pytest.raises(ZeroDivisionError), torchsan.session(watch="names"):
        torch.compile(f)(torch.ones(4, 4))
        _ = 1 / 0
    assert state() == attached
    assert not any("torchsan" in type(call).__module__ for call in calls())


@REAL
def test_a_session_without_compiling_detaches_too(instruments: str) -> None:
    attached = state()
    with torchsan.session(watch="print"):
        assert state()["lowering"] is not attached["lowering"]
    assert state() == attached


_SESSIONS = """
import gc, tracemalloc, torch, torchsan

def one():
    torch._dynamo.reset()
    with torchsan.session():
        torch.compile(lambda x: (x.sin() * 2 + 1).relu())(torch.ones(8))

def own():
    gc.collect()
    traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/torchsan/*")])
    return sum(trace.size for trace in traces.traces)

one(); one()
tracemalloc.start()
one()
before = own()
for _ in range(6):
    one()
print((own() - before) // 6)
"""


@pytest.mark.slow
def test_a_session_with_a_compile_leaves_next_to_nothing_of_its_own() -> None:
    """PyTorch keeps a record of each of the last compiles, with its configuration; that is not counted."""
    done = subprocess.run([sys.executable, "-c", _SESSIONS], capture_output=True, text=True, timeout=600, check=True)
    assert int(done.stdout) < 2048


_GONE = """
import os, sys, torch, torch._dynamo, torch._inductor.compile_fx, torchsan
os.rmdir(os.getcwd())
with torchsan.session(out=sys.argv[1]) as session:
    torch.ones(2) + 1
print(session.coverage.ops_checked > 0)
"""


def test_a_session_opens_where_the_current_folder_is_gone(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    command = [sys.executable, "-c", _GONE, str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path / "gone", capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
