"""Files that may not be what they were: descriptors that the program took over, pipes in the place of files, texts
that are made to take much memory.

Importing it imports no torch.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path


def identity(file: str | Path | int) -> tuple[int, int] | None:
    """Return device and inode of a file, or of what a descriptor leads to; None if there is none.

    A program may close descriptors that it did not open, as daemons do, and get their numbers again for files of its
    own. Who keeps a descriptor compares this before each write, or would write into the program's files.
    """
    try:
        status = os.stat(file)  # noqa: PTH116  # a Path has no stat of a descriptor
    except OSError:
        return None
    return status.st_dev, status.st_ino


def unchanged(descriptors: Mapping[int, tuple[int, int] | None]) -> bool:
    """Whether each descriptor still leads to the file whose `identity` stands beside it."""
    return all(identity(number) == file for number, file in descriptors.items())


def open_plain(file: str | Path, *, follow: bool, at: int | None = None) -> int:
    """Return a descriptor to read a file with. Raise OSError for what is no plain file; `follow` allows a link to one.

    Nothing else is read: a pipe would block, and a device could be without end. `at` is the folder that it is in.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(file, flags if follow else flags | getattr(os, "O_NOFOLLOW", 0), dir_fd=at)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(file))
    return descriptor


def open_inside(folder: Path, key: str) -> int:
    """Return a descriptor to read a plain file below a folder with, `/` between the parts of its `key`.

    No part of the key may be a link, whoever puts one there meanwhile.
    """
    if os.open not in os.supports_dir_fd:
        return open_plain(folder / key, follow=False)
    *parts, name = key.split("/")
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            above, at = at, os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(above)
        return open_plain(name, follow=False, at=at)
    finally:
        os.close(at)


def by_descriptor(descriptor: int) -> Path | None:
    """A path that leads to what a descriptor leads to, whatever has its name by now; None where there is none."""
    path = Path(f"/dev/fd/{descriptor}")
    return path if identity(path) == identity(descriptor) is not None else None


_OUT_OF_THE_WAY = 900
"""Below 1024, the limit on many machines."""
_ENOUGH = 16
"""As many descriptors stay free for what is opened inside."""


@contextmanager
def high_descriptors() -> Iterator[None]:
    """Let what is opened inside get high numbers, where the limit allows it.

    A program without torchsan gets the lowest number for its first file, and may have a limit of few.
    """
    taken: list[int] = []
    try:
        with suppress(OSError):  # The limit is reached.
            taken.append(os.open(os.devnull, os.O_RDONLY))
            while taken[-1] < _OUT_OF_THE_WAY:
                taken.append(os.dup(taken[0]))
        for number in taken[-_ENOUGH:]:
            os.close(number)
        del taken[-_ENOUGH:]
        yield
    finally:
        for number in taken:
            os.close(number)


def moved_up(descriptor: int) -> int:
    """Give a descriptor a high number, where the limit allows it, and return that."""
    try:
        import fcntl

        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY)
    except (ImportError, OSError):
        return descriptor
    os.close(descriptor)
    return high


_WORD = re.compile(rb"a+")
_LETTERS = bytes(97 if chr(i).isalnum() or i == 95 or i > 127 else i for i in range(256))
_SIGNS = "([{,-+~\"'"


def count_parts(text: str) -> int:
    """About how many parts the text of a program has once it is parsed, of which each takes about a kilobyte.

    A hostile text has very many for its length.
    """
    words = sum(1 for _ in _WORD.finditer(text.encode("utf-8", "replace").translate(_LETTERS)))
    return words + sum(map(text.count, _SIGNS))
