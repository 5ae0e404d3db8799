"""The documentation does what it says: its Python and its commands run, page by page, in a folder of their own.

A page that begins with `% slow: reason` is among the slow tests. A block is skipped with a comment above it: `% not
run: reason`. Where the last command of a block ends with another status than 0, a comment above the block says so:
`% exit: 1`, or `% exit: 0 or 1` where it depends on the machine.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

import torchsan
from tests.entry_points import write_entry_points

ROOT = Path(__file__).parents[2]
PAGES = [p for p in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))) if "_build" not in p.parts]
_FENCE = re.compile(
    r"^(?P<ticks>`{3,})(?:\{[\w-]+\} *)?(?P<language>python|console)\n(?P<text>.*?)^(?P=ticks)$", re.M | re.S
)
_COMMENT = re.compile(r"^% (not run|exit): *(.+)$", re.M)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    statuses: tuple[int, ...] = (0,)

    def commands(self) -> list[str]:
        """The commands of a console block, those over several lines joined."""
        joined = self.text.replace("\\\n", " ")
        return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]


def blocks(text: str) -> list[Block]:
    """The blocks of a page that are to be run, in order."""
    found = []
    end = 0
    for match in _FENCE.finditer(text):
        # Comments belong to the block that follows them directly.
        paragraph = text[end : match.start()].rstrip("\n").rpartition("\n\n")[2]
        notes = dict(_COMMENT.findall(paragraph))
        end = match.end()
        if "not run" not in notes:
            line = text.count("\n", 0, match.start()) + 1
            found.append(
                Block(
                    match["language"], match["text"], line, tuple(map(int, re.findall(r"\d+", notes.get("exit", "0"))))
                )
            )
    return found


def runnable() -> list[ParameterSet]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if blocks(text):
            marks = [pytest.mark.slow] if text.startswith("% slow:") else []
            found.append(pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks))
    return found


@pytest.mark.parametrize("page", runnable())
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    write_entry_points(tmp_path / ".installed")
    source = os.pathsep.join([str(tmp_path / ".installed"), str(Path(torchsan.__file__).parents[1])])
    environ = os.environ | {"PYTHONPATH": source, "TORCHSAN_OPTIONS": "", "COLUMNS": "200"}
    # One interpreter for all the Python of a page, as a reader has it; it is told to go on between the commands.
    script = """
import pathlib, sys
for line in sys.stdin:
    file = pathlib.Path(line.strip())
    exec(compile(file.read_text(), str(file), "exec"), globals())
    print("\\x04", flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as python:
        assert python.stdin is not None
        assert python.stdout is not None
        for number, block in enumerate(blocks(page.read_text(encoding="utf-8"))):
            where = f"{page.name}:{block.line}"
            if block.language == "python":
                file = tmp_path / f".block{number}.py"
                file.write_text(block.text)
                python.stdin.write(f"{file}\n")
                python.stdin.flush()
                assert any(line == "\x04\n" for line in iter(python.stdout.readline, "")), f"{where} failed"
            else:
                run_commands(block, where, tmp_path, environ)


def run_commands(block: Block, where: str, folder: Path, environ: dict[str, str]) -> None:
    commands = block.commands()
    for i, command in enumerate(commands):
        first = command.split()[0]
        if first in ("torchsan", "pytest"):
            command = f"{shlex.quote(sys.executable)} -m {command}"
        elif first == "python":
            command = shlex.quote(sys.executable) + command.removeprefix("python")
        done = subprocess.run(command, shell=True, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)  # noqa: S602  # our own pages
        expected = block.statuses if i == len(commands) - 1 else (0,)
        assert done.returncode in expected, f"{where}: $ {commands[i]}\n{done.stdout}\n{done.stderr}"


def test_blocks_are_found_in_order_with_what_is_said_of_them() -> None:
    page = (
        "text\n\n```python\na = 1\n```\n\n% not run: needs a GPU\n\n```console\n$ x\n```\n\n"
        "% exit: 0 or 1\n```console\n$ torchsan run \\\n    x.py\noutput\n$ y\n```\n\n```text\n$ no\n```\n"
    )
    python, console = blocks(page)
    assert (python.text, python.line, python.statuses) == ("a = 1\n", 3, (0,))
    assert console.statuses == (0, 1)
    assert [c.split() for c in console.commands()] == [["torchsan", "run", "x.py"], ["y"]]
