"""Room on the stack for torchsan's frames, so that the program reaches its recursion limit no earlier than without."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_ROOM = 150
"""More than torchsan's frames under a program, around its calls, and in the checks between them."""

_lock = threading.Lock()
_users = 0
_limit, _set_limit = sys.getrecursionlimit, sys.setrecursionlimit


def _getrecursionlimit() -> int:
    """Return the current value of the recursion limit, the maximum depth of the Python interpreter stack."""
    return _limit() - _ROOM


def _setrecursionlimit(limit: int, /) -> None:
    """Set the maximum depth of the Python interpreter stack to n."""
    _set_limit(limit + _ROOM if isinstance(limit, int) and limit > 0 else limit)


for _function in (_getrecursionlimit, _setrecursionlimit):  # They are pickled as those that they stand for.
    _function.__name__ = _function.__qualname__ = _function.__name__.removeprefix("_")
    _function.__module__ = "sys"


@contextmanager
def room_on_the_stack() -> Iterator[None]:
    """Raise the recursion limit. The program goes on seeing and setting its own."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _set_limit(_limit() + _ROOM)
            sys.getrecursionlimit, sys.setrecursionlimit = _getrecursionlimit, _setrecursionlimit
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                if sys.getrecursionlimit is _getrecursionlimit:  # Else somebody has put another around it.
                    sys.getrecursionlimit, sys.setrecursionlimit = _limit, _set_limit
                with suppress(RecursionError):  # It is closed far down the stack.
                    _set_limit(_limit() - _ROOM)
