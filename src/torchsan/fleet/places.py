"""Where the recordings are: folders, folders of recordings or ranks, globs and URLs."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchsan.errors import RecordingError
from torchsan.recording import is_url
from torchsan.recording.folder import MANIFEST, join_url
from torchsan.recording.shipping import RemoteFolder

_DEPTH = 6
"""How deep below a folder recordings are looked for."""


def several(places: Sequence[str]) -> bool:
    """Return whether these stand for many recordings, and not for one or for the ranks of one job."""
    if len(places) != 1:
        return True
    place = places[0]
    if is_url(place):
        return "*" in place
    folder = Path(place)
    if not folder.exists():
        return glob.has_magic(place)
    if not folder.is_dir() or (folder / MANIFEST).exists():
        return False
    found = list(_below(folder, _DEPTH))
    return bool(found) and any(not _is_rank(recording, folder) for recording in found)


def _is_rank(recording: Path, folder: Path) -> bool:
    return recording.parent == folder and recording.name.startswith("rank-")


def find_recordings(places: Sequence[str]) -> list[str]:
    """Return the recordings that folders, globs and URLs stand for, each once. Raise RecordingError for none."""
    found: dict[str, None] = {}
    for place in places:
        here = list(_remote(place) if is_url(place) else _local(place))
        if not here:
            raise RecordingError(f"no recording at {place}", slug="no-recording")
        found.update(dict.fromkeys(here))
    return list(found)


def _local(place: str) -> Iterator[str]:
    path = Path(place)
    start = Path(path.anchor)
    named = [path] if path.exists() or not glob.has_magic(place) else sorted(start.glob(str(path.relative_to(start))))
    for folder in named:
        yield from map(str, _below(folder, _DEPTH))


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """The recordings in a folder. Links are not followed: they could lead in a circle."""
    if not folder.is_dir():
        return
    if (folder / MANIFEST).exists():
        yield folder
        return
    if depth:
        for entry in sorted(folder.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                yield from _below(entry, depth - 1)


def _remote(place: str) -> Iterator[str]:
    base, star, pattern = place.partition("*")
    if not star:
        yield from _remote_below(place, _DEPTH)
        return
    parent = base.rpartition("/")[0]
    for url in _remote_below(parent, _DEPTH):
        below = url.removeprefix(parent).lstrip("/")
        if fnmatch.fnmatchcase(below, f"{base.rpartition('/')[2]}*{pattern.rstrip('/')}*"):
            yield url


def _remote_below(url: str, depth: int) -> Iterator[str]:
    there = RemoteFolder(url).list()
    if MANIFEST in there:
        yield url
    elif depth:
        for name in sorted(name for name, (kind, _) in there.items() if kind == "directory"):
            yield from _remote_below(join_url(url, name), depth - 1)
