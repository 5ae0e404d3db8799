"""The FX graph of a compiled graph, read from the text that the recording keeps of it. Parsed, never executed."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cached_property

from torchsan.errors import RecordingError
from torchsan.recording import Reader
from torchsan.records import GraphRecord, SourceLine

__all__ = ["FxGraph", "FxNode", "read_graph"]

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


def parse_graph(text: str) -> FxGraph:
    """Return the graph that `GraphModule.print_readable` printed. Raise SyntaxError or ValueError if it is none."""
    module = ast.parse(_CLASS.sub(r"\1class Graph(torch.nn.Module):", text))
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
            parents, written = _written(expression, nodes)
            nodes[name] = FxNode(
                name=name,
                op=_operator(expression),
                written=written,
                parents=parents,
                kind=kind,
                source=sources.get(statement.lineno),
                expression=expression,
            )
    inner = frozenset(
        name for c in ast.walk(module) if isinstance(c, ast.ClassDef) and c is not outer for name in _names(c)
    )
    return FxGraph(nodes=tuple(nodes.values()), inputs=inputs, outputs=outputs, inner=inner)


def _forward(graph: ast.ClassDef | None) -> ast.FunctionDef:
    for statement in graph.body if graph is not None else ():
        if isinstance(statement, ast.FunctionDef) and statement.name == "forward":
            return statement
    raise ValueError("no graph")


def _names(graph: ast.ClassDef) -> list[str]:
    return [found[0] for s in _forward(graph).body if (found := _assigned(s)) is not None]


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


def _operator(expression: ast.expr) -> str:
    """What computes the node, as `aten.mul.Tensor`."""
    match expression:
        case ast.Call(func=function):
            return ast.unparse(function).removeprefix("torch.ops.")
        case ast.Subscript():
            return "getitem"
        case ast.BinOp(op=op):
            return type(op).__name__.lower()
        case ast.Attribute():
            return "get_attr"
        case _:
            return type(expression).__name__.lower()


class _Blanks(ast.NodeTransformer):
    def __init__(self, nodes: dict[str, FxNode]) -> None:
        self._nodes = nodes
        self.parents: list[str] = []

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id not in self._nodes:
            return node
        self.parents.append(node.id)
        return ast.Name(id="_")


def _written(expression: ast.expr, nodes: dict[str, FxNode]) -> tuple[tuple[str, ...], str]:
    blanks = _Blanks(nodes)
    # The transformer changes what it visits, and the expression is needed as it is.
    copy = ast.parse(ast.unparse(expression), mode="eval").body
    written = ast.unparse(blanks.visit(copy))
    return tuple(blanks.parents), written
