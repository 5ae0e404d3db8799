"""The modules that a user gives with `--load`: by name, or as a file that then lies beside the script."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchsan.errors import UsageError

__all__ = ["Loads", "parse_loads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Modules to import, by name, and the files among them."""

    modules: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def copy_to(self, folder: Path) -> None:
        """Put the files where a script finds them."""
        for file in self.files:
            shutil.copyfile(file, folder / file.name)


def parse_loads(words: Iterable[str]) -> Loads:
    """Return what `--load` was given; raise UsageError for what is neither a module nor a file."""
    modules, files = [], []
    for word in words:
        name = word
        if word.endswith(".py"):
            file = Path(word).absolute()
            if not file.is_file():
                raise UsageError(f"--load {word}: no such file", slug="no-module")
            files.append(file)
            name = file.stem
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name, re.ASCII) or name == "repro":
            raise UsageError(f"--load {word!r:.100}: expected a module, or a file that is one", slug="no-module")
        modules.append(name)
    return Loads(modules=tuple(modules), files=tuple(files))
