"""Graph breaks, recompiles and fallbacks to eager are seen, with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchsan.records import Gap, GapKind
from torchsan.torch_internals.gaps import observe_gaps


def gaps(run: Callable[[], Any]) -> list[Gap]:
    found: list[Gap] = []
    torch._dynamo.reset()
    with observe_gaps(found.append, lambda error: pytest.fail(str(error))):
        run()
    torch._dynamo.reset()
    return found


def breaking(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


def test_a_graph_break_has_its_line_and_reason() -> None:
    (gap,) = gaps(lambda: torch.compile(breaking, backend="eager")(torch.ones(2)))
    assert gap.kind is GapKind.GRAPH_BREAK
    assert (gap.file, gap.code) == (__file__, "torch._dynamo.graph_break()")
    assert gap.function == "breaking"
    assert "graph_break()" in gap.reason
    assert "\n" not in gap.reason


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_recompiles_and_the_end_of_them_are_told_of() -> None:
    def run() -> None:
        function = torch.compile(doubled, backend="eager", dynamic=False)
        for n in range(2, 6):
            function(torch.ones(n))

    with torch._dynamo.config.patch(recompile_limit=2):
        found = gaps(run)
    assert [gap.kind for gap in found] == [GapKind.RECOMPILE, GapKind.EAGER]
    assert {(gap.function, gap.file) for gap in found} == {("doubled", __file__)}
    assert "size mismatch at index 0" in found[0].reason
    assert "recompile limit" in found[1].reason


def test_a_whole_graph_has_no_gaps_and_nothing_stays_behind() -> None:
    from torch._dynamo.output_graph import GraphCompileReason
    from torch._dynamo.utils import CompilationMetrics

    before = vars(CompilationMetrics)["create"], GraphCompileReason.__post_init__
    assert gaps(lambda: torch.compile(doubled, backend="eager")(torch.ones(2))) == []
    assert (vars(CompilationMetrics)["create"], GraphCompileReason.__post_init__) == before
