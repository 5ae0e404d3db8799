"""Sends a recording to object storage while it is made.

A recording is always made in a local folder, where a program that crashes leaves it whole. This copies it: what is
written once (large tensors, artifacts) as it comes; what grows (the event log, the logs of the store) every minute and
at the end. What cannot be sent stays where it is, and can be sent later.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Container, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from torchsan.errors import RecordingError, UsageError, in_one_line
from torchsan.files import by_descriptor, moved_up, open_inside
from torchsan.recording.folder import (
    ARTIFACT,
    ARTIFACTS,
    EVENTS,
    MANIFEST,
    TENSORS,
    as_local,
    is_rank_folder,
    is_url,
    join_url,
    loads_strictly,
    read_plain,
    write_atomically,
)
from torchsan.recording.log import open_log

log = logging.getLogger(__name__)

_MOST = 8 << 30
"""Bytes of one file: more than a log ever has, and less than fills a disk at once."""


class RemoteFolder:
    """Files by their key, `/` between folder and name. What the file system raises passes through."""

    def __init__(self, url: str) -> None:
        """Open the folder at `url`. Raise UsageError if there is no such kind of URL, or it has a password in it."""
        if re.match(r"[^/]*//[^/]*:[^/]*@", url):
            raise UsageError(
                "a URL for --out is written into the recording, so it must hold no password; the protocol's own "
                "environment variables or configuration can",
                slug="unwritable-out",
            )
        self.url = url
        import fsspec  # type: ignore[import-untyped]  # it ships no types

        try:
            self._fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError, TypeError) as e:
            raise UsageError(f"cannot open {url}: {e}", slug="unwritable-out") from e
        self._root = root.rstrip("/")

    def put(self, key: str, file: Path) -> None:
        """Send a file. Raise UsageError where a link on this machine leads elsewhere."""
        self._make_folder(key)
        self._fs.put_file(str(file), f"{self._root}/{key}")

    def put_bytes(self, key: str, data: bytes) -> None:
        """Send what is in memory."""
        self._make_folder(key)
        self._fs.pipe_file(f"{self._root}/{key}", data)

    def _make_folder(self, key: str) -> None:
        if "file" in (self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,)):
            path = Path(self._root)
            for part in key.split("/"):
                path /= part
                if path.is_symlink():
                    raise UsageError(f"{path} is a link; choose another place", slug="not-sent")
        self._fs.makedirs(f"{self._root}/{key}".rpartition("/")[0], exist_ok=True)

    def get(self, key: str, file: Path, limit: int) -> None:
        """Fetch a file of at most `limit` bytes. Raise ValueError for a larger one."""
        path = f"{self._root}/{key}"
        size = self._fs.info(path)["size"]
        if size is not None and size > limit:
            raise ValueError(f"{key} has {size} bytes")
        self._fs.get_file(path, str(file))

    def differs(self, key: str, data: bytes) -> bool:
        """Return whether what is there under `key` is something else."""
        return bool(self._fs.cat_file(f"{self._root}/{key}") != data)

    def list(self, folder: str = "") -> dict[str, tuple[str, int]]:
        """Return the kind (`file` or `directory`) and size of what is in `folder` by name; empty if there is none."""
        path = f"{self._root}/{folder}".rstrip("/")
        self._fs.invalidate_cache(path)
        try:
            infos: list[Any] = self._fs.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        names = {i["name"].rstrip("/").rpartition("/")[2]: (str(i["type"]), int(i["size"] or 0)) for i in infos}
        return {name: info for name, info in names.items() if name}

    def sizes(self) -> dict[str, int]:
        """Return the size of every file by its key."""
        self._fs.invalidate_cache(self._root)
        found: dict[str, Any] = self._fs.find(self._root, detail=True)
        return {path.removeprefix(self._root).lstrip("/"): int(info["size"] or 0) for path, info in found.items()}

    def remove(self, key: str) -> None:
        """Remove a file that is there."""
        self._fs.rm_file(f"{self._root}/{key}")


@contextmanager
def local_copy(path: str) -> Iterator[Path]:
    """Give a local folder with the recording, or the ranks, at `path`: itself, or a copy of what a URL holds.

    Raise RecordingError if there is none. Names that are not ours stay where they are. What is on this machine is not
    copied, whatever names it: a copy would be of what links in it lead to.
    """
    here = as_local(path)
    if here is not None:
        yield here
        return
    with tempfile.TemporaryDirectory(prefix="torchsan-") as temporary:
        name = path.rstrip("/").rpartition("/")[2]
        folder = Path(temporary, name if name.strip(".") else "recording")
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
        if kind == "file" and ARTIFACT.fullmatch(name):
            remote.get(f"{ARTIFACTS}/{name}", folder / ARTIFACTS / name, _MOST)


DESTINATION = "destination.json"
"""In a local folder that is to be sent: where to. It stays here."""
_SOON = 1.0
_GROWING = 60.0
_LAST_CHANCE = 120.0
"""Seconds: between looks for what is new, between sendings of what grows, and for the end."""


class Shipper:
    """Sends the recording in `folder` to `url` from a thread, until `finish`. Raises nothing once it has started."""

    def __init__(self, folder: Path, url: str, *, growing: float = _GROWING) -> None:
        """Say where the recording goes, here and there. Raise UsageError if nothing can be written there now."""
        self.url = url
        self._folder = folder
        self._growing = growing
        self._sent: dict[str, tuple[int, int]] = {}
        self._told = False
        self._over = threading.Event()
        self._complete = False
        try:
            self._remote = RemoteFolder(url)
            if self._remote.list():
                raise UsageError(f"{url} is not empty; choose another --out", slug="out-exists")
            self._remote.put(MANIFEST, folder / MANIFEST)
        except UsageError:
            raise
        except Exception as e:
            raise UsageError(f"cannot write a recording to {url}: {in_one_line(e)}", slug="unwritable-out") from e
        self._sent[MANIFEST] = _state(folder / MANIFEST)
        with suppress(OSError):  # A full disk. Who was told where it goes need not be asked.
            write_atomically(folder / DESTINATION, json.dumps({"url": url}) + "\n")
        self._thread = threading.Thread(target=self._run, name="torchsan-shipper", daemon=True)
        self._thread.start()

    def finish(self) -> bool:
        """Send the rest, and return whether everything is there. Then the local folder may go; else say what to do."""
        self._over.set()
        self._thread.join(_LAST_CHANCE)
        if not self._complete:
            _say(
                f"the recording stays in {self._folder}: not all of it could be sent to {self.url}; "
                f"`torchsan store sync {self._folder} --to {self.url}` sends it"
            )
        return self._complete

    def discard(self) -> None:
        """Nothing was recorded: take back what was sent."""
        self._over.set()
        self._thread.join(_LAST_CHANCE)
        with suppress(Exception):
            self._remote.remove(MANIFEST)

    def _run(self) -> None:
        last = time.monotonic()
        while not self._over.wait(_SOON):
            grown = time.monotonic() - last >= self._growing
            if self._try(growing=grown) and grown:
                last = time.monotonic()
        self._complete = self._try(growing=True)

    def _try(self, *, growing: bool) -> bool:
        try:
            _send(self._folder, self._remote, self._sent, growing=growing)
        except Exception as e:
            log.debug("could not send to %s", self.url, exc_info=True)
            if not self._told:
                self._told = True
                now = f"cannot send to {self.url} now: {in_one_line(e)}"
                _say(f"{now}; the recording is kept in {self._folder} meanwhile")
            return False
        return True


def send(folder: Path, url: str) -> int:
    """Send a recording or a store that is in `folder`, but for what is there; return how many files that was.

    Raise UsageError if it cannot be sent; what was sent stays, and the next attempt goes on from there.
    """
    remote = RemoteFolder(url)
    try:
        there = remote.sizes()
        _require_own(folder, remote, there)
        # What was written once and has its size is there; what grows may have grown by as much as was lost.
        sent = {k: _state(folder / k) for k in _once(folder) if there.get(k) == (folder / k).stat().st_size}
        before = len(sent)
        _send(folder, remote, sent, growing=True)
        left = _left_out(folder)
        if left:
            raise UsageError(
                f"{len(left)} parts of {folder} are links, pipes or the like and were not sent, such as {left[0]}; "
                "the rest is there",
                slug="not-sent",
            )
    except UsageError:
        raise
    except Exception as e:
        raise UsageError(
            f"cannot send {folder} to {url}: {in_one_line(e)}; nothing is lost, try again", slug="not-sent"
        ) from e
    return len(sent) - before


def _require_own(folder: Path, remote: RemoteFolder, there: Container[str]) -> None:
    """Raise UsageError unless the place is empty, or holds what was sent of this very folder before."""
    names = [key for key in _files(folder) if key.rpartition("/")[2] in (MANIFEST, _STORE)]
    if remote.list() and (
        not any(key in there for key in names) or any(k in there and remote.differs(k, _read(folder, k)) for k in names)
    ):
        raise UsageError(f"{remote.url} is not empty, and no copy of {folder}; choose another place", slug="out-exists")


def _left_out(folder: Path) -> list[str]:
    """What has the name of a part and is no plain file or folder."""
    found = []
    for path in sorted(folder.rglob("*")):
        key = path.relative_to(folder).as_posix()
        odd = path.is_symlink() or not (path.is_file() or path.is_dir())
        if odd and (_OURS.fullmatch(key) or _FOLDERS.fullmatch(key)):
            found.append(key)
    return found


def read_destination(folder: Path) -> str | None:
    """Return where a folder says that it was to be sent; None if it does not. Raise RecordingError if that is damaged.

    Nobody knows who wrote that: it is something to ask the user about, and never a place on this machine.
    """
    try:
        value = loads_strictly(read_plain(folder / DESTINATION, 1 << 16))
        url = value["url"]
        if not isinstance(url, str):
            raise TypeError("its url is no text")
        if not is_url(url) or "::" in url or re.match("file:|local:", url, re.I) or not url.isprintable():
            raise ValueError(f"{url!r:.200} is no URL that a recording is sent to by itself")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise RecordingError(f"cannot read {folder / DESTINATION}: {e}", slug="malformed-record") from e
    return url


def _send(folder: Path, remote: RemoteFolder, sent: dict[str, tuple[int, int]], *, growing: bool) -> None:
    """Send what is new since `sent`, which is kept up to date. What refers to other files goes after them."""
    for key in _once(folder):
        if key not in sent:
            _put(remote, folder, key)
            sent[key] = _state(folder / key)
    if not growing:
        return
    for key in _grow(folder):
        state = _state(folder / key)
        if sent.get(key) == state:
            continue
        if key == EVENTS:
            _send_events(folder, remote)
        elif key.endswith(".log"):
            # Its pack after it was read and before it is sent: what a line speaks of is there when it is.
            data = _read(folder, key)
            pack = key.removesuffix(".log") + ".pack"
            if _is_plain(folder / pack):
                _put(remote, folder, pack)
            remote.put_bytes(key, data)
        else:
            _put(remote, folder, key)
        sent[key] = state


def _put(remote: RemoteFolder, folder: Path, key: str) -> None:
    """Send a file that was a plain one when it was looked at. What is a link by now is not followed."""
    with os.fdopen(moved_up(open_inside(folder, key)), "rb") as file:
        remote.put(key, by_descriptor(file.fileno()) or folder / key)


def _read(folder: Path, key: str) -> bytes:
    with os.fdopen(open_inside(folder, key), "rb") as file:
        return file.read()


_STORE = "torchsan-store.json"
_STORED = r"torchsan-store\.json|log/[0-9A-Za-z_-]+\.(?:log|pack)|blobs/[0-9a-f]{2}/[0-9a-f]{64}"
_OURS = re.compile(
    rf"(?:rank-\d{{1,9}}(?:-restart-\d{{1,9}})?/)?(?:{re.escape(MANIFEST)}|{re.escape(EVENTS)}(?:-wal|-shm)?|"
    rf"{ARTIFACTS}/{ARTIFACT.pattern}|(?:{TENSORS}/)?(?:{_STORED}))",
    re.ASCII,
)
"""The files of a recording, of several ranks' and of a store. Nothing else is sent, whatever lies beside them."""
_FOLDERS = re.compile(
    rf"(?:rank-\d{{1,9}}(?:-restart-\d{{1,9}})?/?)?(?:{ARTIFACTS}|(?:{TENSORS}(?:/|$))?(?:log|blobs(?:/[0-9a-f]{{2}})?)?)",
    re.ASCII,
)


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        key = path.relative_to(folder).as_posix()
        if _OURS.fullmatch(key) and not key.endswith(".tmp") and _is_plain(path):
            yield key


def _is_growing(key: str) -> bool:
    return key.startswith(EVENTS) or "log" in key.split("/")[:-1]


def _once(folder: Path) -> list[str]:
    """The files that are written once."""
    return [key for key in _files(folder) if not _is_growing(key)]


def _grow(folder: Path) -> list[str]:
    """The files that grow, but for those that another is sent with."""
    return [k for k in _files(folder) if _is_growing(k) and not k.endswith((".pack", "-wal", "-shm"))]


def _state(file: Path) -> tuple[int, int]:
    status = file.stat()
    wal = file.with_name(f"{file.name}-wal")  # Where a database grows until it is folded.
    return status.st_size + (wal.stat().st_size if wal.exists() else 0), status.st_mtime_ns


def _send_events(folder: Path, remote: RemoteFolder) -> None:
    """Send the event log as it is now, in one file, while its program goes on writing."""
    with tempfile.TemporaryDirectory(prefix="torchsan-") as temporary:
        copy = Path(temporary, EVENTS)
        with closing(open_log(folder / EVENTS, "mode=ro")) as log_, closing(sqlite3.connect(copy)) as target:
            log_.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")
        remote.put(EVENTS, copy)


def _say(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"torchsan: {text}\n")
