"""The program with probes in it: the same statements, and a call before and after each launch.

The probed functions stand beside the original ones in memory; the generated source, and what is on disk, stay as they
are.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from torchsan.instruments.program.model import Function, Launch, Program

__all__ = ["PROBE", "probed_functions"]

PROBE = "_torchsan_frame"
"""The parameter through which a probed function gets its frame. One underscore: two would be mangled in a class."""


def probed_functions(program: Program, namespace: dict[str, Any], filename: str) -> dict[str, Any]:
    """Compile the program's functions with probes, to run in `namespace` (the generated module's).

    A probed function takes its frame as one more, last, argument.
    """
    probed = {}
    for function in program.functions.values():
        node = _Prober(program, function).rewrite()
        module = ast.fix_missing_locations(ast.Module(body=[node], type_ignores=[]))
        code = compile(module, filename, "exec")
        # Names are looked up in the generated module; the functions themselves are kept out of it.
        local: dict[str, Any] = {}
        exec(code, namespace, local)  # noqa: S102  # the user's own compiled program, as Inductor generated it
        probed[function.name] = local[node.name]
    return probed


class _Prober(ast.NodeTransformer):
    def __init__(self, program: Program, function: Function) -> None:
        self._program = program
        self._function = function
        self._launches = {(launch.line, launch.column): launch for launch in function.launches()}

    def rewrite(self) -> ast.FunctionDef:
        node = copy.deepcopy(self._function.node)
        node.decorator_list = []
        node.returns = None
        node.args.args.append(ast.arg(arg=PROBE))
        node.body = self._block(node.body)
        return node

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [new for statement in statements for new in self._statement(statement)]

    def _statement(self, node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.Return):
            return self._return(node)
        for field in ("body", "orelse"):
            inner = getattr(node, field, None)
            if isinstance(inner, list):
                setattr(node, field, self._block(inner))
        launch = self._launches.get((node.lineno, node.col_offset))
        if launch is not None and isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
            return self._launch(node, launch)
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "args":
            return [node, _probe("enter", _dict(self._function.inputs), at=node)]
        if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
            self._calls_function(node)
        return [node]

    def _launch(self, node: ast.stmt, launch: Launch) -> list[ast.stmt]:
        names = launch.operands
        after = dict.fromkeys([*names, *launch.writes])
        number = ast.Constant(value=launch.nth)
        return [
            _probe("before", number, _tuple(names), at=node),
            node,
            _probe("after", number, _tuple(tuple(after)), at=node),
        ]

    def _calls_function(self, node: ast.Expr | ast.Assign) -> None:
        """`subgraph(args)` becomes `frame.call("subgraph", subgraph, args)`, so that it is probed as well."""
        call = node.value
        assert isinstance(call, ast.Call)
        match call.func:
            case ast.Name(id=name) if name in self._program.functions:
                pass
            case ast.Subscript(value=ast.Attribute(attr="partitions"), slice=ast.Constant(value=int(index))):
                name = f"partition_{index}"
            case _:
                return
        call.args = [ast.Constant(value=name), call.func, *call.args]
        call.func = ast.Attribute(value=ast.Name(id=PROBE, ctx=ast.Load()), attr="call", ctx=ast.Load())

    def _return(self, node: ast.Return) -> list[ast.stmt]:
        if node.value is None:
            return [node]
        name = f"{PROBE}_result"
        store: ast.stmt = ast.Assign(targets=[ast.Name(id=name, ctx=ast.Store())], value=node.value)
        result = ast.Name(id=name, ctx=ast.Load())
        return [
            ast.copy_location(store, node),
            _probe("leave", result, at=node),
            ast.copy_location(ast.Return(value=result), node),
        ]


def _probe(method: str, *args: ast.expr, at: ast.stmt) -> ast.stmt:
    target = ast.Attribute(value=ast.Name(id=PROBE, ctx=ast.Load()), attr=method, ctx=ast.Load())
    return ast.copy_location(ast.Expr(value=ast.Call(func=target, args=list(args), keywords=[])), at)


def _tuple(names: tuple[str, ...]) -> ast.expr:
    return ast.Tuple(elts=[ast.Name(id=n, ctx=ast.Load()) for n in names], ctx=ast.Load())


def _dict(names: tuple[str, ...]) -> ast.expr:
    keys: list[ast.expr | None] = [ast.Constant(value=n) for n in names]
    return ast.Dict(keys=keys, values=[ast.Name(id=n, ctx=ast.Load()) for n in names])
