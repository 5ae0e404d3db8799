"""Operators run on tensors without data: as FakeTensor, with symbolic sizes, on the meta device, decomposed.

Nothing is left behind: each run has a mode of its own, and does not fill FakeTensor's global cache. Importing this
module imports torch.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torchsan.torch_internals.operators import map_tensors, start_autograd


def bind_symbols(graph: torch.fx.Graph, inputs: Iterable[Any]) -> dict[Any, Any]:
    """The value of each symbol that is itself a size, a stride or a number among the inputs."""
    symbols: dict[Any, Any] = {}
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for node, value in zip(placeholders, inputs, strict=False):
        believed = node.meta.get("val")
        pairs: list[tuple[Any, Any]]
        if isinstance(believed, torch.Tensor) and isinstance(value, torch.Tensor):
            pairs = list(zip(believed.shape, value.shape, strict=False))
            pairs += zip(believed.stride(), value.stride(), strict=False)
            pairs.append((believed.storage_offset(), value.storage_offset()))
        else:
            pairs = [(believed, value)]
        for symbolic, actual in pairs:
            expression = getattr(getattr(symbolic, "node", None), "expr", None)
            # The ragged size of a jagged tensor stands for many numbers, and is none.
            known = isinstance(actual, int | float) and not math.isnan(actual)
            if known and expression is not None and getattr(expression, "is_Symbol", False):
                symbols.setdefault(expression, actual)
    return symbols


def has_symbols(value: Any) -> bool:
    """Whether a value is a symbolic number, or a tensor one of whose sizes, strides or offset is."""
    if isinstance(value, torch.Tensor):
        return any(not isinstance(n, int) for n in (*value.shape, *value.stride(), value.storage_offset()))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def symbol_value(value: Any, symbols: Mapping[Any, Any]) -> Any:
    """The value of a symbolic number, or None if it depends on something unknown, such as data."""
    if isinstance(value, int | float | bool):
        return value
    expression = value.node.expr
    result = expression.xreplace(dict(symbols)) if hasattr(expression, "xreplace") else expression
    if getattr(result, "free_symbols", None):
        return None
    if isinstance(value, torch.SymBool):
        return bool(result)
    return int(result) if isinstance(value, torch.SymInt) else float(result)


class CannotFakeError(Exception):
    """The operator cannot be run without data; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRun:
    """What an operator returned, and the tensors it was given, in the order of the real ones."""

    result: Any
    inputs: tuple[Any, ...]


def run_fake(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, symbolic: bool = False, instead: Any = None
) -> FakeRun:
    """Run `func` on fakes of the tensors among its arguments; they share storages where the real ones do.

    With `symbolic`, every size of two or more is a symbol. `instead` runs in the place of `func`: a decomposition.
    Raise CannotFakeError if there is no fake kernel, it needs data, or it fails.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    target = func if instead is None else instead
    try:
        if not symbolic:
            return _run(target, args, kwargs, environment=None)
    except (DataDependentOutputException, DynamicOutputShapeException):
        pass  # Sizes that depend on data need an environment, which costs more.
    except Exception as e:
        raise CannotFakeError(_reason(e)) from e
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    try:
        return _run(target, args, kwargs, environment=ShapeEnv(), symbolic=symbolic)
    except Exception as e:
        raise CannotFakeError(_reason(e)) from e


def _run(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, environment: Any, symbolic: bool = False
) -> FakeRun:
    from torch._subclasses.fake_tensor import FakeTensorMode

    start_autograd()
    with _alone():
        mode = FakeTensorMode(shape_env=environment, allow_fallback_kernels=False)
        mode.cache_enabled = False
        mode.allow_scalar_outputs = environment is not None
        make = _Faker(mode, symbolic)
        fake_args, fake_kwargs = map_tensors(make, (args, kwargs))
        with mode:
            result = target(*fake_args, **fake_kwargs)
    if result is NotImplemented:
        raise NotImplementedError("it is not implemented for these arguments")
    return FakeRun(result=result, inputs=tuple(make.made))


def run_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FakeRun:
    """Run `func` on the meta device: its meta kernel, whatever FakeTensor does. Raise CannotFakeError without one."""
    made: list[Any] = []

    def move(t: Any) -> Any:
        if isinstance(t, torch.device):
            return torch.device("meta")
        if not isinstance(t, torch.Tensor):
            return t
        if t.layout is not torch.strided:
            raise CannotFakeError(f"no meta tensor with layout {t.layout}")
        base = torch.empty(t.untyped_storage().nbytes() // t.element_size(), dtype=t.dtype, device="meta")
        made.append(base.as_strided(t.shape, t.stride(), t.storage_offset()).requires_grad_(t.requires_grad))
        return made[-1]

    try:
        with _alone():
            meta_args, meta_kwargs = pytree.tree_map(move, (args, kwargs))
            return FakeRun(result=func(*meta_args, **meta_kwargs), inputs=tuple(made))
    except CannotFakeError:
        raise
    except Exception as e:
        raise CannotFakeError(_reason(e)) from e


@contextmanager
def _alone() -> Iterator[None]:
    """Unseen by the user's modes, without the warnings that the real call gives anyway, silent on failure."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    silent = log.disabled
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(_disable_current_modes())
        stack.callback(setattr, log, "disabled", silent)
        log.disabled = True  # It would report on standard error what becomes a `skipped` here.
        yield


class _Faker:
    """Makes one fake a tensor, however often it is passed."""

    def __init__(self, mode: Any, symbolic: bool) -> None:
        self._mode = mode
        self._symbolic = symbolic
        self._known: dict[int, Any] = {}
        self._kept: list[Any] = []
        self.made: list[Any] = []

    def __call__(self, t: torch.Tensor) -> Any:
        if id(t) not in self._known:
            # Without its history: a view would drag its base along, and a parameter its gradient.
            plain = t.data
            self._kept.append(plain)
            fake = self._mode.from_tensor(plain, **self._context(plain))
            if t.requires_grad and not _transformed():
                fake.requires_grad_(True)
            self._known[id(t)] = fake
        self.made.append(self._known[id(t)])
        return self.made[-1]

    def _context(self, t: torch.Tensor) -> dict[str, Any]:
        if not self._symbolic:
            return {"static_shapes": True}
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        dynamic = [DimDynamic.DYNAMIC if n > 1 else DimDynamic.STATIC for n in t.shape]
        context: Any = StatelessSymbolicContext(dynamic_sizes=dynamic)
        return {"symbolic_context": context, "source": ConstantSource(f"argument_{len(self._kept)}")}


def _transformed() -> bool:
    """Whether a function of `torch.func` is running, which forbids to mark tensors for autograd."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def known_number(value: Any) -> Any:
    """The number that a size is, by the sizes it was derived from; None if it depends on data."""
    if isinstance(value, int | float | bool):
        return value
    node = getattr(value, "node", None)
    try:
        if node is None or not node.has_hint():
            return None
        return node.hint
    except Exception:  # noqa: BLE001  # an unbacked symbol says so in several ways
        return None


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160] if text else ''}"
