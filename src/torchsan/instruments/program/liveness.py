"""Whether anything looks at a variable again. A kernel may leave memory unwritten that nobody reads."""

from __future__ import annotations

import ast
from bisect import bisect_right

from torchsan.instruments.program.model import Alias, Function, Launch

__all__ = ["Liveness"]


class Liveness:
    """Answers for one function. Loops are taken as read once: a variable that only the next round reads is not live."""

    def __init__(self, function: Function) -> None:
        self._launches = function.launches()
        self._reused = {s.source: s for s in function.walk() if isinstance(s, Alias) and s.reused}
        handed_on = {(s.line, s.source) for s in self._reused.values()}
        self._reads: dict[str, list[int]] = {}
        written_only = {
            (step.line, name)
            for step in function.walk()
            if isinstance(step, Launch)
            for name in step.operands
            if name not in step.reads
        }
        for node in ast.walk(function.node):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                at = (node.lineno, node.id)
                if at not in handed_on and at not in written_only:
                    self._reads.setdefault(node.id, []).append(node.lineno)
        for lines in self._reads.values():
            lines.sort()

    def read_after(self, name: str, line: int) -> bool:
        """Whether the value that `name` has after `line` is read later, under this name or one it is handed on to."""
        lines = self._reads.get(name, [])
        if bisect_right(lines, line) < len(lines):
            return True
        alias = self._reused.get(name)
        return alias is not None and alias.line >= line and self._read_in_place(alias)

    def _read_in_place(self, alias: Alias) -> bool:
        """Memory that is handed on holds its old value only for the first kernel that gets it."""
        for launch in self._launches:
            if launch.line > alias.line and alias.name in launch.operands:
                return alias.name in launch.reads
        return self.read_after(alias.name, alias.line)
