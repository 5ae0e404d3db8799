"""What a tensor may be called. Names live inside log records, never in file names, so no name can leave the store."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable

from torchsan.errors import StoreError

MAX_NAME = 1_000
"""Characters. Longer names are a mistake of the caller more often than a wish."""

_SEPARATORS = re.compile(r"[/\\]")
_FORBIDDEN = {"Cc": "a control character", "Cs": "a lone surrogate", "Zl": "a line break", "Zp": "a line break"}
_CONSIDERED = 20_000


def check_name(name: str) -> str:
    """Return `name` if a tensor may be called that, else raise StoreError.

    Names are text with `/` between the parts. The parts `.` and `..`, a leading separator and control characters are
    refused, because names are printed to terminals and used as paths when tensors are exported.
    """
    if not isinstance(name, str):
        raise StoreError(f"a tensor's name is a str, not {type(name).__name__}", slug="bad-name")
    if not name:
        raise StoreError("a tensor's name is empty; give it at least one character", slug="bad-name")
    if len(name) > MAX_NAME:
        raise StoreError(
            f"a tensor's name has {len(name)} characters and may have {MAX_NAME}: {name[:40]!r}…; shorten it",
            slug="bad-name",
        )
    if not name.isascii() or not name.isprintable():
        for char in name:
            if reason := _FORBIDDEN.get(unicodedata.category(char)):
                raise StoreError(f"the name {name[:80]!r} holds {reason}, {char!r}; leave it out", slug="bad-name")
    parts = _SEPARATORS.split(name)
    if ".." in parts or "." in parts or not parts[0]:
        raise StoreError(
            f"the name {name[:80]!r} reads as a path outside the store; leave out '..', '.' and a leading slash",
            slug="bad-name",
        )
    return name


def nearest(name: str, names: Iterable[str], *, count: int = 3) -> list[str]:
    """Return up to `count` of `names` that look most like `name`, best first."""
    considered = [n for n, _ in zip(names, range(_CONSIDERED), strict=False)]
    return difflib.get_close_matches(name, considered, n=count, cutoff=0.5)
