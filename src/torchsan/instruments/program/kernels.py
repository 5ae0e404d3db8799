"""The kernels that a wrapper defines: which of their parameters they read and write, by language.

C++: `name = async_compile.cpp_pybinding(['const float*', 'float*', 'const int64_t'], r'''…''')`.
Triton: `name = async_compile.triton('name', '''… def name(in_ptr0, out_ptr1, xnumel, XBLOCK : tl.constexpr): …''')`.
"""

from __future__ import annotations

import ast
import re

from torchsan.instruments.program.model import KernelDef

__all__ = ["kernel_definitions"]


def kernel_definitions(tree: ast.Module) -> dict[str, KernelDef]:
    """Return the kernels that the module's top level defines, by name."""
    kernels = {}
    for node in tree.body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Attribute(value=ast.Name(id="async_compile"), attr=language), args=args),
            ):
                kernel = _definition(name, language, args)
                if kernel is not None:
                    kernels[name] = kernel
    return kernels


def _definition(name: str, language: str, args: list[ast.expr]) -> KernelDef | None:
    source = next((a.value for a in reversed(args) if isinstance(a, ast.Constant) and isinstance(a.value, str)), "")
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
    signature = source[source.find("kernel(") :].split(")", 1)[0]
    in_out = ["in_out_ptr" in parameter for parameter in signature.split(",")]
    writes = tuple(None if "*" not in t else not t.startswith("const ") for t in types)
    reads = tuple(not w or (i < len(in_out) and in_out[i]) for i, w in enumerate(writes))
    return KernelDef(name=name, language="cpp", writes=writes, reads=reads, source=source)


def _triton(name: str, source: str) -> KernelDef | None:
    parameters = _triton_parameters(source)
    if parameters is None:
        return None
    mutated = re.search(r"'mutated_arg_names': \[([^\]]*)\]", source)
    mutated_names = set(re.findall(r"'([^']+)'", mutated[1])) if mutated else set()
    writes: list[bool | None] = []
    reads = []
    for parameter in parameters:
        pointer = "ptr" in parameter or parameter.startswith("arg_")
        written = parameter in mutated_names or parameter.startswith(("out_ptr", "in_out_ptr", "ws_ptr"))
        writes.append(written if pointer else None)
        reads.append(not parameter.startswith("out_ptr"))
    return KernelDef(name=name, language="triton", writes=tuple(writes), reads=tuple(reads), source=source)


def _triton_parameters(source: str) -> list[str] | None:
    """The parameters of the jitted function inside a Triton kernel's source, found by parsing that source."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            return [a.arg for a in node.args.args]
    return None


def _unknown(name: str, language: str, source: str) -> KernelDef | None:
    """A kernel in a language whose signature is not known: every argument may be read and written."""
    if language in ("wait", "cpp"):
        return None
    return KernelDef(name=name, language=language, writes=(), reads=(), source=source)
