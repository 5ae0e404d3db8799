"""What a call can reach, by name."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import pytest
import torch
from torch import nn

from torchsan.reference.reachable import Container, fingerprint, reachable, returned

TABLE = torch.zeros(2)
FLAG = True


def helper(x: torch.Tensor) -> torch.Tensor:
    return x + TABLE


def test_arguments_closures_globals_and_those_of_helpers_are_found() -> None:
    seen = {"count": 3, "last": torch.ones(1)}

    def fn(x: Any, *, scale: Any) -> Any:
        return helper(x["a"][0]) * scale + seen["count"] if FLAG else x

    found = reachable(fn, ({"a": [torch.ones(2)]},), {"scale": 2.0})
    assert set(found.tensors) == {"argument 0['a'][0]", "variable seen['last']", "global TABLE"}
    assert {n: v for n, v in found.values.items() if not isinstance(v, Container)} == {
        "argument scale": 2.0,
        "variable seen['count']": 3,
        "global FLAG": True,
    }


def test_of_a_container_its_kind_and_its_items_are_plain_values() -> None:
    result = [torch.Size([2]), (1, None), {"b": 1, "a": 2}, {True, "x"}, deque([1], maxlen=2)]
    found = returned(result).values
    assert found["output"] == "list of 5"
    assert found["output 0"] == "Size of 1"
    assert (found["output 1"], found["output 1[1]"]) == ("tuple of 2", None)
    assert found["output 2"] == "dict of 2: 'b', 'a'"
    assert found["output 3"] == "set of 2: 'x', True"
    assert (found["output 4"], found["output 4[0]"]) == ("deque of 1", 1)


def test_the_programs_own_classes_are_looked_into_and_those_of_packages_are_not() -> None:
    log: list[int] = []

    class Base:
        seen = 1

    class Helper(Base):
        limit = torch.ones(1)

        @property
        def last(self) -> int:
            return log[-1]

    def fn(x: torch.Tensor) -> Any:
        return Helper, OrderedDict, pytest.Item, x

    found = reachable(fn, (), {})
    assert set(found.tensors) == {"class Helper.limit"}
    assert found.values == {"class Base.seen": 1, "variable log": "list of 0"}


def test_a_module_and_its_gradients_have_the_names_of_its_state() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model(torch.randn(3, 2)).sum().backward()
    found = reachable(model.forward, (), {})
    assert set(model.state_dict()) <= set(found.tensors)
    assert "0.weight.grad" in found.tensors
    assert found.values["training"] is True


def test_a_result_may_be_nested() -> None:
    assert set(returned((torch.ones(1), [torch.ones(1), {"k": torch.ones(1)}])).tensors) == {
        "output 0",
        "output 1[0]",
        "output 1[1]['k']",
    }


def test_a_tensor_that_is_returned_twice_has_both_names_if_asked_for() -> None:
    x = torch.ones(2)
    assert set(returned((x, [x])).tensors) == {"output 0"}
    assert set(returned((x, [x]), again=True).tensors) == {"output 0", "output 1[0]"}


def test_what_decides_a_branch_changes_the_fingerprint() -> None:
    state = {"factor": 1}

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * state["factor"] if FLAG else x

    before = fingerprint(fn, (torch.ones(2),), {})
    assert fingerprint(fn, (torch.zeros(2),), {}) == before
    assert fingerprint(fn, (torch.zeros(3),), {}) != before
    state["factor"] = 2
    assert fingerprint(fn, (torch.ones(2),), {}) != before


def test_what_a_triton_kernel_keeps_is_not_the_programs() -> None:
    kernel = type("JITFunction", (), {"__module__": "triton.runtime.jit"})()
    kernel.launches = 3

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * len(str(kernel))

    assert reachable(fn, (), {}).values == {}
