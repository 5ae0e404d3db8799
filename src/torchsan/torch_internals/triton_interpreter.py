"""Triton's own interpreter, mended: it runs `@triton.jit` functions where there is no GPU.

    with interpreting():
        kernel[(1,)](x, y, 8)

Mends of the interpreter (triton 3.7.1; 3.9.0 needs fewer):

- functions of libdevice are stubs that return None: they get PyTorch's meaning (`_libdevice`);
- a reduction or scan with a function of its own calls it once an element: it is done by halves (`_reduce`, `_scan`);
- the language is patched again at every call of a device function and never restored: once a launch (`_Language`);
- what it needs to run a function it writes into the user's module: into a copy of its names (`_Rewriter`);
- real numbers among the arguments stay Python's, which have no type: they become tensors (`_argument`);
- casts of float32 to bfloat16 truncate, and those of other types to bfloat16 give the number's integer as bits
  (`_cast`); arithmetic and products of bfloat16 work on the bits (`_on_numbers`, `_dot`);
- `tl.minimum` and `tl.maximum` give NaN where one operand is, unasked (`mended`);
- `and` and `or` between blocks ask for the truth of the whole: they are made element by element (`_Logic`);
- a dtype among the arguments is no constant, whose `value` it would be: it is its own (`mended`);
- a mask that was computed with integers is one of integers, which 3.9.0 refuses (`_masked`);
- atomics read a broadcast value (stride 0) as if it were contiguous (`_atomic`).

Importing it imports Triton.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

Array = np.ndarray[Any, Any]


@contextmanager
def mended() -> Iterator[None]:
    """Have the interpreter as described above; everything is as before afterwards."""
    builder = interpreter.InterpreterBuilder
    with ExitStack() as stack:

        def change(target: Any, name: str, value: Any) -> None:
            stack.enter_context(patch.object(target, name, value))

        change(JITFunction, "__call__", lambda self, *a, **k: interpreted(self).rewrite()(*a, **k))
        change(interpreter, "_patch_lang", _Language)
        change(interpreter, "_implicit_cvt", _argument(interpreter._implicit_cvt))
        change(interpreter.ReduceOps, "generic_reduce", _reduce)
        change(interpreter.ScanOps, "generic_scan", _scan)
        change(builder, "create_minnumf", lambda self, a, b: self.binary_op(a, b, np.fmin))
        change(builder, "create_maxnumf", lambda self, a, b: self.binary_op(a, b, np.fmax))
        stack.enter_context(patch.object(tl.dtype, "value", property(lambda self: self), create=True))
        for name, mend in _MENDS.items():
            change(builder, name, mend(getattr(builder, name)))
        for name, function in _libdevice():
            change(libdevice, name, function)
        yield


@contextmanager
def interpreting() -> Iterator[None]:
    """Interpret every Triton kernel that is launched, on CPU tensors; everything is as before afterwards.

    An autotuner takes its first configuration, because nothing can be timed.
    """
    with ExitStack() as stack:
        stack.enter_context(mended())
        # Not `reset_active`, which asks for a driver that a machine without a GPU does not have.
        stack.enter_context(patch.object(triton.runtime.driver, "_active", Driver()))
        # A list, as of quantiles: tuners that are derived from Triton's take it apart.
        times = lambda self, *_, config, **__: [float(self.configs.index(config))] * 3  # noqa: E731  # a method
        stack.enter_context(patch.object(Autotuner, "_bench", times))
        stack.enter_context(patch.object(JITFunction, "run", _launch))
        yield


class Driver(DriverBase):  # type: ignore[misc]  # Triton leaves it without types
    """Names a target: that of a GPU, for the front end that tells which arguments a user's kernel writes."""

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_benchmarker(self) -> Any:
        return triton.testing.do_bench

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None: ...

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def _launch(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
    with np.errstate(all="ignore"):  # Lanes that a mask hides may divide by zero.
        return interpreted(self).run(*args, grid=grid, warmup=warmup, **kwargs)


# Functions


_twins: dict[Any, Any] = {}
"""By the Python functions. Not kept by the kernels, whose attributes are the program's, and may be looked at."""


def interpreted(function: Any) -> Any:
    """The interpreted twin of a `@triton.jit` function."""
    twin = _twins.get(function.fn)
    if twin is None:
        twin = _twins[function.fn] = interpreter.InterpretedFunction(function.fn)
        twin.rewriter = _Rewriter(function.fn)
        twin.rewritten_fn = {}  # Of its own: the interpreter's would hold what it has rewritten before.
    return twin


class _Rewriter(interpreter.FunctionRewriter):  # type: ignore[misc]  # Triton leaves it without types
    """Leaves the namespace of the user's module alone."""

    def _compile_and_exec(self, transformed_ast: Any) -> Any:
        names = {**vars(interpreter), **self.fn.__globals__, **_LOGIC}
        meanings = dict(_libdevice())
        for name, value in self.fn.__globals__.items():
            # Imported by itself, before anything was mended.
            if str(getattr(value, "__module__", "")).endswith(".libdevice") and value.__name__ in meanings:
                names[name] = meanings[value.__name__]
        transformed_ast = ast.fix_missing_locations(_Logic().visit(transformed_ast))
        code = compile(transformed_ast, filename=self.filename, mode="exec")
        found: dict[str, Any] = dict(self.kwargs)
        exec(code, names, found)  # noqa: S102  # The user's own function, which Triton has rewritten.
        return found[self.fn.__name__]


def _logical(method: str, ends: bool) -> Callable[..., Any]:
    """`and`, or `or`, which ends at what is false, or true: of blocks, as Triton's compiler understands it."""

    def combined(*operands: Callable[[], Any]) -> Any:
        kept = value = None
        for operand in operands:
            value = operand()
            if isinstance(value, tl.tensor) and value.type.is_block():
                kept = value if kept is None else getattr(kept, method)(value)
            elif bool(value) is ends:
                return value
        return value if kept is None else kept

    return combined


_LOGIC = {"_torchsan_and": _logical("logical_and", False), "_torchsan_or": _logical("logical_or", True)}


class _Logic(ast.NodeTransformer):
    """Calls functions for `and` and `or`, whose operands are computed as far as they are needed."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        operands: list[ast.expr] = [ast.Lambda(args=nothing, body=value) for value in node.values]
        name = "_torchsan_and" if isinstance(node.op, ast.And) else "_torchsan_or"
        call = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=operands, keywords=[])
        return ast.copy_location(call, node)


def _argument(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def converted(arg: Any) -> Any:
        if not isinstance(arg, float):
            return original(arg)
        return tl.tensor(interpreter.interpreter_builder.get_fp32(arg), tl.float32)

    return converted


_patch_language = interpreter._patch_lang


class _Language:
    """The language as the interpreter has it, until the outermost launch ends."""

    _depth = 0
    _scope: Any = None
    __globals__: ClassVar[dict[str, Any]] = {"tl": tl, "core": tl.core}

    def __init__(self, function: object) -> None:
        if _Language._depth == 0:
            _Language._scope = _patch_language(_Language)
        _Language._depth += 1

    def restore(self) -> None:
        _Language._depth -= 1
        if _Language._depth == 0:
            _Language._scope.restore()


# libdevice


def _libdevice() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The functions that Inductor's Triton calls, by name."""
    for name in (
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
        "erf erfc erfinv ceil floor trunc lgamma pow atan2 fmod hypot copysign nextafter"
    ).split():
        yield name, _elementwise(getattr(torch, name))
    for name in ("isnan", "isinf", "signbit"):
        yield name, _elementwise(getattr(torch, name), tl.int32)
    for name in ("finitef", "isfinited"):
        yield name, _elementwise(torch.isfinite, tl.int32)
    yield "nearbyint", _elementwise(torch.round)
    yield "rint", _elementwise(torch.round)
    yield "round", _elementwise(lambda x: torch.trunc(x + torch.sign(x) * 0.5))
    yield "llrint", _elementwise(torch.round, tl.int64)
    yield "div_rn", _elementwise(torch.div)
    yield "fast_dividef", _elementwise(torch.div)
    yield "fast_expf", _elementwise(torch.exp)
    yield "fast_tanhf", _elementwise(torch.tanh)
    yield "cyl_bessel_i0", _elementwise(torch.special.i0)
    yield "cyl_bessel_i1", _elementwise(torch.special.i1)
    yield "j0", _elementwise(torch.special.bessel_j0)
    yield "j1", _elementwise(torch.special.bessel_j1)
    yield "normcdfinv", _elementwise(torch.special.ndtri)


def _elementwise(function: Callable[..., torch.Tensor], result: Any = None) -> Callable[..., Any]:
    """A function of the language from one of PyTorch; `result` is its type if that is not the operand's."""

    def called(*operands: Any, **_: Any) -> Any:
        semantic = interpreter.interpreter_semantic
        args = [semantic.to_tensor(a) for a in operands]
        if len(args) == 2:
            args = list(semantic.binary_op_type_checking_impl(*args, False, False, False))
        ty = args[0].type.scalar if result is None else result
        data = function(*(torch.from_numpy(a.handle.data.copy()) for a in args)).numpy()
        handle = interpreter.TensorHandle(data.astype(interpreter._get_np_dtype(ty)), ty)
        if ty.is_floating():  # As every operation on one operand: whoever rounds those rounds this.
            handle = interpreter.interpreter_builder.unary_op(handle, np.positive)
        return tl.tensor(handle, tl.block_type(ty, list(data.shape)) if args[0].type.is_block() else ty)

    return called


# Reductions and scans


def _combined(function: Any, left: list[Array], right: list[Array], types: list[Any]) -> list[Array]:
    def tensors(arrays: list[Array]) -> Iterator[Any]:
        for array, ty in zip(arrays, types, strict=True):
            data = np.ascontiguousarray(array, dtype=interpreter._get_np_dtype(ty))
            yield tl.tensor(interpreter.TensorHandle(data, ty), tl.block_type(ty, list(data.shape)))

    results = function.fn(*tensors(left), *tensors(right))
    results = results if isinstance(results, tuple | tl.tuple) else (results,)
    return [np.broadcast_to(r.handle.data, left[0].shape) for r in results]


def _reduce(self: Any, operands: tuple[Any, ...]) -> list[Any]:
    """`ReduceOps.generic_reduce` by halves: the functions are associative, and may be told so by Triton itself."""
    whole = self.axis is None
    rank = operands[0].handle.data.ndim
    operands, axis = self.unravel(operands, self.axis)
    axis %= operands[0].handle.data.ndim
    types, data = [o.dtype for o in operands], [o.handle.data for o in operands]
    while (n := data[0].shape[axis]) > 1:
        low, high, rest = (
            [d.take(part, axis) for d in data]
            for part in (range(n // 2), range(n // 2, n // 2 * 2), range(n // 2 * 2, n))
        )
        data = _combined(self.combine_fn, low, high, types)
        if n % 2:
            data = [np.concatenate(both, axis) for both in zip(data, rest, strict=True)]
    if whole:
        data = [d.reshape([1] * rank) if self.keep_dims else d.item() for d in data]
    elif not self.keep_dims:
        data = [d.squeeze(axis) for d in data]
    return [self.to_tensor(d, ty) for d, ty in zip(data, types, strict=True)]


def _scan(self: Any, operands: tuple[Any, ...]) -> list[Any]:
    """`ScanOps.generic_scan` in steps that double."""
    types, data = [o.dtype for o in operands], [o.handle.data for o in operands]
    axis = self.axis % data[0].ndim
    place = np.arange(data[0].shape[axis]).reshape([-1 if i == axis else 1 for i in range(data[0].ndim)])
    step = 1
    while step < data[0].shape[axis]:
        both = _combined(self.combine_fn, [np.roll(d, step, axis) for d in data], data, types)
        data = [np.where(place < step, d, b) for d, b in zip(data, both, strict=True)]
        step *= 2
    return [self.to_tensor(d, ty) for d, ty in zip(data, types, strict=True)]


# Casts, products and atomics


def _numbers(handle: Any) -> Array:
    """The elements as numbers; the interpreter keeps those of bfloat16 as their bits."""
    if handle.get_element_ty() != tl.bfloat16:
        return np.asarray(handle.data)
    bits = torch.from_numpy(np.ascontiguousarray(handle.data).view(np.int16).reshape(handle.data.shape))
    return np.asarray(bits.view(torch.bfloat16).float().numpy())


def _cast(original: Callable[..., Any]) -> Callable[..., Any]:
    def cast(self: Any, source: Any, ty: Any, *rounding: Any) -> Any:
        target = ty.scalar
        if tl.bfloat16 not in (source.get_element_ty(), target):
            return original(self, source, ty, *rounding)
        numbers = _numbers(source)
        if target != tl.bfloat16:
            return interpreter.TensorHandle(numbers.astype(interpreter._get_np_dtype(target)), target)
        rounded = torch.from_numpy(np.ascontiguousarray(numbers).reshape(numbers.shape)).to(torch.bfloat16)
        return interpreter.TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), target)

    return cast


def _dot(original: Callable[..., Any]) -> Callable[..., Any]:
    def dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if tl.bfloat16 in (a.get_element_ty(), b.get_element_ty()):
            a, b = (interpreter.TensorHandle(_numbers(h).astype(np.float32), tl.float32) for h in (a, b))
        return original(self, a, b, d, *rest)

    return dot


def _atomic(original: Callable[..., Any]) -> Callable[..., Any]:
    def plain(value: Any) -> Any:
        if not isinstance(value, interpreter.TensorHandle):
            return value
        return interpreter.TensorHandle(np.ascontiguousarray(value.data).reshape(value.data.shape), value.dtype)

    return lambda self, *args: original(self, *map(plain, args))


def _on_numbers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Arithmetic on bfloat16 as on the numbers, rounded at the end."""

    def computed(self: Any, *operands: Any) -> Any:
        handles = [h for h in operands if isinstance(h, interpreter.TensorHandle)]
        if all(h.get_element_ty() != tl.bfloat16 or isinstance(h.dtype, tl.pointer_type) for h in handles):
            return original(self, *operands)
        wide = [
            interpreter.TensorHandle(_numbers(h), tl.float32)
            if isinstance(h, interpreter.TensorHandle) and h.get_element_ty() == tl.bfloat16
            else h
            for h in operands
        ]
        result = original(self, *wide)
        return self.cast_impl(result, tl.bfloat16) if result.data.dtype == np.float32 else result

    return computed


def _masked(position: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """With the mask, which is this argument, made one of truth values."""

    def mend(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            mask = args[position]
            if isinstance(mask, interpreter.TensorHandle) and mask.data.dtype != np.bool_:
                plain = interpreter.TensorHandle(mask.data.astype(np.bool_), tl.int1)
                args = (*args[:position], plain, *args[position + 1 :])
            return original(self, *args, **kwargs)

        return run

    return mend


_MENDS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "cast_impl": _cast,
    "create_fp_to_fp": _cast,
    "create_dot": _dot,
    "create_masked_load": _masked(1),
    "create_masked_store": _masked(2),
    "create_atomic_rmw": _atomic,
    "create_atomic_cas": _atomic,
    "binary_op": _on_numbers,
    "unary_op": _on_numbers,
    "create_fma": _on_numbers,
    "create_rsqrt": _on_numbers,
    "create_erf": _on_numbers,
}
