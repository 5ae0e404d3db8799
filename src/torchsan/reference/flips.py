"""Where a result jumped: the operator that decides, an argmax, a comparison or a rounding, and by how little it did.

What rounding may have decided either way is no error, but whoever sees another index, route or size wants to know where
it came from. An operator that jumps is run in several arithmetics; the first whose value differs among them is the one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from torchsan.graphs.nodes import computed_by
from torchsan.reference.arithmetic import Arithmetic

_CHOICES = frozenset("argmax argmin topk sort argsort max min kthvalue median mode".split())
_COMPARISONS = frozenset("eq ne lt le gt ge".split())
_ROUNDINGS = frozenset("floor ceil trunc round convert_element_type _to_copy floor_divide remainder fmod sign".split())
_RUNS = ((Arithmetic.EAGER, 0), (Arithmetic.EXACT, 0), *((Arithmetic.NUDGED, seed) for seed in (1, 2, 3, 4)))

See = Callable[[torch.fx.Node, Any], None]
"""Is told the value of each node that a run computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """The operator that may go either way, in `count` of the `elements` of its result.

    `margin` is how far from the other way it was at most, in units in the last place; None if it is not measured.
    """

    node: torch.fx.Node
    count: int
    elements: int
    margin: float | None

    @property
    def upstream(self) -> list[torch.fx.Node]:
        """The nodes whose values it decides by."""
        return self.node.all_input_nodes


def jumps(node: torch.fx.Node) -> bool:
    """Whether the value of a node jumps where its operands move: indices, truth values, whole numbers."""
    name = getattr(node.target, "_opname", "")
    if name in ("convert_element_type", "_to_copy"):
        meta = node.meta.get("val")
        return isinstance(meta, torch.Tensor) and not (meta.is_floating_point() or meta.is_complex())
    return name in _CHOICES or name in _COMPARISONS or name in _ROUNDINGS


def find_flip(run: Callable[[Arithmetic, int, See], Any], where: torch.Tensor | None = None) -> Flip | None:
    """Return the first operator that goes either way as numbers are rounded; None if all agree.

    `run` computes the result in an arithmetic with the noise of a seed. What it raises in any but eager's is left out.
    `where` are the elements that did flip: the margin is theirs, if the operator decides as many elements.
    """
    first, *others = (_Seen() for _ in _RUNS)
    run(*_RUNS[0], first.see)
    usable = []
    for seen, (arithmetic, seed) in zip(others, _RUNS[1:], strict=True):
        try:
            run(arithmetic, seed, seen.see)
        except Exception:  # noqa: BLE001  # what has no meaning in float64, or another size: the others tell
            continue
        usable.append(seen)
    for node, value in first.decided.items():
        found = [o for seen in usable if (o := seen.decided.get(node)) is not None and o.shape == value.shape]
        flipped = [o for o in found if not torch.equal(o.to(value.dtype), value)]
        if flipped:
            if where is not None and where.shape == value.shape:
                flipped = [torch.where(where, o.to(value.dtype), value) for o in flipped]
            count = int(torch.stack([o.to(value.dtype) != value for o in flipped]).any(0).sum())
            margins = [m for o in flipped if (m := margin(node, first.operands, value, o.to(value.dtype))) is not None]
            return Flip(node=node, count=count, elements=value.numel(), margin=max(margins, default=None))
    return None


@dataclass(slots=True)
class _Seen:
    """The values of the operators that jump, and of what they decide by."""

    decided: dict[torch.fx.Node, torch.Tensor] = field(default_factory=dict)
    operands: dict[torch.fx.Node, torch.Tensor] = field(default_factory=dict)

    def see(self, node: torch.fx.Node, value: Any) -> None:
        called = computed_by(node)
        takes = called is not node and isinstance(value, torch.Tensor)
        if takes and jumps(called) and not value.is_floating_point():
            self.decided.setdefault(called, value.detach().clone())
        elif jumps(node) and (decided := _decision(value)) is not None:
            self.decided[node] = decided.detach().clone()
        elif isinstance(value, torch.Tensor) and any(jumps(user) for user in node.users):
            self.operands[node] = value.detach().clone()


def _decision(value: Any) -> torch.Tensor | None:
    """The part of an operator's result that jumps: of values and indices, the indices."""
    if isinstance(value, tuple | list):
        value = next((v for v in value if isinstance(v, torch.Tensor) and not v.is_floating_point()), None)
    return value if isinstance(value, torch.Tensor) else None


def margin(
    node: torch.fx.Node, operands: dict[torch.fx.Node, torch.Tensor], one: torch.Tensor, other: torch.Tensor
) -> float | None:
    """By how many units in the last place an operator decided for `one` and not for `other`, at most."""
    values = [operands.get(a) if isinstance(a, torch.fx.Node) else a for a in node.args]
    x = values[0]
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        return None
    eps = torch.finfo(x.dtype).eps
    x = x.to(torch.float64)
    name = node.target._opname  # type: ignore[union-attr]  # what jumps is an operator
    apart = one != other
    if name in _COMPARISONS:
        y = values[1] if len(values) > 1 else None
        if not isinstance(y, torch.Tensor | int | float):
            return None
        distance = (x - y).abs().expand(apart.shape)[apart]
        size = torch.maximum(x.abs(), torch.as_tensor(y, dtype=torch.float64).abs()).expand(apart.shape)[apart]
    elif name in _CHOICES:
        whole = len(values) < 2 and name in ("argmax", "argmin")
        dim = -1 if whole or not isinstance(d := node.kwargs.get("dim", _dimension(name, values)), int) else d
        x = x.flatten() if whole else x
        picked = [x.gather(dim, i.reshape([1]) if whole else _with_dim(i, x, dim)) for i in (one, other)]
        apart = picked[0] != picked[1]
        distance, size = (picked[0] - picked[1]).abs()[apart], picked[0].abs()[apart]
    else:
        fraction = (x - x.floor())[apart] if apart.shape == x.shape else (x - x.floor()).flatten()[:0]
        to_whole = torch.minimum(fraction, 1 - fraction)
        distance = (fraction - 0.5).abs() if name == "round" else to_whole
        size = x[apart].abs() if apart.shape == x.shape else x.flatten()[:0]
    if distance.numel() == 0:
        return 0.0
    return float((distance / (size * eps).clamp_min(torch.finfo(torch.float64).tiny)).max())


def _dimension(name: str, values: list[Any]) -> Any:
    place = 2 if name in ("topk", "kthvalue") else 1
    return values[place] if len(values) > place else -1


def _with_dim(indices: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    return indices if indices.dim() == x.dim() else indices.unsqueeze(dim)
