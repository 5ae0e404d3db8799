"""Reduces a script of the user's, statement by statement, with a command of theirs as the oracle.

Importing it imports no torch.
"""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from torchsan.errors import UsageError
from torchsan.recording.folder import write_atomically
from torchsan.report.findings import count
from torchsan.repro.trial_server import environment
from torchsan.repro.trials import Limits, Made, Trials, leave_out


def reduce_script(script: Path, out: Path, command: str, limits: Limits, progress: Callable[[str], None]) -> Made:
    """Write the smallest version of `script` to `out/repro.py`. Raise UsageError if not even the whole shows it.

    `command` gets a script as its last argument, or for `{}`: it exits with 0 if the problem still shows.
    """
    try:
        text = script.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError) as e:
        raise UsageError(f"cannot read {script}: {e}", slug="no-program") from e
    with tempfile.TemporaryDirectory(prefix="torchsan-repro-", ignore_cleanup_errors=True) as work:
        if not _shows_in_time(text, Path(work), limits, script, command):
            raise UsageError(
                f"`{command}` does not exit with 0 for {script}: the whole script must show the problem",
                slug="not-shown",
            )
        trials = _trials(
            tree,
            lambda kept, folder, limit: _shows(_with_only(tree, kept), folder, limit, script, command),
            Path(work),
            limits,
            progress,
        )
        kept, stopped = _least(tree, trials)
        result = _with_only(tree, kept)
        file = out / "repro.py"
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(file, result)
        return Made(
            file=file,
            content=count(len(kept), "statement"),
            trials=trials.count,
            verified=_shows_in_time(result, Path(work), limits, script, command),
            stopped=stopped,
        )


def shrunk(text: str, shows: Callable[[str], bool], limits: Limits, progress: Callable[[str], None]) -> str:
    """Return the smallest version of a script, statement by statement, that still `shows` the problem.

    Raise SyntaxError if it is no Python.
    """
    tree = ast.parse(text)
    with tempfile.TemporaryDirectory(prefix="torchsan-repro-", ignore_cleanup_errors=True) as work:
        trials = _trials(tree, lambda kept, folder, limit: shows(_with_only(tree, kept)), Path(work), limits, progress)
        kept, _ = _least(tree, trials)
    return text if len(kept) == len(_statements(tree)) else _with_only(tree, kept)


def _trials(
    tree: ast.Module,
    shows: Callable[[list[int], Path, float], bool],
    folder: Path,
    limits: Limits,
    progress: Callable[[str], None],
) -> Trials[list[int]]:
    return Trials(
        shows=shows,
        folder=folder,
        limits=limits,
        key=lambda kept: _with_only(tree, kept),
        describe=lambda kept: f"{len(kept)} statements",
        progress=progress,
    )


def _least(tree: ast.Module, trials: Trials[list[int]]) -> tuple[list[int], str | None]:
    """The fewest statements that show the problem, and why there may be fewer still."""
    kept = list(range(len(_statements(tree))))

    def take(rests: list[list[int]]) -> bool:
        nonlocal kept
        found = trials.first(rests)
        kept = kept if found is None else found
        return found is not None

    stopped = trials.until_stopped(lambda: leave_out(lambda: kept, take))
    return kept, stopped


def _shows_in_time(text: str, folder: Path, limits: Limits, script: Path, command: str) -> bool:
    try:
        return _shows(text, folder, limits.trial, script, command)
    except TimeoutError:
        return False


def _shows(text: str, folder: Path, limit: float, script: Path, command: str) -> bool:
    """Whether the command says that this text, as a version of `script`, shows the problem."""
    file = folder / script.name
    file.write_text(text, encoding="utf-8")
    words = shlex.split(command)
    words = [w.replace("{}", str(file)) for w in words] if "{}" in command else [*words, str(file)]
    environ = environment()
    environ["PYTHONPATH"] = os.pathsep.join([str(script.absolute().parent), str(Path.cwd()), environ["PYTHONPATH"]])
    nowhere = subprocess.DEVNULL
    try:
        done = subprocess.run(
            words, env=environ, stdin=nowhere, stdout=nowhere, stderr=nowhere, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as e:
        raise TimeoutError from e
    except OSError as e:
        raise UsageError(f"cannot run {words[0]!r:.100}: {e.strerror or e}", slug="usage") from e
    return done.returncode == 0


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """All statements, those inside others too, in a fixed order: the outer ones first."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]


def _with_only(tree: ast.Module, kept: Collection[int]) -> str:
    """The script with only these statements; what would be empty says `pass`."""
    copy = ast.parse(ast.unparse(tree))
    statements = _statements(copy)
    staying = {id(statements[i]) for i in kept}
    for node in ast.walk(copy):
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                left = [s for s in inner if id(s) in staying]
                needed = name == "body" and not isinstance(node, ast.Module)
                setattr(node, name, left or ([ast.Pass()] if needed else []))
    return ast.unparse(ast.fix_missing_locations(copy)) + "\n"
