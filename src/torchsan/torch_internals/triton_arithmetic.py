"""Runs a `@triton.jit` function by Triton's interpreter in float64, with rounding as it is asked for.

Every real number is kept in float64, in memory too, whatever type Triton gives it. What an operation gives is passed to
a `Rounding` with that type: left as it is, the function is computed in float64; rounded to its type, as a GPU would;
with random last bits, as rounding might have left it. Nothing outside of the tensors that it is given is touched.

Importing it imports Triton.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import mangle_type

from torchsan.torch_internals.operators import OutsideOfTensors
from torchsan.torch_internals.triton_interpreter import Array, interpreted, mended


class Rounding(Protocol):
    """What becomes of the results of operations."""

    tf32: bool
    """Whether tensor cores multiply float32 with ten bits, where the function does not forbid it."""

    def __call__(self, data: Array, dtype: torch.dtype, size: Array | None = None, terms: int = 1) -> Array:
        """From float64 results, which have a type in the program, to what they are rounded to.

        `size` is the sum of the magnitudes of what was added up, and `terms` how many that is; None if nothing was.
        No term at all is a conversion, of a number that is as good as its type.
        """


_FLOATS = {tl.float16: torch.float16, tl.bfloat16: torch.bfloat16, tl.float32: torch.float32, tl.float64: torch.float64}
_ROUNDED = (np.add, np.subtract, np.multiply, np.divide, np.fmod)
_UNROUNDED = (np.floor, np.ceil, np.abs, np.negative)
_ROOM = 4096
"""Elements between one tensor and the next: what is just outside of one is not inside of another."""
_lock = threading.Lock()


class CannotInterpret(Exception):
    """The function does what has no meaning in float64, or must not be done; the message says what."""


def interpret(
    function: Any,
    grid: Sequence[int],
    arguments: Mapping[str, Any],
    dtypes: Mapping[str, torch.dtype],
    rounded: Rounding,
) -> None:
    """Run the function on tensors, which it may overwrite.

    Raise CannotInterpret, OutsideOfTensors, or what the interpreter does.

    `arguments` are by name; a pair of a tensor and the shape of a block is a descriptor. `dtypes` are those that the
    tensors have in the program.
    """
    memory = _Memory({n: a[0] if isinstance(a, tuple) else a for n, a in arguments.items() if _holds_tensor(a)})
    with _lock, mended(), _in_float64(memory, rounded), np.errstate(all="ignore"):
        language = interpreter._patch_lang(None)
        try:
            fixed = {p.name for p in function.params if p.is_constexpr}
            given = inspect.getcallargs(interpreted(function).rewrite(), **arguments)
            values = {n: v if n in fixed else memory.argument(v, dtypes.get(n)) for n, v in given.items()}
            builder = interpreter.interpreter_builder
            sizes = (*grid, 1, 1)[:3]
            builder.set_grid_dim(*sizes)
            for index in np.ndindex(*sizes):
                builder.set_grid_idx(*index)
                interpreted(function).rewrite()(**values)
        finally:
            language.restore()
    memory.write_back()


def _holds_tensor(argument: Any) -> bool:
    return isinstance(argument[0] if isinstance(argument, tuple) and argument else argument, torch.Tensor)


class _Memory:
    """Copies of the storages of some tensors, real numbers in float64, and where they lie."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors: dict[int, torch.Tensor] = {}
        self._copies: dict[int, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        for name, t in tensors.items():
            key = t.untyped_storage().data_ptr()
            self._names.setdefault(key, name)
            whole = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.detach().untyped_storage())
            if self._tensors.setdefault(key, whole).dtype is not t.dtype:
                raise CannotInterpret("tensors of several dtypes share memory")
            if t.is_complex() or (t.is_floating_point() and t.dtype not in _FLOATS.values()):
                raise CannotInterpret(f"it is given {str(t.dtype).removeprefix('torch.')}")
            wide = torch.float64 if t.is_floating_point() else t.dtype
            if key not in self._copies:
                self._copies[key] = torch.zeros(whole.numel() + 2 * _ROOM, dtype=wide)[_ROOM:-_ROOM].copy_(whole)
        spans = [(c.data_ptr(), c.data_ptr() + c.numel() * c.element_size()) for c in self._copies.values()]
        self._spans = np.array(spans, dtype=np.uint64).reshape(-1, 2)

    def argument(self, value: Any, dtype: torch.dtype | None) -> Any:
        """A value as the interpreter passes it; a tensor as one of this dtype."""
        if isinstance(value, torch.Tensor):
            copy = self._copies[value.untyped_storage().data_ptr()]
            address = copy.data_ptr() + value.storage_offset() * copy.element_size()
            ty = tl.str_to_ty(mangle_type(torch.empty(0, dtype=dtype or value.dtype)), None)
            return tl.tensor(interpreter.TensorHandle(np.array([address], dtype=np.uint64), ty), ty)
        if _holds_tensor(value):
            tensor, block = value
            strides = [interpreter._implicit_cvt(s) for s in tensor.stride()[:-1]] + [tl.constexpr(1)]
            return interpreter.interpreter_semantic.make_tensor_descriptor(
                base=self.argument(tensor, dtype),
                shape=[interpreter._implicit_cvt(s) for s in tensor.shape],
                strides=strides,
                block_shape=[tl.constexpr(b) for b in block],
                padding_option="zero",
            )
        return interpreter._implicit_cvt(value)

    def check(self, addresses: Array, mask: Array, width: int, what: str) -> None:
        """Raise OutsideOfTensors if one of the lanes that run is outside of all the tensors."""
        places = np.asarray(addresses, dtype=np.uint64)[np.broadcast_to(mask, np.shape(addresses))]
        inside = np.zeros(places.shape, dtype=bool)
        for start, end in self._spans:
            inside |= (places >= start) & (places + np.uint64(width) <= end)
        if not inside.all():
            raise OutsideOfTensors(what, self._where(places[~inside].astype(np.int64), width))

    def _where(self, places: Array, width: int) -> str:
        """Where these are, told of the tensor that is nearest to the first of them."""
        spans = self._spans.astype(np.int64)
        if not len(spans):
            return "without a tensor"
        before, after = spans[:, 0] - places[0], places[0] - spans[:, 1]
        nearest = int(np.argmin(np.maximum(before, after)))
        start, end = spans[nearest]
        name = list(self._names.values())[nearest]
        early = bool(places[0] < start)
        distance = -(int(places.min() - start) // width) if early else int(places.max() - end) // width + 1
        far = "1 element" if distance == 1 else f"up to {distance} elements"
        return f"{far} {'before the start' if early else 'after the end'} of {name}"

    def write_back(self) -> None:
        for key, whole in self._tensors.items():
            whole.copy_(self._copies[key])


@contextmanager
def _in_float64(memory: _Memory, rounded: Rounding) -> Iterator[None]:
    """The interpreter with every real number in float64."""
    with ExitStack() as stack:

        def change(target: Any, changes: Mapping[str, Any]) -> None:
            for name, value in changes.items():
                stack.enter_context(patch.object(target, name, value))

        fits = interpreter._validate_np_data_size
        numpy_type = interpreter._get_np_dtype
        change(
            interpreter,
            {
                "_get_np_dtype": lambda ty: np.dtype(np.float64) if _float(ty) is not None else numpy_type(ty),
                "_validate_np_data_size": lambda data, ty: _float(ty) is not None or fits(data, ty),
            },
        )
        change(interpreter.InterpreterBuilder, _constants_and_casts(rounded))
        change(interpreter.InterpreterBuilder, _arithmetic(rounded))
        change(interpreter.InterpreterBuilder, _accesses(memory))
        change(interpreter.ReduceOps, {"sum": _sum(rounded)})
        change(interpreter.ScanOps, {"cumsum": _cumsum(rounded)})
        yield


def _float(ty: Any) -> torch.dtype | None:
    """The real type of a scalar or block; None if it is an integer's, or a pointer's."""
    return None if isinstance(ty.scalar, tl.pointer_type) else _FLOATS.get(ty.scalar)


def _handle(data: Array, ty: Any) -> Any:
    return interpreter.TensorHandle(data, ty)


def _settled(rounded: Rounding, data: Array, ty: Any, size: Array | None = None, terms: int = 1) -> Any:
    """What an operation gave, rounded if it is a real number."""
    dtype = _float(ty)
    if dtype is None or data.dtype != np.float64:
        return _handle(data, ty)
    return _handle(rounded(data, dtype, size, terms), ty)


def _exactly(rounded: Rounding, data: Array, ty: Any) -> Any:
    return _handle(data, ty)


def _ten_bits(data: Array) -> Array:
    """Rounded as tensor cores round a float32."""
    bits = np.ascontiguousarray(data, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def _constants_and_casts(rounded: Rounding) -> dict[str, Any]:
    def cast(self: Any, source: Any, ty: Any, *_: Any) -> Any:
        target = ty.scalar
        if target.is_floating() and _float(target) is None:
            raise CannotInterpret(f"it computes in {target}")
        data = source.data.astype(interpreter._get_np_dtype(target))
        before, after = _float(source.dtype), _float(target)
        # From a wider type to a narrower one a number is rounded; an integer may have too many digits.
        exact = after is None or (before is not None and torch.finfo(before).eps >= torch.finfo(after).eps)
        return _handle(data, target) if exact else _settled(rounded, data, target, terms=0)

    def bitcast(self: Any, source: Any, ty: Any) -> Any:
        if source.dtype.scalar.is_floating() or ty.scalar.is_floating():
            raise CannotInterpret("it looks at the bits of a number")
        if isinstance(source.dtype.scalar, tl.pointer_type) or isinstance(ty.scalar, tl.pointer_type):
            raise CannotInterpret("it makes numbers of addresses")
        return _handle(source.data.view(interpreter._get_np_dtype(ty)), ty.scalar)

    def constant(ty: Any) -> Callable[[Any, float], Any]:
        return lambda self, value: _handle(np.array([value], dtype=np.float64), ty)

    return {
        "cast_impl": cast,
        "create_fp_to_fp": cast,
        "create_bitcast": bitcast,
        "create_int_to_ptr": bitcast,
        "create_ptr_to_int": bitcast,
        "get_fp16": constant(tl.float16),
        "get_fp32": constant(tl.float32),
        "create_print": lambda self, *_: None,  # The program prints it.
    }


def _arithmetic(rounded: Rounding) -> dict[str, Any]:
    builder = interpreter.InterpreterBuilder
    binary_op, unary_op = builder.binary_op, builder.unary_op

    def binary(self: Any, left: Any, right: Any, op: Any) -> Any:
        if _float(left.dtype) is None:
            return binary_op(self, left, right, op)
        result = op(left.data, right.data)
        return (_settled if op in _ROUNDED else _exactly)(rounded, result, left.dtype.scalar)

    def unary(self: Any, operand: Any, op: Any) -> Any:
        if _float(operand.dtype) is None:
            return unary_op(self, operand, op)
        return (_exactly if op in _UNROUNDED else _settled)(rounded, op(operand.data), operand.dtype.scalar)

    def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, *_: Any) -> Any:
        ty = d.dtype.scalar
        if not (_float(a.dtype) and _float(b.dtype)):
            product = np.matmul(a.data.astype(np.int64), b.data.astype(np.int64)) + d.data
            return _handle(product.astype(d.data.dtype), ty)
        if rounded.tf32 and _float(a.dtype) is torch.float32 and str(precision).endswith("TF32"):
            a, b = (_handle(_ten_bits(x.data), x.dtype) for x in (a, b))
        product = np.matmul(a.data, b.data) + d.data
        size = np.matmul(np.abs(a.data), np.abs(b.data)) + np.abs(d.data)
        return _settled(rounded, product, ty, size, a.data.shape[-1])

    def erf(self: Any, operand: Any) -> Any:
        numbers = torch.from_numpy(np.ascontiguousarray(operand.data))
        return _settled(rounded, torch.erf(numbers).numpy().reshape(operand.data.shape), operand.dtype.scalar)

    return {
        "binary_op": binary,
        "unary_op": unary,
        "create_fabs": lambda self, x: _handle(np.abs(x.data), x.dtype.scalar),
        "create_rsqrt": lambda self, x: _settled(rounded, 1 / np.sqrt(x.data), x.dtype.scalar),
        "create_fma": lambda self, x, y, z: _settled(rounded, x.data * y.data + z.data, z.dtype.scalar),
        "create_erf": erf,
        "create_dot": dot,
    }


def _sum(rounded: Rounding) -> Callable[[Any, Any], Any]:
    def summed(self: Any, operand: Any) -> Any:
        data = operand.handle.data
        how = {"axis": self.axis, "keepdims": self.keep_dims}
        result = np.sum(data, dtype=data.dtype, **how)
        terms = data.size // max(1, np.size(result))
        settled = _settled(rounded, np.asarray(result), operand.dtype, np.sum(np.abs(data), **how), terms)
        return self.to_tensor(settled.data, operand.dtype)

    return summed


def _cumsum(rounded: Rounding) -> Callable[[Any, Any], list[Any]]:
    def summed(self: Any, operands: Any) -> list[Any]:
        (operand,) = operands if isinstance(operands, tuple) else (operands,)
        data = operand.handle.data
        sizes = np.cumsum(np.abs(data), axis=self.axis)
        result = _settled(rounded, np.cumsum(data, axis=self.axis), operand.dtype, sizes, data.shape[self.axis])
        return [self.to_tensor(result.data, operand.dtype)]

    return summed


def _accesses(memory: _Memory) -> dict[str, Any]:
    builder = interpreter.InterpreterBuilder
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas
    pointer, descriptor = builder.create_make_tensor_descriptor, getattr(builder, "create_make_block_ptr", None)

    def width(ty: Any) -> int:
        return int(interpreter._get_np_dtype(ty).itemsize)

    def mask_of(mask: Any, shape: Any) -> Array:
        return np.ascontiguousarray(np.broadcast_to(getattr(mask, "data", mask), shape), dtype=bool)

    def load(self: Any, pointers: Any, mask: Any, other: Any, *_: Any) -> Any:
        ty = pointers.get_element_ty()
        places, lanes = pointers.data, mask_of(_plain(mask), pointers.data.shape)
        memory.check(places, lanes, width(ty), "reads")
        rest = np.zeros(places.shape) if other is None else np.broadcast_to(other.data, places.shape)
        rest = np.ascontiguousarray(rest, dtype=interpreter._get_np_dtype(ty))
        return _handle(interpreter._interpreter.load(places, lanes, rest, rest.dtype), ty)

    def store(self: Any, pointers: Any, value: Any, mask: Any, *_: Any) -> Any:
        ty = pointers.get_element_ty()
        places, lanes = pointers.data, mask_of(_plain(mask), pointers.data.shape)
        memory.check(places, lanes, width(ty), "writes")
        data = np.ascontiguousarray(np.broadcast_to(value.data, places.shape), dtype=interpreter._get_np_dtype(ty))
        return interpreter._interpreter.store(places, data, lanes)

    def change(self: Any, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        memory.check(pointers.data, mask_of(_plain(mask), pointers.data.shape), width(value.dtype), "writes")
        return rmw(self, op, pointers, value, mask, *rest)

    def compare(self: Any, pointers: Any, *rest: Any) -> Any:
        memory.check(pointers.data, np.ones(pointers.data.shape, dtype=bool), width(rest[0].dtype), "writes")
        return cas(self, pointers, *rest)

    def moved(self: Any, base: Any, offset: Any) -> Any:
        step = width(base.get_element_ty())
        return _handle(base.data + np.uint64(step) * offset.data.astype(np.uint64), base.dtype)

    def spread(made: Callable[..., Any]) -> Callable[..., Any]:
        """What is made of a base and strides, with strides as memory has them here."""

        def spreading(self: Any, base: Any, shape: Any, strides: Any, *rest: Any, **more: Any) -> Any:
            result = made(self, base, shape, strides, *rest, **more)
            ty = base.get_element_ty()
            factor = width(ty) // max(1, ty.primitive_bitwidth // 8)
            result.strides = [_handle(s.data * factor, s.dtype) for s in strides]
            return result

        return spreading

    changes = {
        "create_masked_load": load,
        "create_masked_store": store,
        "create_atomic_rmw": change,
        "create_atomic_cas": compare,
        "create_addptr": moved,
        "create_make_tensor_descriptor": spread(pointer),
    }
    return changes if descriptor is None else {**changes, "create_make_block_ptr": spread(descriptor)}


def _plain(mask: Any) -> Array:
    """A mask as an array; the interpreter passes both arrays and what it keeps of one."""
    return np.asarray(mask if isinstance(mask, np.ndarray) else mask.data)
