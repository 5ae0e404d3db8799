"""The variables of a function of the wrapper, statement by statement: which hold tensors, and which of those values."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from torchsan.instruments.program.model import Alias, Argument, Bind

__all__ = ["Variables", "is_symbol", "names_in"]

_SYMBOLS = ("s", "u", "ps", "zf", "zuf")
"""What Inductor calls sizes and numbers that it knows only at run time, before a number: `s77`, `u0`."""


def names_in(tree: ast.AST) -> tuple[str, ...]:
    """Return the names in an expression or a statement, each once."""
    return tuple(dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)))


def is_symbol(name: str) -> bool:
    """Return whether Inductor gives this name to sizes and other numbers."""
    return name.rstrip("0123456789") in _SYMBOLS and name not in _SYMBOLS


class Variables:
    """What is known of the variables at one place of a function. Each method tells of one statement."""

    def __init__(self, inputs: Iterable[str]) -> None:
        self.tensors: set[str] = set(inputs)
        self._numbers: set[str] = set()
        self._written: set[str] = set(inputs)
        # Memory that was handed on while it held a value: an in-place kernel reads that under the new name.
        self._inherited: set[str] = set()
        self._whole: dict[str, str] = {}

    def copy(self) -> Variables:
        """Return the same knowledge, to go another way with."""
        twin = Variables(())
        twin.tensors, twin._numbers = set(self.tensors), set(self._numbers)
        twin._written, twin._inherited, twin._whole = set(self._written), set(self._inherited), dict(self._whole)
        return twin

    def join(self, other: Variables) -> None:
        """Two ways meet again: what either knows may hold."""
        self.tensors |= other.tensors
        self._numbers |= other._numbers
        self._written |= other._written
        self._inherited |= other._inherited
        self._whole |= other._whole

    def allocate(self, name: str) -> None:
        """`name` is new memory."""
        self.tensors.add(name)
        self._forget(name)

    def hold(self, names: Iterable[str]) -> None:
        """The variables hold values now."""
        names = tuple(names)
        self.tensors.update(names)
        self._written.update(names)

    def free(self, names: Iterable[str]) -> None:
        """The variables were deleted."""
        self.tensors.difference_update(names)

    def bind(self, name: str, line: int) -> Bind:
        """`name` is a number."""
        self.tensors.discard(name)
        self._numbers.add(name)
        return Bind(name=name, line=line)

    def alias(self, name: str, source: str, line: int, *, reused: bool, item: int | None = None) -> Alias | Bind:
        """`name` is what `source` was, or one item of it."""
        if is_symbol(name):
            return self.bind(name, line)
        self.tensors.add(name)
        self._whole.pop(name, None)
        if not reused and item is None:
            self._whole[name] = self._whole.get(source, source)
        self._forget(name)
        if source in self._written:
            (self._inherited if reused else self._written).add(name)
        return Alias(name=name, source=source, line=line, item=item, reused=reused)

    def _forget(self, name: str) -> None:
        self._written.discard(name)
        self._inherited.discard(name)

    def wholes(self, parts: Iterable[Argument]) -> tuple[str, ...]:
        """The variables of which written arguments are parts."""
        names = (self._whole.get(a.base) for a in parts if a.written and a.base is not None)
        return tuple(dict.fromkeys(n for n in names if n in self.tensors and n is not None))

    def arguments(
        self, value: ast.expr, *, written: bool, read: bool = True, keyword: str | None = None
    ) -> list[Argument]:
        """An argument of an operator: one, or several for a list of tensors."""
        if isinstance(value, ast.List | ast.Tuple) and any(n in self.tensors for n in names_in(value)):
            return [a for e in value.elts for a in self.arguments(e, written=written, read=read, keyword=keyword)]
        return [self.argument(value, read=read, written=written, keyword=keyword)]

    def argument(self, value: ast.expr, *, read: bool, written: bool, keyword: str | None = None) -> Argument:
        """One argument of a launch."""
        names = names_in(value)
        base = next((n for n in names if n in self.tensors), None)
        if written:
            # A kernel may add to what an earlier one left there (atomic adds), so what is there counts as read. What
            # nobody has written can't be: `in_out_ptr` is also what a kernel fills first and reads back later.
            read = base in self._written or (read and base in self._inherited)
        variables = tuple(n for n in names if n in self._numbers) if base is None else ()
        return Argument(
            text=ast.unparse(value), base=base, read=read, written=written, variables=variables, keyword=keyword
        )
