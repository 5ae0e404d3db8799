"""Why a finding about a cache has no exhibit."""

from __future__ import annotations

from typing import Any, NoReturn

from torchsan.reference.arithmetic import Unavailable


def no_exhibit(*_: Any) -> NoReturn:
    """A script that compiles anew cannot show it."""
    raise Unavailable("the finding is about what lies in a cache; a script that compiles anew does not show it")
