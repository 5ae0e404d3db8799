from __future__ import annotations

import math

import torch

from torchsan.checks.picture import picture_of


def test_wrong_elements_are_counted_in_a_grid() -> None:
    bad = torch.zeros(3, 200, 130, dtype=torch.bool)
    bad[2, 199, 129] = bad[0, 0, 0] = bad[0, 0, 1] = True
    x = torch.zeros(bad.shape)
    map_ = picture_of(bad, x, x)["map"]
    assert (map_["rows"], map_["columns"], map_["down"], map_["across"]) == (600, 130, 64, 64)
    assert map_["cells"][0] == 2
    assert map_["cells"][-1] == 1
    assert sum(map_["cells"]) == 3


def test_dimensions_of_size_one_do_not_count() -> None:
    bad = torch.ones(5, 1, 7, 1, dtype=torch.bool)
    map_ = picture_of(bad, bad, bad)["map"]
    assert (map_["down"], map_["across"], map_["cells"]) == (5, 7, [1] * 35)


def test_a_vector_is_one_row_and_a_number_one_cell() -> None:
    bad = torch.arange(1000) >= 990
    map_ = picture_of(bad, bad, bad)["map"]
    assert (map_["rows"], map_["down"], map_["across"], sum(map_["cells"])) == (1, 1, 256, 10)
    one = torch.tensor(True)
    assert picture_of(one, one, one)["map"]["cells"] == [1]


def test_samples_go_from_the_first_to_the_last() -> None:
    actual = torch.arange(100.0)
    samples = picture_of(actual >= 40, actual, -actual, actual.double() + 1, torch.full((100,), 0.5))["samples"]
    assert len(samples) == 24
    assert samples[0] == {"at": [40], "compiled": 40.0, "eager": -40.0, "float64": 41.0, "allowed": 0.5}
    assert samples[-1]["at"] == [99]


def test_errors_are_counted_by_powers_of_ten_of_what_is_allowed() -> None:
    centre = torch.zeros(6, dtype=torch.float64)
    actual = torch.tensor([0.0, 0.5, 5.0, 5e20, math.nan, 3.0])
    width = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    bad = torch.tensor([False, False, True, True, True, False])
    errors = picture_of(bad, actual, actual, centre, width)["errors"]
    counts = dict(zip(["below", *errors["decades"]], errors["counts"], strict=True))
    assert counts["below"] == 1, "an error of nothing"
    assert counts[-1] == 1, "half of what is allowed: from 0.1 on"
    assert counts[0] == 1, "five times: from 1 on"
    assert counts[9] == 2, "what is beyond all measure, and what is no number"
    assert errors["same"] == 1


def test_truth_values_have_no_width() -> None:
    bad = torch.tensor([True, False])
    assert picture_of(bad, bad, ~bad, ~bad, torch.zeros(2))["errors"] is None
