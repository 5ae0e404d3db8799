"""The line of the user's program that is running now."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from pathlib import Path

from torchsan.records import SourceLine

__all__ = ["caller"]

_HIDDEN = (
    str(Path(__file__).parents[1]) + "/",
    str(Path(sysconfig.get_paths()["purelib"]) / "torch") + "/",
    "<",
)


def caller() -> tuple[SourceLine, ...]:
    """The innermost line outside torch and torchsan on this thread's stack; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_HIDDEN) and "/torchinductor_" not in file:
            code = linecache.getline(file, frame.f_lineno).strip()
            return (SourceLine(file=file, line=frame.f_lineno, code=code),)
        next_frame = frame.f_back
        if next_frame is None:
            break
        frame = next_frame
    return ()
