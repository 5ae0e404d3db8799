"""Attach to modules and detach again: attributes replaced, now or when their module is imported, and put back.

Needs no torch: a program that never compiles must not pay for importing the compiler.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class Patches:
    """A set of replaced attributes. `restore` puts every one back; nothing of it remains after that."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._watched: dict[str, list[Callable[[ModuleType], None]]] = {}
        self._lock = threading.RLock()
        self._finder = _ImportWatcher(self._watched)
        sys.meta_path.insert(0, self._finder)

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set `owner.name` to `make(original)` until `restore`."""
        with self._lock:
            original = vars(owner)[name] if name in vars(owner) else getattr(owner, name)
            inherited = name not in vars(owner)
            setattr(owner, name, make(original))
            self._undo.append(lambda: delattr(owner, name) if inherited else setattr(owner, name, original))

    def when_imported(self, module: str, action: Callable[[ModuleType], None]) -> None:
        """Run `action(module)` now if the module is loaded, or as soon as it is."""
        with self._lock:
            self._watched.setdefault(module, []).append(action)
        loaded = sys.modules.get(module)
        if loaded is not None and not getattr(getattr(loaded, "__spec__", None), "_initializing", False):
            action(loaded)

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
