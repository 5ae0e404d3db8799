"""Where the bad elements lie, for programs and for people."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchsan.checks.values.findings import _text, flip_text, where_bad


def bad(*indices: Any) -> torch.Tensor:
    made = torch.zeros(4, 8, dtype=torch.bool)
    for index in indices:
        made[index] = True
    return made


@pytest.mark.parametrize(
    ("found", "pattern", "place"),
    [
        (bad(slice(None)), "all elements", {"side": "all"}),
        (bad((1, 2)), "one element", {"side": "one"}),
        (bad((0, 1), (2, 5), (1, 7), (3, 2)), "scattered elements", {"side": "scattered"}),
        (bad(2), "all of index 2 of dimension 0", {"side": "index", "index": 2, "whole": True, "dim": 0}),
        (
            bad((2, 3), (2, 4)),
            "only in index 2 of dimension 0",
            {"side": "index", "index": 2, "whole": False, "dim": 0},
        ),
        (
            bad((slice(None), slice(5, 8))),
            "the last 3 of 8 along dimension 1",
            {"side": "last", "count": 3, "of": 8, "dim": 1},
        ),
        (
            bad(slice(0, 2)),
            "the first 2 of 4 along dimension 0",
            {"side": "first", "count": 2, "of": 4, "dim": 0},
        ),
        (bad(0, 3), "both edges of dimension 0", {"side": "edges", "dim": 0}),
        (
            bad((slice(None), 5)).unsqueeze(0),
            "all of index 5 of dimension 2",
            {"side": "index", "index": 5, "whole": True, "dim": 2},
        ),
    ],
)
def test_a_place_is_given_as_data_and_in_words(found: torch.Tensor, pattern: str, place: dict[str, Any]) -> None:
    assert where_bad(found) == {"pattern": pattern, "place": place}


@pytest.mark.parametrize(
    ("first", "what", "lines"),
    [
        ([0, 3], "wrong", ["wrong: one element of float32[2, 4] (1 of 8)", "at [0, 3]: compiled 1, "]),
        ([], "differ", ["differ: one element of float32[2, 4] (1 of 8)", "compiled 1, "]),
    ],
)
def test_what_cannot_be_told_is_not_called_wrong_and_one_number_has_no_place(
    first: list[int], what: str, lines: list[str]
) -> None:
    evidence = {"pattern": "one element", "dtype": "float32", "shape": [2, 4], "bad": 1, "elements": 8}
    numbers = {"compiled": 1.0, "eager": 2.0, "float64": 2.0, "allowed": 0.5}
    rest: dict[str, Any] = {"first_bad": first, "inputs": [], "through": [], "filled": {}, "computes": []}
    text = list(_text(evidence | numbers | rest, {}, what))
    assert text[0] == lines[0]
    assert text[1].startswith(lines[1])


def test_a_kernel_is_named_once() -> None:
    flip = {"node": "argmax", "margin": 0.5, "upstream": {"nodes": ["mul"], "kernel": "cpp_fused_mul_0"}}
    text = "argmax turns on a difference of 0.5 units in the last place of mul"
    assert flip_text(flip) == f"{text}, which cpp_fused_mul_0 computes"
    assert flip_text(flip, "cpp_fused_mul_0") == text
