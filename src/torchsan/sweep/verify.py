"""Whether a find comes again, what its smallest program is, and a reproducer of it with the text of an issue."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from torchsan._version import __version__
from torchsan.errors import TorchsanError
from torchsan.recording import Reader
from torchsan.recording.folder import write_atomically
from torchsan.records.finding import cause
from torchsan.report.markdown import as_code, as_text, fenced
from torchsan.repro.exhibits import Loads, read_wanted
from torchsan.repro.statements import shrunk
from torchsan.repro.trials import Limits
from torchsan.sweep.engine import Judge
from torchsan.sweep.triage import Find, State, prints_of
from torchsan.torch_internals.seams import torch_version

FINDS = "finds"
"""The folder of a sweep in which each new find has one: its program, its reproducer, and the text of an issue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """Looks at a new find once more, in processes of its own; `shrink`: its program may be made smaller first.

    `limits` is for what it takes to make one reproducer; None for no reproducers.
    """

    judge: Judge
    folder: Path
    loads: Loads
    limits: Limits | None
    shrink: bool
    progress: Callable[[str], None]

    def __call__(self, find: Find) -> Find:
        """Return the find as flaky, or with where its reproducer is. Raise Stopped or KeyboardInterrupt if told to."""
        here = self.folder / FINDS / find.fingerprint
        shutil.rmtree(here, ignore_errors=True)
        here.mkdir(parents=True)
        self.progress(f"{find.fingerprint}: {find.kind}: run again")
        if self.shrink and self.limits is not None:
            find = self._smaller(find, self.limits)
        with tempfile.TemporaryDirectory(prefix="torchsan-again-", ignore_cleanup_errors=True) as folder:
            again = self.judge.judge_in(Path(folder), find.example.program, anew=True)
            again = replace(again, eagerly=find.example.eagerly)
            write_atomically(here / "program.py", find.example.program.text)
            if find.fingerprint not in prints_of(again):
                return replace(find, state=State.FLAKY, reason="not seen again in a process of its own")
            made = self._reproduced(find, Path(folder) / "recording", here) if self.limits is not None else None
        script = made or here / "program.py"
        if made is None:
            write_atomically(here / "issue.md", issue_text(find))
        return replace(find, reason="seen again in a process of its own", reproducer=str(script))

    def _reproduced(self, find: Find, recording: Path, here: Path) -> Path | None:
        """The script of a reproducer that is verified; None if none can be made, and the program has to do."""
        from torchsan.repro.make import make

        if find.finding is None or self.limits is None:
            return None
        out = here / "reproducer"
        try:
            reader = Reader(recording)
            same = next(f for f in reader.findings() if cause(f) == find.fingerprint)
            wanted = read_wanted(reader, same.id, self.loads)
            made = make(wanted, out, self.judge.server, self.limits, self.progress)
        except (TorchsanError, OSError) as e:
            self.progress(f"{find.fingerprint}: no reproducer: {e}")
            return None
        if not made.verified:
            return None
        shutil.copyfile(out / "README.md", here / "issue.md")
        return made.file

    def _smaller(self, find: Find, limits: Limits) -> Find:
        """The find with the smallest program, statement by statement, that still has it."""

        def shows(text: str) -> bool:
            return find.fingerprint in prints_of(self.judge(replace(find.example.program, text=text)))

        with suppress(SyntaxError):
            text = shrunk(find.example.program.text, shows, limits, self.progress)
            return replace(find, example=replace(find.example, program=replace(find.example.program, text=text)))
        return find


def issue_text(find: Find) -> str:
    """Return the text of an issue for PyTorch about a find whose program is its reproducer."""
    finding = find.finding
    ops = ", ".join(finding.ops[:3]) if finding is not None else find.example.program.name
    what = " ".join(find.message.split())
    lines = [f"# {as_text(f'{find.kind}: {ops}', 120)}", as_text(what), fenced("python", find.example.program.text)]
    if finding is not None and isinstance(finding.evidence.get("text"), list):
        lines.append(fenced("text", "\n".join(map(str, finding.evidence["text"]))))
    elif find.example.output:
        lines.append(fenced("text", find.example.output))
    python = ".".join(map(str, sys.version_info[:3]))
    lines.append(
        f"PyTorch {as_text(torch_version())}, Python {python}, {as_text(sys.platform)}; torchsan {__version__}"
    )
    lines.append(f"Found by {as_code('torchsan sweep')}.")
    return "\n\n".join(lines) + "\n"
