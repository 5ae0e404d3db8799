"""An AOTInductor package against eager and float64: its outputs, and, where it recorded them, each of its launches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchsan.aoti.judging import Launches, Outputs
from torchsan.aoti.log import Launched, launch_files, read_launches
from torchsan.aoti.process import read_leaves, write_leaves
from torchsan.recording import Writer

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to check: the package, the file of the exported program, and the leaves of what to call both with."""

    package: Path
    program_file: Path
    program: ExportedProgram
    inputs: Sequence[Any]
    loads: tuple[str, ...] = ()
    """Modules that register operators; `paths` are the folders where they are looked for."""
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the package's process ended: its exit status, or minus the signal. `last` is the launch it died in."""

    status: int
    said: str
    last: str | None


def check_package(request: Request, writer: Writer) -> Result:
    """Run the package once and record what is wrong with it, and what was looked at."""
    with tempfile.TemporaryDirectory(prefix="torchsan-package-") as text:
        folder = Path(text)
        result = _run(request, folder)
        files = launch_files(folder / "out")
        with torch.no_grad():
            wrong = Launches(request.program, writer, files[-1]).check() if files else set()
            if result.status == 0:
                Outputs(request.program, request.inputs, writer).check(
                    read_leaves(folder, "outputs"), blamed=bool(wrong)
                )
        return result


def _run(request: Request, folder: Path) -> Result:
    write_leaves(folder, "inputs", request.inputs)
    wanted = {"package": str(request.package.absolute()), "program": str(request.program_file.absolute())}
    (folder / "request.json").write_text(json.dumps(wanted | {"loads": list(request.loads)}))
    source = str(Path(__file__).parents[2])
    paths = os.pathsep.join([source, str(Path.cwd()), *request.paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = os.environ | {"TORCHSAN_OUT": str(folder / "out"), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "torchsan.aoti.process", str(folder)],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    last = None
    for file in launch_files(folder / "out"):
        for record in read_launches(file):
            if isinstance(record, Launched):
                last = record.kernel if record.phase == "before" else None
    return Result(status=done.returncode, said=done.stdout.decode(errors="replace"), last=last)


@contextmanager
def program_file(content: Any) -> Iterator[Path]:
    """A file with an exported program that came out of a package."""
    with tempfile.TemporaryDirectory(prefix="torchsan-program-") as folder:
        file = Path(folder) / "program.pt2"
        file.write_bytes(content.getvalue())
        yield file
