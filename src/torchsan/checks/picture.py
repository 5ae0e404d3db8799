"""What a report needs to draw a wrong tensor: where it is wrong, by how much, and some of its elements. Bounded."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

_CELLS = 64
_CELLS_IN_A_ROW = 256
_SAMPLES = 24
_DECADES = range(-2, 10)
"""Powers of ten: how many times as large as rounding allows errors are."""


def picture_of(
    bad: torch.Tensor,
    actual: torch.Tensor,
    eager: torch.Tensor,
    centre: torch.Tensor | None = None,
    width: torch.Tensor | None = None,
) -> dict[str, Any]:
    """Return plain values that show which elements are `bad`; all are tensors of one shape.

    `centre` is the float64 result, `width` how far from it rounding may lead; 0 where that was not needed.
    """
    return {
        "map": _map(bad),
        "samples": _samples(bad, actual, eager, centre, width),
        "errors": _errors(actual, centre, width) if centre is not None and width is not None else None,
    }


def _map(bad: torch.Tensor) -> dict[str, Any]:
    """Bad elements counted in a grid: the last dimension across, all others down; one row for a vector.

    Dimensions of size 1 do not count.
    """
    sizes = [n for n in bad.shape if n != 1]
    matrix = bad.reshape(-1, sizes[-1]) if len(sizes) > 1 else bad.reshape(1, -1)
    height, width = matrix.shape
    down = _edges(height, _CELLS)
    across = _edges(width, _CELLS if height > 1 else _CELLS_IN_A_ROW)
    cells: list[int] = []
    for top, bottom in itertools.pairwise(down):
        # Row by row, because a sum over the whole would need eight times the memory of the tensor.
        total = torch.nn.functional.pad(matrix[top:bottom].sum(0).cumsum(0), (1, 0))
        cells += (total[across[1:]] - total[across[:-1]]).tolist()
    return {"rows": height, "columns": width, "down": len(down) - 1, "across": len(across) - 1, "cells": cells}


def _edges(size: int, cells: int) -> list[int]:
    """Where the cells begin, and where the last one ends."""
    count = max(1, min(size, cells))
    return [i * size // count for i in range(count + 1)]


def _samples(
    bad: torch.Tensor,
    actual: torch.Tensor,
    eager: torch.Tensor,
    centre: torch.Tensor | None,
    width: torch.Tensor | None,
) -> list[dict[str, Any]]:
    """The first bad element, the last, and some between them."""
    found = bad.nonzero()
    count = min(_SAMPLES, len(found))
    chosen = [found[i * (len(found) - 1) // max(1, count - 1)].tolist() for i in range(count)]
    return [
        {
            "at": at,
            "compiled": item(actual[tuple(at)]),
            "eager": item(eager[tuple(at)]),
            "float64": item(centre[tuple(at)]) if centre is not None else None,
            "allowed": item(width[tuple(at)]) if width is not None else None,
        }
        for at in chosen
    ]


def _errors(actual: torch.Tensor, centre: torch.Tensor, width: torch.Tensor) -> dict[str, Any] | None:
    """How many elements have an error of so many times what rounding allows, by powers of ten; None if unknown."""
    judged = width > 0
    if not bool(judged.any()):
        return None
    error = (actual[judged].to(centre.dtype) - centre[judged]).abs().double()
    powers = (error / width[judged]).log10().nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
    bins = torch.bucketize(powers, torch.tensor(list(_DECADES), dtype=torch.float64), right=True)
    counts = torch.bincount(bins, minlength=len(_DECADES) + 1).tolist()
    return {"decades": list(_DECADES), "counts": counts, "same": int((~judged).sum())}


def item(t: torch.Tensor) -> Any:
    """One element as a plain value."""
    return t.to(torch.float64).item() if t.is_floating_point() else t.item()
