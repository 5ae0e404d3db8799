"""Kernels that are wrong, and right on the program's own data by chance: launched on other data, they are found."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import torchsan
from tests.planted.plant import planted, replaced
from torchsan.records import Finding

STARTS_AT_THREE = replaced(("std::numeric_limits<int32_t>::max()", "static_cast<int32_t>(3)"))
STARTS_AT_ZERO = replaced(("std::numeric_limits<int32_t>::min()", "static_cast<int32_t>(0)"))
DATA = torch.arange(1, 61, dtype=torch.int32).view(3, 20) % 7


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def smallest(x: torch.Tensor) -> torch.Tensor:
    return torch.amin(x * 2 + 1, -1)


def largest(x: torch.Tensor) -> torch.Tensor:
    return torch.amax(x.view(-1), 0)


def found(
    program: Callable[..., torch.Tensor], x: torch.Tensor, edit: Callable[[str], str] | None
) -> tuple[Finding, ...]:
    with torchsan.session(check="values") as run:
        if edit is None:
            result = torch.compile(program)(x)
        else:
            with planted(edit) as changed:
                result = torch.compile(program)(x)
            assert changed
    assert torch.equal(result, program(x)), "the data do not hide the fault"
    assert run.coverage.buffers_checked == run.coverage.buffers
    return run.findings


def test_a_minimum_that_starts_too_low_is_found_where_an_element_is_smaller() -> None:
    (finding,) = found(smallest, DATA, STARTS_AT_THREE)
    assert (finding.kind, finding.severity, finding.stage) == ("wrong-values", "error", "kernel")
    assert "aten.amin.default" in finding.ops
    assert finding.evidence["filled"] == {"arg0_1": 6}
    assert (finding.evidence["compiled"], finding.evidence["eager"]) == (3, 13)
    assert "with other data; those of this call hide it" in finding.message


def test_a_maximum_that_starts_too_high_is_found_where_an_element_is_larger() -> None:
    (finding,) = found(largest, DATA - 3, STARTS_AT_ZERO)
    assert finding.evidence["filled"] == {"arg0_1": -3}
    assert (finding.evidence["compiled"], finding.evidence["eager"]) == (0, -3)


@pytest.mark.parametrize("program", [smallest, largest])
def test_a_right_kernel_is_right_on_other_data(program: Callable[..., torch.Tensor]) -> None:
    assert not found(program, DATA, None)


def test_what_divides_or_looks_up_is_left_alone() -> None:
    # Filled with one value each, the first would divide by zero and the second have every element at one place.
    def divides(x: torch.Tensor) -> torch.Tensor:
        return (x // (x - x.flip(0) + 100 * (x == x.flip(0)))).amin(-1)

    def looks_up(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(100).index_select(0, x.view(-1).long()).amin()

    for program in (divides, looks_up):
        assert not found(program, DATA, None)


def test_the_programs_own_memory_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(DATA.flatten().tolist()))
    with (tmp_path / "data").open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a tensor that is not writable
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        x = torch.frombuffer(mapped, dtype=torch.uint8)
        assert not found(lambda x: x.int().amax(-1), x, None)
    assert x.tolist() == DATA.flatten().tolist()
    del x
