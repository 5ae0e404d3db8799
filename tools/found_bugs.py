"""Runs every reproducer of docs/found-bugs.md with every PyTorch, and writes what it shows into the page
(`make found-bugs`; some ten minutes).

A table whose last column is `reproducer` gets a column for each release: `yes` where torchsan reports the bug, `–`
where it does not, because that PyTorch does not have it. A reproducer is a line of Python, or a file of `tests/cases`;
of a bug that is told as one of an operator (`amin` of …), a finding has to name that operator.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path

from tools.torch_env import MATRIX, ROOT, make

PAGE = ROOT / "docs" / "found-bugs.md"
YES, NO = "yes", "–"
_ROW = re.compile(r"^\| (?P<cells>.*) \| `(?P<code>[^`]+)` \|$")


def reproducers(page: str) -> dict[str, str | None]:
    """Return the operator that each reproducer of a page is about, if it is about one."""
    rows = [match for line in page.splitlines() if (match := _ROW.match(line))]
    named = {row["code"]: re.match(r"`(\w+)`", row["cells"]) for row in rows}
    return {code: operator[1] if operator else None for code, operator in named.items()}


def shown_in(page: str, release: str) -> dict[str, bool]:
    """Return, by reproducer, whether the page says that a release shows the bug."""
    shown, column = {}, 0
    for line in page.splitlines():
        if line.endswith("| reproducer |"):
            column = _cells(line).index(release)
        elif match := _ROW.match(line):
            shown[match["code"]] = _cells(line)[column] == YES
    return shown


def with_columns(page: str, shown: Mapping[str, Mapping[str, bool]]) -> str:
    """Return the page with a column for each release of `shown`: by release, by reproducer, whether it shows."""
    lines = []
    for line in page.splitlines():
        match = _ROW.match(line)
        if line.endswith("| reproducer |"):
            line = f"| what | {' | '.join(shown)} | reproducer |"
        elif re.fullmatch(r"\|( --- \|){2,}", line):
            line = "|" + " --- |" * (2 + len(shown))
        elif match:
            answers = [YES if by[match["code"]] else NO for by in shown.values()]
            what = [cell for cell in match["cells"].split(" | ") if cell not in (YES, NO)]
            line = f"| {' | '.join([*what, *answers])} | `{match['code']}` |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def show(code: str, operator: str | None) -> bool:
    """Run a reproducer under every check, in this process. Return whether something is reported, of this operator."""
    import torchsan
    from torchsan.records import Severity

    file = ROOT / code
    if not code.startswith("tests/cases/"):
        file = Path("line.py")  # A file, since Dynamo and the report ask for the text of what was called.
        file.write_text(f"import torch\n{code}\n", encoding="utf-8")
    with warnings.catch_warnings(), torchsan.session() as run:
        warnings.simplefilter("ignore")
        runpy.run_path(str(file), run_name="__main__")
    told = [f for f in run.findings if f.severity in (Severity.ERROR, Severity.WARNING)]
    return any(operator is None or f".{operator}." in " ".join([f.message, *f.ops]) for f in told)


def _show_each(codes: Mapping[str, str | None]) -> None:
    """Run each in a process and a folder of its own, since one may crash; what it then shows is the bug."""
    import torch  # noqa: F401  # once for all

    for code, operator in codes.items():
        with tempfile.TemporaryDirectory() as folder:
            child = os.fork()
            if child == 0:
                os.dup2(2, 1)  # What it prints is not the answer.
                os.chdir(folder)
                try:
                    os._exit(10 + show(code, operator))
                except BaseException:  # noqa: BLE001  # whatever it is, it is said
                    traceback.print_exc()
                    os._exit(1)
            _, status = os.waitpid(child, 0)
        result = os.waitstatus_to_exitcode(status)
        sys.stdout.write(json.dumps({"code": code, "shown": result != 10, "status": result}) + "\n")
        sys.stdout.flush()


def ask(version: str, codes: Mapping[str, str | None]) -> dict[str, bool]:
    """Return, by reproducer, whether this PyTorch shows the bug. Raise SystemExit if one cannot be run."""
    command = [str(make(version)), "-m", "tools.found_bugs", "--show"]
    done = subprocess.run(
        command, cwd=ROOT, input=json.dumps(codes), stdout=subprocess.PIPE, text=True, check=True, timeout=3600
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for answer in answers:
        if answer["status"] > 0 and answer["status"] not in (10, 11):  # Below 0 it died of a signal, as some bugs do.
            raise SystemExit(f"found_bugs: with PyTorch {version} this fails: {answer['code']}")
    return {answer["code"]: answer["shown"] for answer in answers}


def main() -> None:
    if sys.argv[1:] == ["--show"]:
        _show_each(json.load(sys.stdin))
        return
    page = PAGE.read_text(encoding="utf-8")
    codes = reproducers(page)
    shown = {}
    for version in MATRIX:
        print(f"== PyTorch {version}", flush=True)
        shown[version.rpartition(".")[0]] = ask(version, codes)
    PAGE.write_text(with_columns(page, shown), encoding="utf-8")


if __name__ == "__main__":
    main()
