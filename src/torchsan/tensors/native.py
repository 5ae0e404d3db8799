"""The statistics of large float32 arrays by a few lines of C++, where the machine has a compiler.

NumPy reads each piece six times and takes Python's lock in between; compiled, one pass runs at about the speed of
memory, in as many threads as one likes. Nothing depends on it: without a compiler, NumPy does the work.
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
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torchsan.tensors.elements import PIECE
from torchsan.tensors.formats import Format
from torchsan.tensors.moments import Moments
from torchsan.tensors.tally import Tally, tally

__all__ = ["library", "tallies"]

log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("native.cpp")
_FLAGS = ["-O3", "-std=c++17", "-fno-strict-aliasing", "-fopenmp-simd", "-shared", "-fPIC"]
_TALLY = np.dtype(
    [("shift", "f8"), ("sum", "f8"), ("squares", "f8"), ("low", "i4"), ("high", "i4"), ("zeros", "u4"), ("tiny", "u4")]
)
_SMALLEST_NORMAL = 0x00800000
_INFINITY = 0x7F800000


def tallies(x: npt.NDArray[np.float32], form: Format, compiled: ctypes.CDLL) -> list[Tally]:
    """Return the tally of each PIECE of `x`, which is contiguous and not empty."""
    raw = np.empty(-(-x.size // PIECE), _TALLY)
    # ctypes releases Python's lock for the call.
    compiled.torchsan_tally(
        ctypes.c_void_p(x.ctypes.data),
        ctypes.c_size_t(x.size),
        ctypes.c_size_t(PIECE),
        ctypes.c_int32(_SMALLEST_NORMAL),
        ctypes.c_void_p(raw.ctypes.data),
    )
    ends = np.stack([raw["low"], raw["high"]])
    values = (ends ^ ((ends >> 31) & 0x7FFFFFFF)).view(np.float32)
    finite = np.isfinite(values).all(axis=0)
    result = []
    for i, (shift, total, squares, _, _, zeros, tiny) in enumerate(raw.tolist()):
        piece = x[i * PIECE : (i + 1) * PIECE]
        moments = _moments(piece.size, shift, total, squares) if finite[i] else None
        if moments is None:
            result.append(tally(piece, form))
            continue
        low, high = values[:, i].tolist()
        result.append(Tally(low=low, high=high, moments=(moments,), zeros=zeros, subnormals=tiny - zeros))
    return result


def _moments(count: int, shift: float, total: float, squares: float) -> Moments | None:
    """Return the moments, or None where `shift` was so far off that the squares say little of the spread."""
    variance = squares / count - (total / count) ** 2
    if variance * count < 1e-6 * squares:
        return None
    return Moments(count, shift + total / count, math.sqrt(variance))


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled code, from the user's cache if it is there; None, and log why, if it cannot be had."""
    try:
        compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or "g++"]
        wanted = " ".join([*compiler, *_FLAGS, platform.machine(), platform.system()])
        name = hashlib.sha256(wanted.encode() + _SOURCE.read_bytes()).hexdigest()[:16]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchsan"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        _own(cache)
        built = cache / f"native-{name}.so"
        if not built.exists():
            _build(compiler, built)
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
        command = [*compiler, *_FLAGS, str(_SOURCE), "-o", str(fresh)]
        subprocess.run(command, check=True, capture_output=True, timeout=60, stdin=subprocess.DEVNULL)
        fresh.replace(built)
