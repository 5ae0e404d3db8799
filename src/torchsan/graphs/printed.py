"""The FX graph of a compiled graph, read from the text that the recording keeps of it. Parsed, never executed."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from torchsan.errors import RecordingError
from torchsan.recording import Reader
from torchsan.records import GraphRecord, SourceLine

_CLASS = re.compile(r"^(\s*)class [^\n]*\(torch\.nn\.Module\):", re.MULTILINE)
_COMMENT = re.compile(r"\s*# (?:File: (?P<file>.*):(?P<line>\d+) in .*?, code: (?P<code>.*)|No stacktrace found)")
_TOO_LONG = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FxNode:
    """One node. `expression` is what it is computed by, None for an input; `parents` the nodes that stand in it.

    `written` is the expression with `_` in the place of its parents: two nodes with the same `written` and the same
    parents are the same. `kind` is what the text says of its value, as `f32[8, 128]`.
    """

    name: str
    op: str = ""
    written: str = ""
    parents: tuple[str, ...] = ()
    kind: str = ""
    source: SourceLine | None = None
    expression: ast.expr | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class FxGraph:
    """The nodes in order, inputs first. `complete` is false where the text is missing: then only names are known.

    `outputs` are the nodes that are returned, None for one that is no tensor. `inner` are the names of nodes of
    subgraphs, which may be the names of others here.
    """

    nodes: tuple[FxNode, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str | None, ...] = ()
    inner: frozenset[str] = frozenset()
    complete: bool = True

    @cached_property
    def by_name(self) -> dict[str, FxNode]:
        """The nodes by their names."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def position(self) -> dict[str, int]:
        """Where each node stands."""
        return {node.name: i for i, node in enumerate(self.nodes)}


def read_graph(recording: Reader, graph: GraphRecord) -> FxGraph:
    """Return the graph that Inductor was given; where no text of it can be read, what its kernels say of its nodes."""
    name = graph.artifacts.get("graph")
    if name is not None:
        try:
            text = recording.artifact(name)
            if len(text) <= _TOO_LONG:
                return parse_graph(text)
        except (RecordingError, SyntaxError, ValueError, RecursionError, MemoryError):
            pass  # Names are enough to compare by, and `complete` tells.
    return _from_kernels(graph)


def _from_kernels(graph: GraphRecord) -> FxGraph:
    nodes = {name: FxNode(name=name) for name in graph.inputs}
    for kernel in graph.kernels:
        alone = kernel.ops[0] if len(kernel.nodes) == len(kernel.ops) == 1 else ""
        source = kernel.source[0] if kernel.source else None
        for name in kernel.nodes:
            nodes.setdefault(name, FxNode(name=name, op=alone, source=source))
    return FxGraph(nodes=tuple(nodes.values()), inputs=graph.inputs, complete=False)


@functools.lru_cache(maxsize=256)  # The same graph is often in both recordings.
def parse_graph(text: str) -> FxGraph:
    """Return the graph that `GraphModule.print_readable` printed. Raise SyntaxError or ValueError if it is none."""
    text = _CLASS.sub(r"\1class Graph(torch.nn.Module):", text)
    module, written = ast.parse(text), _Text(text)
    outer = next((s for s in module.body if isinstance(s, ast.ClassDef)), None)
    forward = _forward(outer)
    sources = _sources(text)
    nodes: dict[str, FxNode] = {}
    for argument in forward.args.args[1:]:
        nodes[argument.arg] = FxNode(name=argument.arg, kind=_kind(argument.annotation))
    inputs = tuple(nodes)
    outputs: tuple[str | None, ...] = ()
    for statement in forward.body:
        if isinstance(statement, ast.Return):
            outputs = _returned(statement.value)
            continue
        found = _assigned(statement)
        if found is not None:
            name, kind, expression = found
            parents, blanked = written.without_names(expression, nodes)
            nodes[name] = FxNode(
                name=name,
                op=_operator(expression, written),
                written=blanked,
                parents=parents,
                kind=kind,
                source=sources.get(statement.lineno),
                expression=expression,
            )
    inner = frozenset(_inner_names(outer)) if outer is not None else frozenset()
    return FxGraph(nodes=tuple(nodes.values()), inputs=inputs, outputs=outputs, inner=inner)


def _forward(graph: ast.ClassDef | None) -> ast.FunctionDef:
    for statement in graph.body if graph is not None else ():
        if isinstance(statement, ast.FunctionDef) and statement.name == "forward":
            return statement
    raise ValueError("no graph")


def _inner_names(graph: ast.ClassDef) -> Iterator[str]:
    """The nodes of subgraphs, which are classes inside of that of the graph."""
    for statement in graph.body:
        if isinstance(statement, ast.ClassDef):
            yield from (found[0] for s in _forward(statement).body if (found := _assigned(s)) is not None)
            yield from _inner_names(statement)


def _sources(text: str) -> dict[int, SourceLine | None]:
    """For each line of the text the line of the user's program that the comment above it names."""
    current: SourceLine | None = None
    found: dict[int, SourceLine | None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _COMMENT.match(line)
        if match is not None:
            current = (
                SourceLine(file=match["file"], line=int(match["line"]), code=match["code"]) if match["file"] else None
            )
        found[number] = current
    return found


def _assigned(statement: ast.stmt) -> tuple[str, str, ast.expr] | None:
    """The node that a statement computes: its name, its kind and the expression; None for `x = None`."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value):
            return name, _kind(annotation), value
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if not _is_none(value):
            return name, "", value
        case _:
            return None


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


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
