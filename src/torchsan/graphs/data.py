"""An FX graph as data: operators by name, plain values as arguments; and the check of what claims to be one.

A plain value is None, a truth value, a number, a text, a list of them, or a dictionary of one entry that says what it
stands for: `{"node": "mul"}`, `{"dtype": "float32"}`, `{"float": "inf"}`. What comes from a recording or a package is
validated before anything is made of it: a stranger may have written it. Importing it imports no torch.
"""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchsan.errors import RecordingError
from torchsan.records import Exhibit, Given, OperatorCall

if TYPE_CHECKING:
    import torch

Keep = Callable[[str, "torch.Tensor"], str | None]
"""Stores a tensor; returns the name it got, or None if it is too large."""

FUNCTIONS: Mapping[str, Callable[..., Any]] = {"getitem": operator.getitem} | {
    f"operator.{f.__name__}": f for f in (operator.add, operator.sub, operator.mul, operator.floordiv, operator.neg)
}
"""What a graph calls beside operators: one of several results, and arithmetic of sizes."""

KNOWN = frozenset(["aten", "prims", "mkldnn", "mkl", "quantized", "_quantized", "quantized_decomposed", "onednn"])
"""The libraries of operators that compute on what they are given, and do nothing else."""

_REFUSED = frozenset(["aten.from_file"])  # Opens, and even makes, files.
_OPERATOR = re.compile(r"(?P<full>[A-Za-z_]\w*\.[A-Za-z_]\w*)\.[A-Za-z_]\w*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w{0,255}", re.ASCII)
_FILL = re.compile(r"full -?[\w.+-]{1,40}|randn \d{1,9}|randint -?\d{1,20} -?\d{1,20} \d{1,9}", re.ASCII)
_MOST_CALLS = 200_000
_MARKS = {
    "node": _NAME,
    "dtype": re.compile(r"[a-z]\w{1,30}", re.ASCII),
    "device": re.compile(r"(cpu|meta|cuda|xpu|mps)(:\d{1,3})?", re.ASCII),
    "layout": re.compile(r"strided"),
    "memory_format": re.compile(r"[a-z_0-9]{1,30}"),
    "float": re.compile(r"-?inf|nan"),
}


class Unrepresentable(Exception):
    """Something that is no plain value, or no operator with a name; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """What a node gives: the dtype of a tensor and its shape, which is None if it depends on the inputs."""

    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A whole graph. `inputs` and `attributes` are nodes, the latter with the constant that they name.

    `kinds` and `traces` say what is known of a node's value, and the stack that the user's program had there.
    """

    inputs: tuple[str, ...]
    attributes: dict[str, str]
    calls: tuple[OperatorCall, ...]
    outputs: tuple[str | None, ...]
    kinds: dict[str, NodeKind]
    traces: dict[str, str]


def without_probe(call: OperatorCall) -> OperatorCall:
    """The same for PyTorch alone, which has a copy in the place of `torchsan.probe` and `torchsan.realize`."""
    if call.op not in ("torchsan.probe.default", "torchsan.realize.default"):
        return call
    return replace(call, op="aten.clone.default", args=call.args[:1], kwargs={})


def foreign_operators(exhibit: Exhibit) -> list[str]:
    """The operators that are not PyTorch's own."""
    return sorted({n.op for n in exhibit.nodes if n.op not in FUNCTIONS and n.op.split(".")[0] not in KNOWN})


def validate_graph(graph: Graph) -> None:
    """Raise RecordingError for what `describe_graph` does not write."""
    known: set[str] = set()
    for name in (*graph.inputs, *graph.attributes):
        _new_name(known, name)
    validate_calls(graph.calls, known, functions=FUNCTIONS)
    if not all(name is None or name in known for name in graph.outputs):
        raise malformed("outputs that are not computed")


def validate_calls(calls: Iterable[OperatorCall], known: set[str], *, functions: Container[str] = ("getitem",)) -> None:
    """Raise RecordingError unless each calls an operator, by name, on plain values and on what came before it.

    `known` are the names that came before, and gets those of the calls. `functions` may be called beside operators.
    Whether there are such operators is for `find_operator` to say.
    """
    for n, call in enumerate(calls):
        if n == _MOST_CALLS:
            raise malformed(f"more than {n} calls")
        match = _OPERATOR.fullmatch(call.op)
        if call.op not in functions and (match is None or match["full"] in _REFUSED):
            raise malformed(f"the operator {call.op!r:.100}, which nobody calls again")
        if match is None and (call.kwargs or len(call.args) != (1 if call.op == "operator.neg" else 2)):
            raise malformed(f"a call of {call.op} with other arguments than it takes")
        _validate_values([*call.args, *call.kwargs.values()], known)
        if not all(_NAME.fullmatch(k) and not keyword.iskeyword(k) for k in call.kwargs):
            raise malformed("the name of an argument")
        _new_name(known, call.name)


def validate_inputs(inputs: Iterable[Given], known: set[str]) -> None:
    """Raise RecordingError for an input that cannot be made; `known` gets their names."""
    for given in inputs:
        numbers = [*given.size, *given.stride, given.offset]
        if len(given.size) != len(given.stride) or len(given.size) > 64 or min(numbers) < 0 or max(numbers) > 2**48:
            raise malformed("the shape of an input")
        if not _MARKS["dtype"].fullmatch(given.dtype) or (given.fill is not None and not _FILL.fullmatch(given.fill)):
            raise malformed("an input")
        if given.base is not None and not _NAME.fullmatch(given.base):
            raise malformed("an input that shares memory")
        _new_name(known, given.name)


def _validate_values(values: Iterable[Any], known: Container[str]) -> None:
    for value in values:
        match value:
            case None | bool() | int() | float() | str():
                continue
            case list() | tuple():
                _validate_values(value, known)
            case {"complex": [_, _] as parts} if len(value) == 1:
                _validate_values(parts, known)
            case dict() if len(value) == 1:
                ((mark, text),) = value.items()
                if mark not in _MARKS or not isinstance(text, str) or not _MARKS[mark].fullmatch(text):
                    raise malformed("an argument")
                if mark == "node" and text not in known:
                    raise malformed("an argument that is not computed before")
            case _:
                raise malformed("an argument")


def _new_name(known: set[str], name: str) -> None:
    if not _NAME.fullmatch(name) or name in known:
        raise malformed(f"the name {name!r:.100}")
    known.add(name)


def malformed(what: str) -> RecordingError:
    """The error of a graph that has what torchsan does not write."""
    return RecordingError(
        f"malformed graph in the recording: {what}; it is damaged, or was not written by torchsan",
        slug="malformed-record",
    )
