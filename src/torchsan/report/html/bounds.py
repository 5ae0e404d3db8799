"""Keeps the page small and its texts safe to lay out, whatever a recording holds: long strings and lists are cut."""

from __future__ import annotations

import math
from typing import Any

_DEPTH = 12


def cut(text: str, limit: int = 2000) -> str:
    """Return the text, or its beginning and a note of how long it is. Lone surrogates, which UTF-8 lacks, go."""
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text):,} characters in all)"
    return text.encode("utf-8", "replace").decode("utf-8")


class Cutter:
    """Cuts any JSON value to a bounded one: texts, lists, dictionaries and nesting."""

    def __init__(self, text: int = 2000, items: int = 200, total: int = 20_000) -> None:
        """`text` characters a string, `items` a list or dictionary, `total` values in all."""
        self._text, self._items, self._left = text, items, total

    def __call__(self, value: Any, depth: int = 0) -> Any:
        """Return `value`, or a smaller one that says what was left out."""
        self._left -= 1
        if isinstance(value, str):
            return cut(value, self._text)
        if isinstance(value, list | tuple | dict):
            if depth >= _DEPTH or self._left <= 0:
                return f"… ({len(value):,} items, not shown)"
            more = len(value) - self._items
            if isinstance(value, dict):
                shown = {cut(str(k), 200): self(v, depth + 1) for k, v in list(value.items())[: self._items]}
                return shown | ({"…": f"{more:,} more"} if more > 0 else {})
            return [self(v, depth + 1) for v in value[: self._items]] + ([f"… {more:,} more"] if more > 0 else [])
        return number(value)


def number(value: Any, digits: int | None = None) -> Any:
    """Return a number as JSON has it: non-finite ones as texts, floats with so many digits if that is asked for.

    Complex numbers become texts, and so do integers that a browser would round.
    """
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else cut(str(value) if value.bit_length() < 4096 else hex(value), 60)
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        return value if digits is None else float(f"{value:.{digits}g}")
    return cut(str(value), 60)


def shorten_path(file: str, cwd: str) -> str:
    """A path below the folder that the program ran in, from there, as the user types it."""
    return file.removeprefix(cwd.rstrip("/\\") + ("\\" if "\\" in cwd else "/"))
