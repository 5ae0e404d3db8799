"""The program with probes in it: the same statements, and calls beside each launch, allocation, alias and free.

The probed functions stand beside the original ones in memory; the generated source, and what is on disk, stay as they
are.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from torchsan.torch_internals.wrapper.model import Alias, Allocate, Free, Function, Launch, Program, Return, Step

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
        self._steps: dict[tuple[type[Step], int, str], int] = {}
        for number, step in enumerate(function.walk()):
            match step:
                case Allocate(name=name) | Alias(name=name):
                    self._steps[type(step), step.line, name] = number
                case Free(names=(name, *_)):
                    self._steps[Free, step.line, name] = number
                case Return():
                    self._steps[Return, step.line, ""] = number
                case _:
                    pass

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
        return self._memory(node)

    def _memory(self, node: ast.stmt) -> list[ast.stmt]:
        """A name gets memory, shares it, or gives it up."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                if (number := self._steps.get((Allocate, node.lineno, name))) is not None:
                    call = _probe("allocated", ast.Constant(value=number), _name(name), at=node)
                    assert isinstance(call, ast.Expr)
                    again = ast.Assign(targets=[ast.Name(id=name, ctx=ast.Store())], value=call.value)
                    return [node, ast.copy_location(again, node)]
                if (number := self._steps.get((Alias, node.lineno, name))) is not None:
                    return [node, _probe("aliased", ast.Constant(value=number), _name(name), at=node)]
            case ast.Delete(targets=[ast.Name(id=name), *_]):
                if (number := self._steps.get((Free, node.lineno, name))) is not None:
                    return [node, _probe("freed", ast.Constant(value=number), at=node)]
        return [node]

    def _launch(self, node: ast.stmt, launch: Launch) -> list[ast.stmt]:
        names = launch.operands
        after = dict.fromkeys([*names, *launch.writes])
        number = ast.Constant(value=launch.nth)
        assert isinstance(node, ast.Expr | ast.Assign)
        # Called with other operands by name, it launches the kernel on those instead.
        operands = ast.arguments(
            posonlyargs=[], args=[], kwonlyargs=[ast.arg(arg=n) for n in names], kw_defaults=[_name(n) for n in names],
            defaults=[],
        )  # fmt: skip
        again = ast.Lambda(args=operands, body=copy.deepcopy(node.value))
        return [
            _probe("before", number, _tuple(names), at=node),
            node,
            _probe("after", number, _tuple(tuple(after)), again, at=node),
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
        number = self._steps[Return, node.lineno, ""]
        step = tuple(self._function.walk())[number]
        assert isinstance(step, Return)
        return [
            ast.copy_location(store, node),
            _probe("leave", result, ast.Constant(value=number), _tuple(step.names), at=node),
            ast.copy_location(ast.Return(value=result), node),
        ]


def _probe(method: str, *args: ast.expr, at: ast.stmt) -> ast.stmt:
    target = ast.Attribute(value=ast.Name(id=PROBE, ctx=ast.Load()), attr=method, ctx=ast.Load())
    return ast.copy_location(ast.Expr(value=ast.Call(func=target, args=list(args), keywords=[])), at)


def _name(name: str) -> ast.expr:
    return ast.Name(id=name, ctx=ast.Load())


def _tuple(names: tuple[str, ...]) -> ast.expr:
    return ast.Tuple(elts=[_name(n) for n in names], ctx=ast.Load())


def _dict(names: tuple[str, ...]) -> ast.expr:
    keys: list[ast.expr | None] = [ast.Constant(value=n) for n in names]
    return ast.Dict(keys=keys, values=[_name(n) for n in names])
