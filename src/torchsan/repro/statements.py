"""Reduces a script of the user's, statement by statement, with a command of theirs as the oracle."""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchsan.errors import UsageError
from torchsan.recording.folder import write_atomically
from torchsan.repro.trial_server import environment


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOracle:
    """A command that gets a script as its last argument, or for `{}`: it exits with 0 if the problem still shows."""

    command: str
    limit: float
    jobs: int = 1
    total: float = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """What came of it. `stopped` says why it may not be the smallest; `verified`, that the result was run once more."""

    file: Path
    statements: int
    lines: int
    trials: int
    verified: bool
    stopped: str | None


def reduce_script(script: Path, out: Path, oracle: OwnOracle, progress: Callable[[str], None]) -> Reduced:
    """Write the smallest version of `script` to `out/repro.py`. Raise UsageError if not even the whole shows it."""
    try:
        text = script.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError) as e:
        raise UsageError(f"cannot read {script}: {e}", slug="no-program") from e
    with tempfile.TemporaryDirectory(prefix="torchsan-repro-", ignore_cleanup_errors=True) as work:
        runner = _Runner(oracle, script, Path(work))
        if not runner.shows(text):
            raise UsageError(
                f"`{oracle.command}` does not exit with 0 for {script}: the whole script must show the problem",
                slug="not-shown",
            )
        kept, stopped = _reduce(tree, runner, oracle, progress)
        result = _without(tree, kept)
        file = out / "repro.py"
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(file, result)
        return Reduced(
            file=file,
            statements=len(kept),
            lines=len(result.splitlines()),
            trials=runner.count,
            verified=runner.shows(result),
            stopped=stopped,
        )


def _reduce(
    tree: ast.Module, runner: _Runner, oracle: OwnOracle, progress: Callable[[str], None]
) -> tuple[set[int], str | None]:
    """Return the statements to keep, by their number."""
    kept = set(range(len(_statements(tree))))
    deadline = time.monotonic() + oracle.total
    size = max(1, len(kept) // 2)
    pool = ThreadPoolExecutor(oracle.jobs)
    try:
        while True:
            ordered = sorted(kept)
            smaller = [kept - set(ordered[i : i + size]) for i in range(0, len(ordered), size)]
            found = None
            for i in range(0, len(smaller), oracle.jobs):
                if time.monotonic() > deadline:
                    return kept, "the time limit is reached"
                batch = smaller[i : i + oracle.jobs]
                answers = pool.map(lambda keep: runner.shows(_without(tree, keep)), batch)
                found = next((keep for keep, good in zip(batch, answers, strict=True) if good), None)
                if found is not None:
                    break
            if found is not None:
                kept = found
                progress(f"trial {runner.count}: {len(kept)} statements still show it")
                size = max(1, min(size, len(kept) // 2))
            elif size == 1:
                return kept, None
            else:
                size = max(1, size // 2)
    except KeyboardInterrupt:
        progress("interrupted; keeping the smallest so far")
        return kept, "interrupted"
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Runner:
    def __init__(self, oracle: OwnOracle, script: Path, work: Path) -> None:
        self.count = 0
        self._oracle = oracle
        self._script = script
        self._work = work
        self._known: dict[str, bool] = {}

    def shows(self, text: str) -> bool:
        """Whether the command says that this text shows the problem; not so if it takes too long."""
        if text in self._known:
            return self._known[text]
        self.count += 1
        folder = self._work / f"trial{self.count}"
        folder.mkdir()
        file = folder / self._script.name
        file.write_text(text, encoding="utf-8")
        words = shlex.split(self._oracle.command)
        words = [w.replace("{}", str(file)) for w in words] if "{}" in self._oracle.command else [*words, str(file)]
        environ = environment()
        environ["PYTHONPATH"] = os.pathsep.join([str(self._script.absolute().parent), environ["PYTHONPATH"]])
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = subprocess.run(
                    words,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=self._oracle.limit,
                    check=False,
                ).returncode
        except OSError as e:
            raise UsageError(f"cannot run {words[0]!r:.100}: {e.strerror or e}", slug="usage") from e
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._known[text] = code == 0
        return code == 0


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """All statements, those inside others too, in a fixed order: the outer ones first."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]


def _without(tree: ast.Module, keep: Iterable[int]) -> str:
    """The script with only these statements; what would be empty says `pass`."""
    copy = ast.parse(ast.unparse(tree))
    kept = set(keep)
    gone = {id(node) for i, node in enumerate(_statements(copy)) if i not in kept}
    for node in ast.walk(copy):
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                left = [s for s in inner if id(s) not in gone]
                needed = name == "body" and not isinstance(node, ast.Module)
                setattr(node, name, left or ([ast.Pass()] if needed else []))
    return ast.unparse(ast.fix_missing_locations(copy)) + "\n"
