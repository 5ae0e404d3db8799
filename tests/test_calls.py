"""The check leaves everything as it was, and gets along with what else is there."""

from __future__ import annotations

import importlib
import threading
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torchsan
from tests.planted.operators import operator
from torchsan.calls import crossref
from torchsan.records import Kind, Severity, Stage
from torchsan.torch_internals.operators import loaded_overloads


def state() -> dict[str, Any]:
    import torch._dispatch.python as python_dispatch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, is_in_torch_dispatch_mode

    eager_transforms: Any = importlib.import_module("torch._functorch.eager_transforms")
    functionalize = torch._C.DispatchKey.Functionalize
    return {
        "modes": list(_get_current_dispatch_mode_stack()),
        "flag": is_in_torch_dispatch_mode(),
        "functionalize": python_dispatch.CROSSREF_FUNCTIONALIZE,
        "maker": python_dispatch.make_crossref_functionalize,
        "nesting": (eager_transforms._func_increment_nesting, eager_transforms._func_decrement_nesting),
        "cached": [str(o) for o in loaded_overloads() if functionalize in o._dispatch_cache],
        "thread": threading.Thread._bootstrap_inner,  # type: ignore[attr-defined]  # not in the stubs
        "fakes": len(FakeTensorMode.cache),
        "random": torch.get_rng_state().tolist(),
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
    }


def work() -> torch.Tensor:
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    (operator("right")(x.detach()).sum() + (x * 2).exp().sum()).backward()
    torch.func.functionalize(lambda t: t.clone().add_(1).view(-1).mul_(2))(x.detach())
    assert x.grad is not None
    return x.grad


def test_it_leaves_torch_as_it_was() -> None:
    work()
    before = state()
    with crossref():
        work()
    assert state() == before


def test_it_leaves_torch_as_it_was_after_an_exception() -> None:
    before = state()
    with pytest.raises(RuntimeError), crossref():
        torch.func.functionalize(lambda t: t @ t)(torch.ones(2, 3))
    with pytest.raises(torchsan.FindingsError), crossref(fail_fast=True):
        operator("wrong_dtype")(torch.ones(2))
    assert state() == before


def test_random_numbers_are_those_of_a_run_without_it() -> None:
    def draw() -> list[float]:
        torch.manual_seed(3)
        return [*torch.rand(3).tolist(), *torch.nn.functional.dropout(torch.ones(5)).tolist(), *torch.randn(2).tolist()]

    plain = draw()
    with crossref() as run:
        assert draw() == plain
    assert not run.findings


def test_fail_fast_raises_at_the_first_error() -> None:
    with crossref(fail_fast=True) as run, pytest.raises(torchsan.FindingsError, match=r"wrong_dtype\.default"):
        operator("wrong_dtype")(torch.ones(2))
    assert len(run.findings) == 1


def test_all_are_collected_and_raised_in_the_end() -> None:
    with crossref() as run:
        operator("wrong_dtype")(torch.ones(2))
        operator("wrong_mutation")(torch.ones(2))
    with pytest.raises(torchsan.FindingsError) as e:
        run.raise_if_findings()
    assert "wrong_dtype" in str(e.value)
    assert "wrong_mutation" in str(e.value)


def test_threads_that_start_inside_are_covered() -> None:
    with crossref() as run:
        thread = threading.Thread(target=lambda: operator("wrong_dtype")(torch.ones(2)))
        thread.start()
        thread.join()
    assert [f.ops for f in run.findings] == [("planted.wrong_dtype.default",)]


def test_a_thread_that_outlives_the_check_is_left_alone() -> None:
    go, done = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def late() -> None:
        try:
            go.wait(30)
            operator("wrong_dtype")(torch.ones(2))
        except BaseException as e:  # noqa: BLE001  # told below
            errors.append(e)
        done.set()

    with crossref() as run:
        threading.Thread(target=late).start()
    go.set()
    assert done.wait(30)
    assert not errors
    assert not run.findings


def test_memory_that_another_thread_writes_is_not_blamed_on_the_operator() -> None:
    stop = threading.Event()
    shared = torch.zeros(64, 64)

    def writer() -> None:
        while not stop.is_set():
            shared.data.add_(1)

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        with crossref() as run:
            for n in range(1, 20):
                operator("right")(shared[:n])
    finally:
        stop.set()
        thread.join()
    assert not run.findings


def test_operators_of_the_backward_are_seen() -> None:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
            operator("wrong_dtype")(grads[0])
            return grads[0]

    with crossref() as run:
        x = torch.ones(3, requires_grad=True)
        Function.apply(x).sum().backward()  # type: ignore[no-untyped-call]  # torch's own is untyped
    assert [f.ops for f in run.findings] == [("planted.wrong_dtype.default",)]


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own is untyped
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_users_own_modes_see_what_they_see_without_it() -> None:
    def inside() -> list[str]:
        with Counting() as mode:
            operator("wrong_dtype")(torch.ones(3).add(1))
        calls: list[str] = mode.calls
        return calls

    plain = inside()
    with crossref() as run:
        assert inside() == plain
    assert len(run.findings) == 1
    with Counting() as outer, crossref() as run:
        operator("wrong_dtype")(torch.ones(3).add(1))
    assert outer.calls == plain
    assert len(run.findings) == 1


class Wrapper(torch.Tensor):
    """A wrapper subclass: its operators run on the tensor inside."""

    wrapped: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        self: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        self.wrapped = inner
        return self

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub lacks the first parameter
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        unwrap = [a.wrapped if isinstance(a, Wrapper) else a for a in args]
        return Wrapper(func(*unwrap, **(kwargs or {})))


def test_the_operators_inside_a_tensor_subclass_are_seen() -> None:
    with crossref() as run:
        result = operator("wrong_dtype")(Wrapper(torch.ones(3)))
    assert type(result) is Wrapper
    assert [f.ops for f in run.findings] == [("planted.wrong_dtype.default",)]


def test_functionalized_operators_are_compared_at_their_key() -> None:
    with crossref() as run:
        torch.func.functionalize(lambda t: operator("wrong_dtype")(t))(torch.ones(3))
    (finding,) = run.findings
    assert finding.kind is Kind.METADATA_MISMATCH
    assert {Stage.AOT, Stage.EAGER} >= set(finding.evidence["seen"])
    assert str(Stage.AOT) in finding.evidence["seen"]
    with crossref() as clean:
        torch.func.functionalize(lambda t: operator("right")(t).add_(1))(torch.ones(3))
    assert not clean.findings


def test_fake_tensors_of_the_users_own_are_left_alone() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with crossref() as run, FakeTensorMode():
        assert operator("wrong_dtype")(torch.ones(3)).dtype is torch.float32
    assert not run.findings


@pytest.mark.fixed_in("2.14")
def test_pytorchs_own_operators_give_at_most_warnings() -> None:
    with crossref() as run:
        x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
        pooled, where = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
        torch.nn.functional.max_unpool2d(pooled, where, (2, 2))
    assert {f.severity for f in run.findings} <= {Severity.WARNING, Severity.NOTE}
    run.raise_if_findings()
    assert any("max_unpool2d" in f.message for f in run.findings)
