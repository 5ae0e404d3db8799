"""What a file holds to be refereed: a kernel, its reference and its inputs, by name or by convention.

Files are imported in the processes that use what is in them, never in the one that the user waits for.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache, update_wrapper
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch

from torchsan.errors import UsageError
from torchsan.kernels.judging import Nothing
from torchsan.kernels.worker import overload_of, schema_of

KERNELS = ("kernel", "ModelNew", "solution", "forward")
REFERENCES = ("reference", "ref", "reference_kernel", "Model", "ref_kernel")
INPUTS = ("inputs", "make_inputs", "get_inputs", "example_inputs", "example", "generate_input")
_TRITON = ("JITFunction", "InterpretedFunction", "Autotuner", "Heuristics")
_DECORATION = re.compile(
    r"^(triton|fused|my|custom|fast|cuda|new|naive|good|bad)_|_(kernel|triton|op|impl|fwd|forward|v\d+)$"
)


def split(target: str) -> tuple[Path, str | None]:
    """Split `FILE[:NAME]`. Raise UsageError if there is no such file."""
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        file, name = target, ""
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"no such file: {file}", slug="no-module")
    return path, name or None


@cache
def load(path: Path) -> ModuleType:
    """Import a file; once, also for processes forked later, since operators cannot be registered twice.

    Raise UsageError if that fails.
    """
    name = path.stem if path.stem not in sys.modules else f"_torchsan_kernel_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file", slug="no-module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent.resolve()) not in sys.path:
        sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        raise UsageError(f"{path} cannot be imported: {type(e).__name__}: {str(e)[:300]}", slug="bad-kernel") from e
    return module


def find(path: Path, name: str | None, conventions: Sequence[str], what: str) -> Any:
    """Return what a file calls by this name, or by one of the conventions. Raise UsageError if there is none."""
    module = load(path)
    if name is not None:
        if not hasattr(module, name):
            raise UsageError(f"{path} has no {name}", slug="bad-kernel")
        return getattr(module, name)
    for each in conventions:
        if hasattr(module, each):
            return getattr(module, each)
    raise UsageError(
        f"{path} has no {what} by a usual name ({', '.join(conventions)}); name it: {path.name}:NAME", slug="bad-kernel"
    )


def made(value: Any, module_file: Path) -> Any:
    """A function as it is; of a class of modules, an object, with the same weights whoever makes it."""
    if isinstance(value, type):
        module = sys.modules.get(value.__module__)
        arguments: list[Any] = getattr(module, "get_init_inputs", list)()
        torch.manual_seed(0)
        value = value(*arguments)
    if is_triton(value):
        return launching(value, getattr(load(module_file), "grid", None))
    if not callable(value):
        raise UsageError(f"the kernel in {module_file} cannot be called", slug="bad-kernel")
    return value


def is_triton(kernel: Any) -> bool:
    """Whether it is a `@triton.jit` function, which needs a grid to be called."""
    return type(kernel).__name__ in _TRITON


def launching(kernel: Any, grid: Any) -> Callable[..., None]:
    """A function that launches a Triton kernel with this grid, a tuple or a function as Triton takes it.

    Raise UsageError if there is none.
    """
    name = getattr(kernel, "__name__", None) or getattr(getattr(kernel, "fn", None), "__name__", "the kernel")
    if grid is None:
        raise UsageError(
            f"{name} is a Triton kernel without a grid; give its file a `grid`, check_kernel a grid=, "
            "or name a function that launches it",
            slug="bad-kernel",
        )

    def launch(*args: Any) -> None:
        kernel[grid](*args)

    function = kernel
    while not isinstance(function, FunctionType) and hasattr(function, "fn"):
        function = function.fn
    update_wrapper(launch, function)
    launch.torchsan_grid = grid  # type: ignore[attr-defined]  # ours
    return launch


def example(value: Any, seed: int) -> tuple[tuple[Any, ...], Callable[[int], tuple[Any, ...]] | None]:
    """The example that was given, and the function from seeds to others, if it was one."""
    if not callable(value):
        return _tuple(value), None
    if not _takes_a_seed(value):
        torch.manual_seed(seed)
        return _tuple(value()), None

    def inputs(number: int) -> tuple[Any, ...]:
        return _tuple(value(number))

    return inputs(seed), inputs


def _tuple(value: Any) -> tuple[Any, ...]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if not isinstance(value, tuple | list):
        raise UsageError("the inputs are a tuple of arguments, or a function that gives one", slug="bad-inputs")
    return tuple(value)


def claimed(kernel: Any, args: tuple[Any, ...]) -> Callable[..., Any]:
    """The operator of PyTorch that a kernel is named after and agrees with on its example in shape and dtype.

    Raise UsageError if there is none.
    """
    schema = schema_of(kernel)
    name = schema.name.rpartition("::")[2] if schema else str(getattr(kernel, "__name__", "") or kernel)
    for word in _names(name):
        for owner in (torch.nn.functional, torch, torch.special, torch.linalg):
            function = getattr(owner, word, None)
            if callable(function) and _takes(function, args):
                return function  # type: ignore[no-any-return]  # of a module
    raise UsageError(
        f"nothing says what {name} should compute, and PyTorch has no operator of that name that takes the example; "
        "give a reference",
        slug="no-reference",
    )


def claimed_or_nothing(kernel: Any, args: tuple[Any, ...]) -> Callable[..., Any] | Nothing:
    """The operator that a kernel is named after; for an operator of a library, what it declares if there is none.

    Raise UsageError if there is nothing at all.
    """
    try:
        return claimed(kernel, args)
    except UsageError:
        if schema_of(kernel) is None:
            raise
        return Nothing(operator=overload_of(kernel))


def _names(name: str) -> list[str]:
    found = [name]
    while (shorter := _DECORATION.sub("", found[-1])) != found[-1]:
        found.append(shorter)
    return [n for n in found if n.isidentifier()]


def _takes(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    try:
        with torch.random.fork_rng(devices=[]):
            return isinstance(function(*args), torch.Tensor)
    except Exception:  # noqa: BLE001  # it says that it does not
        return False


def _takes_a_seed(function: Callable[..., Any]) -> bool:
    """Whether a function that gives inputs takes a seed."""
    try:
        return bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return True
