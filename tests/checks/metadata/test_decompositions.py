"""A decomposition gives the metadata of its operator and, in float64, its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.planted.operators import operator
from torchsan.checks.metadata import decompositions
from torchsan.checks.metadata.decompositions import check_decomposition
from torchsan.checks.metadata.samples import generated_samples


def differences(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> list[str] | None:
    monkeypatch.setattr(decompositions, "decomposition", lambda _overload: function)
    found = check_decomposition(operator("right"), (torch.arange(1.0, 7).reshape(2, 3),), {})
    return None if found is None else [d.field for d in found]


def test_a_decomposition_is_compared_by_metadata_and_by_values(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differences(monkeypatch, lambda x: x + x) == []
    assert differences(monkeypatch, lambda x: (x + x).double()) == ["dtype"]
    assert differences(monkeypatch, lambda x: (x + x).t().contiguous().t()) == ["stride"]
    assert differences(monkeypatch, lambda x: x * 2.00001) == ["values"]


def test_an_operator_without_a_decomposition_is_left_out() -> None:
    assert check_decomposition(operator("right"), (torch.ones(2),), {}) is None


def test_decompositions_of_pytorchs_own_agree_with_their_operators() -> None:
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    for overload, args in (
        (torch.ops.aten.gelu.default, (x,)),
        (torch.ops.aten.native_layer_norm.default, (x, [4], None, None, 1e-5)),
        (torch.ops.aten._softmax.default, (x, -1, False)),
    ):
        assert not check_decomposition(overload, args, {})


def test_samples_are_made_from_a_schema() -> None:
    names = [name for name, _ in generated_samples(torch.ops.aten.addmm.default)]
    assert "transposed" in names
    assert len(names) > 10
    assert [s for _, s in generated_samples(torch.ops.aten.arange.default)] == [((2,), {})]
