"""From the source of a wrapper to a `Program`. Parses, never guesses: what it does not know becomes `Opaque`.

The wrapper is plain Python, one statement a line, the same for C++ and Triton kernels but for how a kernel is defined
and launched. Only the grammar of that source is known here; nothing is imported or run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from torchsan.instruments.program.kernels import kernel_definitions
from torchsan.instruments.program.model import (
    Alias,
    Allocate,
    Argument,
    Bind,
    Branch,
    Call,
    Free,
    Function,
    KernelDef,
    Launch,
    Opaque,
    Program,
    Return,
    Step,
)
from torchsan.records import KernelKind

__all__ = ["parse"]

MutatedArguments = Callable[[str], Callable[[int | str], bool]]
"""From an operator's dotted name to a predicate: is the argument at this position, or of this name, written?"""

_ALLOCATORS = ("empty_strided", "alloc_from_pool", "empty_strided_p2p", "torch.empty_strided", "torch.empty")
_GUARDS = ("assert_size_stride", "assert_alignment", "args.clear", "run_intermediate_hooks", "torch._check")
_VIEWS = ("reinterpret_tensor", "copy_if_misaligned")
_OPERATORS = ("torch.ops.", "aten.", "inductor_ops.", "_quantized.", "prims.")
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
    counter = iter(range(10**9))
    functions = {
        node.name: _FunctionParser(kernels, names, mutated or _nothing_mutated, counter).function(node, method)
        for node, method in nodes
    }
    return Program(kernels=kernels, functions=functions)


def _nothing_mutated(_op: str) -> Callable[[int | str], bool]:
    return lambda _argument: False


def _takes_args(node: ast.FunctionDef, position: int) -> bool:
    """A function of the program takes one list called `args`."""
    return len(node.args.args) == position + 1 and node.args.args[position].arg == "args"


def _names(tree: ast.AST) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)))


def _reused(statements: list[ast.stmt], i: int) -> bool:
    """`b = a; del a`: the memory changes hands, and what it held is no longer wanted under the new name."""
    after = statements[i + 1] if i + 1 < len(statements) else None
    return isinstance(after, ast.Delete) and after.lineno == statements[i].lineno


class _FunctionParser:
    """Parses one function, and remembers which of its variables hold tensors, and which of those hold values yet."""

    def __init__(
        self, kernels: dict[str, KernelDef], functions: set[str], mutated: MutatedArguments, counter: Iterable[int]
    ) -> None:
        self._kernels = kernels
        self._functions = functions
        self._mutated = mutated
        self._counter = iter(counter)
        self._tensors: set[str] = set()
        self._written: set[str] = set()
        self._whole: dict[str, str] = {}

    def function(self, node: ast.FunctionDef, method: bool) -> Function:
        inputs: tuple[str, ...] = ()
        for statement in node.body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.value) == "args":
                inputs = _names(statement.targets[0])
        self._tensors.update(inputs)
        self._written.update(inputs)
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
                self._hold([name])
                return [Bind(name=name, line=line)]
            case ast.Delete(targets=targets):
                names = tuple(n for t in targets for n in _names(t))
                self._tensors.difference_update(names)
                return [Free(names=names, line=line)]
            case ast.Return(value=value):
                names = _names(value) if value is not None else ()
                return [Return(names=tuple(n for n in names if n in self._tensors), line=line)]
            case (
                ast.If(body=body, orelse=other) | ast.While(body=body, orelse=other) | ast.For(body=body, orelse=other)
            ):
                return [Branch(steps=self._block(body) + self._block(other), line=line)]
            case ast.With(body=body):
                return [Branch(steps=self._block(body), line=line)]
            case _:
                return [self._opaque(node)]

    def _opaque(self, node: ast.stmt) -> Opaque:
        names = tuple(n for n in _names(node) if n in self._tensors)
        self._written.update(names)
        return Opaque(text=ast.unparse(node), names=names, line=node.lineno)

    def _unpack(self, target: ast.Tuple, value: ast.expr, node: ast.Assign) -> list[Step]:
        names = _names(target)
        if ast.unparse(value) == "args":
            return []
        if isinstance(value, ast.Call):
            function = self._function_called(value)
            if function is not None:
                self._hold(names)
                return [Call(function=function, results=names, line=node.lineno)]
        return [self._opaque(node)]

    def _hold(self, names: Iterable[str]) -> None:
        names = tuple(names)
        self._tensors.update(names)
        self._written.update(names)

    def _assign(self, name: str, value: ast.expr, node: ast.stmt, reused: bool) -> list[Step]:
        line = node.lineno
        match value:
            case ast.Name(id=source) if source in self._tensors:
                return [self._alias(name, source, line, reused=reused)]
            case ast.Subscript(value=ast.Name(id=source), slice=ast.Constant(value=int(item))) if (
                source in self._tensors
            ):
                return [self._alias(name, source, line, reused=False, item=item)]
            case ast.Call():
                return self._call(value, name, node, reused)
            case _:
                self._tensors.discard(name)
                return [Bind(name=name, line=line)]

    def _alias(self, name: str, source: str, line: int, *, reused: bool, item: int | None = None) -> Alias:
        self._tensors.add(name)
        self._whole.pop(name, None)
        if not reused and item is None:
            self._whole[name] = self._whole.get(source, source)
        self._written.discard(name)
        if source in self._written and not reused:
            self._written.add(name)
        return Alias(name=name, source=source, line=line, item=item, reused=reused)

    def _call(self, call: ast.Call, result: str | None, node: ast.stmt, reused: bool = False) -> list[Step]:
        function = ast.unparse(call.func)
        line = node.lineno
        if function.startswith(_GUARDS):
            return []
        if result is not None and function.startswith(_ALLOCATORS):
            self._tensors.add(result)
            self._written.discard(result)
            pool = _names(call.args[0])[0] if function == "alloc_from_pool" and call.args else None
            return [Allocate(name=result, line=line, pool=pool)]
        if result is not None and function in _VIEWS and call.args:
            return [self._alias(result, _names(call.args[0])[0], line, reused=reused)]
        called = self._function_called(call)
        if called is not None:
            results = (result,) if result else ()
            self._hold(results)
            return [Call(function=called, results=results, line=line)]
        launch = self._launch(call, function, result, node)
        if launch is not None:
            self._hold(launch.writes)
            return [launch]
        if result is not None and (function.startswith(_NUMBERS) or function.endswith((".item", ".size", ".stride"))):
            self._tensors.discard(result)
            return [Bind(name=result, line=line)]
        if result is not None:
            self._tensors.add(result)
        return [self._opaque(node)]

    def _function_called(self, call: ast.Call) -> str | None:
        match call.func:
            case ast.Name(id=name) if name in self._functions:
                return name
            case ast.Subscript(value=ast.Attribute(attr="partitions"), slice=ast.Constant(value=int(index))):
                return f"partition_{index}"
            case _:
                return None

    def _launch(self, call: ast.Call, function: str, result: str | None, node: ast.stmt) -> Launch | None:
        kernel = self._kernels.get(function.split(".")[0])
        if kernel is not None:
            kind, name, arguments = KernelKind.FUSED, kernel.name, self._fused_arguments(call, kernel)
        elif function.startswith("extern_kernels."):
            kind, name = KernelKind.LIBRARY, function
            arguments = self._operator_arguments(call, lambda _argument: False)
        elif function.startswith(_OPERATORS):
            kind, name = KernelKind.FALLBACK, function
            arguments = self._operator_arguments(call, self._mutated(function))
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("copy_", "zero_", "fill_"):
            kind, name = KernelKind.FALLBACK, f"aten.{call.func.attr}"
            target = self._argument(call.func.value, read=False, written=True)
            arguments = (target, *(self._argument(a, read=True, written=False) for a in call.args))
        else:
            return None
        parts = [a.base for a in arguments if a.written and a.base in self._whole]
        bases = tuple(dict.fromkeys(w for part in parts if (w := self._whole.get(part or "")) in self._tensors))
        return Launch(
            nth=next(self._counter),
            kernel=name,
            kind=kind,
            arguments=arguments,
            result=result,
            line=node.lineno,
            column=node.col_offset,
            bases=tuple(b for b in bases if b is not None),
        )

    def _fused_arguments(self, call: ast.Call, kernel: KernelDef) -> tuple[Argument, ...]:
        arguments = []
        for i, value in enumerate(call.args):
            known = i < len(kernel.writes)
            # Of a kernel in an unknown language every argument may be read and written.
            written = bool(kernel.writes[i]) if known else kernel.language not in ("cpp", "triton")
            read = kernel.reads[i] if known else True
            arguments.append(self._argument(value, read=read, written=written))
        return tuple(arguments)

    def _operator_arguments(self, call: ast.Call, mutated: Callable[[int | str], bool]) -> tuple[Argument, ...]:
        arguments = []
        for i, value in enumerate(call.args):
            arguments += self._flat(value, written=mutated(i))
        for keyword in call.keywords:
            out = keyword.arg == "out"
            written = out or (keyword.arg is not None and mutated(keyword.arg))
            arguments += self._flat(keyword.value, written=written, read=not out)
        return tuple(arguments)

    def _flat(self, value: ast.expr, *, written: bool, read: bool = True) -> list[Argument]:
        if isinstance(value, ast.List | ast.Tuple):
            return [a for e in value.elts for a in self._flat(e, written=written, read=read)]
        return [self._argument(value, read=read, written=written)]

    def _argument(self, value: ast.expr, *, read: bool, written: bool) -> Argument:
        bases = [n for n in _names(value) if n in self._tensors]
        base = bases[0] if bases else None
        if written and base in self._written:
            # A kernel may add to what an earlier one left there (atomic adds), so what is there counts as read.
            read = True
        return Argument(text=ast.unparse(value), base=base, read=read, written=written)
