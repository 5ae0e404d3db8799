"""What the canary found out about this PyTorch: which checks do not find what they should. Kept in the user's cache.

The table of seams knows names; the canary (`torchsan.canary`) tries behaviour, once for each PyTorch, processor and
torchsan. Importing this module imports no torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torchsan._version import __version__
from torchsan.torch_internals.seams import torch_version

SWITCH = "TORCHSAN_CANARY"
"""Set to `off`, nothing is tried beside programs, and no check is off for what was found."""
_FILES = ("version.py", "_inductor/graph.py", "_dynamo/eval_frame.py", "lib/libtorch_python.so")
"""Parts of PyTorch by whose sizes and times a build is told from another of the same version."""
_VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "CXX")
"""They decide what is generated, and what runs."""
_MOST = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What came of trying the checks: why each of those that failed did, by name; none if all work.

    `unfinished` counts the tries that were ended before there was an answer. With it, there is none.
    """

    failures: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    unfinished: int = 0


def cache_folder() -> Path | None:
    """Return where answers are kept, `~/.cache/torchsan` or below `XDG_CACHE_HOME`; None without a home."""
    with suppress(RuntimeError):
        base = os.environ.get("XDG_CACHE_HOME")
        return (Path(base) if base else Path.home() / ".cache") / "torchsan"
    return None


def fingerprint() -> str | None:
    """Return what an answer holds for: this build of PyTorch, this processor, this torchsan. None without PyTorch."""
    folder = _torch_folder()
    if folder is None:
        return None
    parts: list[object] = [__version__, torch_version(), platform.python_version(), "cpu", *_processor()]
    for name in _FILES:
        with suppress(OSError):
            status = (folder / name).stat()
            parts.append((name, status.st_size, status.st_mtime_ns))
    parts += [(name, os.environ.get(name)) for name in _VARIABLES]
    return hashlib.sha256(repr((str(folder), *parts)).encode()).hexdigest()[:24]


def answer_file() -> Path | None:
    """Return where the answer for this PyTorch is kept, or None if there can be none."""
    folder, key = cache_folder(), fingerprint()
    return folder / f"canary-{key}.json" if folder is not None and key is not None else None


def last_try() -> Tried | None:
    """Return what is known of this PyTorch; None if nothing is. A file that cannot be read is nothing."""
    file = answer_file()
    if file is None:
        return None
    try:
        with file.open(encoding="utf-8") as stream:
            return parse_answer(stream.read(_MOST))
    except (OSError, ValueError):
        return None


def parse_answer(text: str) -> Tried:
    """Read what `keep` wrote. Raise ValueError for anything else."""
    body = json.loads(text)
    match body:
        case {"failures": dict(failures), "seconds": int() | float() as seconds, "unfinished": int(unfinished)}:
            if all(isinstance(reason, str) for reason in failures.values()):
                return Tried(failures=failures, seconds=float(seconds), unfinished=unfinished)
    raise ValueError(f"not an answer of the canary: {text[:80]!r}")


def as_text(tried: Tried) -> str:
    """Write an answer so that `parse_answer` reads it."""
    body = {"failures": dict(tried.failures), "seconds": round(tried.seconds, 2), "unfinished": tried.unfinished}
    return json.dumps(body) + "\n"


def keep(tried: Tried) -> bool:
    """Keep what came of a try, for runs to come. Return whether that worked: a home may be read-only."""
    file = answer_file()
    if file is None:
        return False
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.stem)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(as_text(tried))
        Path(name).replace(file)
    except OSError:
        return False
    return True


def failures_here() -> Mapping[str, str]:
    """Return the checks that are off because the canary found that they do not work, each with the reason."""
    tried = last_try() if os.environ.get(SWITCH) != "off" else None
    if tried is None or tried.unfinished:
        return {}
    return {check: f"{reason} (`torchsan doctor --canary` tries again)" for check, reason in tried.failures.items()}


def _torch_folder() -> Path | None:
    """Where PyTorch is, without an import of it."""
    loaded = sys.modules.get("torch")
    origin = getattr(loaded, "__file__", None)
    if origin is None:
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec("torch")
            origin = spec.origin if spec is not None else None
    return Path(origin).parent if origin else None


def _processor() -> tuple[str, ...]:
    """What tells one kind of processor from another."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:  # noqa: PTH123  # a part
        text = stream.read(_MOST)
        found = [re.search(rf"^{name}\s*: (.*)$", text, re.MULTILINE) for name in ("model name", "flags")]
        if any(found):
            return tuple(match[1] for match in found if match)
    return platform.machine(), platform.processor()
