"""Brings a recording from object storage to where it can be read: all of it but the tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from torchsan.errors import RecordingError
from torchsan.recording.folder import ARTIFACTS, EVENTS, MANIFEST, TENSORS
from torchsan.recording.ranks import is_rank_folder
from torchsan.recording.remote import RemoteFolder, is_url, join_url

__all__ = ["local_copy"]

_MOST = 8 << 30
"""Bytes of one file: more than a log ever has, and less than fills a disk at once."""


@contextmanager
def local_copy(path: str) -> Iterator[Path]:
    """Give a local folder with the recording, or the ranks, at `path`: itself, or a copy of what a URL holds.

    Raise RecordingError if there is none. Names that are not ours stay where they are.
    """
    if not is_url(path):
        yield Path(path)
        return
    with TemporaryDirectory(prefix="torchsan-") as temporary:
        folder = Path(temporary, path.rstrip("/").rpartition("/")[2] or "recording")
        try:
            _fetch(path, folder)
        except RecordingError:
            raise
        except Exception as e:
            raise RecordingError(f"no recording at {path}: {type(e).__name__}: {e}", slug="no-recording") from e
        yield folder


def _fetch(url: str, folder: Path) -> None:
    remote = RemoteFolder(url)
    there = remote.list()
    ranks = [name for name, (kind, _) in there.items() if kind == "directory" and is_rank_folder(name)]
    folder.mkdir(parents=True)
    if ranks:
        for name in ranks:
            _fetch(join_url(url, name), folder / name)
        return
    for needed in (MANIFEST, EVENTS):
        if needed not in there:
            raise RecordingError(f"no recording at {url}: it has no {needed}", slug="no-recording")
        remote.get(needed, folder / needed, _MOST)
    (folder / ARTIFACTS).mkdir()
    (folder / TENSORS).mkdir()
    for name, (kind, _) in remote.list(ARTIFACTS).items():
        if kind == "file" and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
            remote.get(f"{ARTIFACTS}/{name}", folder / ARTIFACTS / name, _MOST)
