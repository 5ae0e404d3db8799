"""What an exporter is: one way to write a report to a file. Commands take their flags from a list of exporters.

An exporter is for one kind of subject: a recording (the list in `torchsan.report`), the recordings of several ranks, a
comparison, the results of `torchsan ops`. To add one, write its class in a file of its own and name it in the list.
"""

from __future__ import annotations

import io
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TextIO, TypeVar

from torchsan.errors import UsageError
from torchsan.recording.folder import NoSpaceError, lacks_space, write_atomically

if TYPE_CHECKING:
    import argparse

Subject = TypeVar("Subject")


class Exporter(ABC, Generic[Subject]):
    """Writes what there is to say of a subject as one text. The flag is `--NAME FILE`; `-` is standard output."""

    name: ClassVar[str]
    help: ClassVar[str]
    """What `--help` says of the flag."""

    @abstractmethod
    def render(self, subject: Subject) -> str:
        """Return the text to write."""

    def check(self, target: str) -> None:
        """Raise UsageError if nothing can be written there, before a long run finds out."""
        if target == "-":
            return
        folder = Path(os.path.realpath(target)).parent
        if Path(target).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(
                f"cannot write --{self.name} {target}: {folder} is not a folder one can write to", slug="bad-target"
            )

    def write(self, subject: Subject, target: str, messages: TextIO) -> None:
        """Write the text to a file; what is to be said about it goes to `messages`. Raise UsageError if that fails."""
        self.put(self.render(subject), target)

    def put(self, text: str, target: str) -> None:
        """Write a text to a file, at once or not at all, or to standard output for `-`. Raise UsageError."""
        if target == "-":
            sys.stdout.write(text)
            return
        file = Path(os.path.realpath(target))
        try:
            if file.exists() and not file.is_file():
                file.write_text(text, encoding="utf-8")  # A device or a pipe must be written to, not replaced.
            else:
                write_atomically(file, text)
        except OSError as e:
            said = f"cannot write --{self.name} {target}: {e.strerror or e}"
            if lacks_space(e):
                raise NoSpaceError(f"{said}; free some space, or choose another file", slug="disk-full") from e
            raise UsageError(said, slug="bad-target") from e


def json_text(values: Any) -> str:
    """Return JSON values as a text that people can read too."""
    text = io.StringIO()  # `dumps` would keep every piece until the end, of which a number has two.
    for piece in json.JSONEncoder(indent=2, allow_nan=False).iterencode(values):
        text.write(piece)
    text.write("\n")
    return text.getvalue()


def add_export_flags(parser: argparse.ArgumentParser, exporters: Sequence[Exporter[Any]]) -> None:
    """Add the flag of each exporter to a command."""
    for exporter in exporters:
        parser.add_argument(f"--{exporter.name}", metavar="FILE", help=exporter.help)


class Exports(Generic[Subject]):
    """The files that a command was asked to write, by the attributes of `given`: its arguments, or the options."""

    def __init__(self, exporters: Sequence[Exporter[Subject]], given: object, keep: Iterable[str | Path] = ()) -> None:
        """Raise UsageError if one of them cannot be written, or is among what is to `keep`: files, or folders."""
        kept = [Path(os.path.realpath(path)) for path in keep]
        targets = [(exporter, getattr(given, exporter.name, None)) for exporter in exporters]
        self._asked = [(exporter, target) for exporter, target in targets if target is not None]
        seen: dict[Path, str] = {}
        for exporter, target in self._asked:
            exporter.check(target)
            file = Path(os.path.realpath(target))
            if seen.setdefault(file, exporter.name) != exporter.name:
                raise UsageError(
                    f"--{seen[file]} and --{exporter.name} both write {target}; choose another file for one of them",
                    slug="bad-target",
                )
            if target != "-" and file.is_file() and not {file, *file.parents}.isdisjoint(kept):
                raise UsageError(
                    f"--{exporter.name} {target} would overwrite what it reports on; choose another file",
                    slug="bad-target",
                )

    @property
    def to_stdout(self) -> bool:
        """Whether one of them is standard output, which then has nothing else."""
        return any(target == "-" for _, target in self._asked)

    def write(self, subject: Subject) -> None:
        """Write all of them; messages go to standard error."""
        for exporter, target in self._asked:
            exporter.write(subject, target, sys.stderr)
