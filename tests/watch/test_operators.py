"""Operators in eager code are seen; once nothing new comes, only in stretches, which cost next to nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchsan.watch.operators import OperatorCall, OperatorObserver, between_calls, expect_news, observe_operators
from torchsan.watch.pace import MOST_KINDS


class Noting(OperatorObserver):
    """Writes down what is new."""

    def __init__(self) -> None:
        self.new: list[str] = []
        self.left_out: list[str] = []

    def before(self, call: OperatorCall) -> None:
        self.new.append(str(call.overload))

    def not_covered(self, what: str, reason: str) -> None:
        self.left_out.append(what)


X = torch.ones(3)


def familiar(times: int = 1100) -> None:
    for _ in range(times):
        X.add(1)


def modes() -> int:
    return torch._C._len_torch_dispatch_stack()


def test_operators_of_known_kinds_are_seen_in_stretches_only() -> None:
    observer = Noting()
    with observe_operators(observer):
        familiar()
        between_calls()
        assert modes() == 0
        X.mul(2)
        assert observer.new == ["aten.add.Tensor"]
        between_calls()
        assert modes() == 0
        expect_news()  # Something new was compiled.
        between_calls()
        X.mul(2)
        assert observer.new == ["aten.add.Tensor", "aten.mul.Tensor"]
        between_calls()
        assert modes() == 1  # The stretch has just begun.
        familiar(300)
        between_calls()
        assert modes() == 0
        torch.ones(2)
    assert modes() == 0
    torch.ones(2)
    assert "operators between compiled calls" in observer.left_out


class Own(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own is untyped
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        between_calls()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("around", [Own, torch.inference_mode])
def test_what_puts_the_dispatcher_back_finds_it_as_it_was(around: Any) -> None:
    with observe_operators(Noting()):
        familiar()
        with around():
            between_calls()  # It would rest, and does not: what is around would bring back half of it.
            X.add(1)
        assert modes() == 1
        torch.ones(2)
        familiar()
        between_calls()
        assert modes() == 0
        expect_news()
        with around():
            between_calls()
            X.add(1)
        assert modes() == 0
        torch.ones(2)
        between_calls()
        assert modes() == 1


def test_under_autocast_it_rests_too() -> None:
    with observe_operators(Noting()):
        with torch.autocast("cpu"):
            familiar()
            between_calls()
            assert modes() == 0
        torch.ones(2)
        assert modes() == 0


def test_inside_a_backward_nothing_changes() -> None:
    with observe_operators(Noting()):
        familiar()
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        y.register_hook(lambda _gradient: between_calls())  # type: ignore[no-untyped-call]  # torch's own is untyped
        familiar()
        y.sum().backward()  # type: ignore[no-untyped-call]  # as above
        assert modes() == 1
        torch.ones(2)


def test_kinds_of_calls_beyond_a_number_are_looked_at_at_a_pace() -> None:
    observer = Noting()
    with observe_operators(observer):
        for n in range(1, 400):
            torch.ones(n).add(1)
    assert MOST_KINDS <= observer.new.count("aten.add.Tensor") < 200
