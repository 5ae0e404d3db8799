"""What counts as a difference between a compiled call and the user's Python: jumps that rounding decides do not."""

from __future__ import annotations

from typing import Any

import torch

from torchsan.checks.stages.twin_findings import Answers, apart
from torchsan.reference.arithmetic import Arithmetic

TABLE = torch.tensor([[1.0, 2.0, 3.0], [-4.0, 0.5, 8.0]])


class _Router(Answers):
    """Python that routes each of two tokens to a row of a table, of which `tie` alone is decided by the last bits."""

    def __init__(self, tie: int) -> None:
        self._tie = tie
        self.asked: list[tuple[Arithmetic, int]] = []
        self._captured = lambda _name: None

    def result(self, route: int, scale: float = 1.0) -> torch.Tensor:
        routes = [1, 1]
        routes[self._tie] = route
        return TABLE[routes] * scale

    def as_tensors(self, pairs: Any) -> Any:
        return dict(pairs), {}

    def steady(self, tensors: Any, others: Any) -> set[str]:
        return set(tensors)

    def again(self, arithmetic: Arithmetic, seed: int) -> dict[str, Any]:
        self.asked.append((arithmetic, seed))
        match arithmetic:
            case Arithmetic.EXACT:
                return {"output": self.result(1).double()}
            case Arithmetic.NUDGED:
                return {"output": self.result(seed % 2, 1 + 1e-7)}
            case _:
                return {"output": self.result(1)}


def test_another_route_that_rounding_may_take_is_no_difference() -> None:
    other = TABLE[[0, 1]]  # As far from float64 as the Python itself comes out when its own tie falls the other way.
    python = _Router(tie=1)
    assert apart({"output": (other, python.result(1))}, python, set(), {}) == []


def test_what_is_further_off_than_any_route_is_one() -> None:
    python = _Router(tie=1)
    found = apart({"output": (TABLE[[1, 1]] * 40, python.result(1))}, python, set(), {})
    assert [d.name for d in found] == ["output"]


def test_python_that_always_takes_one_route_allows_no_other() -> None:
    python = _Router(tie=1)
    python.result = lambda route, scale=1.0: TABLE[[1, 1]] * scale  # type: ignore[method-assign]
    found = apart({"output": (TABLE[[0, 1]], TABLE[[1, 1]])}, python, set(), {})
    assert [d.name for d in found] == ["output"]


def test_numbers_that_are_none_by_chance_are_a_route_too() -> None:
    """Where the Python's own result has no number in one run and has one in the next, compiled code may have none."""
    python = _Router(tie=1)
    python.result = lambda route, scale=1.0: TABLE[[1, 1]] * (scale if route else torch.nan)  # type: ignore[method-assign]
    lost = torch.cat([TABLE[[1]], TABLE[[1]] * torch.nan])
    assert apart({"output": (lost, TABLE[[1, 1]])}, python, set(), {}) == []
    python.result = lambda route, scale=1.0: TABLE[[1, 1]] * scale  # type: ignore[method-assign]
    assert [d.name for d in apart({"output": (lost, TABLE[[1, 1]])}, python, set(), {})] == ["output"]


def test_python_is_run_with_other_last_bits_only_as_long_as_a_result_is_in_doubt() -> None:
    python = _Router(tie=1)
    assert apart({"output": (TABLE[[1, 0]], python.result(1))}, python, set(), {}) == []
    assert [seed for arithmetic, seed in python.asked if arithmetic is Arithmetic.NUDGED] == [1, 2]


def test_what_rounding_did_in_an_earlier_call_is_not_asked_about_again() -> None:
    python, usual = _Router(tie=1), dict[str, float]()
    result = python.result(1)
    off = result + 1e-4  # Farther than is taken for granted, nearer than the Python with other last bits.
    assert apart({"output": (off, result)}, python, set(), usual) == []
    assert python.asked
    python.asked.clear()
    assert apart({"output": (off, result)}, python, set(), usual) == []
    assert not python.asked
    assert [d.name for d in apart({"output": (result * 40, result)}, python, set(), usual)] == ["output"]


def test_what_the_captured_graph_gives_as_well_is_not_asked_about() -> None:
    python = _Router(tie=1)
    python._captured = lambda _name: TABLE[[1, 1]]
    assert apart({"output": (TABLE[[0, 1]], python.result(1))}, python, set(), {}) == []
    assert not python.asked
    python._captured = lambda _name: TABLE[[0, 0]]
    assert [d.name for d in apart({"output": (TABLE[[1, 1]] * 40, python.result(1))}, python, set(), {})] == ["output"]


def test_what_a_known_error_explains_is_a_difference_without_asking_how_far_rounding_goes() -> None:
    python = _Router(tie=1)
    expected = python.result(1)
    pairs = {"output": (expected * 40, expected), "other": (expected, expected)}
    assert [d.name for d in apart(pairs, python, set(), {}, explained=True)] == ["output"]
    assert python.asked == []
