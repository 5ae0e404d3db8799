"""Programs that call one operator each: those of PyTorch's operator database, and those that modules register.

A program of the database is `OPERATOR/DTYPE/forward`, `backward` or `hard`: the first two on the arguments that PyTorch
tests it with, static and dynamic, contiguous and not; the last on the numbers that are hard to get right.
Importing it imports no torch.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchsan.errors import UsageError
from torchsan.sweep.programs import Program

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16", "int64", "bool", "uint8", "complex64")
WAYS = ("forward", "backward", "hard")

_TEXT = """\
import torch
from torchsan.sweep.operators import {source}

for op, args, kwargs, dynamic in {call}:
    torch.compiler.reset()
    compiled = torch.compile(lambda *args, **kwargs: op(*args, **kwargs), dynamic=dynamic)
    {run}
"""
_CALLED = "compiled(*args, **kwargs)"

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], bool]
"""An operator, arguments for it, and whether to compile it for dynamic shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which programs: globs of operators (all, if there are none), dtypes, ways of WAYS, and samples of each."""

    globs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    ways: tuple[str, ...] = WAYS
    samples: int = 4
    seed: int = 0

    def takes(self, name: str) -> bool:
        """Whether an operator of this name is among them."""
        return not self.globs or any(fnmatch.fnmatchcase(name, glob) for glob in self.globs)


def operator_programs(chosen: Chosen, loads: Mapping[str, str] | None = None) -> list[Program]:
    """Return the programs of the database, and of what modules register. It imports torch, and them.

    `loads` has the names of the modules, and what to import here: the same, or the path of a file. Raise UsageError if
    there are no such programs.
    """
    found = [*_database_programs(chosen), *_registered_programs(chosen, loads or {})]
    if not found:
        raise UsageError(
            f"no operator is called {' or '.join(chosen.globs)}, with these dtypes; names are those of Python, such as "
            "'nn.functional.*', and lib::name for those of --load",
            slug="no-operators",
        )
    return found


def _database_programs(chosen: Chosen) -> Iterator[Program]:
    from torchsan.torch_internals.operator_database import entries

    for entry in entries():
        if not chosen.takes(entry.name):
            continue
        for dtype in chosen.dtypes:
            ways = {
                "forward": dtype in entry.dtypes,
                "backward": dtype in entry.gradients,
                "hard": bool(entry.shape) and dtype in entry.dtypes and dtype != "bool",
            }
            for way in chosen.ways:
                if ways[way]:
                    yield _database_program(entry.name, entry.variant, dtype, way, entry.shape, chosen)


def _database_program(name: str, variant: str, dtype: str, way: str, shape: str, chosen: Chosen) -> Program:
    label = f"{name}.{variant}" if variant else name
    if way == "hard":
        source, call = "hard_calls", f"hard_calls({name!r}, {variant!r}, torch.{dtype}, {shape!r})"
    else:
        grad = ", gradients=True" if way == "backward" else ""
        source = "sample_calls"
        call = f"sample_calls({name!r}, {variant!r}, torch.{dtype}, {chosen.samples}, seed={chosen.seed}{grad})"
    run = f"backward({_CALLED})" if way == "backward" else _CALLED
    source = f"backward, {source}" if way == "backward" else source
    return Program(name=f"{label}/{dtype}/{way}", text=_TEXT.format(source=source, call=call, run=run))


def _registered_programs(chosen: Chosen, loads: Mapping[str, str]) -> Iterator[Program]:
    if not loads:
        return
    from torchsan.checks.metadata.registered import load_operators

    overloads, _ = load_operators(loads.values())
    for name in sorted(overload.name() for overload in overloads):
        if chosen.takes(name) or chosen.takes(name.partition(".")[0]):
            call = f"registered_calls({name!r}, {list(loads)!r})"
            yield Program(name=name, text=_TEXT.format(source="registered_calls", call=call, run=_CALLED))


def sample_calls(
    name: str, variant: str, dtype: torch.dtype, count: int, *, seed: int = 0, gradients: bool = False
) -> Iterator[Call]:
    """Yield calls of an operator of the database that work eagerly: every other one with dynamic shapes.

    The tensors of the third and fourth of four are not contiguous.
    """
    import torch

    from torchsan.torch_internals.operator_database import function_of, samples_of
    from torchsan.torch_internals.operators import map_tensors

    torch.manual_seed(seed)
    op = function_of(name, variant)
    for n, sample in enumerate(samples_of(name, variant, dtype, count, requires_grad=gradients)):
        args, kwargs = map_tensors(_strided, sample) if n % 4 >= 2 else sample
        if _works(op, args, kwargs):
            torch.manual_seed(seed + n)
            yield op, args, kwargs, n % 2 == 1


def _works(op: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether an operator takes the arguments, of which it gets copies: it may write to them."""
    import warnings

    from torchsan.checks.metadata.nodes import private_copy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            copied, named = private_copy((args, kwargs))
            op(*copied, **named)
        except Exception:  # noqa: BLE001  # what an operator does not take, it may refuse as it likes
            return False
    return True


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers with other strides: a matrix is transposed in memory, a vector has gaps."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dim() == 0 or tensor.numel() < 2:
        return tensor
    plain = tensor.detach()
    other = plain.mT.contiguous().mT if plain.dim() >= 2 else plain.repeat_interleave(2)[::2]
    return other.requires_grad_(tensor.requires_grad)


_FRACTIONS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 3.5, 1e-3, -7.25, 100.0, 1e4, -3e4)
_ENDS = (float("inf"), float("-inf"), float("nan"))
_WHOLE = (0, 1, 2, 3, 7, 31, 32, 63, 64, 100, 127, 128, 200, 255)
_LENGTH = 67
"""Longer than any vector register, and no multiple of one."""


def hard_numbers(dtype: torch.dtype) -> torch.Tensor:
    """Return numbers of a dtype that are hard to get right: ends of its range, signed zeros, halves, subnormals."""
    import torch

    if dtype.is_complex:
        real = hard_numbers(torch.float32)
        return torch.complex(real, real.flip(0)).to(dtype)
    if dtype.is_floating_point:
        about = torch.finfo(dtype)
        ends = (about.max, about.min, about.tiny, about.smallest_normal / 2, about.eps, 1 + about.eps)
        return torch.tensor([*_FRACTIONS, *_ENDS, *ends], dtype=torch.float64).to(dtype)
    limits = torch.iinfo(dtype)
    numbers = [n for n in (*_WHOLE, *(-n for n in _WHOLE), limits.max, limits.max - 1) if limits.min <= n <= limits.max]
    return torch.tensor(sorted({*numbers, limits.min + 1}), dtype=dtype)


def hard_calls(name: str, variant: str, dtype: torch.dtype, shape: str) -> Iterator[Call]:
    """Yield calls of an operator on hard numbers that work eagerly: on each of them, on pairs, or on rows."""
    import torch

    from torchsan.torch_internals.operator_database import function_of

    numbers = hard_numbers(dtype)
    op = function_of(name, variant)
    long = numbers.repeat(_LENGTH // len(numbers) + 1)[:_LENGTH]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    if shape == "unary":
        calls = [((long,), {})]
    elif shape == "binary":
        calls = [(tuple(torch.cartesian_prod(numbers, numbers).T.contiguous()), {})]
        if not _works(op, *calls[0]):  # Integers are not divided by zero.
            calls = [(tuple(torch.cartesian_prod(numbers, numbers[numbers != 0]).T.contiguous()), {})]
    else:
        finite = long[torch.isfinite(long)] if dtype.is_floating_point else long
        rows = torch.stack([long.roll(n) for n in range(4)])
        calls = [((rows,), {"dim": -1}), ((rows,), {"dim": 0}), ((finite.flip(0),), {"dim": 0})]
    for args, kwargs in calls:
        if _works(op, args, kwargs):
            torch.manual_seed(0)
            yield op, args, kwargs, False


def registered_calls(name: str, modules: Sequence[str]) -> Iterator[Call]:
    """Yield calls of an operator that one of the modules registers, with its samples, or those its schema allows."""
    from torchsan.checks.metadata.operator import generated_samples
    from torchsan.checks.metadata.registered import given_samples, load_operators
    from torchsan.torch_internals.operators import overloads_named

    _, samples = load_operators(modules)
    for overload in overloads_named([name]):
        given = given_samples(overload, samples) or [sample for _, sample in generated_samples(overload)]
        for args, kwargs in given:
            if _works(overload, args, kwargs):
                yield overload, args, kwargs, False


def backward(out: Any) -> None:
    """Take the gradients of all that a call returned, with random numbers for what comes from behind."""
    import torch

    from torchsan.torch_internals.operators import flatten

    found = [t for t in flatten(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    if found:
        torch.autograd.backward(found, [torch.randn_like(t) for t in found])
