"""The statistics of a tensor's elements, in one pass over its memory."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from torchsan.records.tensor import TensorSummary
from torchsan.tensors.describe import describe
from torchsan.tensors.elements import PIECE, Bytes, elements, unreadable
from torchsan.tensors.formats import Format, format_of
from torchsan.tensors.tally import Tally, tally
from torchsan.tensors.undisturbed import undisturbed

__all__ = ["summarize"]

_SHOWN = 64
# Starting threads takes about as long as reading this many elements.
_WORTH_THREADS = 8 * PIECE


@undisturbed
def summarize(t: torch.Tensor) -> TensorSummary:
    """Return the statistics of `t`'s elements; metadata only, with the reason, where they cannot be read.

    Total: it raises for no tensor. It runs no operator on CPU tensors, so it neither adds to autograd's graph nor
    consumes random numbers nor shows up in dispatch modes. Extra memory is bounded by some tens of megabytes, whatever
    the size of `t`.
    """
    meta = describe(t)
    count = math.prod(n for n in meta.shape if n is not None)
    form = format_of(t.dtype)
    reason = unreadable(t) or (f"elements of {meta.dtype} are not read as numbers" if form is None else None)
    if reason is not None or form is None:
        known = None not in meta.shape
        return TensorSummary(meta=meta, count=count if known else 0, reason=reason)
    total = _total(t, form)
    values = None
    if count <= _SHOWN:
        values = tuple(v for (piece,) in elements(t) for v in form.scalars(form.numbers(piece)))
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


def _total(t: torch.Tensor, form: Format) -> Tally:
    """Return the tally of all of `t`, by as many threads as torch would use where that pays."""
    threads = min(torch.get_num_threads(), t.numel() // _WORTH_THREADS)
    # Only pieces that are views may be listed: a list of copies would be a copy of the tensor.
    if threads < 2 or t.device.type != "cpu" or not t.is_contiguous() or t.is_conj() or t.is_neg():
        return _add_up((piece for (piece,) in elements(t)), form)
    pieces = [piece for (piece,) in elements(t)]
    share = -(-len(pieces) // threads)
    shares = [pieces[start : start + share] for start in range(0, len(pieces), share)]
    with ThreadPoolExecutor(len(shares), thread_name_prefix="torchsan-summarize") as pool:
        return functools.reduce(operator.add, pool.map(_add_up, shares, [form] * len(shares)))


def _add_up(pieces: Iterable[Bytes], form: Format) -> Tally:
    with np.errstate(all="ignore"):
        return functools.reduce(operator.add, (tally(form.numbers(piece), form) for piece in pieces), Tally())


def _mean(total: Tally) -> float | complex | None:
    means = [float(part.mean) for part in total.moments]
    return complex(*means) if len(means) == 2 else next(iter(means), None)
