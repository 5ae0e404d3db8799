"""From the call of a kernel to a `Launch`: what it reads, writes and takes as numbers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from torchsan.instruments.program.model import Argument, KernelDef, Launch
from torchsan.instruments.program.variables import Variables
from torchsan.records import KernelKind

__all__ = ["Launches", "MutatedArguments"]

MutatedArguments = Callable[[str], Callable[[int | str], bool]]
"""From an operator's dotted name to a predicate: is the argument at this position, or of this name, written?"""

_OPERATORS = ("torch.ops.", "aten.", "inductor_ops.", "_quantized.", "prims.")


class Launches:
    """Recognises launches, and numbers them in the order of the source."""

    def __init__(self, kernels: dict[str, KernelDef], mutated: MutatedArguments, counter: Iterator[int]) -> None:
        self._kernels = kernels
        self._mutated = mutated
        self._counter = counter

    def launch(
        self, variables: Variables, call: ast.Call, function: str, result: str | None, node: ast.stmt
    ) -> Launch | None:
        """Return the launch that `call`, of `function`, is; None if it is none."""
        kernel = self._kernels.get(function.split(".")[0])
        if kernel is not None:
            kind, name, arguments = KernelKind.FUSED, kernel.name, _fused_arguments(variables, call, kernel)
        elif function.startswith("extern_kernels."):
            kind, name = KernelKind.LIBRARY, function
            arguments = _operator_arguments(variables, call, lambda _argument: False)
        elif function.startswith(_OPERATORS):
            kind, name = KernelKind.FALLBACK, function
            arguments = _operator_arguments(variables, call, self._mutated(function))
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("copy_", "zero_", "fill_"):
            kind, name = KernelKind.FALLBACK, f"aten.{call.func.attr}"
            target = variables.argument(call.func.value, read=False, written=True)
            arguments = (target, *(variables.argument(a, read=True, written=False) for a in call.args))
        else:
            return None
        return Launch(
            nth=next(self._counter),
            kernel=name,
            kind=kind,
            arguments=arguments,
            result=result,
            line=node.lineno,
            column=node.col_offset,
            bases=variables.wholes(arguments),
        )


def _fused_arguments(variables: Variables, call: ast.Call, kernel: KernelDef) -> tuple[Argument, ...]:
    arguments = []
    for i, value in enumerate(call.args):
        known = i < len(kernel.writes)
        # Of a kernel in an unknown language every argument may be read and written.
        written = bool(kernel.writes[i]) if known else kernel.language not in ("cpp", "triton")
        read = kernel.reads[i] if known else True
        arguments.append(variables.argument(value, read=read, written=written))
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
