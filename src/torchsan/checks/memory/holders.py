"""Who holds a storage that should be gone: the chain of Python objects, and the line where it was kept."""

from __future__ import annotations

import ast
import gc
import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from torchsan.records import SourceLine
from torchsan.torch_internals.storages import storage_key

__all__ = ["Holder", "find_holder"]

_DEPTH = 8
_OURS = ("torchsan.",)


class Holder:
    """`chain` leads from what holds on to the tensor itself; `source` is the line that kept it, where that is known."""

    def __init__(self, chain: list[str], source: SourceLine | None) -> None:
        self.chain = chain
        self.source = source


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
    if isinstance(thing, types.FrameType):
        name = str(thing.f_globals.get("__name__", ""))
        return name.startswith(_OURS)
    return False


def _named_end(holder: Any, held: Any) -> tuple[str, SourceLine | None] | None:
    """What the holder is called, if it is something that lasts by itself, and where in its source."""
    if isinstance(holder, dict):
        module = next((m for m in list(sys.modules.values()) if getattr(m, "__dict__", None) is holder), None)
        name = _key(holder, held)
        if module is not None:
            return f"global `{name}` of module {module.__name__}", _line_of_name(module, name)
        if "__builtins__" in holder or "__name__" in holder:
            return f"global `{name}` of {holder.get('__name__', 'a module')}", _line_in_file(
                holder.get("__file__"), name
            )
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
            position = next((i for i, v in enumerate(holder) if v is held), None)
            return f"a {type(holder).__name__} of {len(holder)}" + (
                f", item {position}" if position is not None else ""
            )
        case types.CellType():
            return "a closure"
        case _:
            return f"a {type(holder).__module__}.{type(holder).__qualname__}"


def _key(mapping: Any, held: Any) -> str:
    return next((str(k) for k, v in list(mapping.items()) if v is held), "?")


def _line_of_name(module: types.ModuleType, name: str) -> SourceLine | None:
    try:
        return _line_in_file(inspect.getsourcefile(module), name)
    except TypeError:
        return None


def _line_in_file(file: str | None, name: str) -> SourceLine | None:
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
    import linecache

    return SourceLine(file=file, line=line, code=linecache.getline(file, line).strip())
