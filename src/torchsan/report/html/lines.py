"""The lines of the user's program that a recording mentions, each once, as a table that the rest refers to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchsan.records import SourceLine
from torchsan.report.html.bounds import cut, shorten_path

__all__ = ["Lines"]


class Lines:
    """Numbers source lines, files and modules as they come."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._numbers: dict[SourceLine, int] = {}
        self.files: dict[str, int] = {}

    def number(self, line: SourceLine) -> int:
        """The position of a line in the table."""
        if line not in self._numbers:
            self._numbers[line] = len(self._numbers)
            self.files.setdefault(line.file, len(self.files))
        return self._numbers[line]

    def numbers(self, lines: Iterable[SourceLine]) -> list[int]:
        """The positions of some lines."""
        return [self.number(line) for line in lines]

    def table(self) -> list[list[Any]]:
        """For each line: the number of its file, the line, its text, and the module."""
        return [
            [self.files[line.file], line.line, cut(line.code.strip(), 400), cut(line.module, 200)]
            for line in self._numbers
        ]

    def names(self) -> list[list[str]]:
        """For each file: its path as it is shown, and in full."""
        return [[cut(shorten_path(file, self._cwd), 300), cut(file, 500)] for file in self.files]
