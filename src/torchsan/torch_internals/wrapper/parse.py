"""From the source of a wrapper to a `Program`. Parses, never guesses: what it does not know becomes `Opaque`.

The wrapper is plain Python, one statement a line, the same for C++ and Triton kernels but for how a kernel is defined
and launched. Only the grammar of that source is known here; nothing is imported or run.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterable

from torchsan.records import KernelKind
from torchsan.torch_internals.wrapper.kernels import kernel_definitions
from torchsan.torch_internals.wrapper.model import (
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

_SYMBOLS = ("s", "u", "ps", "zf", "zuf")
"""What Inductor calls sizes and numbers that it knows only at run time, before a number: `s77`, `u0`."""


def names_in(tree: ast.AST) -> tuple[str, ...]:
    """Return the names in an expression or a statement, each once."""
    return tuple(dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)))


def is_symbol(name: str) -> bool:
    """Return whether Inductor gives this name to sizes and other numbers."""
    return name.rstrip("0123456789") in _SYMBOLS and name not in _SYMBOLS


class Variables:
    """What is known of the variables at one place of a function. Each method tells of one statement."""

    def __init__(self, inputs: Iterable[str]) -> None:
        self.tensors: set[str] = set(inputs)
        self._numbers: set[str] = set()
        self._written: set[str] = set(inputs)
        # Memory that was handed on while it held a value: an in-place kernel reads that under the new name.
        self._inherited: set[str] = set()
        self._whole: dict[str, str] = {}
        self._descriptors: dict[str, ast.expr] = {}

    def join(self, other: Variables) -> None:
        """Two ways meet again: what either knows may hold."""
        for name, known in vars(other).items():
            vars(self)[name] |= known

    def allocate(self, name: str) -> None:
        """`name` is new memory."""
        self.tensors.add(name)
        self._forget(name)

    def hold(self, names: Iterable[str]) -> None:
        """The variables hold values now."""
        names = tuple(names)
        self.tensors.update(names)
        self._written.update(names)

    def free(self, names: Iterable[str]) -> None:
        """The variables were deleted."""
        self.tensors.difference_update(names)

    def bind(self, name: str, line: int) -> Bind:
        """`name` is a number."""
        self.tensors.discard(name)
        self._numbers.add(name)
        return Bind(name=name, line=line)

    def describe(self, name: str, value: ast.expr, line: int) -> Bind:
        """`name` describes a tensor to a kernel that is given it in its place."""
        self._descriptors[name] = value
        return self.bind(name, line)

    def alias(self, name: str, source: str, line: int, *, reused: bool, item: int | None = None) -> Alias | Bind:
        """`name` is what `source` was, or one item of it."""
        if is_symbol(name):
            return self.bind(name, line)
        self.tensors.add(name)
        self._whole.pop(name, None)
        if not reused and item is None:
            self._whole[name] = self._whole.get(source, source)
        self._forget(name)
        if source in self._written:
            (self._inherited if reused else self._written).add(name)
        elif source in self._inherited:
            self._inherited.add(name)
        return Alias(name=name, source=source, line=line, item=item, reused=reused)

    def _forget(self, name: str) -> None:
        self._written.discard(name)
        self._inherited.discard(name)

    def wholes(self, parts: Iterable[Argument]) -> tuple[str, ...]:
        """The variables of which written arguments are parts."""
        names = (self._whole.get(a.base) for a in parts if a.written and a.base is not None)
        return tuple(dict.fromkeys(n for n in names if n in self.tensors and n is not None))

    def arguments(
        self, value: ast.expr, *, written: bool, read: bool = True, keyword: str | None = None
    ) -> list[Argument]:
        """An argument of an operator: one, or several for a list of tensors."""
        if isinstance(value, ast.List | ast.Tuple) and any(n in self.tensors for n in names_in(value)):
            return [a for e in value.elts for a in self.arguments(e, written=written, read=read, keyword=keyword)]
        return [self.argument(value, read=read, written=written, keyword=keyword)]

    def argument(
        self, value: ast.expr, *, read: bool, written: bool, keyword: str | None = None, filled: bool = True
    ) -> Argument:
        """One argument of a launch. `filled` if the launch is known to read nothing that nobody has written."""
        if isinstance(value, ast.Name):
            value = self._descriptors.get(value.id, value)
        names = names_in(value)
        base = next((n for n in names if n in self.tensors), None)
        if written and filled:
            # A kernel may add to what an earlier one left there (atomic adds), so what is there counts as read. What
            # nobody has written can't be: `in_out_ptr` is also what a kernel fills first and reads back later.
            read = base in self._written or (read and base in self._inherited)
        variables = tuple(n for n in names if n in self._numbers) if base is None else ()
        return Argument(
            text=ast.unparse(value), base=base, read=read, written=written, variables=variables, keyword=keyword
        )


MutatedArguments = Callable[[str], Callable[[int | str], bool]]
"""From an operator's dotted name to a predicate: is the argument at this position, or of this name, written?"""

_OPERATORS = ("torch.ops.", "aten.", "inductor_ops.", "_quantized.", "prims.")


def _fused_arguments(variables: Variables, call: ast.Call, kernel: KernelDef) -> tuple[Argument, ...]:
    arguments = []
    for i, value in enumerate(call.args):
        known = i < len(kernel.writes)
        # Of a kernel in an unknown language every argument may be read and written.
        written = bool(kernel.writes[i]) if known else kernel.language not in ("cpp", "triton")
        read = kernel.reads[i] if known else True
        filled = kernel.language != "triton-user"
        arguments.append(variables.argument(value, read=read, written=written, filled=filled))
    return tuple(arguments)


def _operator_arguments(
    variables: Variables, call: ast.Call, mutated: Callable[[int | str], bool]
) -> tuple[Argument, ...]:
    arguments = []
    for i, value in enumerate(call.args):
        arguments += variables.arguments(value, written=mutated(i))
    for keyword in call.keywords:
        out = keyword.arg == "out"
        written = out or (keyword.arg is not None and mutated(keyword.arg))
        arguments += variables.arguments(keyword.value, written=written, read=not out, keyword=keyword.arg)
    return tuple(arguments)


_ALLOCATORS = ("empty_strided", "alloc_from_pool", "empty_strided_p2p", "torch.empty_strided", "torch.empty")
_GUARDS = (
    "assert_size_stride", "assert_alignment", "assert_tensor_metadata", "args.clear", "run_intermediate_hooks",
    "torch._check",
)  # fmt: skip
_DEVICE_CALLS = ("set_device", "synchronize", "wait_stream", "wait_event", "record", "range_push", "range_pop")
"""Methods that arrange devices, streams and profiles, and touch no value."""
_VIEWS = ("reinterpret_tensor", "copy_if_misaligned", "copy_misaligned")  # The last until 2.12.
_DESCRIPTORS = "triton.tools."
"""`triton.tools.tensor_descriptor.TensorDescriptor.from_tensor(buf0, [32, 32])`, and older spellings."""
_STREAMS = ("get_raw_stream", "get_external_object_by_index", "_get_stream_by_index")
_NUMBERS = (*_STREAMS, "max", "min", "align", "torch.Event", "math.")
_CONVERSIONS = ("int", "float", "bool")
"""`buf2_selector = int(buf1.item())`: the way that `cond` takes, as a number."""


def _is_number(function: str) -> bool:
    """Whether a call of it gives a number, a stream or an event."""
    return (
        function.startswith(_NUMBERS)
        or function in _CONVERSIONS
        or function.endswith((".item", ".size", ".stride", ".current_stream"))
    )


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
    parser = _FunctionParser(names, kernels, mutated or (lambda _operator: lambda _argument: False))
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


def _takes_args(node: ast.FunctionDef, position: int) -> bool:
    """A function of the program takes one list called `args`."""
    return len(node.args.args) == position + 1 and node.args.args[position].arg == "args"


def _reused(statements: list[ast.stmt], i: int) -> bool:
    """`b = a; del a`: the memory changes hands, and what it held is no longer wanted under the new name."""
    after = statements[i + 1] if i + 1 < len(statements) else None
    return isinstance(after, ast.Delete) and after.lineno == statements[i].lineno


class _FunctionParser:
    """Parses one function, and remembers which of its variables hold tensors, and which of those hold values yet."""

    def __init__(self, functions: set[str], kernels: dict[str, KernelDef], mutated: MutatedArguments) -> None:
        self._functions = functions
        self._kernels = kernels
        self._mutated = mutated
        self._launches = itertools.count()
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
                return list(self._block(body))  # A device or a stream: it runs once, as what is around it does.
            case _:
                return [self._opaque(node)]

    def _branches(self, node: ast.If | ast.While | ast.For) -> tuple[Step, ...]:
        """Both ways, each from where they part: what one of them deletes, the other still has."""
        before = copy.deepcopy(self._variables)
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
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if function.startswith(_GUARDS) or (result is None and method in _DEVICE_CALLS):
            return []
        if result is None and method == "append" and (grown := names_in(call.func)):
            return [Bind(name=grown[0], line=node.lineno)]
        step = self._memory(call, function, result, node, reused) if result is not None else None
        step = step or self._inner_call(call, result, node) or self._launch(call, function, result, node)
        if step is not None:
            return [step]
        if result is not None and _is_number(function):
            return [self._variables.bind(result, node.lineno)]
        if result is not None:
            self._variables.hold([result])
        return [self._opaque(node)]

    def _memory(self, call: ast.Call, function: str, result: str, node: ast.stmt, reused: bool) -> Step | None:
        """`result` is new memory, or memory that has a name already."""
        if function.startswith(_ALLOCATORS):
            self._variables.allocate(result)
            pool = names_in(call.args[0])[0] if function == "alloc_from_pool" and call.args else None
            return Allocate(name=result, line=node.lineno, pool=pool)
        if function.startswith(_DESCRIPTORS):
            return self._variables.describe(result, call, node.lineno)
        if function in _VIEWS and call.args:
            return self._variables.alias(result, names_in(call.args[0])[0], node.lineno, reused=reused)
        return None

    def _inner_call(self, call: ast.Call, result: str | None, node: ast.stmt) -> Call | None:
        called = self._function_called(call)
        if called is None:
            return None
        results = (result,) if result else ()
        self._variables.hold(results)
        return Call(function=called, results=results, line=node.lineno)

    def _launch(self, call: ast.Call, function: str, result: str | None, node: ast.stmt) -> Launch | None:
        """Return the launch that `call`, of `function`, is; None if it is none."""
        kernel = self._kernels.get(function.split(".")[0])
        if kernel is not None:
            kind, name = KernelKind.FUSED, kernel.name
            arguments = _fused_arguments(self._variables, call, kernel)
        elif function.startswith("extern_kernels."):
            kind, name = KernelKind.LIBRARY, function
            arguments = _operator_arguments(self._variables, call, lambda _argument: False)
        elif function.startswith(_OPERATORS):
            kind, name = KernelKind.FALLBACK, function
            arguments = _operator_arguments(self._variables, call, self._mutated(function))
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("copy_", "zero_", "fill_"):
            kind, name = KernelKind.FALLBACK, f"aten.{call.func.attr}"
            target = self._variables.argument(call.func.value, read=False, written=True)
            arguments = (target, *(self._variables.argument(a, read=True, written=False) for a in call.args))
        else:
            return None
        launch = Launch(
            nth=next(self._launches),
            kernel=name,
            kind=kind,
            arguments=arguments,
            result=result,
            line=node.lineno,
            column=node.col_offset,
            bases=self._variables.wholes(arguments),
            users_own=kernel is not None and kernel.language == "triton-user",
        )
        self._variables.hold(launch.writes)
        return launch

    def _function_called(self, call: ast.Call) -> str | None:
        match call.func:
            case ast.Name(id=name) if name in self._functions:
                return name
            case ast.Subscript(value=ast.Attribute(attr="partitions"), slice=ast.Constant(value=int(index))):
                return f"partition_{index}"
            case _:
                return None
