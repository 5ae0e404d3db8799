"""The folder of a recording: what lies where, also for the ranks of a job, and the manifest that says what ran."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from torchsan._version import __version__
from torchsan.errors import RecordingError, UsageError
from torchsan.files import open_plain
from torchsan.options import Options
from torchsan.records import decode, encode

SCHEMA = 2
"""The version of the recording's format; a reader refuses what is newer than itself. 2: events have checksums."""

MANIFEST = "manifest.json"
EVENTS = "events.sqlite"
ARTIFACTS = "artifacts"
TENSORS = "tensors"
ARTIFACT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
"""The name of an artifact that is one of ours."""

_MAX_MANIFEST = 16 * 2**20
_ENVIRONMENT = ("TORCH", "PYTORCH", "OMP_", "MKL_", "KMP_", "CUDA_VISIBLE_DEVICES", "CXX", "TRITON_")
_RANK = re.compile(r"rank-(\d{1,9})(?:-restart-(\d{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is known when a run starts. `torch` is the installed version, empty when there is none."""

    schema: int
    torchsan: str
    torch: str
    python: str
    platform: str
    command: tuple[str, ...]
    cwd: str
    started: str
    pid: int
    environment: dict[str, str]
    options: Options
    seed: int | None = None
    host: str = ""


class NoSpaceError(UsageError):
    """A recording cannot be written because the disk is full, or a limit is reached: no mistake of the user's."""


def create_folder(
    path: str | Path | None, *, command: Sequence[str], options: Options | None = None, seed: int | None = None
) -> Path:
    """Create the folder of a new recording, with its manifest, and return its absolute path.

    Without a path it is `torchsan-runs/<time>` under the current folder. Raise UsageError if the place is occupied or
    cannot be written to, and NoSpaceError if there is no room; then nothing is left there.
    """
    folder = None
    new = path is None or not Path(path).exists()
    try:
        folder = _default_folder() if path is None else _given_folder(str(path))
        (folder / ARTIFACTS).mkdir()
        (folder / TENSORS).mkdir()
        manifest = _manifest(command, options or Options(), seed)
        write_atomically(folder / MANIFEST, json.dumps(encode(manifest), indent=1) + "\n")
    except OSError as e:
        if folder is not None:
            for part in (folder / ARTIFACTS, folder / TENSORS, *([folder] if new else [])):
                with suppress(OSError):
                    part.rmdir()
        raise _unwritable(path, e) from e
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a recording, and `torchsan-runs` with it if it was the last there."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent.name == "torchsan-runs":
        with suppress(OSError):
            folder.parent.rmdir()


def create_place(path: str | Path | None) -> Path:
    """Create an empty folder for the recordings of several ranks; as `create_folder`, without a recording in it."""
    try:
        return _default_folder() if path is None else _given_folder(str(path))
    except OSError as e:
        raise _unwritable(path, e) from e


def lacks_space(error: OSError) -> bool:
    """Whether there is no room, or a limit is reached."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _unwritable(path: str | Path | None, error: OSError) -> UsageError:
    where = "torchsan-runs" if path is None else path
    if lacks_space(error):
        return NoSpaceError(
            f"cannot write a recording to {where}: {error.strerror}; free some space, or choose another --out",
            slug="disk-full",
        )
    return UsageError(
        f"cannot write a recording to {where}: {error.strerror or error}; choose another folder with --out",
        slug="unwritable-out",
    )


def _default_folder() -> Path:
    runs = Path.cwd() / "torchsan-runs"
    runs.mkdir(exist_ok=True)
    name = time.strftime("%Y-%m-%d-%H%M%S")
    for n in range(1, 1000):
        folder = runs / (name if n == 1 else f"{name}-{n}")
        try:
            folder.mkdir()  # Two runs may start in the same second: whoever makes the folder owns it.
        except FileExistsError:
            continue
        return folder
    raise UsageError(f"no free name like {name} in {runs}; choose a folder with --out", slug="out-exists")


def _given_folder(path: str) -> Path:
    if "://" in path:
        raise UsageError(
            f"this recording is a local folder, and {path} is none: `torchsan run --out` and `torchsan.session(out=…)` "
            "take URLs",
            slug="unwritable-out",
        )
    folder = Path(path).absolute()
    if folder.is_dir() and any(folder.iterdir()):
        what = "holds a recording already" if (folder / MANIFEST).exists() else "is not empty"
        raise UsageError(f"{path} {what}; choose another folder with --out", slug="out-exists")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{path} is a file; choose a folder with --out", slug="out-exists")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _current_folder() -> str:
    """The current folder; empty if the program has removed it."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def _manifest(command: Sequence[str], options: Options, seed: int | None) -> Manifest:
    return Manifest(
        schema=SCHEMA,
        torchsan=__version__,
        torch=installed_version("torch"),
        python=platform.python_version(),
        platform=platform.platform(),
        command=tuple(_printable(word) for word in command),
        cwd=_printable(_current_folder()),
        started=datetime.now().astimezone().isoformat(timespec="milliseconds"),
        pid=os.getpid(),
        environment=_environment(os.environ),
        options=options,
        seed=seed,
        host=platform.node(),
    )


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {k: _printable(v) for k, v in sorted(environ.items()) if k.startswith(_ENVIRONMENT)}


def _printable(text: str) -> str:
    """Arguments and paths may hold bytes that are no UTF-8, and a program may set any text as such; JSON cannot."""
    try:
        return os.fsencode(text).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()


def installed_version(package: str) -> str:
    """Return the version of an installed package without importing it, or the empty string."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def write_atomically(file: Path, text: str) -> None:
    """Replace `file` by `text`: whoever looks sees the old content or the new one, never half of it.

    The name that it has first cannot be guessed, and is not opened if it is there: others may write to the folder.
    """
    temporary = file.with_name(f".torchsan-{secrets.token_hex(8)}.tmp")
    with temporary.open("x", encoding="utf-8", errors="backslashreplace") as stream:
        try:
            stream.write(text)
            stream.close()
            temporary.replace(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def read_plain(file: Path, limit: int) -> str:
    """Return the text of a file inside a recording; raise OSError or ValueError for what is not a plain small file.

    A link could lead out of the recording.
    """
    with os.fdopen(open_plain(file, follow=False), encoding="utf-8", errors="replace") as stream:
        if os.fstat(stream.fileno()).st_size > limit:
            raise ValueError(f"{file.name} is larger than {limit} bytes")
        return stream.read()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest; raise RecordingError when `folder` is no recording, or one of a newer torchsan."""
    if not folder.is_dir():
        what = "a file" if folder.exists() else "missing"
        raise RecordingError(f"no recording at {folder}: it is {what}; name the folder of a run", slug="no-recording")
    try:
        value = loads_strictly(read_plain(folder / MANIFEST, _MAX_MANIFEST))
    except (OSError, ValueError) as e:
        raise RecordingError(
            f"no recording at {folder}: cannot read its {MANIFEST}: {e}; name the folder of a run", slug="no-recording"
        ) from e
    schema = value.get("schema") if isinstance(value, dict) else None
    if type(schema) is not int or schema < 1:
        raise RecordingError(f"no recording at {folder}: its {MANIFEST} has no schema number", slug="no-recording")
    if schema > SCHEMA:
        raise RecordingError(
            f"{folder} is a recording of schema {schema}, written by torchsan {value.get('torchsan')!s:.40}; this is "
            f"torchsan {__version__}, which reads up to schema {SCHEMA}: upgrade torchsan",
            slug="newer-recording",
        )
    return decode(Manifest, value)


_DEEPEST = 64


def loads_strictly(text: str) -> Any:
    """Return JSON's value; raise ValueError for what JSON does not allow, and for nesting that nobody writes."""
    try:
        value = _STRICT.decode(text)
    except RecursionError as e:
        raise ValueError("nested too deeply") from e
    if text.count("{") + text.count("[") <= _DEEPEST:  # Most of what is read, and there is much of it.
        return value
    level = [value]
    for _ in range(_DEEPEST):
        inside = (v.values() if type(v) is dict else v for v in level if type(v) in (dict, list))
        level = [v for values in inside for v in values if type(v) in (dict, list)]
        if not level:
            return value
    raise ValueError("nested too deeply")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_no_constant)


def is_url(path: object) -> bool:
    """Return whether `path` is an fsspec URL, and no local path."""
    return isinstance(path, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path) is not None


def as_local(path: str) -> Path | None:
    """Return the path on this machine that `path` or a `file:` URL names; None for a URL of another place."""
    plain = re.sub(r"^(?:file|local)://", "", path, flags=re.IGNORECASE)
    return None if is_url(plain) else (Path(plain) if plain == path else Path(plain).expanduser())


def join_url(url: str, name: str) -> str:
    """Return the URL of `name` below `url`."""
    return f"{url.rstrip('/')}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Rank:
    """One process of a job of `world` processes; `restart` counts how often the launcher started them again."""

    restart: int = 0
    rank: int
    world: int

    def folder(self, out: str | None) -> str:
        """Where this rank records: `out/rank-N`. Without `out`, below a folder that all ranks of a machine agree on."""
        name = f"rank-{self.rank}" + (f"-restart-{self.restart}" if self.restart else "")
        if out is not None and is_url(out):
            return join_url(out, name)
        return str(Path(out or _common_folder()) / name)


def current_rank(environ: Mapping[str, str]) -> Rank | None:
    """Return who this process is, from what torchrun and its like set (`RANK`, `WORLD_SIZE`); None if it is alone."""
    try:
        rank, world = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        restart = int(environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
    except (KeyError, ValueError):
        return None
    return Rank(rank=rank, world=world, restart=max(restart, 0)) if 0 <= rank < world else None


def is_rank_folder(name: str) -> bool:
    """Return whether a folder of this name holds the recording of a rank."""
    return _RANK.fullmatch(name) is not None


def rank_folders(folder: Path) -> dict[tuple[int, int], Path]:
    """Return the recordings of ranks below `folder`, by restart and rank; empty if it is no such folder."""
    found = {}
    if folder.is_dir():
        for entry in folder.iterdir():
            match = _RANK.fullmatch(entry.name)
            if match is not None and entry.is_dir() and not entry.is_symlink():
                found[int(match[2] or 0), int(match[1])] = entry
    return dict(sorted(found.items()))


def _common_folder() -> Path:
    """A folder named after the launcher, which is the parent of every rank: they need not talk to agree on it."""
    launcher = os.getppid()
    started = _started(launcher)
    when = time.strftime("%Y-%m-%d-%H%M%S", time.localtime(started)) if started is not None else "ranks"
    return Path.cwd() / "torchsan-runs" / f"{when}-{launcher}"


def _started(pid: int) -> int | None:
    """When a process was started, in seconds since 1970 and the same for whoever asks; None where it is not known."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot = int(re.findall(r"^btime (\d+)", Path("/proc/stat").read_text(), re.M)[0])
        return boot + ticks // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
