"""Runs operators of a recorded graph again, from what both runs had, to see whether one function explains both.

Only operators of PyTorch's own that compute are run, on recorded tensors; nothing else in a recording is executed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from torchsan.diff.align import GraphPair
from torchsan.errors import TorchsanError
from torchsan.graphs.data import FUNCTIONS, Unrepresentable, validate_calls, without_probe
from torchsan.graphs.printed import FxGraph, FxNode
from torchsan.graphs.rebuild import add_call, find_operator
from torchsan.records import OperatorCall
from torchsan.reference.arithmetic import Unavailable
from torchsan.reference.judge import Judgement, Outcome
from torchsan.reference.replay import Replayer, needed
from torchsan.torch_internals.operators import undisturbed

Known = Callable[[str], tuple[Any, Any] | None]
"""The values that a node had in either run; None if one of them is not to be had."""

_LARGEST = 1 << 28
"""Elements. A graph that asks for more from numbers alone is not run again: they may be anything in a recording."""
# Inductor's graphs hold these as well, though they are neither core operators nor elementwise.
_ALSO = frozenset(
    """_safe_softmax _scaled_dot_product_flash_attention_for_cpu _unsafe_index _unsafe_masked_index _unsafe_view
    baddbmm bmm_dtype complex constant_pad_nd copy dot expand_as fmod index_add index_put linalg_vector_norm mm mv
    new_ones new_zeros ones_like reshape rsub scatter_reduce select_scatter sort split std sum t tril triu unbind
    unfold var_mean view view_as_complex view_as_real zeros_like""".split()
)
_OPERATORS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """How either run's value compares with what the first graph's operators compute from that run's inputs.

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
        self._graph = torch.fx.Graph()
        self._nodes: dict[str, torch.fx.Node] = {}
        known: set[str] = set()
        for node in graph.nodes:
            self._nodes[node.name] = self._add(node, known)
            known.add(node.name)
        # Not the names that FX gives them, which it may change.
        self._names = {node: name for name, node in self._nodes.items()}

    def _add(self, node: FxNode, known: set[str]) -> torch.fx.Node:
        if node.expression is None:
            return self._graph.create_node("placeholder", node.name, name=node.name)
        try:
            call = without_probe(node.call())
            target = _operator(call)
            validate_calls([call], known, functions=FUNCTIONS)
            return add_call(self._graph, call, self._nodes, target)
        # The last for an expression that no program has written.
        except (Unrepresentable, Unavailable, TorchsanError, RecursionError) as e:
            parents = tuple(self._nodes[p] for p in node.parents)
            return self._graph.create_node("call_function", _Missing(str(e)), parents, name=node.name)

    def explain(self, name: str, a: torch.Tensor, b: torch.Tensor, known: Known) -> Explained:
        """Judge both runs' values of a node by what this graph makes of the nearest values known in both.

        Raise Unavailable where that cannot be run, for whatever reason.
        """
        target = self._nodes.get(name)
        if target is None:
            raise Unavailable(f"the graph has no node {name}")
        values: dict[torch.fx.Node, tuple[Any, Any]] = {}
        while True:
            order = needed([target], values)
            parents = dict.fromkeys(p for n in order for p in n.all_input_nodes if p not in values)
            found = {p: value for p in parents if (value := known(self._names[p])) is not None}
            if not found:
                break
            values |= found
        mine, other = ({n: v[side] for n, v in values.items()} for side in (0, 1))
        with undisturbed():
            return Explained(
                a=_judged(target, mine, a), b=_judged(target, other, b), inside=tuple(self._names[n] for n in order)
            )


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
    """The target of a node that is not run; calling it raises Unavailable with the reason."""

    def __init__(self, reason: str) -> None:
        self.__name__ = "missing"
        self._reason = reason

    def __call__(self, *args: Any) -> Any:
        raise Unavailable(self._reason)


def _operator(call: OperatorCall) -> Callable[..., Any]:
    """What to call, if it is PyTorch's own and does nothing but compute. Raise Unavailable otherwise."""
    if _asks_for_much([*call.args, *call.kwargs.values()]):
        raise Unavailable("it asks for very much memory")
    if call.op in FUNCTIONS:
        return FUNCTIONS[call.op]
    if not call.op.startswith(("aten.", "prims.")):
        raise Unavailable(f"{call.op} is not run: it is not PyTorch's own")
    found: Any = find_operator("aten.copy.default" if call.op == "aten.copy_.default" else call.op)
    computes = {torch.Tag.core, torch.Tag.pointwise} & set(found.tags) or call.op.split(".")[1] in _ALSO
    if found._schema.is_mutable or not (computes or found.namespace == "prims"):
        raise Unavailable(f"{call.op} is not run")
    return found  # type: ignore[no-any-return]  # an operator is callable


def _asks_for_much(values: list[Any]) -> bool:
    lists = [v for v in values if isinstance(v, list)]
    return any(math.prod(abs(n) for n in v if isinstance(n, int)) > _LARGEST or _asks_for_much(v) for v in lists)


def differing_text(
    graphs: GraphPair, x: torch.Tensor, y: torch.Tensor, explained: Explained, rewritten: tuple[str, ...]
) -> tuple[str, ...]:
    """Which of the two is not what the operators of the first graph give, at which element, and by how much."""
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
    lines = [f"    A: {graphs.a.text(mine)}"]
    if other is not None and graphs.b.fx.by_name[other].written != mine.written:
        lines.append(f"    B: {graphs.b.text(graphs.b.fx.by_name[other])}")
    return lines


def _number(t: torch.Tensor) -> str:
    value = t.item()
    return f"{value:.9g}" if isinstance(value, float) else str(value)
