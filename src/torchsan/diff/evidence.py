"""What a difference looks like, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsan.diff.programs import node_text
from torchsan.records import Watched

if TYPE_CHECKING:
    import torch

    from torchsan.diff.align import GraphPair
    from torchsan.diff.replaying import Explained

__all__ = ["differing_text", "metadata_text"]

_OPERATORS = 4


def metadata_text(a: Watched, b: Watched) -> str | None:
    """Why two values cannot be compared element by element, or None if they can; numbers differ or do not."""
    if a.summary is None or b.summary is None:
        if a.summary is None and b.summary is None:
            return None if a.value == b.value else f"{a.value} against {b.value}"
        return "a tensor against a number"
    mine, other = a.summary.meta, b.summary.meta
    for what in ("dtype", "shape", "layout", "kind"):
        x, y = getattr(mine, what), getattr(other, what)
        if x != y:
            return f"{what} {_shown(x)} against {_shown(y)}"
    return None


def _shown(value: object) -> str:
    return "×".join(map(str, value)) or "scalar" if isinstance(value, tuple) else str(value)


def differing_text(
    graphs: GraphPair, x: torch.Tensor, y: torch.Tensor, explained: Explained, rewritten: tuple[str, ...]
) -> tuple[str, ...]:
    """Which of the two is not what the operators of the first graph give, at which element, and by how much."""
    from torchsan.tensors.judge import Outcome

    lines = []
    if rewritten:
        lines.append("the two graphs compute it by other operators")
        lines += [line for name in rewritten[:_OPERATORS] for line in _both(graphs, name)]
    off = [name for name, outcome in zip("AB", explained.outcomes, strict=True) if outcome is not Outcome.RIGHT]
    verb = "is" if len(off) == 1 else "are"
    lines.append(f"{' and '.join(off)} {verb} not what A's operators give, rounding included")
    for name, judgement in (("A", explained.a), ("B", explained.b)):
        if judgement is None or judgement.bad is None or judgement.centre is None or judgement.width is None:
            continue
        bad = judgement.bad.nonzero()
        at = tuple(int(i) for i in bad[0])
        lines.append(
            f"{len(bad)} of {x.numel()} elements of {name}; at {list(at)}: A {_number(x[at])}, B {_number(y[at])}; "
            f"from {name}'s inputs float64 gives {_number(judgement.centre[at])}, and rounding explains "
            f"±{float(judgement.width[at]):.3g}"
        )
    return tuple(lines)


def _both(graphs: GraphPair, name: str) -> list[str]:
    """A node as either graph has it."""
    mine, other = graphs.a.fx.by_name[name], graphs.nodes.pairs.get(name)
    lines = [f"    A: {node_text(mine)}"]
    if other is not None and graphs.b.fx.by_name[other].written != mine.written:
        lines.append(f"    B: {node_text(graphs.b.fx.by_name[other])}")
    return lines


def _number(t: torch.Tensor) -> str:
    value = t.item()
    return f"{value:.9g}" if isinstance(value, float) else str(value)
