"""Attaches to modules and detaches again: seams looked for, replaced when their module is imported, and put back.

Importing this module imports no torch: a program that never compiles does not pay for the compiler.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torchsan.torch_internals.seams import SEAMS, Seam, called, torch_version

log = logging.getLogger(__name__)


def problem(seam: Seam) -> str | None:
    """Return what this PyTorch lacks of a seam; None if it is there, or if its module is not imported yet."""
    module = sys.modules.get(seam.module)
    if module is None:
        return None if _exists(seam.module) else f"PyTorch {torch_version()} has no module {seam.module}"
    owner: Any = module
    *outer, last = seam.name.split(".")
    for part in outer:
        owner = getattr(owner, part, None)
    found = getattr(owner, last, None)
    if owner is None or not (hasattr(owner, last) or (isinstance(owner, type) and _sets(owner, last))):
        return f"PyTorch {torch_version()} has no {seam}"
    if seam.parameters is None:
        return None
    try:
        actual = tuple(inspect.signature(found).parameters) if callable(found) else ()
    except (ValueError, TypeError):
        return None  # Written in C: nothing tells.
    if _fits(seam.parameters, actual):
        return None
    return f"PyTorch {torch_version()} has {seam}({', '.join(actual)}), not ({', '.join(seam.parameters)})"


def _fits(wanted: tuple[str, ...], actual: tuple[str, ...]) -> bool:
    if wanted[:1] == ("*",):
        return set(wanted[1:]) <= set(actual)
    if wanted[-1:] == ("...",):
        return actual[: len(wanted) - 1] == wanted[:-1]
    return actual == wanted


def _sets(owner: type, name: str) -> bool:
    """Whether objects of a class have the attribute: it is declared, or a method of the class names it."""
    for cls in owner.__mro__:
        if name in vars(cls).get("__annotations__", {}) or name in vars(cls).get("__slots__", ()):
            return True
        functions = (getattr(value, "__wrapped__", value) for value in vars(cls).values())
        if any(isinstance(c := getattr(f, "__code__", None), CodeType) and name in c.co_names for f in functions):
            return True
    return False


def _exists(module: str) -> bool:
    """Whether a module that is not imported can be; as far as that can be told without an import."""
    parent = module.rpartition(".")[0]
    if parent and parent not in sys.modules:
        return _exists(parent)
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def missing(user: str, module: str | None = None) -> list[str]:
    """Why the check `user` cannot work in this process: a reason for each seam that it needs and that is missing.

    With `module`, only the seams of that.
    """
    seams = [seam for seam in SEAMS if user in seam.users and (module is None or seam.module == module)]
    return [f"{why}, which it needs to {seam.to}" for seam in seams if (why := problem(seam)) is not None]


@contextmanager
def watch_seams(users: Collection[str], off: Callable[[str, str], None]) -> Iterator[None]:
    """Call `off(check, reason)` for each seam that one of the checks needs and that turns out to be missing."""
    patches = Patches(lambda error: log.debug("could not look at a module: %s", error))

    def look(module: ModuleType) -> None:
        for user in users:
            for reason in missing(user, module.__name__):
                off(called(user), reason)

    try:
        for name in dict.fromkeys(seam.module for seam in SEAMS if seam.users & set(users)):
            patches.when_imported(name, look)
        yield
    finally:
        patches.restore()


class Patches:
    """A set of replaced attributes. `restore` puts every one back; nothing of it remains after that.

    What goes wrong in the middle of an import goes to `failed`, never to whoever imports.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._undo: list[Callable[[], None]] = []
        self._watched: dict[str, list[Callable[[ModuleType], None]]] = {}
        self._lock = threading.RLock()
        self._finder = _ImportWatcher(self._watched)
        sys.meta_path.insert(0, self._finder)

    def wrap(self, module: str, name: str, around: Callable[..., Any]) -> None:
        """Let a call of a function go to `around(original, *args, **kwargs)`, from when its module is imported on."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                return around(original, *args, **kwargs)

            return call

        self.replace(module, name, make)

    def replace(self, module: str, name: str, make: Callable[[Any], Any]) -> None:
        """Put `make(original)` in the place of a seam from when its module is imported on; nothing if it is missing."""
        seam = next(s for s in SEAMS if (s.module, s.name) == (module, name))  # The table has every name.

        def act(loaded: ModuleType) -> None:
            if (why := problem(seam)) is not None:
                log.debug("not replaced: %s", why)
                return
            owner: Any = loaded
            *outer, last = name.split(".")
            for part in outer:
                owner = getattr(owner, part)
            with self._lock:
                inherited = last not in vars(owner)
                original = getattr(owner, last) if inherited else vars(owner)[last]
                made = make(original)
                if isinstance(made, FunctionType):
                    vars(made)["__wrapped__"] = original  # Where `problem` finds the signature that PyTorch has.
                setattr(owner, last, made)
                self._undo.append(lambda: delattr(owner, last) if inherited else setattr(owner, last, original))

        self.when_imported(module, act)

    def when_imported(self, module: str, action: Callable[[ModuleType], None]) -> None:
        """Run `action(module)` now if the module is loaded, or as soon as it is."""

        def act(loaded: ModuleType) -> None:
            try:
                action(loaded)
            except Exception as e:  # the user's import must not fail because of torchsan
                log.debug("could not attach to %s", module, exc_info=True)
                self._failed(e)

        with self._lock:
            self._watched.setdefault(module, []).append(act)
        loaded = sys.modules.get(module)
        if loaded is not None and not getattr(getattr(loaded, "__spec__", None), "_initializing", False):
            act(loaded)

    def on_restore(self, action: Callable[[], None]) -> None:
        """Run `action` when the patches are restored, in reverse order with everything else."""
        with self._lock:
            self._undo.append(action)

    def restore(self) -> None:
        """Undo everything, last first, also when an undoing fails; may be called twice."""
        with self._lock:
            self._watched.clear()
            if self._finder in sys.meta_path:
                sys.meta_path.remove(self._finder)
            undo, self._undo = self._undo, []
        error: Exception | None = None
        for action in reversed(undo):
            try:
                action()
            except Exception as e:  # noqa: BLE001  # one failing undo must not keep the others from running
                error = error or e
        if error is not None:
            raise error


class _ImportWatcher(importlib.abc.MetaPathFinder):
    """Tells when a watched module has been executed, and leaves no trace on it."""

    def __init__(self, watched: dict[str, list[Callable[[ModuleType], None]]]) -> None:
        self._watched = watched

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._watched:
            return None
        # Only those after this one: two watchers that asked each other would never end.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._announce(spec)
                return spec
        return None

    def _announce(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader = spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # The loader belongs to this one module, so an attribute on it is seen by nobody else.
            # Another watcher may have put one there too, and takes it away itself.
            vars(loader).pop("exec_module", None)
            execute(module)
            for action in list(self._watched.get(spec.name, ())):
                action(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]  # shadows the method for one import
