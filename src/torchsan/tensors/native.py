"""The statistics of large arrays by `native.cpp`, in one pass over memory; it is compiled once on each machine.

Pieces whose squares leave the range of float64 or say little of their spread go by NumPy, and so do complex numbers
that are not finite.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import math
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchsan.tensors.elements import PIECE, Bytes, Format, float8_values
from torchsan.tensors.tally import Moments, Tally, tally

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("native.cpp")
_FLAGS = ["-O3", "-std=c++17", "-fopenmp-simd", "-shared", "-fPIC"]
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"]
_VECTORS = {"AVX2": _AVX2, "AVX512": _AVX512}
"""By what torch says of the processor, and uses itself."""
_FLOATS = np.dtype(
    [(name, "f8") for name in ("shift", "sum", "squares", "low", "high")]
    + [(name, "u8") for name in ("nan", "posinf", "neginf", "zeros", "tiny")]
)
_COMPLEXES = np.dtype(
    [(name, "f8", 2) for name in ("shifts", "sums", "squares")]
    + [(name, "f8") for name in ("low", "high")]
    + [("same", "u8", 2)]
    + [(name, "u8") for name in ("zeros", "subnormals", "finite")]
)
_INTEGERS = np.dtype(
    [(name, "u8") for name in ("low", "high", "ones", "four_billions")] + [("squares", "f8"), ("zeros", "u8")]
)


def tallies(whole: Bytes, form: Format, compiled: ctypes.CDLL) -> list[Tally]:
    """Return the tally of each PIECE of the elements in `whole`, which is aligned and not empty."""
    size = form.parts * form.part.itemsize
    count = whole.size // size
    name, layout, of_piece, special = _function(form)
    raw = np.empty(-(-count // PIECE), layout)
    # ctypes releases Python's lock for the call.
    getattr(compiled, f"torchsan_{name}")(
        ctypes.c_void_p(whole.ctypes.data),
        ctypes.c_size_t(count),
        ctypes.c_size_t(PIECE),
        *special,
        ctypes.c_void_p(raw.ctypes.data),
    )
    found = []
    for start, row in zip(range(0, count, PIECE), raw.tolist(), strict=True):
        elements = min(PIECE, count - start)
        one = of_piece(elements, *row)
        found.append(one or tally(form.numbers(whole[start * size : (start + elements) * size]), form))
    return found


def _function(form: Format) -> tuple[str, np.dtype[Any], Callable[..., Tally | None], list[Any]]:
    """The name of the function for a format, what it gives of a piece and means by it, and its further arguments."""
    name = str(form.part).removeprefix("torch.")
    match form.family:
        case "bool":
            return "uint8", _INTEGERS, _of_truths, []
        case "integer":
            return name, _INTEGERS, functools.partial(_of_integers, signed=form.part.is_signed), []
    smallest = ctypes.c_double(form.smallest_normal)
    if form.family == "complex":
        return f"complex{16 * form.part.itemsize}", _COMPLEXES, _of_complexes, [smallest]
    if form.part.itemsize == 1:
        return "float8", _FLOATS, _of_floats, [ctypes.c_void_p(float8_values(form.part).ctypes.data), smallest]
    return name, _FLOATS, _of_floats, [smallest]


def _of_floats(
    count: int,
    shift: float,
    total: float,
    squares: float,
    low: float,
    high: float,
    nan: int,
    posinf: int,
    neginf: int,
    zeros: int,
    tiny: int,
) -> Tally | None:
    odd = Tally(nan=nan, posinf=posinf, neginf=neginf)
    finite = count - nan - posinf - neginf
    if not finite:
        return odd
    std = 0.0 if low == high else _std(finite, total, squares)
    if std is None:
        return None
    moments = Moments(finite, shift + total / finite, std)
    return odd + Tally(low=low, high=high, moments=(moments,), zeros=zeros, subnormals=tiny - zeros)


def _of_complexes(
    count: int,
    shifts: list[float],
    totals: list[float],
    squares: list[float],
    low: float,
    high: float,
    same: list[int],
    zeros: int,
    subnormals: int,
    finite: int,
) -> Tally | None:
    if not finite or not (_inside(low) or zeros) or not (_inside(high) or zeros == count):
        return None
    moments = []
    for part in (0, 1):
        std = 0.0 if same[part] else _std(count, totals[part], squares[part])
        if std is None:
            return None
        moments.append(Moments(count, shifts[part] + totals[part] / count, std))
    low, high = math.sqrt(low), math.sqrt(high)
    return Tally(low=low, high=high, moments=tuple(moments), zeros=zeros, subnormals=subnormals)


def _of_truths(count: int, low: int, high: int, *rest: Any) -> Tally | None:
    # Other bytes than 0 and 1 are true as well.
    return _of_integers(count, low, high, *rest, signed=False) if high <= 1 else None


def _of_integers(
    count: int, low: int, high: int, ones: int, four_billions: int, squares: float, zeros: int, *, signed: bool
) -> Tally | None:
    if signed:
        low, high = (end - (end >> 63 << 64) for end in (low, high))
    total = ones + (four_billions << 32)
    std = 0.0 if low == high else _std(count, float(total), squares)
    if std is None:
        return None
    mean = low + Fraction(total, count)
    return Tally(low=low, high=high, moments=(Moments(count, mean, std),), zeros=zeros)


def _std(count: int, total: float, squares: float) -> float | None:
    """The standard deviation from the sums of differences to some number and of their squares.

    None where that number was so far off, or the differences so large or small, that the squares say little of it.
    """
    if not _inside(squares):
        return None
    variance = squares / count - (total / count) ** 2
    return math.sqrt(variance) if variance * count >= 1e-6 * squares else None


def _inside(square: float) -> bool:
    """Whether a sum of squares is in a range in which float64 loses nothing of them."""
    return 1e-240 < square < 1e300


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled code, from the user's cache if it is there; None, and log why, if it cannot be had."""
    try:
        compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or "g++"]
        flags = [*_FLAGS, *_VECTORS.get(torch.backends.cpu.get_cpu_capability(), [])]
        wanted = " ".join([*compiler, *flags, platform.machine(), platform.system()])
        name = hashlib.sha256(wanted.encode() + SOURCE.read_bytes()).hexdigest()[:16]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchsan"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        _own(cache)
        built = cache / f"native-{name}.so"
        if not built.exists():
            _build([*compiler, *flags], built)
        return ctypes.CDLL(str(built))
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as e:
        log.debug("summaries of large tensors go by NumPy, more slowly: %s", e)
        return None


def _own(folder: Path) -> None:
    """Raise OSError if others could put code into `folder`."""
    status = folder.stat()
    if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        raise PermissionError(f"{folder} can be written by others")


def _build(compiler: list[str], built: Path) -> None:
    """Compile to `built`, by way of another name: processes that start together all find it whole or not at all."""
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        fresh = Path(folder) / built.name
        command = [*compiler, str(SOURCE), "-o", str(fresh)]
        subprocess.run(command, check=True, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
        fresh.replace(built)
