"""`torchsan doctor`: what works here, and what to do about what doesn't."""

from __future__ import annotations

import argparse
import getpass
import importlib
import importlib.util
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchsan._version import __version__
from torchsan.canary import PLANTED, try_checks
from torchsan.cli.run import find_compiler
from torchsan.errors import UnsupportedTorchError
from torchsan.recording.folder import installed_version
from torchsan.records.program import signal_name
from torchsan.report.findings import Line, clean
from torchsan.report.printing import print_lines
from torchsan.report.verdict import WITHOUT_AMX
from torchsan.torch_internals.patches import missing
from torchsan.torch_internals.seams import SEAMS, USERS, called, check_version, torch_version
from torchsan.torch_internals.tried import Tried, last_try

_LOW_DISK = 2 * 2**30
_TRITON = ("3.7", "3.9")
"""The releases of Triton that tests run: those that PyTorch 2.13 and 2.15 ask for."""
_MATMUL = "import torch; t = torch.ones(64, 64, dtype=torch.bfloat16); t @ t"
_KERNEL = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton, triton.language as tl
@triton.jit
def double(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y + i, 2 * tl.load(x + i))
x = torch.ones(8)
y = torch.zeros(8)
double[(1,)](x, y, 8)
raise SystemExit(0 if bool((y == 2).all()) else "a kernel gives a wrong result")
"""
_DISK = """
import os, sys, tempfile, time
block = os.urandom(1 << 20)
with tempfile.TemporaryFile(dir=".") as file:
    start = time.perf_counter()
    for _ in range(32):
        file.write(block)
    file.flush()
    os.fsync(file.fileno())
    print(32 / (time.perf_counter() - start))
"""
_SLOW_DISK = 30.0
"""MiB a second: below it, `--watch save` is slower than most programs."""
_PROGRAM = """
#include <omp.h>
#include <cmath>
int main() { double s = 0;
#pragma omp parallel for reduction(+ : s)
  for (int i = 0; i < 8; ++i) s += std::sqrt((double)i);
  return s > 0 && omp_get_max_threads() > 0 ? 0 : 1; }
"""
_INSTALL = {
    "Darwin": "xcode-select --install, then brew install libomp",
    "Linux": "apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), or conda install cxx-compiler",
    "Windows": "the Visual Studio Build Tools with the C++ workload",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One thing that was looked at. `remedy` is set when something should be done; `needed` when nothing works so."""

    what: str
    found: str
    remedy: str | None = None
    needed: bool = False


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `doctor` to the command line."""
    parser = commands.add_parser(
        "doctor",
        description="Look at torch, compiler, devices and caches. Exit status 1 if something needed is missing.",
    )
    parser.add_argument(
        "--canary",
        action="store_true",
        help="try every check on a planted fault and on its clean twin; status 4 if one does not work",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was found. Return 1 if something that is needed is missing, 4 if a check was tried and fails, or 0."""
    broken = False
    for one in examine():  # Some of it takes seconds: each is said when it is known.
        broken = broken or (one.needed and one.remedy is not None)
        print_lines(_lines(one), sys.stdout)
    tried = None if broken else try_checks() if args.canary else last_try()
    if not broken:
        print_lines((line for one in _canary(tried) for line in _lines(one)), sys.stdout)
    return 1 if broken else 4 if tried is not None and tried.failures else 0


def _lines(one: Examined) -> Iterator[Line]:
    word, style = ("ok", "green") if one.remedy is None else (("MISSING", "red") if one.needed else ("note", "yellow"))
    yield Line(f"{word:<8}{one.what:<15} {clean(one.found)}", style)
    if one.remedy is not None:
        yield Line(f"{'':<24}-> {clean(one.remedy)}")


def examine() -> Iterator[Examined]:
    """Look at everything, one after the other."""
    yield Examined(what="torchsan", found=__version__)
    yield Examined(what="python", found=f"{platform.python_version()} ({sys.executable})")
    yield _torch()
    yield from _seams()
    yield from _devices()
    yield from _matmul()
    yield _compiler()
    yield _cache()
    yield _disk()
    yield _triton()
    yield Examined(what="sqlite", found=sqlite3.sqlite_version)
    yield from _extras()


def _torch() -> Examined:
    version = torch_version() or "not installed"
    try:
        caveat = check_version()
        # In a child first: what kills its import would kill this, too. One that multiplies has imported it.
        if _matmul_problem() is not None and (problem := _problem([sys.executable, "-c", "import torch"])) is not None:
            raise ImportError(problem)
        import torch
    except UnsupportedTorchError as e:
        return Examined(what="torch", found=version, remedy=str(e), needed=True)
    except (ImportError, OSError) as e:
        found = f"{version}, cannot be imported: {e}"
        return Examined(what="torch", found=found, remedy="reinstall torch", needed=True)
    return Examined(what="torch", found=f"{version}, {torch.get_num_threads()} threads", remedy=caveat)


def _seams() -> Iterator[Examined]:
    """What of PyTorch's private side each check needs, and whether it is here."""
    if "torch" not in sys.modules:
        return
    for module in sorted({seam.module for seam in SEAMS}):
        with suppress(ImportError):
            importlib.import_module(module)
    lacking = {user: reasons for user in USERS if (reasons := missing(user))}
    for user, reasons in lacking.items():
        remedy = f"{'; '.join(reasons)}. Use a PyTorch that torchsan is tested with"
        yield Examined(what=called(user).removeprefix("the "), found="does not work here", remedy=remedy)
    rest = "the other checks need" if lacking else "the checks need"
    yield Examined(what="checks", found=f"the private names of PyTorch that {rest} are here")


def _canary(tried: Tried | None) -> Iterator[Examined]:
    """What came of trying the checks."""
    if tried is None or tried.unfinished:
        found = "the checks were not tried yet with this PyTorch on this processor"
        yield Examined(what="canary", found=found, remedy="torchsan doctor --canary (half a minute)")
        return
    for check in PLANTED:
        reason = tried.failures.get(check)
        found = "finds its planted fault, and nothing in the clean twin" if reason is None else "does not work here"
        remedy = None if reason is None else f"{reason}. It is off, and runs that ask for it are incomplete"
        yield Examined(what=f"canary {check}", found=found, remedy=remedy)


def _matmul() -> Iterator[Examined]:
    """Whether a bfloat16 matmul runs: some virtual machines offer instructions for it that they do not run."""
    if "torch" not in sys.modules:
        return
    if matmul_dies():
        setting = " ".join(f"{name}={value}" for name, value in WITHOUT_AMX.items())
        yield Examined(
            what="bfloat16",
            found="a matmul of plain PyTorch dies of SIGILL: the processor offers instructions that it does not run",
            remedy=f"set {setting} for your programs, which keeps oneDNN from them",
        )
    else:
        yield Examined(what="bfloat16", found="a matmul runs")


def matmul_dies(command: Sequence[str] | None = None) -> bool:
    """Whether a bfloat16 matmul of plain PyTorch ends its process with SIGILL."""
    return (_matmul_problem() if command is None else _problem(command)) == "it dies of SIGILL"


@cache
def _matmul_problem() -> str | None:
    return _problem([sys.executable, "-c", _MATMUL])


def _devices() -> Iterator[Examined]:
    yield Examined(what="cpu", found=f"{platform.machine()}, {os.cpu_count()} cores")
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for name, module in (("cuda", torch.cuda), ("xpu", torch.xpu), ("mps", torch.backends.mps)):
        if module.is_available():
            yield Examined(what=name, found="present", remedy="torchsan is tested on cpu only; expect gaps here")


def _compiler() -> Examined:
    """Compile and run what Inductor's kernels are made of: C++ with OpenMP."""
    install = _INSTALL.get(platform.system(), "a C++ compiler with OpenMP")
    compiler = find_compiler()
    if compiler is None:
        asked = os.environ.get("CXX")
        found = f"none (CXX is {asked}, which is not there)" if asked else "none"
        other = shutil.which("clang++") or shutil.which("g++")
        if other is not None:
            install = f"set CXX={other}, or {install}"
        return Examined(what="C++ compiler", found=found, remedy=install, needed=True)
    openmp = ["-Xclang", "-fopenmp", "-lomp"] if platform.system() == "Darwin" else ["-fopenmp"]
    with tempfile.TemporaryDirectory(prefix="torchsan-") as folder:
        source, program = Path(folder, "try.cpp"), Path(folder, "try")
        source.write_text(_PROGRAM)
        for command in ([compiler, str(source), *openmp, "-o", str(program)], [str(program)]):
            problem = _problem(command)
            if problem is not None:
                found = f"{compiler} does not work: {problem}"
                return Examined(what="C++ compiler", found=found, remedy=install, needed=True)
    return Examined(what="C++ compiler", found=f"{compiler} compiles and links OpenMP")


def _problem(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"it dies of {signal_name(-done.returncode)}"
    lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
    return lines[0] if lines else f"exit status {done.returncode}"


def _cache_folder() -> Path:
    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(given) if given else Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")


def _cache() -> Examined:
    folder = _cache_folder()
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Examined(what="compile cache", found=f"{folder} can be written")
    remedy = "set TORCHINDUCTOR_CACHE_DIR to a folder that you can write to"
    return Examined(what="compile cache", found=f"{folder} cannot be written", remedy=remedy, needed=True)


def _disk() -> Examined:
    """Room and speed of where recordings go, unless --out says otherwise."""
    free = shutil.disk_usage(Path.cwd()).free
    speed = _disk_speed()
    remedy = None
    if free < _LOW_DISK:
        remedy = "saved tensors can be large; choose a roomier place with --out"
    elif speed is None:
        remedy = "it cannot be written, or hangs; choose another place with --out"
    elif speed < _SLOW_DISK:
        remedy = "--watch save will be slow here; choose a faster place with --out"
    found = f"{free / 2**30:.1f} GiB free in the current folder"
    return Examined(what="disk", found=found if speed is None else f"{found}, {speed:.0f} MiB/s written", remedy=remedy)


def _disk_speed() -> float | None:
    """How many MiB a second the current folder takes; None if it takes none. In a child: a network disk may hang."""
    try:
        done = subprocess.run([sys.executable, "-c", _DISK], capture_output=True, text=True, timeout=60, check=False)
        return float(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _triton() -> Examined:
    """Where kernels in Triton can run here. torchsan itself does not need it."""
    if importlib.util.find_spec("triton") is None:
        found = "not installed: no kernels in Triton"
        return Examined(what="triton", found=found, remedy="pip install 'torchsan[triton]'; programs in C++ need none")
    version = installed_version("triton") or "unknown version"
    torch = sys.modules.get("torch")
    device = torch is not None and (torch.cuda.is_available() or torch.xpu.is_available())
    where = "kernels run on the GPU" if device else "no GPU, so kernels run by its interpreter only"
    with tempfile.TemporaryDirectory(prefix="torchsan-") as folder:
        file = Path(folder, "kernel.py")  # Triton reads the source of a kernel, so there must be a file.
        file.write_text(_KERNEL)
        problem = _problem([sys.executable, str(file)])
    if problem is not None:
        remedy = "reinstall triton: pip install 'torchsan[triton]'"
        return Examined(what="triton", found=f"{version}: a kernel does not run: {problem}", remedy=remedy)
    tested = ".".join(version.split(".")[:2]) in _TRITON
    untested = None if tested else f"torchsan is tested with Triton {' and '.join(_TRITON)}, by its interpreter"
    return Examined(what="triton", remedy=untested, found=f"{version}: a kernel runs; {where}")


def _extras() -> Iterator[Examined]:
    for module, use, extra in (("s3fs", "stores on S3", "s3"), ("safetensors", "safetensors files", "safetensors")):
        if importlib.util.find_spec(module) is not None:
            yield Examined(what=module, found=f"{installed_version(module)}: {use}")
        else:
            yield Examined(what=module, found=f"not installed: no {use}", remedy=f"pip install 'torchsan[{extra}]'")
