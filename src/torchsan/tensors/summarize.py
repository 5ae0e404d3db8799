"""The statistics of a tensor's elements, in one pass over its memory."""

from __future__ import annotations

import ctypes
import functools
import math
import operator
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from torchsan.records.tensor import Scalar, TensorSummary
from torchsan.tensors.describe import describe, undisturbed
from torchsan.tensors.elements import PIECE, Bytes, Format, elements, format_of, memory, unreadable
from torchsan.tensors.native import library, tallies
from torchsan.tensors.tally import Tally, tally

_SHOWN = 64
# Elements. Below this NumPy is as fast as compiled code.
_COMPILED = 1 << 13
# Below this, starting threads takes longer than reading.
_LARGE = 8 * PIECE
# Pieces that are worth a thread.
_LEAST = 4


@undisturbed
def summarize(t: torch.Tensor) -> TensorSummary:
    """Return the statistics of `t`'s elements; metadata only, with the reason, where they cannot be read.

    Total: it raises for no tensor. It runs no operator on CPU tensors, so it neither adds to autograd's graph nor
    consumes random numbers nor shows up in dispatch modes. Extra memory is bounded by some tens of megabytes, whatever
    the size of `t`.

    >>> import torch, torchsan
    >>> summary = torchsan.summarize(torch.tensor([0.0, 1.0, float("nan")]))
    >>> summary.count, summary.nan, summary.mean
    (3, 1, 0.5)
    """
    meta = describe(t)
    count = math.prod(n for n in meta.shape if n is not None)
    form = format_of(t.dtype)
    reason = unreadable(t) or (f"elements of {meta.dtype} are not read as numbers" if form is None else None)
    if reason is not None or form is None:
        known = None not in meta.shape
        return TensorSummary(meta=meta, count=count if known else 0, reason=reason)
    total, values = _few(t, form) if count <= _SHOWN else (_total(t, form), None)
    return TensorSummary(
        meta=meta,
        count=count,
        minimum=total.low,
        maximum=total.high,
        mean=_mean(total),
        std=math.hypot(*(part.std for part in total.moments)) if total.moments else None,
        nan=total.nan,
        posinf=total.posinf,
        neginf=total.neginf,
        zeros=total.zeros,
        subnormals=total.subnormals,
        values=values,
    )


def _few(t: torch.Tensor, form: Format) -> tuple[Tally, tuple[Scalar, ...]]:
    """Return the tally of `t`, which fits one piece, and its elements."""
    for (piece,) in elements(t):
        numbers = form.numbers(piece)
        return _add_up(map(tally, [numbers], [form])), form.scalars(numbers)
    return Tally(), ()


def _total(t: torch.Tensor, form: Format) -> Tally:
    """Return the tally of all of `t`, by as many threads as torch would use where that pays."""
    # Before the threads, lest each of them compile it.
    compiled = library() if t.numel() >= _COMPILED else None
    whole = memory(t)
    if whole is None:
        return _add_up(_share(piece, form, compiled) for (piece,) in elements(t))
    pieces = -(-t.numel() // PIECE)
    # NumPy's threads would spend their time waiting for Python's lock.
    threads = 1 if compiled is None or t.numel() < _LARGE else torch.get_num_threads()
    size = max(_LEAST, -(-pieces // threads)) * PIECE * t.element_size()
    shares = [whole[start : start + size] for start in range(0, whole.size, size)]
    if len(shares) <= 1:
        return _add_up(_share(share, form, compiled) for share in shares)
    with ThreadPoolExecutor(len(shares), thread_name_prefix="torchsan-summarize") as pool:
        return _add_up(pool.map(functools.partial(_share, form=form, compiled=compiled), shares))


def _share(whole: Bytes, form: Format, compiled: ctypes.CDLL | None) -> Tally:
    """Return the tally of bytes that lie side by side."""
    if compiled is not None and whole.ctypes.data % form.part.itemsize == 0:
        with np.errstate(all="ignore"):
            return _add_up(tallies(whole, form, compiled))
    size = PIECE * form.part.itemsize * form.parts
    return _add_up(tally(form.numbers(whole[i : i + size]), form) for i in range(0, whole.size, size))


def _add_up(parts: Iterable[Tally]) -> Tally:
    # `parts` may be computed as they are taken; overflow in them is expected, and the caller's settings are not ours.
    with np.errstate(all="ignore"):
        return functools.reduce(operator.add, parts, Tally())


def _mean(total: Tally) -> float | complex | None:
    means = [float(part.mean) for part in total.moments]
    return complex(*means) if len(means) == 2 else next(iter(means), None)
