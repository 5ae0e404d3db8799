"""A forked child that leaves no trace: what it prints, writes, sends or changes in memory stays with it.

Linux only. The child has a copy of everything, and one thread. Its descriptors lead nowhere or to copies, memory that
it shares with others becomes its own, and an audit hook ends it where Python would reach out of the process.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import os
import random
import resource
import signal
import socket
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from torchsan.torch_internals.operators import start_autograd

_LIFETIME = 600
"""Seconds that a child may compute at a stretch; then it dies, whatever it waits for."""
_FREE = 1 << 30
"""Bytes of memory that must be free before a child is made."""
_COPIED = 64 << 20
"""Bytes up to which a file that is open for writing is copied for the child."""
_SHARED = 1 << 30
"""Bytes of shared memory up to which the child gets a copy of it."""

_REACHES_OUT = (
    "os.fork os.forkpty os.exec os.spawn os.posix_spawn os.system os.kill os.killpg os.remove os.rename os.rmdir "
    "os.mkdir os.truncate os.link os.symlink os.chmod os.chown os.lchown os.utime os.setxattr os.removexattr os.chdir "
    "subprocess.Popen pty.spawn signal.pthread_kill socket.connect socket.bind socket.sendto socket.sendmsg "
    "socket.getaddrinfo socket.gethostbyname sqlite3.connect ftplib.connect smtplib.connect urllib.Request "
    "webbrowser.open syslog.syslog"
).split()


_forking = False
_inside = False


class Refused(BaseException):
    """The program was about to reach out of the child. No `except Exception` of the program's takes it."""


def inside() -> bool:
    """Whether this process is such a child."""
    return _inside


def obstacle() -> str | None:
    """Why no child can be forked off this process now; None if one can."""
    import torch

    if sys.platform != "linux":
        return "a forked child that leaves no trace needs Linux"
    if signal.getsignal(signal.SIGCHLD) not in (signal.SIG_DFL, None):
        return "the program handles SIGCHLD, and would see torchsan's children"
    for name in ("cuda", "xpu", "mps"):
        device: Any = getattr(torch, name, None)
        if getattr(device, "is_initialized", lambda: False)():
            return f"{name.upper()} does not work in a forked child"
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return "a process group is initialised, and collectives cannot be called twice"
    free = available_memory()
    if free is not None and free < _FREE:
        return f"less than {_FREE >> 30} GiB of memory is free"
    start_autograd()
    return None


def available_memory() -> int | None:
    """Bytes that can be allocated without swapping, as far as the system says."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def fork_isolated(*serve: Callable[[socket.socket], None]) -> list[socket.socket]:
    """Fork a child for each function; it runs `serve(its end)` and is gone. Return our ends of the sockets.

    The children are nobody's: the program's `wait` does not see them. They end when our end is closed. Raise OSError
    if there is no room for them.
    """
    pairs = [socket.socketpair() for _ in serve]
    numbers = random.getstate()  # Python reseeds it in a child.
    try:
        middle = _fork()
        if middle == 0:
            _middle(pairs, serve, numbers)
        with suppress(ChildProcessError):
            if os.waitpid(middle, 0)[1] != 0:
                raise OSError(errno.EAGAIN, "could not fork")
    except BaseException:
        for ours, _ in pairs:
            ours.close()
        raise
    finally:
        for _, theirs in pairs:
            theirs.close()
    return [ours for ours, _ in pairs]


def _fork() -> int:
    # Python 3.12 warns of threads. Changing the filters in the usual way would make warnings of the program repeat.
    quiet: Any = ("ignore", None, DeprecationWarning, None, 0)
    warnings.filters.insert(0, quiet)  # type: ignore[attr-defined]  # a list, whatever its type says
    try:
        return os.fork()
    finally:
        with suppress(ValueError):
            warnings.filters.remove(quiet)  # type: ignore[attr-defined]  # as above


def _middle(pairs: list[Any], serve: tuple[Callable[[socket.socket], None], ...], numbers: Any) -> NoReturn:
    """Fork the children and go, so that they belong to nobody."""
    status = 1
    try:
        gc.disable()
        for i, (function, (_, theirs)) in enumerate(zip(serve, pairs, strict=True)):
            if os.fork() == 0:
                for j, pair in enumerate(pairs):
                    for end in pair if j != i else pair[:1]:
                        end.close()
                _serve(function, theirs, numbers)
        status = 0
    finally:
        os._exit(status)


def _serve(function: Callable[[socket.socket], None], end: socket.socket, numbers: Any) -> NoReturn:
    try:
        _isolate(end.fileno(), numbers)
        function(end)
    except BaseException:  # noqa: BLE001  # the other end notices that the socket is closed
        pass
    finally:
        os._exit(0)


def _isolate(keep: int, numbers: Any) -> None:
    global _inside
    _inside = True
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP):
        with suppress(ValueError):  # A thread that is not the main one, even here.
            signal.signal(name, signal.SIG_DFL)
    with suppress(ValueError):
        signal.set_wakeup_fd(-1)
    signal.alarm(_LIFETIME)
    gc.disable()  # What would be collected here is the program's: its finalizers are not for us.
    random.setstate(numbers)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with suppress(OSError, ValueError):
        _limit_memory()
    for number in _descriptors():
        if number != keep:
            _detach(number)
    _own_shared_memory()
    sys.dont_write_bytecode = True
    sys.addaudithook(_audit)


def _limit_memory() -> None:
    """What the child asks for beyond half of what is free fails in the child, not in the job."""
    free = available_memory()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    if free is not None:
        limit = pages * mmap.PAGESIZE + free // 2
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _descriptors() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def _detach(number: int) -> None:
    """Let a descriptor lead to a copy of what it led to, or nowhere. A closed one could become another file's."""
    try:
        import fcntl

        mode = os.fstat(number).st_mode
        access = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        if number > 2 and stat.S_ISREG(mode) and access != os.O_WRONLY:
            new = _copy(number) if access == os.O_RDWR else _reopened(number)
        else:
            new = os.open(os.devnull, os.O_RDWR)
    except OSError:
        try:
            new = os.open(os.devnull, os.O_RDWR)
        except OSError:
            return
    with suppress(OSError):
        os.dup2(new, number)
    if new != number:
        os.close(new)


def _reopened(number: int) -> int:
    """The file again, for reading, with an offset of its own."""
    new = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
    os.lseek(new, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    return new


def _copy(number: int) -> int:
    size = os.fstat(number).st_size
    if size > _COPIED:
        return _reopened(number)
    new = os.memfd_create("copy")
    os.write(new, os.pread(number, size, 0))
    os.lseek(new, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    return new


def _own_shared_memory() -> None:
    """Put private copies in the place of writable memory that other processes see. Raise OSError if there is much."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
    done = 0
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        where, permissions, *_ = line.split()
        if permissions[:2] != "rw" or permissions[3] != "s":
            continue
        start, end = (int(x, 16) for x in where.split("-"))
        done += end - start
        if done > _SHARED:
            raise OSError(errno.ENOMEM, "too much shared memory")
        contents = ctypes.string_at(start, end - start)
        if libc.mmap(start, end - start, mmap.PROT_READ | mmap.PROT_WRITE, private, -1, 0) != start:
            raise OSError(ctypes.get_errno(), "shared memory could not be copied")
        ctypes.memmove(start, contents, len(contents))


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _forking:
        return
    if event == "open":
        path, mode, flags = args
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        if writes and path != os.devnull and not isinstance(path, int):
            raise Refused(f"it opens a file for writing ({mode or 'by its descriptor'})")
    elif event == "os.mkdir" and Path(args[0]).is_dir():
        pass  # It fails, as it does in the program, and changes nothing.
    elif event in _REACHES_OUT or event.startswith("shutil."):
        raise Refused(f"it calls {event}")


@contextmanager
def waiting() -> Iterator[None]:
    """In a child: inside, it may wait for its parent as long as that takes; outside, it computes, and its time runs."""
    signal.alarm(0)
    try:
        yield
    finally:
        signal.alarm(_LIFETIME)


def in_grandchild(function: Callable[[], None]) -> None:
    """In a child: run `function` in a child of its own, which is as isolated, and wait for its end."""
    global _forking
    _forking = True
    try:
        pid = os.fork()
    finally:
        _forking = False
    if pid == 0:
        try:
            signal.alarm(_LIFETIME)  # A new process has none.
            function()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
