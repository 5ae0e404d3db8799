"""Runs code that is not trusted in a forked child, with limits of time and memory; what it does besides is reported.

The child may hang, crash, exit, fork or write files. Files outside of its scratch folder and the caches of compilers
are refused by Linux' Landlock where there is one, and by Python's audit hooks. Importing this imports no torch.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from torchsan.records.program import signal_name

Message = tuple[dict[str, Any], list[bytes]]
_LONGEST = 1 << 31
_IDLE = 0.02
"""The share of a processor below which a child waits for something that does not come."""
_PATIENCE = 2
"""How many times the time it has a child may compute."""


_LARGEST = 1 << 30
"""Bytes of the largest file that a kernel may write: its output, and what compilers make of it."""


class Gone(Exception):
    """The child ended, or had to be ended, before it answered. `signal` and `status` say how; 0 and None if unknown."""

    def __init__(
        self, how: str, *, signal: int = 0, status: int | None = None, hung: bool = False, said: str = ""
    ) -> None:
        """`said` is the end of what it wrote to its standard output and error."""
        super().__init__(how)
        self.signal, self.status, self.hung, self.said = signal, status, hung, said


class Channel:
    """Messages over a socket: JSON values, and bytes beside them. Nothing that is received is executed."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, values: dict[str, Any], blobs: list[bytes] | None = None) -> None:
        """Send a message. Raise OSError if nobody is there."""
        head = json.dumps(values).encode()
        parts = [head, *(blobs or [])]
        self._socket.sendall(struct.pack("<I", len(parts)) + b"".join(struct.pack("<Q", len(p)) for p in parts))
        for part in parts:
            self._socket.sendall(part)

    def receive(self, deadline: float | None = None) -> Message | None:
        """Return the next message; None at the end. Raise TimeoutError after the deadline (of `time.monotonic`)."""
        count = self._exactly(4, deadline)
        if count is None:
            return None
        lengths = self._exactly(8 * struct.unpack("<I", count)[0], deadline)
        if lengths is None:
            return None
        parts = []
        for (length,) in struct.iter_unpack("<Q", lengths):
            part = self._exactly(length, deadline) if length < _LONGEST else None
            if part is None:
                return None
            parts.append(part)
        return json.loads(parts[0]), parts[1:]

    def _exactly(self, n: int, deadline: float | None) -> bytes | None:
        data = bytearray()
        while len(data) < n:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([self._socket], [], [], left)[0]:
                    raise TimeoutError
            try:
                part = self._socket.recv(min(n - len(data), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            data += part
        return bytes(data)

    def wait(self, seconds: float) -> bool:
        """Wait for a message to begin; False if none does in this time."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class Child:
    """A forked process that runs `work` with a channel to this one. Ended with the context, and all it started."""

    def __init__(self, work: Callable[[Channel], None], *, memory: int) -> None:
        """`memory` is how many bytes it may use beyond what this process has."""
        self.scratch = Path(tempfile.mkdtemp(prefix="torchsan-kernel-"))
        ours, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads; the child uses none of them.
            self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _live(work, Channel(theirs), self.scratch, memory, parent)
        theirs.close()
        self.channel = Channel(ours)
        self._over = False
        self._status = 0
        self._last_words = ""

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def ask(self, values: dict[str, Any], blobs: list[bytes] | None = None, *, seconds: float) -> Message:
        """Send a message and return the answer. Raise Gone if there is none in time."""
        try:
            self.channel.send(values, blobs)
        except OSError:
            raise self.gone() from None
        return self.answer(seconds=seconds)

    def answer(self, *, seconds: float) -> Message:
        """Return the next message from the child. Raise Gone if there is none in time.

        Where it works and gets little of the processor, because others do, it gets more time.
        """
        began = spent = self._worked()
        while not self.channel.wait(seconds):
            before, spent = spent, self._worked()
            if spent - before < _IDLE * seconds or spent - began > _PATIENCE * seconds:
                break
        try:
            message = self.channel.receive(time.monotonic() + (seconds if self.channel.wait(0) else 0))
        except TimeoutError:
            self.end()
            raise Gone(f"it was still running after {seconds:.0f} s", hung=True, said=self._said()) from None
        except ValueError:
            message = None  # It wrote into the channel itself.
        if message is None:
            raise self.gone()
        return message

    def _worked(self) -> float:
        """How many seconds of a processor the child's session has used."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError, IndexError):
                fields = stat.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.pid:
                    ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def gone(self) -> Gone:
        """How the child ended; it is ended if it has not."""
        status = self.end(patience=2.0)
        said = self._said()
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return Gone(f"it died of {signal_name(number)}", signal=number, said=said)
        return Gone(
            f"it ended its process with status {os.WEXITSTATUS(status)}", status=os.WEXITSTATUS(status), said=said
        )

    def _said(self) -> str:
        return self._last_words

    def end(self, patience: float = 0.0) -> int:
        """End the child and its session, and return its status as `waitpid` has it."""
        if self._over:
            return self._status
        self._over = True
        self.channel.close()
        status = 0
        until = time.monotonic() + patience
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done or time.monotonic() >= until:
                break
            time.sleep(0.005)
        # Its session has its number; whatever it started and did not take out of there ends with it.
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        if not done:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
        with suppress(OSError), (self.scratch / "output").open("rb") as output:
            output.seek(max(0, os.fstat(output.fileno()).st_size - 2000))
            self._last_words = output.read(2000).decode(errors="replace")
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._status = status
        return status


def _live(work: Callable[[Channel], None], channel: Channel, scratch: Path, memory: int, parent: int) -> NoReturn:
    """The child's life. It never returns into the program."""
    status = 1
    try:
        os.setsid()
        faulthandler.disable()  # What it would write goes to the program's terminal.
        gc.freeze()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0)
        with open(os.devnull, "rb") as nothing, (scratch / "output").open("wb") as output:  # noqa: PTH123  # devnull
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "r" if n == 0 else "w", closefd=False) for n in range(3))
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
        sys.dont_write_bytecode = True
        with suppress(OSError, ValueError):
            now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + memory, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # There may be a lower limit.
            resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST, _LARGEST))
        die_with_parent(parent)
        work(channel)
        status = 0
    except BaseException:  # noqa: BLE001  # whatever it is, it stays in here
        with suppress(BaseException):
            traceback.print_exc()
            sys.stderr.flush()
    finally:
        os._exit(status)


def die_with_parent(parent: int) -> None:
    """End with the process of this number, however that ends; to be called in a child of it."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # It has ended already.
            os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of all that children of this process start and leave behind."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def end_orphans() -> None:
    """End every process that this one is the parent of."""
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            for word in (task / "children").read_text().split():
                with suppress(OSError):
                    os.kill(int(word), signal.SIGKILL)
                    os.waitpid(int(word), 0)


# What untrusted code does besides computing


_COMPILERS = frozenset("c++ g++ gcc cc clang clang++ ninja ld nvcc ptxas which where uname lscpu cmake hipcc".split())
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.mkdir": ((0, 2),),
    "os.rmdir": ((0, 1),),
    "os.truncate": ((0, None),),
    "os.symlink": ((1, 2),),
    "os.link": ((1, 3),),
    "os.chmod": ((0, 2),),
}
"""Which arguments of an event are paths, and which the descriptors of the folders that they start from."""


class Conduct:
    """What the code in this process does to others: files, processes, signals. It cannot be undone."""

    def __init__(self, scratch: Path) -> None:
        """Only `scratch`, devices and the caches of compilers can be written to from now on."""
        self.deeds: list[str] = []
        self._watching = False
        self._allowed = [scratch, Path("/dev"), Path("/proc/self"), *_caches()]
        _landlock(self._allowed)
        sys.addaudithook(self._audit)
        # What forks must not answer in our place.
        os.register_at_fork(after_in_child=lambda: os._exit(0) if self._watching else None)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note what the code in the block does."""
        self._watching = True
        try:
            yield
        finally:
            self._watching = False

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._watching:
            return
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike) and args[2] & _WRITES:
            self._path(args[0], "writes")
        elif event in _PATHS:
            for i, folder in _PATHS[event]:
                how = "makes" if event == "os.mkdir" else "changes"
                self._path(args[i], how, -1 if folder is None else args[folder])
        elif event in ("os.fork", "os.forkpty", "os.system", "os.exec", "os.posix_spawn"):
            self._did(f"calls {event}")
        elif event == "subprocess.Popen" and Path(str(args[0])).name not in _COMPILERS and not _by_a_compiler():
            self._did(f"starts the program {str(args[0])[:80]}")
        elif event == "socket.connect":
            self._did("opens a network connection")
        elif event in ("os.kill", "os.killpg") and args[0] != os.getpid():
            self._did("sends a signal to another process")
            raise PermissionError("a kernel that is refereed may not send signals")

    def _path(self, path: Any, how: str, folder: int = -1) -> None:
        try:
            start = f"/proc/self/fd/{folder}" if folder >= 0 else ""
            full = Path(os.path.realpath(os.path.join(start, os.fsdecode(path))))  # noqa: PTH118  # of any kind
        except (TypeError, ValueError):
            return
        made_already = how == "makes" and full.is_dir()
        if not made_already and not any(full == a or a in full.parents for a in self._allowed):
            self._did(f"{how} the file {full}")
            raise PermissionError(13, "a kernel that is refereed may not write files", str(full))

    def _did(self, what: str) -> None:
        if what not in self.deeds and len(self.deeds) < 20:
            self.deeds.append(what)


def _by_a_compiler() -> bool:
    """Whether the program is started by PyTorch or Triton themselves, as when they look for a compiler."""
    frame = sys._getframe(2)
    while frame is not None and "subprocess" in frame.f_code.co_filename:
        frame = frame.f_back  # type: ignore[assignment]  # ends with None
    name = frame.f_code.co_filename if frame is not None else ""
    return any(f"/{package}/" in name for package in ("torch", "triton", "setuptools"))


def _caches() -> list[Path]:
    home = Path.home()
    variables = ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    named = [os.environ[v] for v in variables if os.environ.get(v)]
    return [Path(os.path.realpath(p)) for p in (*named, str(home / ".cache/torch_extensions"), str(home / ".triton"))]


def _landlock(allowed: list[Path]) -> bool:
    """Refuse this process and its children all writes outside of these folders; False if the system has no Landlock."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if abi < 1:
        return False
    rights = 0b1_1111_1111_0010 | (1 << 13 if abi >= 2 else 0) | (1 << 14 if abi >= 3 else 0)
    attr = struct.pack("<Q", rights)
    rules = libc.syscall(444, attr, ctypes.c_size_t(len(attr)), ctypes.c_uint32(0))
    if rules < 0:
        return False
    for folder in allowed:
        with suppress(OSError):
            place = os.open(folder, os.O_PATH)
            libc.syscall(445, rules, 1, struct.pack("<Qi", rights, place), 0)
            os.close(place)
    libc.prctl(38, 1, 0, 0, 0)
    done = libc.syscall(446, rules, 0)
    os.close(rules)
    return bool(done == 0)
