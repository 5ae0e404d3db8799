"""A decomposition gives the metadata of its operator and, in float64, its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.planted.operators import operator
from torchsan.calls import crossref
from torchsan.checks.metadata import operator as decompositions
from torchsan.checks.metadata.operator import check_decomposition, check_operator, generated_samples


def differences(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> list[str] | None:
    monkeypatch.setattr(decompositions, "decomposition", lambda _overload: function)
    found = check_decomposition(operator("right"), (torch.arange(1.0, 7).reshape(2, 3),), {})
    return None if found is None else [d.field for d in found]


def test_a_decomposition_is_compared_by_metadata_and_by_values(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differences(monkeypatch, lambda x: x + x) == []
    assert differences(monkeypatch, lambda x: (x + x).double()) == ["dtype"]
    assert differences(monkeypatch, lambda x: (x + x).t().contiguous().t()) == ["stride"]
    assert differences(monkeypatch, lambda x: x * 2.00001) == ["value"]


@pytest.fixture
def put_in_its_place(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[..., Any]], None]:
    """Registers a decomposition of a planted operator where Inductor looks for it."""
    from torch._inductor import decomposition

    def register(name: str, function: Callable[..., Any]) -> None:
        table = {**decomposition.select_decomp_table(), operator(name): function}
        # As it is after a registration: the table is made once and kept.
        monkeypatch.setattr(decomposition, "fast_random_decomps", lambda: table)

    return register


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize(
    ("function", "outcome", "said"),
    [
        (lambda x: x + x, "ok", ""),
        (
            lambda x: (x + x).double(),
            "metadata-mismatch",
            "dtype of output is float32, its decomposition gives float64",
        ),
        (lambda x: x * 2.5, "wrong-values", "value of output is 10.0, its decomposition gives 12.5"),
    ],
)
def test_a_wrong_decomposition_is_found_beside_the_other_ways_of_running_an_operator(
    function: Callable[..., Any],
    outcome: str,
    said: str,
    put_in_its_place: Callable[[str, Callable[..., Any]], None],
) -> None:
    put_in_its_place("right", function)
    result = check_operator(operator("right"), [((torch.arange(6.0).reshape(2, 3),), {})], watch=crossref)
    assert result.ways == {"eager": "ok", "functionalized": "ok", "compiled": "ok", "decomposition": outcome}
    assert result.status == ("error" if said else "ok")
    assert [said in f.message for f in result.findings] == [True] * bool(said)
    assert all("decomposition" in f.evidence["fix"] for f in result.findings)


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize(("name", "outcome"), [("right", "ok"), ("wrong_dtype", "metadata-mismatch")])
def test_an_operator_is_run_compiled_too(name: str, outcome: str) -> None:
    result = check_operator(operator(name), [((torch.ones(2, 3),), {})], watch=crossref)
    assert set(result.ways) == {"eager", "functionalized", "compiled", "decomposition"}
    assert {way: result.ways[way] for way in ("eager", "compiled")} == {"eager": outcome, "compiled": outcome}
    assert result.ways["decomposition"] == "none"


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
