"""A compiled program as data: what Inductor's generated wrapper allocates, launches, frees and returns."""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from torchsan.records import KernelKind


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDef:
    """A kernel that the wrapper defines: its parameters in order, and which of them it may write."""

    name: str
    language: str
    writes: tuple[bool | None, ...]
    """For each parameter: True if the kernel writes it, False if it only reads it, None for a number."""
    reads: tuple[bool, ...]
    source: str = field(repr=False)
    lines: tuple[int, int] = (0, 0)
    """The first and the last line of the wrapper that hold the source."""
    parameters: tuple[str, ...] = ()
    """Of a Triton kernel that the user wrote: what its launches pass, by name and in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of a launch. `base` is the variable whose storage it lies in, None for a number or a list of them.

    `variables` are the names that the text of a number depends on; `keyword` is set if it is passed by name.
    """

    text: str
    base: str | None
    read: bool
    written: bool
    variables: tuple[str, ...] = ()
    keyword: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocate:
    """`name` is new memory, not yet written."""

    name: str
    line: int
    pool: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """`name` is the storage of `source` under another name: a reuse, a reinterpretation, or one of several results."""

    name: str
    source: str
    line: int
    item: int | None = None
    """Which of several results it is, if `source` is a list of them."""
    reused: bool
    """True if the memory changes hands: what it held under its old name is no longer wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """`name` is a number, a size, a stream, or a list that got an element: nothing with a storage of its own."""

    name: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One call of a kernel. `nth` counts the launch sites of the whole program in source order."""

    nth: int
    kernel: str
    kind: KernelKind
    arguments: tuple[Argument, ...]
    result: str | None
    line: int
    column: int = 0
    bases: tuple[str, ...] = ()
    """Variables that hold a whole of which the launch writes a part (the result of a concatenation)."""
    users_own: bool = False
    """Whether the kernel is one that the user wrote in Triton: the graph says no more of it than its name."""

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The variables whose storage it reads, each once."""
        return tuple(dict.fromkeys(a.base for a in self.arguments if a.base is not None and a.read))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """The variables whose storage it writes, its result included, each once."""
        names = [a.base for a in self.arguments if a.base is not None and a.written]
        return tuple(dict.fromkeys([*names, *self.bases, *([self.result] if self.result else [])]))

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """The variables among its arguments, each once, sizes too: what can be looked at before the launch."""
        bases = [a.base for a in self.arguments if a.base is not None]
        return tuple(dict.fromkeys([*bases, *(v for a in self.arguments for v in a.variables)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of another function of the wrapper: a subgraph or a partition."""

    function: str
    results: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """The variables are deleted; their storage dies unless something else holds it."""

    names: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """What the function gives back, as variables."""

    names: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A block that may run any number of times: `if`, `while`, `for`."""

    steps: tuple[Step, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """A statement that is not understood. It runs unchanged, and is reported as skipped."""

    text: str
    names: tuple[str, ...]
    line: int


Step = Allocate | Alias | Bind | Launch | Call | Free | Return | Branch | Opaque


@dataclass(frozen=True, kw_only=True)
class Function:
    """`call`, a partition or a subgraph. `method` tells whether it belongs to the `Runner` class."""

    name: str
    method: bool
    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    node: ast.FunctionDef = field(repr=False, compare=False)

    @cached_property
    def _walked(self) -> tuple[Step, ...]:
        return tuple(_walk(self.steps))

    @cached_property
    def _launches(self) -> tuple[Launch, ...]:
        return tuple(s for s in self._walked if isinstance(s, Launch))

    def walk(self) -> tuple[Step, ...]:
        """Every step, those inside branches too, in source order."""
        return self._walked

    def launches(self) -> tuple[Launch, ...]:
        """The launch sites in source order."""
        return self._launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The wrapper: its kernels, and its functions by name; the one to enter is `call`."""

    kernels: dict[str, KernelDef]
    functions: dict[str, Function]

    def launches(self) -> tuple[Launch, ...]:
        """The launch sites of all functions, in source order."""
        return tuple(launch for f in self.functions.values() for launch in f.launches())

    def is_triton(self, launch: Launch) -> bool:
        """Whether it launches a kernel in Triton, Inductor's or the user's."""
        kernel = self.kernels.get(launch.kernel)
        return kernel is not None and kernel.language.startswith("triton")

    def adds_atomically(self, launch: Launch) -> bool:
        """Whether threads add to the same elements, in whatever order they come to it."""
        kernel = self.kernels.get(launch.kernel)
        return kernel is not None and "atomic_add" in kernel.source

    def opaque(self) -> tuple[Opaque, ...]:
        """The statements that were not understood."""
        return tuple(s for f in self.functions.values() for s in f.walk() if isinstance(s, Opaque))


def _walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, Branch):
            yield from _walk(step.steps)
        else:
            yield step


class Liveness:
    """Answers for one function. Loops are taken as read once: a variable that only the next round reads is not live."""

    def __init__(self, function: Function) -> None:
        self._launches = sorted(function.launches(), key=lambda launch: launch.line)
        self._lines = [launch.line for launch in self._launches]
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
        for launch in self._launches[bisect_right(self._lines, alias.line) :]:
            if alias.name in launch.operands:
                return alias.name in launch.reads
        return self.read_after(alias.name, alias.line)
