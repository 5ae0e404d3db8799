"""Whether storages are born and die as the program plans: leaks, early deaths, allocations that nobody planned."""

from __future__ import annotations

import ast
import gc
import inspect
import linecache
import re
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchsan.checks.memory.findings import CallFindings
from torchsan.checks.memory.patterns import span_bytes
from torchsan.checks.memory.plan import MemoryPlan
from torchsan.checks.memory.storages import Block, Figures, Origin, StorageTable
from torchsan.records import Kind, Severity, SourceLine
from torchsan.records.tensor import in_bytes
from torchsan.torch_internals.operators import storage_key
from torchsan.torch_internals.wrapper import Function, Launch
from torchsan.watch.observer import Values


class Lifetimes:
    """Follows one call. What outlives its last name is judged at the end of the call, when late frees are over."""

    def __init__(self, table: StorageTable, plan: MemoryPlan, figures: Figures, findings: CallFindings) -> None:
        self._table = table
        self._plan = plan
        self._figures = figures
        self._findings = findings
        self._last: Launch | None = None
        self._late: list[Block] = []
        self._dropped: list[tuple[str, Block]] = []

    def allocated(self, function: str, name: str, tensor: torch.Tensor) -> Block | None:
        """A buffer is new. None if its memory is none of its own."""
        (block,), new = self._table.bind(function, name, tensor, Origin.PROGRAM)
        if new:
            self._figures.born(block)
            if (function, name) in self._plan.handed_over:
                self._table.kept_elsewhere.add(block)
            return block
        if (function, name) not in self._plan.unfollowed and block.name not in {p for _, p in self._plan.pools}:
            self._findings.report(
                Kind.UNEXPECTED_ALLOCATION,
                f"{name} was to get memory of its own and got that of {block.name}, which is still in use",
                buffer=name,
                evidence={"bytes": block.nbytes, "shared with": block.name},
            )
        return None

    def bound(self, function: str, name: str, value: Any, origin: Origin) -> None:
        """A variable got a value that the program did not allocate itself."""
        for block in self._table.bind(function, name, value, origin)[1]:
            self._figures.born(block)

    def freed(self, function: str, names: tuple[str, ...]) -> list[Block]:
        """The variables were deleted. Return the storages that died of it."""
        died = []
        for block in self._table.free(function, names):
            self._figures.released(block)
            if block.ref.dead:
                self._died(block)
                died.append(block)
            elif block.origin is Origin.PROGRAM and block not in self._table.kept_elsewhere:
                self._late.append(block)
        return died

    def launched(self, function: str, launch: Launch, values: Values) -> None:
        """A launch ran: its operands must still lie in the storages that were planned for them."""
        self._last = launch
        for name, value in values.items():
            if name == launch.result:
                self.bound(function, name, value, Origin.RESULT)
            for block in self._table.find(function, name):
                self._table.last_use[block] = launch
                if block.origin is Origin.PROGRAM and isinstance(value, torch.Tensor):
                    self._check_storage(function, launch, name, block, value)

    def left(self, function: str, outputs: Any) -> None:
        """The function returns: what it returns may live on; what it neither returns nor freed is overdue."""
        kept = self._table.kept_elsewhere
        kept.update(self._table.holding(outputs))
        for name, blocks in self._table.bound(function).items():
            followed = function == "call" and (function, name) not in self._plan.unfollowed
            for block in blocks:
                if followed and block.origin is Origin.PROGRAM and block not in kept:
                    # What the last launch uses may as well go with the function; nothing runs while it waits.
                    if self._table.last_use.get(block) in (None, self._last):
                        self._late.append(block)
                    else:
                        self._dropped.append((name, block))
            self._table.free(function, [name])

    def count_returned(self, outputs: Any, results: int | None) -> None:
        """Add up what the caller gets, and what is saved for backward."""
        values = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
        split = len(values) if results is None else results
        mine, kept = ({b for v in part for b in self._new(v)} for part in (values[:split], values[split:]))
        self._figures.returned = sum(b.nbytes for b in mine)
        self._figures.saved = sum(b.nbytes for b in kept - mine)

    def closed(self) -> None:
        """The call is over and its variables are gone: what still lives has another holder."""
        for name, block in self._dropped:
            if block.ref.dead:
                self._overdue(name, block)
                self._died(block)
            else:
                self._late.append(block)
        for block in dict.fromkeys(self._late):
            if not block.ref.dead and block not in self._table.kept_elsewhere:
                self._leaked(block)

    def failed(self, error: BaseException, functions: dict[str, Function], last: int) -> None:
        """The call failed: it may be for want of a variable that was freed too early."""
        name = getattr(error, "name", None) if isinstance(error, NameError) else None
        if name is None and isinstance(error, NameError):
            # Python 3.11 names the variable of an UnboundLocalError in its text only.
            name = next((n for _, n in self._table.freed if f"'{n}'" in str(error)), None)
        for function, freed in list(self._table.freed):
            if freed != name:
                continue
            launches = functions[function].launches()
            word = re.compile(rf"\b{re.escape(freed)}\b")
            reader = next((x for x in launches if x.nth > last and any(word.search(a.text) for a in x.arguments)), None)
            after = self._table.freed[function, freed]
            self._findings.report(
                Kind.EARLY_FREE,
                f"{name} is freed before {reader.kernel if reader else 'its last reader'} reads it",
                buffer=freed,
                launch=reader,
                evidence={"freed after": after.kernel if after is not None else None},
            )
            return

    def _new(self, value: Any) -> list[Block]:
        return [b for b in self._table.holding(value) if b.origin is not Origin.GIVEN]

    def _died(self, block: Block) -> None:
        self._figures.died(block)
        self._table.drop(block)

    def _check_storage(self, function: str, launch: Launch, name: str, block: Block, value: torch.Tensor) -> None:
        storage = value.untyped_storage()
        if storage.nbytes() == block.nbytes and storage.data_ptr() == block.pointer and storage._cdata == block.ref.key:
            return
        if block in self._table.kept_elsewhere or (function, name) in self._plan.unfollowed:
            return
        if storage.nbytes() < value.storage_offset() * value.element_size() + span_bytes(value):
            kind, what = Kind.EARLY_FREE, f"frees the memory of {name} before its last reader"
        else:
            kind, what = Kind.UNEXPECTED_ALLOCATION, f"gives {name} other memory than the program planned for it"
        self._table.kept_elsewhere.add(block)
        evidence = {"planned": block.nbytes, "actual": storage.nbytes()}
        message = f"{launch.kernel} {what}: {in_bytes(block.nbytes)} became {in_bytes(storage.nbytes())}"
        self._findings.report(kind, message, buffer=name, launch=launch, evidence=evidence)

    def _overdue(self, name: str, block: Block) -> None:
        last = self._table.last_use[block]
        self._findings.report(
            Kind.LEAKED_BUFFER,
            f"{name} is not freed after {last.kernel}, which uses it last, but lives until the call ends",
            buffer=name,
            launch=last,
            severity=Severity.WARNING,
            evidence={"bytes": block.nbytes},
        )

    def _leaked(self, block: Block) -> None:
        holder = find_holder(block.ref.key)
        if holder is None:
            gc.collect()
            if block.ref.dead:
                return
        chain = holder.chain if holder is not None else ["C++ code: an autograd graph, or what an operator keeps"]
        self._findings.report(
            Kind.LEAKED_BUFFER,
            f"{block.name} ({in_bytes(block.nbytes)}) outlives the call, held by {chain[0]}",
            buffer=block.name,
            launch=self._table.last_use.get(block),
            source=(holder.source,) if holder is not None and holder.source is not None else (),
            evidence={"bytes": block.nbytes, "held by": chain},
        )


_DEPTH = 8


class Holder(NamedTuple):
    """`chain` leads from what holds on to the tensor itself; `source` is the line that kept it, where that is known."""

    chain: list[str]
    source: SourceLine | None


def find_holder(key: int) -> Holder | None:
    """Return what in Python holds the storage with this key, by the shortest chain; None if only C++ does."""
    tensors = _tensors(key)
    return _walk(tensors, [[f"a tensor of shape {tuple(t.shape)}"] for t in tensors])


def _tensors(key: int) -> list[torch.Tensor]:
    found = []
    for thing in gc.get_objects():
        # `type` and not `isinstance`: objects may pretend to be of another class, and run code when asked.
        if issubclass(type(thing), torch.Tensor):
            try:
                if thing.layout is torch.strided and storage_key(thing) == key:
                    found.append(thing)
            except (RuntimeError, NotImplementedError):
                continue  # A tensor without a storage.
    return found


def _walk(things: list[Any], chains: list[list[str]]) -> Holder | None:
    """Go up from what is held to something with a name: a module, a frame, a function, a class.

    Layer by layer, because each look for referrers goes through all objects of the process. A frame that runs now is
    the last suspect.
    """
    seen = {id(thing) for thing in things}
    passing: Holder | None = None
    for _ in range(_DEPTH):
        places = {id(thing): i for i, thing in enumerate(things)}
        above: list[Any] = []
        longer: list[list[str]] = []
        for referrer in sorted(gc.get_referrers(*things), key=_preference):
            if id(referrer) in seen or referrer is things or _is_ours(referrer):
                continue
            seen.add(id(referrer))
            held = next((thing for thing in gc.get_referents(referrer) if id(thing) in places), None)
            if held is None:
                continue
            chain = chains[places[id(held)]]
            end = _named_end(referrer, held)
            if end is None:
                above.append(referrer)
                longer.append([_describe(referrer, held), *chain])
            elif isinstance(referrer, types.FrameType):
                passing = passing or Holder([end[0], *chain], end[1])
            else:
                return Holder([end[0], *chain], end[1])
        if not above:
            break
        things, chains = above, longer
    return passing


def _preference(thing: Any) -> int:
    """Containers first: they are what people keep things in."""
    return 2 if isinstance(thing, types.FrameType) else 0 if isinstance(thing, dict | list) else 1


def _is_ours(thing: Any) -> bool:
    return isinstance(thing, types.FrameType) and str(thing.f_globals.get("__name__", "")).startswith("torchsan.")


def _named_end(holder: Any, held: Any) -> tuple[str, SourceLine | None] | None:
    """What the holder is called, if it is something that lasts by itself, and where in its source."""
    if isinstance(holder, dict):
        module = next((m for m in list(sys.modules.values()) if getattr(m, "__dict__", None) is holder), None)
        name = _key(holder, held)
        if module is not None:
            with suppress(TypeError):  # A module without a file.
                return f"global `{name}` of module {module.__name__}", _line(inspect.getsourcefile(module), name)
            return f"global `{name}` of module {module.__name__}", None
        if "__builtins__" in holder or "__name__" in holder:
            return f"global `{name}` of {holder.get('__name__', 'a module')}", _line(holder.get("__file__"), name)
    if isinstance(holder, types.FrameType):
        code = holder.f_code
        name = _key(holder.f_locals, held)
        return f"variable `{name}` of {code.co_qualname}", _source(code.co_filename, holder.f_lineno)
    if isinstance(holder, types.FunctionType):
        code = holder.__code__
        return f"function {holder.__qualname__}", _source(code.co_filename, code.co_firstlineno)
    if isinstance(holder, type):
        return f"class {holder.__qualname__}", None
    return None


def _describe(holder: Any, held: Any) -> str:
    match holder:
        case dict():
            return f"a dict, under {_key(holder, held)!r}"
        case list() | tuple():
            position = next((f", item {i}" for i, v in enumerate(holder) if v is held), "")
            return f"a {type(holder).__name__} of {len(holder)}{position}"
        case types.CellType():
            return "a closure"
        case _:
            return f"a {type(holder).__module__}.{type(holder).__qualname__}"


def _key(mapping: Any, held: Any) -> str:
    return next((str(k) for k, v in list(mapping.items()) if v is held), "?")


def _line(file: str | None, name: str) -> SourceLine | None:
    """The line that puts something into `name`: the last call of a method of it, or its definition."""
    if not file or not Path(file).is_file():
        return None
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    lines = list(_mentions(tree, name))
    return _source(file, max(lines)[1]) if lines else None


def _mentions(tree: ast.AST, name: str) -> Iterator[tuple[bool, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=found), attr=attr)) if found == name:
                yield attr in ("append", "add", "insert", "extend", "setdefault", "update"), node.lineno
            case ast.Subscript(value=ast.Name(id=found), ctx=ast.Store()) if found == name:
                yield True, node.lineno
            case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)) if found == name:
                yield False, node.lineno


def _source(file: str, line: int) -> SourceLine:
    return SourceLine(file=file, line=line, code=linecache.getline(file, line).strip())
