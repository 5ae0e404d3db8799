"""Where the bad elements lie, for programs and for people."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchsan.checks.values.findings import where_bad


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
    ],
)
def test_a_place_is_given_as_data_and_in_words(found: torch.Tensor, pattern: str, place: dict[str, Any]) -> None:
    assert where_bad(found) == {"pattern": pattern, "place": place}
