"""Operators in eager code are seen; once nothing new comes, only in stretches, which cost next to nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchsan.watch.operators import OperatorCall, OperatorObserver, observe_operators
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


def test_operators_of_known_kinds_are_seen_in_stretches_only() -> None:
    observer = Noting()
    with observe_operators(observer) as instrument:
        assert instrument.between(True)
        familiar()
        assert not instrument.between(False)
        assert torch._C._len_torch_dispatch_stack() == 0
        X.mul(2)
        assert observer.new == ["aten.add.Tensor"]
        assert instrument.between(True)  # Something new was compiled.
        X.mul(2)
        assert observer.new == ["aten.add.Tensor", "aten.mul.Tensor"]
        assert instrument.between(False)  # The stretch has just begun.
        familiar(300)
        assert not instrument.between(False)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert "operators between compiled calls" in observer.left_out


def test_a_mode_of_the_programs_own_is_left_where_it_is() -> None:
    class Own(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own is untyped
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    observer = Noting()
    with observe_operators(observer) as instrument:
        familiar()
        with Own():  # type: ignore[no-untyped-call]  # as above
            assert instrument.between(False)  # It stays below.
            assert torch._C._len_torch_dispatch_stack() == 2
        assert not instrument.between(False)
        with Own():  # type: ignore[no-untyped-call]  # as above
            assert not instrument.between(True)  # It does not come in above.
            assert torch._C._len_torch_dispatch_stack() == 1
        assert instrument.between(True)


def test_kinds_of_calls_beyond_a_number_are_looked_at_at_a_pace() -> None:
    observer = Noting()
    with observe_operators(observer):
        for n in range(1, 400):
            torch.ones(n).add(1)
    assert MOST_KINDS <= observer.new.count("aten.add.Tensor") < 200
