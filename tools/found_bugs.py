"""Runs every reproducer of docs/found-bugs.md with every PyTorch, and writes what it shows into the page
(`make found-bugs`; about ten minutes).

A table whose last column is `reproducer` gets a column for each release: `yes` where torchsan reports the bug, `–`
where it does not, because that PyTorch does not have it. A reproducer is a line of Python, or a file of `tests/cases`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence

from tools.torch_env import MATRIX, ROOT, make

PAGE = ROOT / "docs" / "found-bugs.md"
YES, NO = "yes", "–"
_ROW = re.compile(r"^\| (?P<cells>.*) \| `(?P<code>[^`]+)` \|$")


def reproducers(page: str) -> list[str]:
    """Return the reproducers of a page, in their order."""
    return [match["code"] for line in page.splitlines() if (match := _ROW.match(line))]


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


def show(code: str) -> bool:
    """Run a reproducer under every check, in this process, and return whether something is reported."""
    import torch

    import torchsan
    from torchsan.records import Severity

    program = (ROOT / code).read_text(encoding="utf-8") if code.startswith("tests/cases/") else code
    with warnings.catch_warnings(), torchsan.session() as run:
        warnings.simplefilter("ignore")
        exec(compile(program, code, "exec"), {"__name__": "__main__", "torch": torch})  # noqa: S102  # our own page
    return any(f.severity in (Severity.ERROR, Severity.WARNING) for f in run.findings)


def _show_each(codes: Sequence[str]) -> None:
    """Run each in a process of its own, since one may crash; what it then shows is the bug."""
    import torch  # noqa: F401  # once for all

    for code in codes:
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)  # What it prints is not the answer.
            try:
                os._exit(10 + show(code))
            except BaseException:  # noqa: BLE001  # whatever it is, it is said
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        result = os.waitstatus_to_exitcode(status)
        print(json.dumps({"code": code, "shown": result != 10, "status": result}), flush=True)


def ask(version: str, codes: Sequence[str]) -> dict[str, bool]:
    """Return, by reproducer, whether this PyTorch shows the bug. Raise SystemExit if one cannot be run."""
    command = [str(make(version)), "-m", "tools.found_bugs", "--show"]
    done = subprocess.run(
        command, cwd=ROOT, input=json.dumps(codes), stdout=subprocess.PIPE, text=True, check=True, timeout=3600
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for answer in answers:
        if answer["status"] > 0 and answer["status"] not in (10, 11):
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
