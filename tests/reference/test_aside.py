"""The user's own code is computed again without the program noticing."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchsan
from torchsan.recording.reader import Reader
from torchsan.reference import aside as module
from torchsan.reference.aside import NoChild, Unavailable, aside
from torchsan.repro.exhibits import choose_finding, read_exhibit
from torchsan.store import Store

_calls: Counter[str] = Counter()
_generator = torch.Generator()


@torch.library.custom_op("torchsan_test_aside::scale", mutates_args=())
def _scale(x: torch.Tensor) -> torch.Tensor:
    _called("scale")
    return x * 3


@_scale.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
    _called("backward")
    return gradient * 3


_scale.register_autograd(_backward)


@torch.library.custom_op("torchsan_test_aside::bump", mutates_args=("x",))
def _bump(x: torch.Tensor) -> None:
    _called("bump")
    x.add_(1)


@_bump.register_fake
def _(x: torch.Tensor) -> None:
    pass


@torch.library.custom_op("torchsan_test_aside::noise", mutates_args=())
def _noise(x: torch.Tensor) -> torch.Tensor:
    _called("noise")
    return x + torch.rand(x.shape, generator=_generator).to(x.dtype)


@_noise.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    _called("noise without data")
    return torch.empty_like(x)


_noise.register_autograd(lambda _, gradient: gradient)


@torch._dynamo.allow_in_graph  # type: ignore[untyped-decorator]  # torch leaves it without types
def _opaque(x: torch.Tensor) -> torch.Tensor:
    if torch._guards.TracingContext.try_get() is None:
        print("opaque")  # Not counted: compiled code does not, and the capture referee would say so.
    return x.sin()


def _called(name: str) -> None:
    if not torch.compiler.is_compiling() and torch._guards.TracingContext.try_get() is None:
        _calls[name] += 1
        print(name)


def _several(x: torch.Tensor) -> Any:
    y = _scale(x.sin()).cos()
    z = y.clone()
    _bump(z)
    return (_opaque(z) * x).sum()


def _drawing(x: torch.Tensor) -> Any:
    return (_noise(x.sin()) * 2).cos().sum()


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16])
@pytest.mark.parametrize("program", [_several, _drawing])
def test_an_operator_of_the_users_is_called_as_often_as_without_torchsan(
    program: Any, dtype: torch.dtype, capfd: pytest.CaptureFixture[str]
) -> None:
    def run() -> tuple[list[float], dict[str, int], str]:
        _calls.clear()
        _generator.manual_seed(7)
        torch._dynamo.reset()
        compiled: Any = torch.compile(program)
        torch.manual_seed(0)
        results = []
        for _ in range(3):
            x = torch.randn(40).to(dtype).requires_grad_()
            result = compiled(x)
            result.backward()
            assert x.grad is not None
            results += [float(result.detach()), float(x.grad.sum())]
        return results, dict(_calls), capfd.readouterr().out

    expected = run()
    with torchsan.session() as session:
        assert run() == expected
    assert not [f for f in session.findings if f.severity != "note"]


def _halve_once(graph: torch.fx.Graph) -> None:
    """A fault in a pass: a program that scales by 4 scales by 2."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor):
        node.args = (node.args[0], 2.0)


def test_an_operator_of_the_users_is_not_called_to_keep_what_a_reproducer_needs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    constant = torch.arange(5.0)

    def program(x: torch.Tensor) -> Any:
        return _opaque(_scale(x.sin() * 4.0)) + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]) + constant

    torch._dynamo.reset()
    _calls.clear()
    with (
        torchsan.session(check="stages", out=tmp_path / "recording") as session,
        torch._inductor.config.patch(post_grad_custom_post_pass=_halve_once, fx_graph_cache=False),
        torch.no_grad(),
    ):
        torch.compile(program)(torch.randn(5))
    assert [f.severity for f in session.findings] == ["error"]
    assert _calls == {"scale": 1}
    assert capfd.readouterr().out == "scale\n"
    recording = Reader(tmp_path / "recording")
    exhibit = read_exhibit(recording, choose_finding(recording, None))
    assert "torchsan_test_aside.scale.default" in [n.op for n in exhibit.nodes]
    with Store(recording.tensors) as store:
        kept = [store.get(g.stored).tolist() for g in exhibit.inputs if g.stored is not None]
    assert [1.0, 2.0, 3.0, 4.0, 5.0] in kept and constant.tolist() in kept


def test_what_does_not_repeat_itself_is_no_finding_and_said() -> None:
    def program(x: torch.Tensor) -> Any:
        return _noise(x).sum(0)

    torch._dynamo.reset()
    with torchsan.session(check=("values", "stages")) as session:
        for _ in range(3):
            torch.compile(program)(torch.randn(33, 5).to(torch.bfloat16))
    assert not session.findings
    assert any("another result each time" in s.reason for s in session.coverage.skipped)


def test_an_operator_of_the_users_runs_once_in_eager_code_and_its_fake_kernel_never(
    capfd: pytest.CaptureFixture[str],
) -> None:
    _calls.clear()
    with torchsan.crossref() as run:
        _noise(torch.randn(3))
    assert _calls == {"noise": 1}
    assert capfd.readouterr().out == "noise\n"
    assert run.coverage.ops_checked


def test_what_is_returned_has_its_layout_and_lies_where_it_lay() -> None:
    x, other = torch.arange(24.0).reshape(4, 6), torch.zeros(3)

    def compute() -> Any:
        x[1, 2] = -1
        other.resize_(5).fill_(2)
        return x, x.t()[1:3], torch.ones(3, 2).t(), [torch.tensor(1 + 2j).conj(), None, "text", torch.empty(0, 3)]

    same, view, fresh, (number, none, text, empty) = aside(compute, written=[x, other])
    assert same is x
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert (view.shape, view.stride(), view.storage_offset()) == ((2, 4), (1, 6), 1)
    assert x[1, 2] == -1 and other.tolist() == [2.0] * 5
    assert fresh.stride() == (1, 2) and fresh.tolist() == [[1.0] * 3] * 2
    assert (complex(number), none, text, tuple(empty.shape)) == (1 - 2j, None, "text", (0, 3))


def test_large_tensors_do_not_wait_for_the_threads_of_the_parent() -> None:
    x = torch.randn(1 << 20)
    assert x.clone().add(1).sum() > 0  # In parallel: from now on there are threads.
    total = aside(lambda: x.add_(1).softmax(0).sum(), written=[x])
    assert total.isclose(torch.ones(()))
    assert x.mean() > 0.5


def test_what_is_known_is_itself() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x.sin() + 1).graph
    nodes = list(graph.nodes)
    assert [a is b for a, b in zip(aside(lambda: nodes[:2], known=nodes), nodes[:2], strict=True)] == [True] * 2


class _OfItsOwn(IndexError):
    pass


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("compute", "raised", "text"),
    [
        (lambda: _raise(ValueError("no")), ValueError, "no"),
        (lambda: _raise(_OfItsOwn("far")), IndexError, "_OfItsOwn: far"),
        (lambda: _raise(KeyError("key")), RuntimeError, "KeyError: 'key'"),
        (lambda: Path("file").write_text("x"), Unavailable, "it opens a file for writing"),
        (lambda: os.system("touch file"), Unavailable, "it calls os.system"),
        (lambda: os.abort(), Unavailable, "its process ended"),
        (lambda: threading.Lock(), TypeError, "cannot pickle"),
    ],
)
def test_what_fails_in_the_child_is_raised_and_leaves_nothing(
    compute: Any, raised: type[Exception], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(raised, match=text) as failure:
        aside(compute)
    assert failure.type is raised
    assert not list(tmp_path.iterdir())


@pytest.fixture
def _handled() -> Iterator[None]:
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("_handled")
def test_where_no_child_can_be_made_it_is_not_computed_and_that_is_said() -> None:
    with pytest.raises(NoChild, match="SIGCHLD"):
        aside(lambda: 1)
    torch._dynamo.reset()
    _calls.clear()
    with torchsan.session() as session:
        for _ in range(2):
            torch.compile(lambda x: _scale(x.sin()).cos())(torch.randn(3))
    assert _calls["scale"] == 2
    assert not session.findings
    reasons = [s.reason for s in session.coverage.skipped if "SIGCHLD" in s.reason]
    assert any("what is not PyTorch's own is not computed again" in r for r in reasons)


def test_a_child_that_takes_too_long_is_not_waited_for_and_the_third_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchsan.reference.wire._PATIENCE", 0.2)
    monkeypatch.setattr(module, "_late", 0)
    made = itertools.count()
    for _ in range(2):
        with pytest.raises(Unavailable, match="did not come to an end"):
            aside(lambda: time.sleep(60))
    with pytest.raises(NoChild, match="2 of its processes took too long"):
        aside(lambda: next(made))
    assert next(made) == 0


def test_inside_a_child_it_is_simply_computed() -> None:
    def compute() -> bool:
        me = os.getpid()
        return aside(os.getpid) == me

    assert aside(compute)
    assert aside(os.getpid) != os.getpid()
