"""Numbers of bytes as people write them."""

from __future__ import annotations

__all__ = ["in_bytes"]


def in_bytes(n: int) -> str:
    """A number of bytes as people read it: `1.5 KiB` for 1536."""
    amount = float(n)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
