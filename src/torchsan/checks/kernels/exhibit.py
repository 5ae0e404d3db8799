"""Why a finding about a user's kernel has no exhibit."""

from __future__ import annotations

from typing import Any, NoReturn

from torchsan.reference.arithmetic import Unavailable


def no_exhibit(*_: Any) -> NoReturn:
    """The kernel is the user's own code."""
    raise Unavailable("the kernel is the user's own; `torchsan check-kernel` shows it, with the inputs that are named")
