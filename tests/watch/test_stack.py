"""torchsan's frames do not count: a program reaches its recursion limit no earlier than without torchsan."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable

import pytest
import torch

import torchsan


def _deep(frames: int, function: Callable[[], object]) -> object:
    return function() if frames == 0 else _deep(frames - 1, function)


def _needed(function: Callable[[], object]) -> int:
    """How many frames below the limit the function can be called at the deepest."""
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    for room in range(2, 200):
        try:
            _deep(sys.getrecursionlimit() - depth - room, function)
            return room
        except RecursionError:
            pass
    raise AssertionError("never")


def test_a_program_reaches_its_recursion_limit_no_earlier() -> None:
    x = torch.randn(8, requires_grad=True)
    compiled = torch.compile(lambda x: (x.sin() * 2).sum())
    programs: dict[str, Callable[[], object]] = {
        "eager": lambda: (x * 2).sum(),
        "compiled": lambda: compiled(x).backward(),
    }

    def run() -> dict[str, int]:
        torch._dynamo.reset()
        for program in programs.values():
            program()
        return {name: _needed(program) for name, program in programs.items()}

    expected = run()
    with torchsan.session() as session:
        found = run()
    assert all(found[name] <= expected[name] for name in programs), (found, expected)
    assert not session.findings


def test_a_program_sees_and_sets_its_own_recursion_limit() -> None:
    before, own = sys.getrecursionlimit(), (sys.getrecursionlimit, sys.setrecursionlimit)
    try:
        with torchsan.session():
            assert sys.getrecursionlimit() == before
            sys.setrecursionlimit(before + 77)
            assert sys.getrecursionlimit() == before + 77
            assert pickle.loads(pickle.dumps(sys.getrecursionlimit)) is sys.getrecursionlimit  # noqa: S301  # our own
            with pytest.raises(ValueError, match="greater or equal than 1"):
                sys.setrecursionlimit(0)
            with pytest.raises(TypeError):
                sys.setrecursionlimit("many")  # type: ignore[arg-type]  # on purpose
        assert (sys.getrecursionlimit, sys.setrecursionlimit) == own
        assert sys.getrecursionlimit() == before + 77
    finally:
        sys.setrecursionlimit(before)
