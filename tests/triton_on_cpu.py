"""Inductor's Triton kernels on CPU tensors, by Triton's own interpreter: no GPU is needed.

    with triton_on_cpu.enabled():
        torch.compile(f)(torch.ones(8))  # generates Triton, and interprets it

Inductor asks a driver for a target and never gets to launch anything with it; `@triton.jit` functions stay what they
are, because Dynamo captures only those, but are interpreted when they run. Mends of the interpreter (triton 3.7.1):

- functions of libdevice are stubs that return None: they get PyTorch's meaning (`_libdevice`);
- a reduction or scan with a function of its own calls it once an element: it is done by halves (`_reduce`, `_scan`);
- the language is patched again at every call of a device function and never restored: once a launch (`_Language`);
- casts of float32 to bfloat16 truncate, and those of other types to bfloat16 give the number's integer as bits
  (`_cast`); a product of bfloat16 matrices multiplies the bits (`_dot`);
- atomics read a broadcast value (stride 0) as if it were contiguous (`_atomic`).

And of Inductor's way to interpret: it forgets the constants of user-written kernels (`_run`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
import torch.utils._triton
import triton
import triton.backends
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import CUDABackend
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

Array = np.ndarray[Any, Any]


@contextmanager
def enabled(cpu_backend: str = "triton") -> Iterator[None]:
    """Compile for the CPU to Triton, and interpret it; everything is as before afterwards.

    With another `cpu_backend`, only what asks for Triton itself is compiled to it.
    """
    import torch._inductor.config as config
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    builder = interpreter.InterpreterBuilder
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(patch.dict(os.environ))
        enter(patch.dict(triton.backends.backends, {"cpu": triton.backends.Backend(_Backend, _Driver)}))
        enter(triton.knobs.runtime.scope())
        stack.callback(torch.utils._triton.has_triton.cache_clear)
        stack.callback(triton.runtime.driver.reset_active)
        triton.runtime.driver.set_active(_Driver())
        torch.utils._triton.has_triton.cache_clear()
        triton.knobs.runtime.interpret = False  # What `@triton.jit` reads; setting it sets the variable as well.
        os.environ["TRITON_INTERPRET"] = "1"  # What Inductor reads.
        enter(patch.object(JITFunction, "run", _launch))
        enter(patch.object(JITFunction, "__call__", lambda self, *a, **k: _interpreted(self).rewrite()(*a, **k)))
        enter(patch.object(interpreter, "_patch_lang", _Language))
        enter(patch.object(interpreter.ReduceOps, "generic_reduce", _reduce))
        enter(patch.object(interpreter.ScanOps, "generic_scan", _scan))
        enter(patch.object(builder, "cast_impl", _cast(builder.cast_impl)))
        enter(patch.object(builder, "create_fp_to_fp", _cast(builder.create_fp_to_fp)))
        enter(patch.object(builder, "create_dot", _dot(builder.create_dot)))
        enter(patch.object(builder, "create_atomic_rmw", _atomic(builder.create_atomic_rmw)))
        enter(patch.object(builder, "create_atomic_cas", _atomic(builder.create_atomic_cas)))
        for name, function in _libdevice():
            enter(patch.object(libdevice, name, function))
        enter(patch.object(CachingAutotuner, "run", _run))
        options = getattr(triton_helpers, "get_backend_options_for_target", None)
        if options is not None:  # Since 2.15 Inductor asks for those of its own device, which Triton does not know.
            gpu = GPUTarget("cuda", 90, 32)
            enter(patch.object(triton_helpers, "get_backend_options_for_target", lambda target: options(gpu)))
        # In this process and not from a cache: neither a worker nor an artifact knows of the above.
        enter(config.patch(cpu_backend=cpu_backend, compile_threads=1, fx_graph_cache=False))
        yield


@contextmanager
def templates() -> Iterator[None]:
    """Compile matrix products to Inductor's Triton templates: the first that fits, because nothing can be timed."""
    import torch._inductor.config as config
    from torch._inductor.select_algorithm import AlgorithmSelectorCache, TritonTemplateCaller

    def times(choices: Any) -> dict[Any, float]:
        return {c: i + (1.0 if isinstance(c, TritonTemplateCaller) else 1e6) for i, c in enumerate(choices)}

    changes: dict[str, Any] = {
        "benchmark_choices": classmethod(lambda cls, choices, *a, **k: times(choices)),
        "make_benchmark_fn": classmethod(lambda cls, choices, *a, **k: lambda *_, **__: times(choices)),
        "make_precompile_fn": lambda self, *a, **k: lambda: None,
    }
    names = ("benchmark_template_fusion", "benchmark_epilogue_fusion")  # Now, and before 2.15.
    timing = next(name for name in names if hasattr(config, name))
    settings = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON,ATEN", timing: False}
    with ExitStack() as stack:
        for name, function in changes.items():
            stack.enter_context(patch.object(AlgorithmSelectorCache, name, function))
        stack.enter_context(config.patch(settings))
        yield


class _Driver(DriverBase):
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


class _Backend(CUDABackend):
    @staticmethod
    def supports_target(target: Any) -> bool:
        return False


# Launches


def _interpreted(function: Any) -> Any:
    if "_interpreted" not in function.__dict__:
        function.__dict__["_interpreted"] = interpreter.InterpretedFunction(function.fn)
    return function.__dict__["_interpreted"]


def _launch(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
    with np.errstate(all="ignore"):  # Lanes that a mask hides may divide by zero.
        return _interpreted(self).run(*args, grid=grid, warmup=warmup, **kwargs)


def _run(self: Any, *args: Any, stream: Any = None, benchmark_run: bool = False, **kwargs: Any) -> Any:
    """`CachingAutotuner.run`, with the arguments by name, and those that are constants."""
    config = self.configs[0]
    args, grid = self._interpret_args_grid(args, config)
    constants = {name: v for name, v in self.triton_meta["constants"].items() if isinstance(name, str)}
    compile_time = {p.name for p in self.fn.params if p.is_constexpr}
    names = [name for name in self.triton_meta["signature"] if name not in compile_time]
    return self.fn[grid](**{**constants, **dict(zip(names, args, strict=True)), **config.kwargs, **kwargs})


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
