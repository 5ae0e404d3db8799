"""Runs operators of a recorded graph again, from what both runs had, to see whether one function explains both.

Only operators of PyTorch's own that compute are run, on recorded tensors; nothing else in a recording is executed.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from torchsan.errors import RecordingError
from torchsan.graphs.operators import find_operator
from torchsan.graphs.printed import FxGraph, FxNode
from torchsan.records import TensorSummary
from torchsan.reference.arithmetic import Unavailable
from torchsan.reference.judge import Judgement, Outcome
from torchsan.reference.replay import Replayer, needed
from torchsan.torch_internals.operators import load_inductor_operators, undisturbed

if TYPE_CHECKING:
    import torch

_GROWTH = 32.0
"""How much larger than the differences it is computed from a difference may be, relative to the values."""
_SINGLE, _HALF = 64.0, 8.0
"""How many units in the last place rounding alone may give, in the root mean square: in single precision and wider,
and in half precision and narrower, where programs take care to round seldom."""
_MOST = 0.1
"""Values that differ by more than that have little in common, whatever came before."""
_FEW = 0.02
_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_EPS |= {"complex128": 2.0**-52, "complex64": 2.0**-23, "complex32": 2.0**-10}
_EPS |= {"float8_e4m3fn": 2.0**-3, "float8_e4m3fnuz": 2.0**-3, "float8_e5m2": 2.0**-2, "float8_e5m2fnuz": 2.0**-2}


def allowed(dtype: str, before: float) -> float:
    """How large a spread may be that came from values with a spread of `before`; 0 for what is not rounded at all."""
    eps = _EPS.get(dtype)
    if eps is None:
        return 0.0
    return min(_MOST, eps * (_SINGLE if eps < 1e-5 else _HALF) + _GROWTH * before)


def spread(a: torch.Tensor, b: torch.Tensor) -> float:
    """The root mean square of the difference relative to that of the values; infinite where one is no number.

    Of integers and truth values: how many of them differ, between 0 and 1.
    """
    import torch

    if a.numel() == 0:
        return 0.0
    if not (a.is_floating_point() or a.is_complex()):
        return float((a != b).to(torch.float64).mean())
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.to(wide), b.to(wide)
    finite = torch.isfinite(x) & torch.isfinite(y)
    alike = finite | (x == y) | (torch.isnan(x) & torch.isnan(y))
    if not bool(alike.all()):
        return math.inf
    x, y = x[finite], y[finite]
    size = float(torch.maximum(x.abs(), y.abs()).square().mean().sqrt()) if x.numel() else 0.0
    return float((x - y).abs().square().mean().sqrt()) / size if size else 0.0


def summary_spread(a: TensorSummary, b: TensorSummary) -> float:
    """The largest difference of the statistics, relative to the root mean square of the values."""
    if (a.nan, a.posinf, a.neginf, a.count) != (b.nan, b.posinf, b.neginf, b.count):
        return math.inf
    statistics = [(a.minimum, b.minimum), (a.maximum, b.maximum), (a.mean, b.mean), (a.std, b.std)]
    size = max(_size(a), _size(b))
    apart = 0.0
    for x, y in statistics:
        if (x is None) != (y is None):
            return math.inf
        if x is not None and y is not None:
            apart = max(apart, float(abs(x - y)))
    return apart / size if size else (math.inf if apart else 0.0)


def _size(s: TensorSummary) -> float:
    return math.hypot(abs(s.mean or 0.0), s.std or 0.0)


def differs_by_few(share: float) -> bool:
    """Whether so few integers or truth values differ that ties and thresholds explain it."""
    return share <= _FEW


_LARGEST = 1 << 28
"""Elements. A graph that asks for more from numbers alone is not run again: they may be anything in a recording."""
_SHOWS_ONLY = frozenset(["torchsan.probe.default", "torchsan.realize.default"])
# Inductor's graphs hold these as well, though they are neither core operators nor elementwise.
_ALSO = frozenset(
    """_safe_softmax _scaled_dot_product_flash_attention_for_cpu _unsafe_index _unsafe_masked_index _unsafe_view
    baddbmm bmm_dtype complex constant_pad_nd copy dot expand_as fmod index_add index_put linalg_vector_norm mm mv
    new_ones new_zeros ones_like reshape rsub scatter_reduce select_scatter sort split std sum t tril triu unbind
    unfold var_mean view view_as_complex view_as_real zeros_like""".split()
)
_PYTHON: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What the first graph's operators make of either run's inputs: is it what the run had? And from what.

    `inside` are the nodes that were run.
    """

    a: Judgement
    b: Judgement
    inside: tuple[str, ...]

    @property
    def outcomes(self) -> tuple[Outcome, Outcome]:
        """What either run's result is."""
        return self.a.outcome, self.b.outcome


class RunnableGraph:
    """A recorded graph whose parts can be run."""

    def __init__(self, graph: FxGraph) -> None:
        self._nodes: dict[str, torch.fx.Node] = {}
        self._names: dict[torch.fx.Node, str] = {}
        fx = torch.fx.Graph()
        for node in graph.nodes:
            if node.expression is None:
                self._nodes[node.name] = fx.create_node("placeholder", node.name, name=node.name)
            else:
                target, args, kwargs = self._call(node)
                self._nodes[node.name] = fx.create_node("call_function", target, args, kwargs, name=node.name)
            # Not the name that FX gives it, which it may change.
            self._names[self._nodes[node.name]] = node.name

    def explain(
        self, name: str, a: torch.Tensor, b: torch.Tensor, known: Mapping[str, Callable[[], tuple[Any, Any] | None]]
    ) -> Explained:
        """Judge both runs' values of a node by what this graph makes of the nearest values known in both.

        Raise Unavailable where that cannot be run, for whatever reason.
        """
        target = self._nodes.get(name)
        if target is None:
            raise Unavailable(f"the graph has no node {name}")
        values: dict[torch.fx.Node, tuple[Any, Any]] = {}
        while True:
            order = needed([target], values)
            found = {}
            for node in dict.fromkeys(p for n in order for p in n.all_input_nodes if p not in values):
                value = known[self._names[node]]() if self._names[node] in known else None
                if value is not None:
                    found[node] = value
            if not found:
                break
            values |= found
        mine, other = ({n: v[side] for n, v in values.items()} for side in (0, 1))
        with undisturbed():
            return Explained(
                a=_judged(target, mine, a),
                b=_judged(target, other, b),
                inside=tuple(self._names[n] for n in order),
            )

    def _call(self, node: FxNode) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        try:
            match node.expression:
                case ast.Call() as call:
                    target = _operator(node.op)
                    args = tuple(self._argument(a) for a in call.args)
                    kwargs = {k.arg: self._argument(k.value) for k in call.keywords if k.arg is not None}
                    if node.op in _SHOWS_ONLY:
                        args, kwargs = args[:1], {}
                    return target, args, kwargs
                case ast.Subscript(value=value, slice=index):
                    return operator.getitem, (self._argument(value), self._argument(index)), {}
                case ast.BinOp(left=left, op=op, right=right) if type(op) in _PYTHON:
                    return _PYTHON[type(op)], (self._argument(left), self._argument(right)), {}
        except (Unavailable, RecursionError) as e:  # The latter for an expression that no program has written.
            return _Missing(str(e)), tuple(self._nodes[p] for p in node.parents), {}
        return _Missing(f"{node.op} is not run"), tuple(self._nodes[p] for p in node.parents), {}

    def _argument(self, value: ast.expr) -> Any:
        match value:
            case ast.Name(id=name) if name in self._nodes:
                return self._nodes[name]
            case ast.Name(id="inf" | "nan" as name):
                return float(name)
            case ast.Constant(value=constant):
                return constant
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                found = self._argument(operand)
                if isinstance(found, int | float | complex):
                    return -found
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return self._sequence([self._argument(e) for e in elements])
            case ast.Attribute(value=ast.Name(id="torch"), attr=attr):
                found = getattr(torch, attr, None)
                if isinstance(found, torch.dtype | torch.layout | torch.memory_format):
                    return found
            case ast.Call(func=ast.Name(id="device"), keywords=[ast.keyword(value=ast.Constant(value=str())), *_]):
                return torch.device("cpu")  # Where the tensors of a recording are read to.
        raise Unavailable(f"{ast.unparse(value):.60} is no plain value")

    @staticmethod
    def _sequence(elements: list[Any]) -> list[Any]:
        if math.prod(abs(e) for e in elements if isinstance(e, int)) > _LARGEST:
            raise Unavailable("it asks for very much memory")
        return elements


def _judged(target: torch.fx.Node, known: Mapping[torch.fx.Node, Any], actual: torch.Tensor) -> Judgement:
    try:
        return Replayer(known, attribute=_no_constant, symbols={}).judge(target, actual)
    except Unavailable:
        raise
    except Exception as e:  # whatever an operator makes of recorded arguments, it only means that it cannot tell
        raise Unavailable(f"cannot run {target.name} again: {(str(e).splitlines() or [''])[0][:160]}") from e


def _no_constant(name: str) -> Any:
    raise Unavailable(f"the constant {name} is not in the recording")


class _Missing:
    """Stands for what is not run."""

    def __init__(self, reason: str) -> None:
        self.__name__ = "missing"
        self._reason = reason

    def __call__(self, *args: Any) -> Any:
        raise Unavailable(self._reason)


@functools.cache
def _find(name: str) -> Any | None:
    if name.startswith("prims."):
        load_inductor_operators()
    try:
        return find_operator(name)
    except RecordingError:
        return None


def _operator(name: str) -> Callable[..., Any]:
    """The operator of this name, if it is PyTorch's own and does nothing but compute. Raise Unavailable otherwise."""
    if name in _SHOWS_ONLY:
        return torch.ops.aten.clone.default
    if name == "aten.copy_.default":
        return torch.ops.aten.copy.default
    if name.count(".") != 2 or not name.startswith(("aten.", "prims.")):
        raise Unavailable(f"{name} is not run: it is not PyTorch's own")
    found = _find(name)
    if found is None:
        raise Unavailable(f"this PyTorch has no operator {name}")
    computes = {torch.Tag.core, torch.Tag.pointwise} & set(found.tags) or name.split(".")[1] in _ALSO
    if found._schema.is_mutable or not (computes or found.namespace == "prims"):
        raise Unavailable(f"{name} is not run")
    return found  # type: ignore[no-any-return]  # an operator is callable
