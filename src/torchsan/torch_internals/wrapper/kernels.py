"""The kernels that a wrapper defines: which of their parameters they read and write, by language.

C++: `name = async_compile.cpp_pybinding(['const float*', 'float*', 'const int64_t'], r'''…''')`.
Triton: `name = async_compile.triton('name', '''… def name(in_ptr0, out_ptr1, xnumel, XBLOCK : tl.constexpr): …''')`.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from typing import Any

from torchsan.torch_internals.wrapper.model import KernelDef
from torchsan.torch_internals.wrapper.stores import stored_parameters


def kernel_definitions(tree: ast.Module) -> dict[str, KernelDef]:
    """Return the kernels that the module's top level defines, by name."""
    kernels = {}
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Attribute(value=ast.Name(id="async_compile"), attr=language), args=args),
            ):
                text = next(
                    (a for a in reversed(args) if isinstance(a, ast.Constant) and isinstance(a.value, str)), None
                )
                kernel = _definition(name, language, args, str(text.value) if text is not None else "")
                if kernel is not None:
                    lines = (text.lineno, text.end_lineno or text.lineno) if text is not None else (0, 0)
                    kernels[name] = dataclasses.replace(kernel, lines=lines)
    return kernels


def _definition(name: str, language: str, args: list[ast.expr], source: str) -> KernelDef | None:
    match language:
        case "cpp_pybinding" if args and isinstance(args[0], ast.List):
            types = [e.value for e in args[0].elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
            return _cpp(name, types, source)
        case "triton":
            return _triton(name, source)
        case _:
            return _unknown(name, language, source)


def _cpp(name: str, types: list[str], source: str) -> KernelDef:
    # `in_out_ptr0` holds a value that the kernel reads and replaces; its type alone doesn't tell it from an output.
    parameters = _cpp_parameters(source)
    in_out = ["in_out_ptr" in p for p in parameters] if len(parameters) == len(types) else [True] * len(types)
    writes = tuple(None if "*" not in t else not t.startswith("const ") for t in types)
    reads = tuple(not w or i for w, i in zip(writes, in_out, strict=True))
    return KernelDef(name=name, language="cpp", writes=writes, reads=reads, source=source)


def _cpp_parameters(source: str) -> list[str]:
    """The parameters of the function that the wrapper calls: the one with C linkage, `kernel`."""
    _, found, rest = source.rpartition('extern "C"')
    _, opened, parameters = rest.partition("kernel(")
    return parameters.split(")", 1)[0].split(",") if found and opened else []


def _triton(name: str, source: str) -> KernelDef | None:
    function = _jitted(source)
    if function is None:
        return None
    types = _setting(function, "triton_meta", "signature") or {}
    mutated = _setting(function, "inductor_meta", "mutated_arg_names")
    if mutated is None and _is_template(function):
        # Templates do not say which of their arguments they overwrite (attention its statistics), but their code does.
        mutated = stored_parameters(function, ast.parse(source))
    if mutated is None:
        # A kernel of the user's own: nothing says what it writes, so everything may be.
        parameters = tuple(a.arg for a in function.args.args if not _is_constexpr(a))
        return KernelDef(name=name, language="triton-user", writes=(), reads=(), source=source, parameters=parameters)
    writes: list[bool | None] = []
    reads = []
    for parameter in (a.arg for a in function.args.args):
        pointer = "ptr" in parameter or str(types.get(parameter, "")).startswith("*")
        written = parameter in mutated or parameter.startswith(("out_ptr", "in_out_ptr", "ws_ptr"))
        writes.append(written if pointer else None)
        reads.append(not parameter.startswith("out_ptr"))
    return KernelDef(name=name, language="triton", writes=tuple(writes), reads=tuple(reads), source=source)


def _is_template(function: ast.FunctionDef) -> bool:
    """Whether Inductor made the kernel from a template: `@triton_heuristics.template(…)`."""
    calls = (d.func for d in function.decorator_list if isinstance(d, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr == "template" for f in calls)


def _is_constexpr(parameter: ast.arg) -> bool:
    return parameter.annotation is not None and "constexpr" in ast.unparse(parameter.annotation)


def _jitted(source: str) -> ast.FunctionDef | None:
    """The decorated function inside a Triton kernel's source."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    decorated = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list)
    # Helpers are jitted too; the kernel itself is the one with the heuristics on it, and the last.
    return max(decorated, key=lambda n: (len(n.decorator_list), n.lineno), default=None)


def _setting(function: ast.FunctionDef, argument: str, key: str) -> Any:
    """The value of `key` in the dictionary that a decorator takes as `argument`, or None."""
    for decorator in function.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg == argument and isinstance(keyword.value, ast.Dict):
                for name, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                    if isinstance(name, ast.Constant) and name.value == key:
                        try:
                            return ast.literal_eval(value)
                        except ValueError:
                            return None
    return None


def _unknown(name: str, language: str, source: str) -> KernelDef | None:
    """A kernel in a language whose signature is not known: every argument may be read and written."""
    if language in ("wait", "cpp"):
        return None
    return KernelDef(name=name, language=language, writes=(), reads=(), source=source)


_PREFIXES = {
    "aten": "aten",
    "inductor_ops": "inductor",
    "_quantized": "_quantized",
    "prims": "prims",
}
"""How a wrapper abbreviates the namespaces of `torch.ops`."""


def mutated_arguments(operator: str) -> Callable[[int | str], bool]:
    """Return whether the operator, named as in a wrapper (`torch.ops.aten.index_put_.default`), writes an argument.

    Without an overload's name any overload that writes the argument counts. An unknown operator is taken to write
    nothing.
    """
    overloads = _overloads(operator)

    def mutated(argument: int | str) -> bool:
        return any(_writes(overload, argument) for overload in overloads)

    return mutated


def gives_a_view(operator: str) -> bool:
    """Return whether the operator, named as in a wrapper, writes nothing and its result lies in what it is given."""
    return any(
        not o._schema.is_mutable and any(r.alias_info is not None for r in o._schema.returns)
        for o in _overloads(operator)
    )


def _overloads(operator: str) -> list[Any]:
    import torch

    parts = operator.removeprefix("torch.ops.").split(".")
    namespace = _PREFIXES.get(parts[0], parts[0])
    try:
        packet = getattr(getattr(torch.ops, namespace), parts[1])
        if len(parts) > 2:
            return [getattr(packet, parts[2])]
        return [getattr(packet, name) for name in packet.overloads()]
    except (AttributeError, IndexError):
        return []


def _writes(overload: Any, argument: int | str) -> bool:
    arguments = overload._schema.arguments
    if isinstance(argument, int):
        chosen = arguments[argument : argument + 1]
    else:
        chosen = [a for a in arguments if a.name == argument]
    return any(a.alias_info is not None and a.alias_info.is_write for a in chosen)
