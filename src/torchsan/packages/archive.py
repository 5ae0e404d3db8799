"""The file of a package: a zip archive that also holds the exported program and who built it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchsan.errors import UsageError

__all__ = ["About", "add_files", "read_about", "read_program"]

_ABOUT = "torchsan/about.json"
_PROGRAM = "torchsan/program.pt2"
_MOST_ABOUT = 1 << 20

About = Mapping[str, Any]


def add_files(package: Path, about: About, program: bytes | None) -> None:
    """Put into a package what `torchsan check-package` needs."""
    with zipfile.ZipFile(package, "a", zipfile.ZIP_STORED) as archive:
        root = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{root}/{_ABOUT}", json.dumps(about))
        if program is not None:
            archive.writestr(f"{root}/{_PROGRAM}", program)


def read_about(package: Path) -> About | None:
    """Who built the package, and what it records; None if it was not built by torchsan."""
    text = _read(package, _ABOUT, _MOST_ABOUT)
    if text is None:
        return None
    try:
        about = json.loads(text)
    except ValueError:
        about = None
    if not isinstance(about, dict):
        raise UsageError(f"{package} is damaged: {_ABOUT} cannot be read", slug="bad-package")
    return about


def read_program(package: Path) -> io.BytesIO | None:
    """The exported program that the package was built from, if it is there."""
    content = _read(package, _PROGRAM, None)
    return io.BytesIO(content) if content is not None else None


def _read(package: Path, name: str, most: int | None) -> bytes | None:
    try:
        with zipfile.ZipFile(package) as archive:
            found = [i for i in archive.infolist() if i.filename.partition("/")[2] == name]
            if not found or (most is not None and found[-1].file_size > most):
                return None
            return archive.read(found[-1])
    except FileNotFoundError as e:
        raise UsageError(f"no such package: {package}", slug="bad-package") from e
    except (zipfile.BadZipFile, OSError) as e:
        raise UsageError(f"{package} is no AOTInductor package: {e}", slug="bad-package") from e
