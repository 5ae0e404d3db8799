"""Caches that a wrong compiler filled: the cache check names the artifact, and finds nothing in the clean twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides
from torch.compiler._cache import CacheArtifactManager

import torchsan
from tests.machine import CACHE
from torchsan.cli.main import main
from torchsan.recording import Reader
from torchsan.records import Kind, Severity, Stage
from torchsan.session import Session
from torchsan.sweep.operators import backward, sample_calls

pytestmark = pytest.mark.filterwarnings("ignore")

Program = Callable[[], Any]
X = torch.linspace(-2, 2, 400).reshape(20, 20)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(CACHE, "1")
    torch._dynamo.reset()
    CacheArtifactManager.clear()  # An artifact that it has seen in an earlier test is not saved again.
    with inductor_config.patch(fx_graph_cache=True):
        yield tmp_path / "cache"
    torch._dynamo.reset()


@contextmanager
def wrong(name: str, other: str | None) -> Iterator[None]:
    """A compiler that takes one function for another."""
    with pytest.MonkeyPatch.context() as patch:
        for overrides in (CppOverrides, CppVecOverrides) if other else ():
            patch.setattr(overrides, name, staticmethod(getattr(overrides, str(other))))
        yield


def run(program: Program, name: str, other: str | None) -> tuple[Session, Any]:
    """Fill the cache with a wrong compiler, and run under the check with the right one."""
    with wrong(name, other):
        plain = program()
    torch._dynamo.reset()
    with torchsan.session(check="cache") as session:
        result = program()
    assert [s for s in session.coverage.skipped if "could not" in s.reason] == []
    assert torch.equal(plain, result)  # What is observed is not repaired.
    return session, result


def inference(fn: Callable[[torch.Tensor], torch.Tensor]) -> Program:
    return lambda: torch.compile(fn)(X.clone())


def training() -> torch.Tensor:
    x = X.clone().requires_grad_()
    torch.compile(lambda x: x.sin() * 3)(x).sum().backward()
    assert x.grad is not None
    return x.grad


def writing() -> torch.Tensor:
    x = X.clone()

    def write(x: torch.Tensor) -> torch.Tensor:
        x.mul_(x.sigmoid())
        return x.sum()

    torch.compile(write)(x)
    return x


FAULTS: dict[str, tuple[Program, str, str]] = {
    "a sine is a cosine": (inference(lambda x: x.sin() * 2 + x), "sin", "cos"),
    "an exponential is off by one": (inference(lambda x: x.exp() + x), "exp", "expm1"),
    "a maximum is a minimum": (inference(lambda x: torch.maximum(x, x * x)), "maximum", "minimum"),
    "a sum is a product": (inference(lambda x: (x + 3) * 2), "add", "mul"),
    "a difference is a sum": (inference(lambda x: (x - 1.5) * x), "sub", "add"),
    "a root is its inverse": (inference(lambda x: (x * x + 1).sqrt()), "sqrt", "rsqrt"),
    "a backward": (training, "cos", "sin"),
    "a write to an argument": (writing, "sigmoid", "tanh"),
}
EVERY_DAY = ("a sine is a cosine", "a backward")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in EVERY_DAY else [pytest.mark.slow]) for n in FAULTS])
def test_stale_code_is_found_and_its_clean_twin_is_not(name: str, cache: Path) -> None:
    program, function, other = FAULTS[name]
    clean, _ = run(program, function, None)
    assert clean.findings == ()
    assert main(["cache", str(cache)]) == 0
    torch._dynamo.reset()
    for folder in ("fxgraph", "aotautograd"):
        (cache / folder).rename(cache / f"clean-{folder}")
    session, _ = run(program, function, other)
    assert main(["cache", str(cache)]) == 1
    (finding,) = session.findings
    assert (finding.kind, finding.severity, finding.stage) == (Kind.STALE_CACHE, Severity.ERROR, Stage.CACHE)
    assert finding.evidence["key"] in finding.evidence["artifact"]
    assert "old" in finding.evidence["age"]
    assert str(cache) in finding.evidence["clear"]


@pytest.mark.slow
def test_stale_code_is_found_in_the_cache_of_graphs_alone() -> None:
    with functorch_config.patch(enable_autograd_cache=False):
        session, _ = run(inference(lambda x: x.sin() * 2 + x), "sin", "cos")
    assert [f.evidence["cache"] for f in session.findings] == ["FX graph cache"]


@pytest.mark.slow
def test_stale_code_is_found_in_artifacts_that_the_program_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = inference(lambda x: x.sin() * 2 + x)
    with wrong("sin", "cos"):
        program()
    saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "elsewhere"))
    with torchsan.session(check="cache") as session:
        torch.compiler.load_cache_artifacts(saved[0])
        program()
    assert [f.severity for f in session.findings] == [Severity.ERROR]


@pytest.mark.parametrize("shared", [True, False])
def test_a_key_that_two_graphs_of_one_process_share_is_found(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first compile saves, the second finds: the cache is written as it is without torchsan."""
    from torch._functorch._aot_autograd import autograd_cache

    if shared:
        monkeypatch.setattr(autograd_cache, "autograd_cache_key", lambda *_, **__: ("a" * 52, []))
    with torchsan.session(check="cache") as session:
        torch.compile(lambda x: x.sin())(X)
        result = torch.compile(lambda x: x.cos())(X)
    found = [(f.kind, f.stage, f.ops) for f in session.findings if f.severity is Severity.ERROR]
    assert found == ([(Kind.STALE_CACHE, Stage.CACHE, ("aten.cos.default",))] if shared else [])
    torch.testing.assert_close(result, X.sin() if shared else X.cos())


def test_other_code_with_the_same_results_is_a_note() -> None:
    def commuted(a: str, b: str) -> str:
        return f"{b} + {a}"

    program = inference(lambda x: x * 2 + 1)
    with pytest.MonkeyPatch.context() as patch:
        for overrides in (CppOverrides, CppVecOverrides):
            patch.setattr(overrides, "add", staticmethod(commuted))
        program()
    torch._dynamo.reset()
    with torchsan.session(check="cache") as session:
        program()
    assert [(f.kind, f.severity) for f in session.findings] == [(Kind.STALE_CACHE, Severity.NOTE)]


def test_the_sizes_that_a_graph_was_compiled_for_are_no_other_code() -> None:
    """What Inductor adds for timing has them; with dynamic shapes the next run begins with others."""
    program = torch.compile(lambda x: x.sin() * 2 + x, dynamic=True)
    program(X[:12].clone())
    torch._dynamo.reset()
    with torchsan.session(check=("cache", "values")) as session:
        program(X[:7].clone())
    assert (session.findings, session.coverage.skipped) == ((), ())
    assert session.coverage.buffers_checked == session.coverage.buffers > 0


def test_calls_that_run_other_code_by_itself_are_counted_and_not_checked(cache: Path) -> None:
    def commuted(a: str, b: str) -> str:
        return f"{b} + {a}"

    program = torch.compile(lambda x: x * 2 + 1)
    with pytest.MonkeyPatch.context() as patch:
        for overrides in (CppOverrides, CppVecOverrides):
            patch.setattr(overrides, "add", staticmethod(commuted))
        program(X.clone())
    torch._dynamo.reset()
    with torchsan.session(check=("cache", "values"), out=cache.parent / "run") as session:
        for _ in range(5):
            program(X.clone())
    assert [(count.seen, count.checked) for count in Reader(cache.parent / "run").calls()] == [(5, 2)]
    assert [(s.what, "other code than a fresh compile" in s.reason) for s in session.coverage.skipped] == [
        ("3 calls of graph 0 inference", True)
    ]


def test_a_session_without_the_check_runs_the_cached_code_and_says_so() -> None:
    program = inference(lambda x: x.sin() * 2 + x)
    with wrong("sin", "cos"):
        plain = program()
    torch._dynamo.reset()
    with torchsan.session(check="memory") as session:
        assert torch.equal(program(), plain)
    assert any("unchecked; --check cache" in s.reason for s in session.coverage.skipped)


def test_a_program_without_caches_has_nothing_to_compare() -> None:
    program = inference(lambda x: x.sin() * 2 + x)
    with inductor_config.patch(force_disable_caches=True), torchsan.session(check="cache") as session:
        program()
    assert session.findings == ()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_forward_with_other_outputs_is_not_run_and_neither_is_its_backward(cache: Path) -> None:
    """A lookup in the cache can settle sizes, so that the graph is another when it is compiled anew."""

    def program() -> None:
        for op, args, kwargs, dynamic in sample_calls("diag", "", torch.float32, 2, seed=0, gradients=True):
            torch.compiler.reset()
            compiled = torch.compile(lambda *a, op=op, **k: op(*a, **k), dynamic=dynamic)
            backward(compiled(*args, **kwargs))

    program()
    with torchsan.session() as session:
        program()
    assert not [f for f in session.findings if f.severity is Severity.ERROR]
