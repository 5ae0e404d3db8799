"""From the source of a wrapper to a `Program`. Parses, never guesses: what it does not know becomes `Opaque`.

The wrapper is plain Python, one statement a line, the same for C++ and Triton kernels but for how a kernel is defined
and launched. Only the grammar of that source is known here; nothing is imported or run.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable

from torchsan.instruments.program.kernels import kernel_definitions
from torchsan.instruments.program.launches import Launches, MutatedArguments
from torchsan.instruments.program.model import (
    Allocate,
    Bind,
    Branch,
    Call,
    Free,
    Function,
    Opaque,
    Program,
    Return,
    Step,
)
from torchsan.instruments.program.variables import Variables, is_symbol, names_in

__all__ = ["parse"]

_ALLOCATORS = ("empty_strided", "alloc_from_pool", "empty_strided_p2p", "torch.empty_strided", "torch.empty")
_GUARDS = ("assert_size_stride", "assert_alignment", "args.clear", "run_intermediate_hooks", "torch._check")
_DEVICE_CALLS = ("set_device", "synchronize", "wait_stream", "wait_event", "record", "range_push", "range_pop")
"""Methods that arrange devices, streams and profiles, and touch no value."""
_VIEWS = ("reinterpret_tensor", "copy_if_misaligned")
_NUMBERS = ("get_raw_stream", "max", "min", "align", "torch.Event", "math.")


def parse(source: str, mutated: MutatedArguments | None = None) -> Program:
    """Return the program that `source` is. Raise SyntaxError if it is not Python (a C++ wrapper, say).

    `mutated` tells which arguments an operator writes, by its schema; without it none are taken to be.
    """
    tree = ast.parse(source)
    kernels = kernel_definitions(tree)
    nodes = [(node, False) for node in tree.body if isinstance(node, ast.FunctionDef) and _takes_args(node, 0)]
    for cls in tree.body:
        if isinstance(cls, ast.ClassDef):
            nodes += [(n, True) for n in cls.body if isinstance(n, ast.FunctionDef) and _takes_args(n, 1)]
    names = {node.name for node, _ in nodes}
    parser = _FunctionParser(names, Launches(kernels, mutated or _nothing_mutated, itertools.count()))
    functions = {node.name: parser.function(node, method, _constants(tree)) for node, method in nodes}
    return Program(kernels=kernels, functions=functions)


def _constants(tree: ast.Module) -> list[str]:
    """The tensors that the module holds itself: `constant0 = None`, set when it is loaded."""
    found = []
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=None)):
                found.append(name)
    return found


def _nothing_mutated(_op: str) -> Callable[[int | str], bool]:
    return lambda _argument: False


def _takes_args(node: ast.FunctionDef, position: int) -> bool:
    """A function of the program takes one list called `args`."""
    return len(node.args.args) == position + 1 and node.args.args[position].arg == "args"


def _reused(statements: list[ast.stmt], i: int) -> bool:
    """`b = a; del a`: the memory changes hands, and what it held is no longer wanted under the new name."""
    after = statements[i + 1] if i + 1 < len(statements) else None
    return isinstance(after, ast.Delete) and after.lineno == statements[i].lineno


class _FunctionParser:
    """Parses one function, and remembers which of its variables hold tensors, and which of those hold values yet."""

    def __init__(self, functions: set[str], launches: Launches) -> None:
        self._functions = functions
        self._launches = launches
        self._variables = Variables(())

    def function(self, node: ast.FunctionDef, method: bool, constants: Iterable[str]) -> Function:
        inputs: tuple[str, ...] = ()
        for statement in node.body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.value) == "args":
                inputs = names_in(statement.targets[0])
        self._variables = Variables([*constants, *inputs])
        for name in inputs if node.name != "call" else ():
            # What `call` names itself before it passes it on to a partition.
            if is_symbol(name):
                self._variables.bind(name, node.lineno)
        return Function(name=node.name, method=method, inputs=inputs, steps=self._block(node.body), node=node)

    def _block(self, statements: list[ast.stmt]) -> tuple[Step, ...]:
        steps: list[Step] = []
        for i, statement in enumerate(statements):
            steps += self._statement(statement, _reused(statements, i))
        return tuple(steps)

    def _statement(self, node: ast.stmt, reused: bool) -> list[Step]:
        line = node.lineno
        match node:
            case (
                ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Break() | ast.Continue() | ast.Assert() | ast.Raise()
            ):
                return []
            case ast.Expr(value=ast.Call() as call):
                return self._call(call, None, node)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                return self._assign(name, value, node, reused)
            case ast.Assign(targets=[ast.Tuple() as target], value=value):
                return self._unpack(target, value, node)
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))]):
                self._variables.hold([name])
                return [Bind(name=name, line=line)]
            case ast.Delete(targets=targets):
                names = tuple(n for t in targets for n in names_in(t))
                self._variables.free(names)
                return [Free(names=names, line=line)]
            case ast.Return(value=value):
                names = names_in(value) if value is not None else ()
                return [Return(names=tuple(n for n in names if n in self._variables.tensors), line=line)]
            case ast.If() | ast.While() | ast.For():
                return [Branch(steps=self._branches(node), line=line)]
            case ast.With(body=body):
                return [Branch(steps=self._block(body), line=line)]
            case _:
                return [self._opaque(node)]

    def _branches(self, node: ast.If | ast.While | ast.For) -> tuple[Step, ...]:
        """Both ways, each from where they part: what one of them deletes, the other still has."""
        before = self._variables.copy()
        steps = self._block(node.body)
        one, self._variables = self._variables, before
        steps += self._block(node.orelse)
        self._variables.join(one)
        return steps

    def _opaque(self, node: ast.stmt) -> Opaque:
        names = tuple(n for n in names_in(node) if n in self._variables.tensors)
        self._variables.hold(names)
        return Opaque(text=ast.unparse(node), names=names, line=node.lineno)

    def _unpack(self, target: ast.Tuple, value: ast.expr, node: ast.Assign) -> list[Step]:
        names = names_in(target)
        if ast.unparse(value) == "args":
            return []
        if isinstance(value, ast.Call):
            function = self._function_called(value)
            if function is not None:
                self._variables.hold(names)
                return [Call(function=function, results=names, line=node.lineno)]
        return [self._opaque(node)]

    def _assign(self, name: str, value: ast.expr, node: ast.stmt, reused: bool) -> list[Step]:
        line = node.lineno
        match value:
            case ast.Name(id=source) if source in self._variables.tensors:
                return [self._variables.alias(name, source, line, reused=reused)]
            case ast.Subscript(value=ast.Name(id=source), slice=ast.Constant(value=int(item))) if (
                source in self._variables.tensors
            ):
                return [self._variables.alias(name, source, line, reused=False, item=item)]
            case ast.Call():
                return self._call(value, name, node, reused)
            case _:
                return [self._variables.bind(name, line)]

    def _call(self, call: ast.Call, result: str | None, node: ast.stmt, reused: bool = False) -> list[Step]:
        function = ast.unparse(call.func)
        line = node.lineno
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if function.startswith(_GUARDS) or (result is None and method in _DEVICE_CALLS):
            return []
        if result is None and method == "append" and (grown := names_in(call.func)):
            return [Bind(name=grown[0], line=line)]
        if result is not None and function.startswith(_ALLOCATORS):
            self._variables.allocate(result)
            pool = names_in(call.args[0])[0] if function == "alloc_from_pool" and call.args else None
            return [Allocate(name=result, line=line, pool=pool)]
        if result is not None and function in _VIEWS and call.args:
            return [self._variables.alias(result, names_in(call.args[0])[0], line, reused=reused)]
        called = self._function_called(call)
        if called is not None:
            results = (result,) if result else ()
            self._variables.hold(results)
            return [Call(function=called, results=results, line=line)]
        launch = self._launches.launch(self._variables, call, function, result, node)
        if launch is not None:
            self._variables.hold(launch.writes)
            return [launch]
        if result is not None and (function.startswith(_NUMBERS) or function.endswith((".item", ".size", ".stride"))):
            return [self._variables.bind(result, line)]
        if result is not None:
            self._variables.hold([result])
        return [self._opaque(node)]

    def _function_called(self, call: ast.Call) -> str | None:
        match call.func:
            case ast.Name(id=name) if name in self._functions:
                return name
            case ast.Subscript(value=ast.Attribute(attr="partitions"), slice=ast.Constant(value=int(index))):
                return f"partition_{index}"
            case _:
                return None
