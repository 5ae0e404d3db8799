"""What ends the making of a reproducer before it is done."""

from __future__ import annotations

__all__ = ["Stopped"]


class Stopped(Exception):
    """The time is up, or the user pressed Ctrl-C: the best so far is what there is."""
