"""Errors that all elements share: a wrong factor or offset of one operator, seen below the rounding of one element.

Rounding errors of many elements are independent; a wrong factor of one operator is the same in all of them. For each
operator of a replayed graph, the slope of the result in that operator's factor says what such an error looks like. The
residual (the compiled result minus the one in float64) is projected on every slope, as a lock-in amplifier does; the
same projections of residuals that rounding alone gives tell how far chance goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import torch.fx

Change = Callable[[torch.fx.Node, torch.Tensor, Any], torch.Tensor]
"""Given a node, its value in a replay and its arguments, returns the value that the replay goes on with."""
Run = Callable[[Change], torch.Tensor]
"""Replays the graph in float64 with a change, and returns the result."""

SIGMAS = 7.0
"""How far outside of chance a projection must lie. Thousands are made in a run; a find is confirmed on other data."""
_ALIKE = 0.9995
"""Operators whose projections agree this well share their slope: factors of one product, say."""
_CANDIDATES = 8
_TELLING = 1e-3
_STEP = 1e-4
_FLOORS = {torch.float64: 64.0, torch.float32: 7.5, torch.float16: 0.5, torch.bfloat16: 0.35}
"""The smallest error of an operator that counts, in eps of its dtype: approximations of functions may have a bias."""


class Slope(StrEnum):
    """What is wrong with an operator's result."""

    FACTOR = "factor"
    OFFSET = "offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coherent:
    """An error of one operator (or one of several that cannot be told apart), shared by all elements of the result.

    `size` is relative to the operator's result for a factor, and to its root mean square for an offset.
    """

    nodes: tuple[torch.fx.Node, ...]
    slope: Slope
    size: float
    sigmas: float

    def agrees(self, other: Coherent) -> bool:
        """Whether two data sets show the same error."""
        same = self.slope is other.slope and bool(set(self.nodes) & set(other.nodes))
        return same and 0.5 < self.size / other.size < 2.0


def find_coherent(
    actual: torch.Tensor,
    run: Run,
    rounded: Sequence[torch.Tensor],
    counts: Callable[[torch.fx.Node], bool],
    *,
    accumulated: float = 1.0,
) -> Coherent | None:
    """Return the operator whose error explains `actual` best, or None if chance may have done it.

    `rounded` are results of replays that differ from float64 by rounding alone; `counts` tells which nodes may be to
    blame; `accumulated` is how many times more than one rounding a result may hold, since sums were made of many terms.
    All tensors have the same shape. Nothing is found in what is not a real floating-point tensor.
    """
    if actual.dtype not in _FLOORS or actual.numel() < 8 or len(rounded) < 4:
        return None
    slopes = _Slopes(run, counts)
    exact = slopes.result.detach()
    if exact.shape != actual.shape or not slopes.leaves:
        return None
    residual = actual.to(torch.float64) - exact
    noise = [r.to(torch.float64) - exact for r in rounded]
    weights = _weights(actual.dtype, exact, residual, noise)
    projections = torch.stack([slopes.project(r.nan_to_num(0, 0, 0) * weights) for r in (residual, *noise)])
    sigma = projections[1:].square().mean(0).sqrt()
    scores = torch.where(sigma > 0, projections[0] / sigma, 0.0).nan_to_num(0, 0, 0)
    floor = _FLOORS[actual.dtype] * torch.finfo(actual.dtype).eps * accumulated
    for best in scores.abs().argsort(descending=True)[:_CANDIDATES].tolist():
        sigmas = abs(float(scores[best]))
        if sigmas < SIGMAS:
            return None
        leaf = slopes.leaves[best]
        along = (run(leaf.changed(_STEP)).detach() - exact) / _STEP
        norm = float((along.square() * weights).nansum())
        size = float((residual * along * weights).nansum()) / norm if norm else 0.0
        # A result that hardly depends on an operator's factor, as a softmax on an offset, says nothing about it.
        tells = norm > _TELLING**2 * float((exact.square() * weights).nansum())
        if tells and abs(size) >= floor:
            return Coherent(nodes=_alike(slopes.leaves, projections, best), slope=leaf.slope, size=size, sigmas=sigmas)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """One operator's factor or offset, as a number that a gradient can be taken by."""

    node: torch.fx.Node
    slope: Slope
    number: torch.Tensor

    def changed(self, step: float) -> Change:
        """A replay with this number off by `step`."""

        def change(node: torch.fx.Node, value: torch.Tensor, _args: Any) -> torch.Tensor:
            if node is not self.node:
                return value
            return value * (1 + step) if self.slope is Slope.FACTOR else value + step * _size(value)

        return change


class _Slopes:
    """One replay in float64 that remembers how its result depends on every operator's factor and offset."""

    def __init__(self, run: Run, counts: Callable[[torch.fx.Node], bool]) -> None:
        self.leaves: list[_Leaf] = []
        self._counts = counts
        with torch.enable_grad():
            self.result = run(self._with_leaves)
        if self.result.grad_fn is None:
            self.leaves = []

    def _with_leaves(self, node: torch.fx.Node, value: torch.Tensor, _args: Any) -> torch.Tensor:
        if value.dtype is not torch.float64 or value.numel() == 0 or not self._counts(node):
            return value
        factor = torch.ones((), dtype=torch.float64, requires_grad=True)
        offset = torch.zeros((), dtype=torch.float64, requires_grad=True)
        self.leaves.append(_Leaf(node=node, slope=Slope.FACTOR, number=factor))
        self.leaves.append(_Leaf(node=node, slope=Slope.OFFSET, number=offset))
        return value * factor + offset * _size(value)

    def project(self, residual: torch.Tensor) -> torch.Tensor:
        """The inner products of a residual with all slopes: one gradient gives them all."""
        found = torch.autograd.grad(
            self.result, [leaf.number for leaf in self.leaves], residual, retain_graph=True, allow_unused=True
        )
        return torch.stack([torch.zeros((), dtype=torch.float64) if g is None else g.detach() for g in found])


def _size(value: torch.Tensor) -> torch.Tensor:
    return value.detach().square().mean().sqrt()


def _weights(
    dtype: torch.dtype, exact: torch.Tensor, residual: torch.Tensor, noise: Sequence[torch.Tensor]
) -> torch.Tensor:
    """One over the variance of each element by rounding; zero where some replay has no number."""
    finite = torch.isfinite(torch.stack([exact, residual, *noise])).all(0)
    last_place = exact.abs() * torch.finfo(dtype).eps / 4 + torch.finfo(dtype).tiny
    variance = torch.stack([n.nan_to_num(0, 0, 0) for n in noise]).square().mean(0) + last_place.square()
    return torch.where(finite, 1 / variance, 0.0)


def _alike(leaves: Sequence[_Leaf], projections: torch.Tensor, best: int) -> tuple[torch.fx.Node, ...]:
    """The nodes whose slope cannot be told from the best one's."""
    chosen = projections[:, best]
    along = torch.nn.functional.cosine_similarity(projections, chosen.unsqueeze(1), dim=0).abs()
    return tuple(
        leaf.node
        for leaf, a in zip(leaves, along.tolist(), strict=True)
        if a >= _ALIKE and leaf.slope is leaves[best].slope
    )
