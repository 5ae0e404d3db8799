"""Errors that all elements share: a wrong factor or offset of one operator, seen below the rounding of one element.

Rounding errors of many elements are independent; a wrong factor of one operator is the same in all of them. For each
operator of a replayed graph, the slope of the result in that operator's factor says what such an error looks like. The
residual (the compiled result minus the one in float64) is projected on every slope, as a lock-in amplifier does; the
same projections of residuals that rounding alone gives tell how far chance goes. Whether it was chance is then asked
of the launch itself: on other data its rounding errors are others, and a wrong factor is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import torch.fx

from torchsan.reference.steady import SIGMAS, Steady

Change = Callable[[torch.fx.Node, torch.Tensor, Any], torch.Tensor]
"""Given a node, its value in a replay and its arguments, returns the value that the replay goes on with."""
Run = Callable[[Change], torch.Tensor]
"""Replays the graph in float64 with a change, and returns the result."""

_SUSPECT_SIGMAS = 3.0
"""How far outside of chance a projection must lie to be asked for on other data."""
_UNCONFIRMED_SIGMAS = 50.0
_UNCONFIRMED_SIZES = 16.0
_UNCONFIRMED_HALF = 5.0
"""In half precision there is no bias: what approximates a function does so in float32."""
_ALIKE = 0.9995
"""Operators on which rounding projects alike, as well as this, share their slope: factors of one product, say."""
_NEARLY = 0.99
"""The part of what the best one explains that another operator must explain to be named with it."""
_OFFSET = 0.8
"""Where a factor and an offset explain nearly the same, it is the factor."""
_CANDIDATES = 8
_NO_GRADIENT = "torch::autograd::NotImplemented"
_TELLING = 1e-3
_STEP = 1e-4
_FLOORS = {torch.float64: 64.0, torch.float32: 7.5, torch.float16: 0.5, torch.bfloat16: 0.35}
"""The smallest error of an operator that counts, in eps of its dtype: approximations of functions may have a bias."""
_BIASED = 0.25
"""The part of the rounding of one element that may be a bias: where a difference of nearly equal numbers makes much of
the last bit of a cosine, all elements share what is made of its bias."""


class Slope(StrEnum):
    """What is wrong with an operator's result."""

    FACTOR = "factor"
    OFFSET = "offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Coherent:
    """An error of one operator (or one of several that cannot be told apart), shared by all elements of the result.

    `size` is relative to the operator's result for a factor, and to its root mean square for an offset. `least` is how
    large it must be to count, `alone` where the launch cannot be repeated on other data; `sigmas` tells how far outside
    of chance it lies. `nodes` begin with the likeliest.
    """

    nodes: tuple[torch.fx.Node, ...]
    slope: Slope
    size: float
    sigmas: float
    least: float
    alone: float

    @property
    def is_beyond_doubt(self) -> bool:
        """Whether it stands where the launch cannot be repeated on other data."""
        return self.sigmas >= _UNCONFIRMED_SIGMAS and abs(self.size) >= self.alone


def find_coherent(
    actual: torch.Tensor, run: Run, rounded: Sequence[torch.Tensor], counts: Callable[[torch.fx.Node], bool]
) -> Coherent | None:
    """Return the operator whose error explains `actual` best, or None if chance may well have done it.

    `rounded` are results of replays that differ from float64 by rounding alone; `counts` tells which nodes may be to
    blame. All tensors have the same shape. Nothing is found in what is not a real floating-point tensor.
    """
    if actual.dtype not in _FLOORS or actual.numel() == 0 or len(rounded) < 4:
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
    # In half precision the smallest error that counts is below one rounding, and chance is all there is.
    precise = torch.finfo(actual.dtype).eps < 1e-4
    least = max(_FLOORS[actual.dtype] * torch.finfo(actual.dtype).eps, _BIASED * _noisiness(exact, noise))
    unlikely = _SUSPECT_SIGMAS if precise else SIGMAS
    suspects = []
    for i in scores.abs().argsort(descending=True)[:_CANDIDATES].tolist():
        size, explained = _coefficient(run, slopes.leaves[i], exact, residual, weights)
        if abs(float(scores[i])) >= unlikely and abs(size) >= least:
            suspects.append(_Suspect(leaf=i, sigmas=abs(float(scores[i])), size=size, explained=explained))
    if not suspects:
        return None
    best = max(suspects, key=lambda s: s.explained * (1.0 if slopes.leaves[s.leaf].slope is Slope.FACTOR else _OFFSET))
    close = [s.leaf for s in suspects if s.explained >= _NEARLY * best.explained]
    return Coherent(
        nodes=_alike(slopes.leaves, projections, [best.leaf, *close]),
        slope=slopes.leaves[best.leaf].slope,
        size=best.size,
        sigmas=best.sigmas,
        least=least,
        alone=least * (_UNCONFIRMED_SIZES if precise else _UNCONFIRMED_HALF),
    )


def _noisiness(exact: torch.Tensor, noise: Sequence[torch.Tensor]) -> float:
    """By which part of itself rounding moves a typical element."""
    moved = torch.stack([n.nan_to_num(0, 0, 0) for n in noise]).square().mean(0).sqrt()
    parts = (moved / exact.abs())[torch.isfinite(exact) & (exact != 0)]
    return float(parts.median()) if parts.numel() else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspect:
    """One operator's factor or offset, by how much it would be off, and how much of the residual that explains."""

    leaf: int
    sigmas: float
    size: float
    explained: float


def _coefficient(
    run: Run, leaf: _Leaf, exact: torch.Tensor, residual: torch.Tensor, weights: torch.Tensor
) -> tuple[float, float]:
    """How large an error of one operator explains a residual best, and how much of its square; 0 for hardly any."""
    along = (run(leaf.changed(_STEP)).detach() - exact) / _STEP
    norm = float((along.square() * weights).nansum())
    # A result that hardly depends on an operator's factor, as a softmax on an offset, says nothing about it.
    tells = norm > _TELLING**2 * float((exact.square() * weights).nansum())
    if not tells:
        return 0.0, 0.0
    product = float((residual * along * weights).nansum())
    return product / norm, product**2 / norm


class SharedAgain:
    """What other data say of an error that all elements of one result were found to share."""

    def __init__(self, coherent: Coherent) -> None:
        self._coherent = coherent
        self._steady = Steady(torch.tensor([coherent.size]), least=torch.tensor([coherent.least]))

    def add(
        self, actual: torch.Tensor, run: Run, rounded: Sequence[torch.Tensor], fixed: Sequence[torch.Tensor]
    ) -> bool | None:
        """Take in the result for other data. Return whether it is the same error; None if more data are needed.

        `rounded` are replays that differ from float64 by rounding alone. `fixed` are replays with the rounding of what
        is the same in all data sets (numbers computed from constants), and of nothing else.
        """
        exact = run(lambda _node, value, _args: value).detach()
        residual = actual.to(torch.float64) - exact
        weights = _weights(actual.dtype, exact, residual, [r.to(torch.float64) - exact for r in rounded])
        leaf = _Leaf(node=self._coherent.nodes[0], slope=self._coherent.slope, number=exact)
        size, *same = (
            torch.tensor([_coefficient(run, leaf, exact, r, weights)[0]], dtype=torch.float64)
            for r in (residual, *(f.to(torch.float64) - exact for f in fixed))
        )
        return self._steady.add(size, same)


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
        if value.grad_fn is not None and value.grad_fn.name() == _NO_GRADIENT:
            value = value.detach()  # What comes before it is not seen, and what comes after it is.
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


def _alike(leaves: Sequence[_Leaf], projections: torch.Tensor, close: Sequence[int]) -> tuple[torch.fx.Node, ...]:
    """The nodes of these leaves, the best first, and of those whose slope cannot be told from the best one's."""
    best = close[0]
    noise = projections[1:]
    along = torch.nn.functional.cosine_similarity(noise, noise[:, best].unsqueeze(1), dim=0).abs().tolist()
    alike = [i for i, a in enumerate(along) if a >= _ALIKE and leaves[i].slope is leaves[best].slope]
    return tuple(dict.fromkeys(leaves[i].node for i in (*close, *alike)))
