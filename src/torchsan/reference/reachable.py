"""What a call can reach: tensors and plain values, by the names that people have for them.

From the arguments, the module or object that a method is of, closures, the globals that the code names, and the
program's own classes.
"""

from __future__ import annotations

import enum
import functools
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

_MOST = 20_000
"""How many objects are looked at; a program may hang together everywhere."""
_DEEP = 16
_LONG = 4096
"""Items of a container that are looked at."""
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = (torch.Size, tuple, list, dict, set, frozenset, deque)
_LIBRARIES = tuple("torch torchsan triton numpy builtins collections typing functools threading logging".split())
"""Whose objects are not the program's, unless they are modules, parameters or optimizers."""


class Container(str):
    """Of what kind a container is, and how many items it has, or which keys: a plain value of its own."""

    __slots__ = ()
    __repr__ = str.__str__


@dataclass(slots=True)
class Reachable:
    """Tensors and plain values by name; `whole` is false if there was more than is looked at."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    whole: bool = True


def reachable(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reachable:
    """What a call of `fn` with these arguments can reach."""
    walk = _Walk()
    for i, arg in enumerate(args):
        walk.visit(f"argument {i}", arg)
    for name, arg in kwargs.items():
        walk.visit(f"argument {name}", arg)
    walk.function(fn)
    return walk.found


def returned(result: Any, *, again: bool = False) -> Reachable:
    """What is in a result; a tensor that is in it twice has both names if `again`, else the first."""
    walk = _Walk(again=again)
    items = result if type(result) in (tuple, list) else [result]
    if items is result:
        walk.found.values["output"] = _container(result)
    for i, item in enumerate(items):
        walk.visit(f"output {i}", item)
    return walk.found


def fingerprint(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides which code runs, as far as it is cheap to see: kinds of arguments, and plain values at hand."""
    found: list[Any] = [torch.is_grad_enabled(), *map(_kind, args), *map(_kind, kwargs.values())]
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        found.append(owner.training)
    elif owner is not None and hasattr(owner, "__dict__"):
        found.extend(_plain_values(vars(owner)))
    code = getattr(fn, "__code__", None)
    if code is not None:
        found.extend(_kind(_contents(cell)) for cell in fn.__closure__ or ())
        names = fn.__globals__
        found.extend(_kind(names[name]) for name in code.co_names if name in names)
    return tuple(found)


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.dtype, value.requires_grad)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list) and len(value) < 16:
        return (len(value), *(_kind(v) for v in value))
    if isinstance(value, dict) and len(value) < 16:
        return tuple((str(k), _kind(v)) for k, v in value.items())
    if isinstance(value, list | dict | set):
        return len(value)
    return type(value).__name__


def _plain_values(names: Mapping[str, Any]) -> Iterator[Any]:
    return (value for value in names.values() if isinstance(value, _PLAIN))


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # Not assigned yet.
        return None


class _Walk:
    def __init__(self, *, again: bool = False) -> None:
        self.found = Reachable()
        self._again = again
        self._seen: dict[int, Any] = {}

    def function(self, fn: Any) -> None:
        """The module or object it is a method of, what its closure holds, and the globals it names."""
        if isinstance(fn, torch.nn.Module):
            self.visit("", fn)
            return
        owner = getattr(fn, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.visit("" if isinstance(owner, torch.nn.Module) else "self", owner)
        self._code(getattr(fn, "__func__", fn), 0)

    def _code(self, fn: Any, depth: int) -> None:
        fn = getattr(fn, "__wrapped__", fn) if not isinstance(fn, types.FunctionType) else fn
        if not isinstance(fn, types.FunctionType) or _is_library(getattr(fn, "__module__", None)):
            return
        if id(fn) in self._seen or depth > _DEEP:
            return
        self._seen[id(fn)] = fn
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
            self.visit(f"variable {name}", _contents(cell), depth + 1)
        for name in _names(fn.__code__):
            if name in fn.__globals__:
                self.visit(f"global {name}", fn.__globals__[name], depth + 1)

    def visit(self, name: str, value: Any, depth: int = 0) -> None:
        """Note a value, and what is in it."""
        if isinstance(value, _PLAIN):
            self.found.values.setdefault(name, value)
            return
        if isinstance(value, types.ModuleType | types.BuiltinFunctionType | bytes):
            return
        if id(value) in self._seen:
            if self._again and isinstance(value, torch.Tensor):
                self.found.tensors.setdefault(name, value)
            return
        if depth > _DEEP or len(self._seen) > _MOST:
            self.found.whole = False
            return
        if isinstance(value, torch.Tensor):
            self._tensor(name, value)
        elif isinstance(value, type):
            self._class(value, depth)
        elif isinstance(value, types.FunctionType):
            self._code(value, depth)
        elif isinstance(value, types.MethodType):
            self.visit(name, value.__self__, depth + 1)
            self._code(value.__func__, depth)
        else:
            self._seen[id(value)] = value
            if isinstance(value, _CONTAINERS):
                self.found.values.setdefault(name, _container(value))
            for part, inner in self._parts(name, value):
                self.visit(part, inner, depth + 1)
            self._class(type(value), depth)

    def _class(self, cls: type, depth: int) -> None:
        """What the methods of a class of the program's own can reach, and what the class itself holds."""
        if _is_library(cls.__module__) or _is_installed(cls.__module__) or issubclass(cls, enum.Enum):
            return
        if id(cls) in self._seen:
            return
        self._seen[id(cls)] = cls
        for base in cls.__bases__:
            self._class(base, depth)
        for key, item in list(vars(cls).items()):
            if isinstance(item, property):
                functions = [item.fget, item.fset]
            else:
                functions = [getattr(item, "__func__", item)]
            if isinstance(functions[0], types.FunctionType):
                for function in functions:
                    self._code(function, depth + 1)
            elif not key.startswith("__"):
                self.visit(f"class {cls.__name__}.{key}", item, depth + 1)

    def _tensor(self, name: str, value: torch.Tensor) -> None:
        self._seen[id(value)] = value
        if name in self.found.tensors:  # Two functions may each have a global of this name.
            name = f"{name} ({len(self.found.tensors)})"
        self.found.tensors[name] = value
        if value.is_leaf and value.requires_grad and isinstance(value.grad, torch.Tensor):
            self._seen[id(value.grad)] = value.grad
            self.found.tensors[f"{name}.grad"] = value.grad

    def _parts(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, tuple | list | deque):
            fields = getattr(value, "_fields", None)
            for i, item in enumerate(islice(value, _LONG)):
                yield (f"{name}.{fields[i]}" if fields else f"{name}[{i}]"), item
        elif isinstance(value, dict):
            for i, (key, item) in enumerate(list(value.items())[:_LONG]):
                yield f"{name}[{_key(key, i)}]", item
        elif isinstance(value, torch.nn.Module):
            yield from self._module(name, value)
        elif hasattr(value, "__dict__") and (
            not _is_library(type(value).__module__) or isinstance(value, torch.optim.Optimizer)
        ):
            for key, item in list(vars(value).items())[:_LONG]:
                yield f"{name}.{key}", item

    def _module(self, name: str, value: torch.nn.Module) -> Iterator[tuple[str, Any]]:
        before = f"{name}." if name else ""
        inner = vars(value)
        for kind in ("_parameters", "_buffers", "_modules"):
            for key, item in inner.get(kind, {}).items():
                yield f"{before}{key}", item
        for key, item in list(inner.items()):
            known = key in ("_parameters", "_buffers", "_modules") or "_hooks" in key
            if not known and not (key.startswith("_") and _is_library(type(value).__module__)):
                yield f"{before}{key}", item


def _container(value: Any) -> Container:
    kind = next(k for k in _CONTAINERS if isinstance(value, k)).__name__
    if isinstance(value, dict):
        return Container(f"{kind} of {len(value)}: {', '.join(_key(k, i) for i, k in enumerate(islice(value, _LONG)))}")
    if isinstance(value, set | frozenset) and all(isinstance(v, _PLAIN) for v in value):
        return Container(f"{kind} of {len(value)}: {', '.join(sorted(map(repr, islice(value, _LONG))))}")
    return Container(f"{kind} of {len(value)}")


def _key(key: Any, i: int) -> str:
    return repr(key)[:60] if isinstance(key, str | int | float | bool | tuple) else str(i)


def _is_library(module: Any) -> bool:
    return str(module or "builtins").partition(".")[0] in _LIBRARIES


@functools.cache
def _is_installed(module: str) -> bool:
    """Whether a module is Python's or of an installed package: what their classes hold is not the program's."""
    file = str(getattr(sys.modules.get(module), "__file__", None) or "")
    return file.startswith(tuple(sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")))


def _names(code: types.CodeType) -> Iterator[str]:
    """The globals that a function names, and the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
