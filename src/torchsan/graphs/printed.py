"""A graph as `GraphModule.print_readable` prints it: written for people, and read back. Parsed, never executed.

Importing it imports no torch.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import weakref
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torchsan.errors import RecordingError
from torchsan.files import count_parts
from torchsan.graphs.data import Unrepresentable
from torchsan.recording import Reader
from torchsan.records import GraphRecord, OperatorCall, SourceLine

if TYPE_CHECKING:
    import torch.fx

_CLASS = re.compile(r"^([ \t]*)class [^\n]*\(torch\.nn\.Module\):", re.MULTILINE)
_COMMENT = re.compile(
    r"\s*# (?:File: (?P<file>.+?):(?P<line>\d{1,9}) in .*?(?:, code: (?P<code>.*))?$|No stacktrace found)"
)
_MOST = 200_000
"""Parts of a text that is parsed, of which each takes about a kilobyte: some 6,000 nodes."""
_PER_PART = 50
"""How many bytes a recording has for each part of its graphs, at least: those of real ones have a hundred."""
_ARITHMETIC: dict[type[ast.AST], str] = {
    ast.Add: "operator.add",
    ast.Sub: "operator.sub",
    ast.Mult: "operator.mul",
    ast.FloorDiv: "operator.floordiv",
}
_MEMORY_FORMATS = frozenset(["contiguous_format", "preserve_format", "channels_last", "channels_last_3d"])


@dataclass(frozen=True, slots=True, kw_only=True)
class FxNode:
    """One node. `expression` is what it is computed by, None for an input; `parents` the nodes that stand in it.

    `written` is the expression with `_` in the place of its parents: two nodes with the same `written` and the same
    parents are the same. `kind` is what the text says of its value, as `f32[8, 128]`; `line` is its place in the text.
    """

    name: str
    op: str = ""
    written: str = ""
    parents: tuple[str, ...] = ()
    kind: str = ""
    source: SourceLine | None = None
    line: int = 0
    expression: ast.expr | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The node as people write it: `mul_2 = aten.mul.Tensor(add_1, 0.5)`."""
        assert self.expression is not None
        return f"{self.name} = {ast.unparse(self.expression).removeprefix('torch.ops.')}"

    @property
    def code(self) -> str:
        """The line of the program that it came from, empty if nobody knows."""
        return self.source.code if self.source is not None else ""

    def call(self) -> OperatorCall:
        """What computes it, as data. Raise Unrepresentable for what is no call on plain values and other nodes."""
        match self.expression:
            case ast.Call(args=args, keywords=keywords):
                named = {k.arg: k.value for k in keywords if k.arg is not None}
                return self._called(self.op, args, named)
            case ast.Subscript(value=value, slice=index):
                return self._called("getitem", [value, index])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return self._called(_ARITHMETIC[type(op)], [left, right])
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._called("operator.neg", [operand])
        raise Unrepresentable(f"{self.op} is no operator")

    def _called(self, op: str, args: list[ast.expr], kwargs: dict[str, ast.expr] | None = None) -> OperatorCall:
        plain_kwargs = {k: _plain(v, self.parents) for k, v in (kwargs or {}).items()}
        return OperatorCall(
            name=self.name, op=op, args=tuple(_plain(a, self.parents) for a in args), kwargs=plain_kwargs
        )


@dataclass(frozen=True, kw_only=True)
class FxGraph:
    """The nodes in order, inputs first. `complete` is false where the text is missing: then only names are known.

    `outputs` are the nodes that are returned, None for one that is no tensor. `subgraphs` may have nodes of the same
    names. `line` is where its function begins.
    """

    nodes: tuple[FxNode, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str | None, ...] = ()
    subgraphs: tuple[FxGraph, ...] = ()
    complete: bool = True
    line: int = 0

    @cached_property
    def by_name(self) -> dict[str, FxNode]:
        """The nodes by their names."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def position(self) -> dict[str, int]:
        """Where each node stands."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    @cached_property
    def inner(self) -> frozenset[str]:
        """The names of what subgraphs compute."""
        return frozenset(node.name for graph in self.subgraphs for node in graph.computed())

    def computed(self) -> Iterator[FxNode]:
        """The nodes that are no inputs, those of subgraphs after them."""
        yield from (node for node in self.nodes if node.expression is not None)
        for graph in self.subgraphs:
            yield from graph.computed()


def print_graph(module: torch.fx.GraphModule) -> str:
    """Return the text of a graph, which `parse_graph` reads."""
    return str(module.print_readable(print_output=False))


_left: weakref.WeakKeyDictionary[Reader, int] = weakref.WeakKeyDictionary()
"""How many parts of its graphs may still be parsed, of each recording that is compared: they stay in memory."""


def read_graph(recording: Reader, graph: GraphRecord) -> FxGraph:
    """Return the graph that Inductor was given; where no text of it can be read, what its kernels say of its nodes."""
    name = graph.artifacts.get("graph")
    try:
        text = recording.artifact(name) if name is not None else ""
    except RecordingError:
        text = ""
    left = _left.get(recording, max(_MOST, recording.size // _PER_PART)) - count_parts(text)
    if left >= 0:
        _left[recording] = left
    read = _cached(text) if text and left >= 0 else None
    return read or _from_kernels(graph)  # Names are enough to compare by, and `complete` tells.


def try_parse(text: str) -> FxGraph | None:
    """Return the graph of a text that may be anything; None if it is none, or too long."""
    return _parsed(text) if count_parts(text) <= _MOST else None


def _parsed(text: str) -> FxGraph | None:
    try:
        return parse_graph(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_cached = functools.lru_cache(maxsize=256)(_parsed)  # The same graph is often in both recordings.


def _from_kernels(graph: GraphRecord) -> FxGraph:
    nodes = {name: FxNode(name=name) for name in graph.inputs}
    for kernel in graph.kernels:
        alone = kernel.ops[0] if len(kernel.nodes) == len(kernel.ops) == 1 else ""
        source = kernel.source[0] if kernel.source else None
        for name in kernel.nodes:
            nodes.setdefault(name, FxNode(name=name, op=alone, source=source))
    return FxGraph(nodes=tuple(nodes.values()), inputs=graph.inputs, complete=False)


def parse_graph(text: str) -> FxGraph:
    """Return the graph that `print_graph` printed. Raise SyntaxError or ValueError if it is none."""
    text = _CLASS.sub(r"\1class Graph(torch.nn.Module):", text)
    classes = [s for s in ast.parse(text).body if isinstance(s, ast.ClassDef)]
    if not classes:
        raise ValueError("no graph")
    return _graph(classes[0], _Text(text), _sources(text))


def _graph(outer: ast.ClassDef, text: _Text, sources: dict[int, SourceLine | None]) -> FxGraph:
    forward = next((s for s in outer.body if isinstance(s, ast.FunctionDef) and s.name == "forward"), None)
    if forward is None:
        raise ValueError("no graph")
    nodes = {a.arg: FxNode(name=a.arg, kind=_kind(a.annotation), line=a.lineno) for a in forward.args.args[1:]}
    inputs = tuple(nodes)
    outputs: tuple[str | None, ...] = ()
    for statement in forward.body:
        if isinstance(statement, ast.Return):
            outputs = _returned(statement.value)
            continue
        found = _assigned(statement)
        if found is not None:
            name, kind, expression = found
            parents, blanked = text.without_names(expression, nodes)
            nodes[name] = FxNode(
                name=name,
                op=_operator(expression, text),
                written=blanked,
                parents=parents,
                kind=kind,
                source=sources.get(statement.lineno),
                line=statement.lineno,
                expression=expression,
            )
    # The subgraphs are classes inside of that of the graph.
    subgraphs = tuple(_graph(s, text, sources) for s in outer.body if isinstance(s, ast.ClassDef))
    return FxGraph(
        nodes=tuple(nodes.values()), inputs=inputs, outputs=outputs, subgraphs=subgraphs, line=forward.lineno
    )


def _sources(text: str) -> dict[int, SourceLine | None]:
    """For each line of the text the line of the user's program that the comment above it names."""
    current: SourceLine | None = None
    found: dict[int, SourceLine | None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        match = _COMMENT.match(line)
        if match is not None:
            file = match["file"]
            current = SourceLine(file=file, line=int(match["line"]), code=match["code"] or "") if file else None
        found[number] = current
    return found


def _assigned(statement: ast.stmt) -> tuple[str, str, ast.expr] | None:
    """The node that a statement computes: its name, its kind and the expression; None for `x = None`."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value):
            return name, _kind(annotation), value
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            dropped = isinstance(value, ast.Constant) and value.value is None
            return None if dropped else (name, "", value)
        case _:
            return None


def _kind(annotation: ast.expr | None) -> str:
    return str(annotation.value) if isinstance(annotation, ast.Constant) else ""


def _returned(value: ast.expr | None) -> tuple[str | None, ...]:
    elements = value.elts if isinstance(value, ast.Tuple | ast.List) else [value] if value is not None else []
    return tuple(e.id if isinstance(e, ast.Name) else None for e in elements)


def _operator(expression: ast.expr, text: _Text) -> str:
    """What computes the node, as `aten.mul.Tensor`."""
    match expression:
        case ast.Call(func=function):
            return text.of(function).removeprefix("torch.ops.")
        case ast.Subscript():
            return "getitem"
        case ast.BinOp(op=op):
            return type(op).__name__.lower()
        case ast.Attribute():
            return "get_attr"
        case _:
            return type(expression).__name__.lower()


def _plain(value: ast.expr, names: Container[str]) -> Any:
    """An argument as plain values. Tensors of a recording are read to the CPU, so that is every device."""
    match value:
        case ast.Name(id=name) if name in names:
            return {"node": name}
        case ast.Name(id="inf" | "nan" as name):
            return {"float": name}
        case ast.Constant(value=None | bool() | int() | float() | str() as constant):
            return constant
        case ast.Constant(value=complex() as constant):
            return {"complex": [constant.real, constant.imag]}
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _negative(_plain(operand, names))
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_plain(e, names) for e in elements]
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            return {"layout" if name == "strided" else "memory_format" if name in _MEMORY_FORMATS else "dtype": name}
        case ast.Call(func=ast.Name(id="device"), keywords=[ast.keyword(value=ast.Constant(value=str())), *_]):
            return {"device": "cpu"}
    raise Unrepresentable(f"{ast.unparse(value):.60} is no plain value")


def _negative(value: Any) -> Any:
    match value:
        case int() | float():
            return -value
        case {"float": str(text)}:
            return {"float": str(-float(text))}
        case {"complex": [real, imaginary]}:
            return {"complex": [-real, -imaginary]}
    raise Unrepresentable("the negative of what is no number")


class _Text:
    """The text of a graph, for the parts of it that expressions stand in. Python counts columns in bytes."""

    def __init__(self, text: str) -> None:
        self._data = text.encode()
        lengths = (len(line) + 1 for line in self._data.split(b"\n"))
        self._starts = [0, *itertools.accumulate(lengths)]

    def of(self, expression: ast.expr) -> str:
        """The expression as it stands there."""
        return self._data[self._start(expression) : self._end(expression)].decode()

    def without_names(self, expression: ast.expr, names: Container[str]) -> tuple[tuple[str, ...], str]:
        """The names that stand in an expression, in order, and the expression with `_` in their places."""
        found = [n for n in ast.walk(expression) if isinstance(n, ast.Name) and n.id in names]
        found.sort(key=self._start)
        at = self._start(expression)
        parts = []
        for name in found:
            parts += [self._data[at : self._start(name)], b"_"]
            at = self._end(name)
        parts.append(self._data[at : self._end(expression)])
        return tuple(n.id for n in found), b"".join(parts).decode()

    def _start(self, expression: ast.expr) -> int:
        return self._starts[expression.lineno - 1] + expression.col_offset

    def _end(self, expression: ast.expr) -> int:
        assert expression.end_lineno is not None
        assert expression.end_col_offset is not None
        return self._starts[expression.end_lineno - 1] + expression.end_col_offset
