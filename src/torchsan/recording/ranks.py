"""Several processes of one job: who this one is, by the launcher's environment, and where each records."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchsan.recording.remote import is_url, join_url

_FOLDER = re.compile(r"rank-(\d{1,9})(?:-restart-(\d{1,9}))?")


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
    return _FOLDER.fullmatch(name) is not None


def rank_folders(folder: Path) -> dict[tuple[int, int], Path]:
    """Return the recordings of ranks below `folder`, by restart and rank; empty if it is no such folder."""
    found = {}
    if folder.is_dir():
        for entry in folder.iterdir():
            match = _FOLDER.fullmatch(entry.name)
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
