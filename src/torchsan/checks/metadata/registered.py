"""The operators that modules register, and the samples that modules bring for them. Importing it imports no torch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torchsan.errors import UsageError


def load_operators(names: Iterable[str]) -> tuple[list[Any], dict[str, Callable[[], Any]]]:
    """Import the modules; return the overloads that this registered, and the samples that the modules bring."""
    from torchsan.torch_internals.operators import is_own, overloads_named, registered_names

    sys.path.insert(0, str(Path.cwd()))
    before = registered_names()
    samples: dict[str, Callable[[], Any]] = {}
    for name in names:
        samples.update(_mapping(_import(name), "torchsan_samples"))
    return [o for o in overloads_named(registered_names() - before) if not is_own(o)], samples


def given_references(names: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """What the modules, which are loaded, say their operators should compute: functions by the operators' names."""
    found: dict[str, Callable[..., Any]] = {}
    for name in names:
        found.update(_mapping(sys.modules[Path(name).stem if name.endswith(".py") else name], "torchsan_references"))
    return found


def _mapping(module: ModuleType, what: str) -> Mapping[str, Any]:
    found = getattr(module, what, {})
    if not isinstance(found, Mapping):
        raise UsageError(f"{what} of {module.__name__} is no mapping of operators to functions", slug="bad-samples")
    return found


def _import(name: str) -> ModuleType:
    try:
        if name.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(name).stem, name)
            if spec is None or spec.loader is None or not Path(name).exists():
                raise UsageError(f"no such file: {name}", slug="no-module")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return module
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise UsageError(f"cannot import {name}: {e}; is it installed, or in this folder?", slug="no-module") from e


def given_samples(overload: Any, samples: Mapping[str, Callable[[], Any]]) -> list[Any] | None:
    """The user's samples for an overload: tuples of arguments, or pairs of a tuple and a dictionary."""
    make = of_overload(overload, samples)
    if make is None:
        return None
    given = []
    for sample in make():
        pair = isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[1], dict)
        given.append(sample if pair else (tuple(sample), {}))
    return given


def of_overload(overload: Any, functions: Mapping[str, Callable[..., Any]]) -> Callable[..., Any] | None:
    """What there is for an overload, by its full name or by that of its operator."""
    name = overload.name()
    return functions.get(name) or functions.get(name.partition(".")[0])
