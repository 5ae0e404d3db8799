"""Runs every reproducer of docs/found-bugs.md with every PyTorch, and writes what it shows into the page.

`make found-bugs` runs them all (some forty minutes); `make found-bugs TORCH=2.15.0` those of one release, and leaves
the other columns as they are.

A table whose last column is `reproducer` gets a column for each release: `yes` where the bug is there, `–` where that
PyTorch does not have it, `?` where the program does not run or was not run. A reproducer is a line of Python, a file of
`tests/cases`, or the name of a function in a snippet of the page, which is called with `torch.ones(2)`. It shows its
bug if torchsan reports an error, of the operator that the row begins with (`amin` of …) also a warning; if it corrupts
memory so that it crashes; or, for bugs outside of compiled code, if its `assert` fails.
"""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.torch_env import MATRIX, ROOT, make

from torchsan.torch_internals.tried import SWITCH

PAGE = ROOT / "docs" / "found-bugs.md"
YES, NO, UNKNOWN = "yes", "–", "?"
_STATUS = {10: False, 11: True, -signal.SIGSEGV: True, -signal.SIGABRT: True}
"""What the status of a reproducer's process says; others say that it could not be run."""
_ROW = re.compile(r"^\| (?P<cells>.*) \| `(?P<code>[^`]+)` \|$")
_HEAD = re.compile(r"^\| what (?P<releases>.*)\| reproducer \|$")


def release(version: str) -> str:
    """Return the column of a version: 2.13 for 2.13.0."""
    return ".".join(version.split(".")[:2])


def _tables(page: str) -> Iterator[tuple[int, re.Match[str], list[str]]]:
    """Each row with a reproducer: the number of its line, the row, and the releases that its table has columns for."""
    releases: list[str] = []
    for number, line in enumerate(page.splitlines()):
        if head := _HEAD.match(line):
            releases = re.findall(r"\d+\.\d+", head["releases"])
        elif row := _ROW.match(line):
            yield number, row, releases


def reproducers(page: str) -> dict[str, str | None]:
    """Return the operator that each reproducer of a page is about, if it is about one."""
    named = {row["code"]: re.match(r"`(\w+)`", row["cells"]) for _, row, _ in _tables(page)}
    return {code: operator[1] if operator else None for code, operator in named.items()}


def shown(page: str) -> dict[str, dict[str, bool]]:
    """Return what the page says: by release, by reproducer, whether it shows its bug."""
    says: dict[str, dict[str, bool]] = {}
    for _, row, releases in _tables(page):
        answers = row["cells"].split(" | ")[1:]
        for name, answer in zip(releases, answers, strict=True):
            if answer != UNKNOWN:
                says.setdefault(name, {})[row["code"]] = answer == YES
    return says


def with_columns(page: str, says: Mapping[str, Mapping[str, bool]]) -> str:
    """Return the page with a column for each release of `says`, and a question mark for what was not run."""
    words = {True: YES, False: NO, None: UNKNOWN}
    lines = page.splitlines()
    for number, row, _ in _tables(page):
        answers = [words[by.get(row["code"])] for by in says.values()]
        lines[number] = f"| {' | '.join([row['cells'].split(' | ')[0], *answers])} | `{row['code']}` |"
    for number, line in enumerate(lines):
        if _HEAD.match(line):
            lines[number] = f"| {' | '.join(['what', *says, 'reproducer'])} |"
            lines[number + 1] = "|" + " --- |" * (len(says) + 2)
    return "\n".join(lines) + "\n"


def program(code: str, page: str) -> str:
    """Return the text of the program that a reproducer is."""
    if code.endswith(".py"):
        return (ROOT / code).read_text(encoding="utf-8")
    if code.isidentifier():
        for snippet in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
            if any(isinstance(node, ast.FunctionDef) and node.name == code for node in ast.parse(snippet).body):
                return f"{snippet}\n\n{code}(torch.ones(2))\n"
        raise ValueError(f"no snippet of the page has a function {code}")
    return f"import torch\n{code}\n"


def shows(text: str, operator: str | None) -> bool:
    """Run a program under every check, in this process and folder. Return whether it shows the bug."""
    import torchsan
    from torchsan.records import Severity

    file = Path("reproducer.py")  # Dynamo and the report ask for the text of what was called.
    file.write_text(text, encoding="utf-8")
    failed = False
    with warnings.catch_warnings(), torchsan.session() as run:
        warnings.simplefilter("ignore")
        try:
            runpy.run_path(str(file), run_name="__main__")
        except AssertionError as e:
            if traceback.extract_tb(e.__traceback__)[-1].filename != str(file):
                raise  # It is the compiler's own.
            failed = True
    for finding in run.findings:
        print(f"{finding.severity}: {finding.kind}: {finding.message}", file=sys.stderr)
    if operator is None:
        return failed or any(f.severity is Severity.ERROR for f in run.findings)
    told = [f for f in run.findings if f.severity in (Severity.ERROR, Severity.WARNING)]
    return failed or any(f".{operator}." in " ".join([f.message, *f.ops]) for f in told)


def _answer_each(programs: Mapping[str, tuple[str, str | None]]) -> None:
    """Run each in a process and a folder of its own, since one may crash. Print a line of JSON for each."""
    import torch  # noqa: F401  # once for all

    for code, (text, operator) in programs.items():
        print(f"== {code}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            child = os.fork()
            if child == 0:
                os.dup2(2, 1)  # What it prints is not the answer.
                os.chdir(folder)
                try:
                    os._exit(10 + shows(text, operator))
                except BaseException:  # noqa: BLE001  # whatever it is, it is said
                    traceback.print_exc()
                    os._exit(1)
            _, status = os.waitpid(child, 0)
        print(json.dumps({"code": code, "status": os.waitstatus_to_exitcode(status)}), flush=True)


def ask(version: str, page: str) -> Iterator[tuple[str, bool]]:
    """Yield each reproducer and whether this PyTorch shows its bug. Say which do not run."""
    programs = {code: (program(code, page), operator) for code, operator in reproducers(page).items()}
    command = [str(make(version)), "-m", "tools.found_bugs", "--answer"]
    environment = os.environ | {SWITCH: "off"}  # Nothing else is tried beside them.
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        with asked.stdin as stream:
            json.dump(programs, stream)
        for answer in map(json.loads, asked.stdout):
            if answer["status"] in _STATUS:
                yield answer["code"], _STATUS[answer["status"]]
            else:
                print(f"found_bugs: this does not run with PyTorch {version}: {answer['code']}", file=sys.stderr)
    if asked.returncode != 0:
        raise SystemExit(f"found_bugs: the process with PyTorch {version} ended with status {asked.returncode}")


def write(version: str, code: str, is_shown: bool) -> None:
    """Write one answer into the page as it is now: what takes long may be ended before it is through."""
    page = PAGE.read_text(encoding="utf-8")
    says = {release(known): shown(page).get(release(known), {}) for known in MATRIX}
    says[release(version)][code] = is_shown
    PAGE.write_text(with_columns(page, says), encoding="utf-8")


def main() -> None:
    if sys.argv[1:] == ["--answer"]:
        _answer_each(json.load(sys.stdin))
        return
    for version in sys.argv[1:] or MATRIX:
        print(f"== PyTorch {version}", flush=True)
        for code, is_shown in ask(version, PAGE.read_text(encoding="utf-8")):
            write(version, code, is_shown)


if __name__ == "__main__":
    main()
