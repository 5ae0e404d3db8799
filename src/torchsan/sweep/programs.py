"""Programs to judge: small Python texts, and the files that list them. Importing it imports no torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsan._version import __version__
from torchsan.errors import UsageError
from torchsan.recording.folder import loads_strictly

_MOST_TEXT = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program: `text` is all of it, run in an empty folder with `args`. It finds modules in the folder `beside`."""

    name: str
    text: str
    args: tuple[str, ...] = ()
    beside: str = ""


def setting_key(checks: Iterable[str], loads: Sequence[str], folders: Sequence[str] = ()) -> str:
    """Return what results depend on beside the program: the versions, the checks and the modules that are loaded."""
    versions = [f"{name} {_version(name)}" for name in ("torch", "triton", "numpy")]
    loaded = [(name, _content(name, folders)) for name in loads]
    return _digest([__version__, sys.version, versions, sorted(checks), loaded])


def address(program: Program, setting: str) -> str:
    """Return the name of the result of a program: the same for the same program in the same setting, anywhere."""
    return _digest([setting, program.text, program.args, program.beside and _texts(Path(program.beside))])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _content(module: str, folders: Sequence[str]) -> str:
    """A digest of the source of a module, or of all modules of a package; nothing for one that is not Python."""
    for folder in folders:
        base = Path(folder, *module.split("."))
        if base.is_dir():
            return _texts(base)
        if base.with_suffix(".py").is_file():
            return hashlib.sha256(base.with_suffix(".py").read_bytes()).hexdigest()
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise UsageError(f"--load {module}: no such module; is it installed, or in this folder?", slug="no-module")
    if spec.submodule_search_locations:
        return _texts(Path(next(iter(spec.submodule_search_locations))))
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest() if spec.origin else ""


def _texts(folder: Path) -> str:
    """A digest of the modules of a folder: what a program imports from there decides what it does."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def read_programs(file: Path) -> list[Program]:
    """Return the programs that a file names. Raise UsageError if there are none, or one of them cannot be read.

    `FILE.py` is one itself, a folder has all its `.py` files. `FILE.jsonl` has a program a line, as an object with
    `name` and `text`. Any other file has a script a line, with its arguments, as seen from the folder of the file.
    """
    try:
        programs = list(_programs(file))
    except (OSError, ValueError) as e:
        raise UsageError(f"cannot read the programs of {file}: {e}", slug="no-program") from e
    if not programs:
        raise UsageError(f"{file} names no program", slug="no-program")
    return programs


def _programs(file: Path) -> Iterator[Program]:
    if file.is_dir():
        for script in sorted(file.glob("*.py")):
            yield _script(script, script.name)
    elif file.suffix == ".py":
        yield _script(file, file.name)
    elif file.suffix in (".jsonl", ".json"):
        yield from _listed_texts(file)
    else:
        for line in file.read_text(encoding="utf-8").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield _script(file.parent / words[0], " ".join(words), tuple(words[1:]))


def _listed_texts(file: Path) -> Iterator[Program]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        match loads_strictly(line):
            case {"text": str(text), **rest}:
                yield Program(name=str(rest.get("name", f"{file.name}:{number}")), text=text)
            case _:
                raise ValueError(f'line {number} is no object with a "text"')


def _script(path: Path, name: str, args: tuple[str, ...] = ()) -> Program:
    if path.stat().st_size > _MOST_TEXT:
        raise ValueError(f"{path} is too large for a program")
    return Program(name=name, text=path.read_text(encoding="utf-8"), args=args, beside=str(path.absolute().parent))
