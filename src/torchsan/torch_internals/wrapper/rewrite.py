"""The program with probes in it: the same statements, and calls beside each launch, allocation, alias and free.

The probed functions stand beside the original ones in memory; the generated source, and what is on disk, stay as they
are.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable
from typing import Any

from torchsan.torch_internals.wrapper.model import Alias, Allocate, Free, Function, Launch, Program, Return, Step

PARAMETER = "_torchsan_call"
"""Through which a probed function gets the ProbedCall. One underscore: two would be mangled in a class."""


def probed_functions(program: Program, namespace: dict[str, Any], filename: str) -> dict[str, Any]:
    """Compile the program's functions with probes, to run in `namespace` (the generated module's).

    A probed function takes its ProbedCall as one more, last, argument.
    """
    probed = {}
    for function in program.functions.values():
        node = _Rewriter(program, function).rewrite()
        module = ast.fix_missing_locations(ast.Module(body=[node], type_ignores=[]))
        code = compile(module, filename, "exec")
        # Names are looked up in the generated module; the functions themselves are kept out of it.
        local: dict[str, Any] = {}
        exec(code, namespace, local)  # noqa: S102  # the user's own compiled program, as Inductor generated it
        probed[function.name] = local[node.name]
    return probed


class _Rewriter:
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
        node.args.args.append(ast.arg(arg=PARAMETER))
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
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "args":
            inputs = ", ".join(f"{name!r}: {name}" for name in self._function.inputs)
            return [node, _probe(f"enter({{{inputs}}})", node)]
        if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
            launch = self._launches.get((node.lineno, node.col_offset))
            if launch is not None:
                return _launch(node, node.value, launch)
            self._call_function(node.value)
        return self._memory(node)

    def _memory(self, node: ast.stmt) -> list[ast.stmt]:
        """A name gets memory, shares it, or gives it up."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                if (number := self._steps.get((Allocate, node.lineno, name))) is not None:
                    return [node, _probe(f"allocated({number}, {name})", node, assign=name)]
                if (number := self._steps.get((Alias, node.lineno, name))) is not None:
                    return [node, _probe(f"aliased({number}, {name})", node)]
            case ast.Delete(targets=[ast.Name(id=name), *_]):
                if (number := self._steps.get((Free, node.lineno, name))) is not None:
                    return [node, _probe(f"freed({number})", node)]
        return [node]

    def _call_function(self, call: ast.Call) -> None:
        """Make `subgraph(args)` `probed_call.call("subgraph", subgraph, args)`, so that it is probed as well."""
        match call.func:
            case ast.Name(id=name) if name in self._program.functions:
                pass
            case ast.Subscript(value=ast.Attribute(attr="partitions"), slice=ast.Constant(value=int(index))):
                name = f"partition_{index}"
            case _:
                return
        call.args = [ast.Constant(value=name), call.func, *call.args]
        call.func = ast.Attribute(value=ast.Name(id=PARAMETER, ctx=ast.Load()), attr="call", ctx=ast.Load())

    def _return(self, node: ast.Return) -> list[ast.stmt]:
        if node.value is None:
            return [node]
        number = self._steps[Return, node.lineno, ""]
        step = self._function.walk()[number]
        assert isinstance(step, Return)
        result = f"{PARAMETER}_result"
        store = ast.Assign(targets=[ast.Name(id=result, ctx=ast.Store())], value=node.value)
        node.value = ast.Name(id=result, ctx=ast.Load())
        return [
            ast.copy_location(store, node),
            _probe(f"leave({result}, {number}, {_tuple(step.names)})", node),
            node,
        ]


def _launch(node: ast.stmt, call: ast.Call, launch: Launch) -> list[ast.stmt]:
    names = launch.operands
    after = _tuple(dict.fromkeys([*names, *launch.writes]))
    # Called with other operands by name, it launches the kernel on those instead.
    operands = f" *, {', '.join(f'{n}={n}' for n in names)}" if names else ""
    if launch.users_own:  # With descriptors made anew, of those.
        passed = [ast.parse(a.text, mode="eval").body for a in launch.arguments]
        call = ast.Call(func=call.func, args=passed, keywords=call.keywords)
    again = f"lambda{operands}: {ast.unparse(call)}"
    return [
        _probe(f"before({launch.nth}, {_tuple(names)})", node),
        node,
        _probe(f"after({launch.nth}, {after}, {again})", node),
    ]


def _probe(call: str, at: ast.stmt, assign: str | None = None) -> ast.stmt:
    """A call of a method of the ProbedCall, in the place of the statement `at` for whoever reads a traceback."""
    (statement,) = ast.parse(f"{f'{assign} = ' if assign else ''}{PARAMETER}.{call}").body
    for node in ast.walk(statement):
        ast.copy_location(node, at)
    return statement


def _tuple(names: Iterable[str]) -> str:
    return f"({''.join(f'{name}, ' for name in names)})"
