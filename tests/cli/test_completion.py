"""What shells are told to complete."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.cli.conftest import Run
from torchsan.cli.completion import command_flags
from torchsan.cli.main import make_parser


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("torchsan re", ["report", "repro"]),
        ("torchsan run --wat", ["--watch"]),
        ("torchsan run --watch s", ["save"]),
        ("torchsan explain wrong", ["wrong-values"]),
        ("torchsan run scr", ["script.py"]),
    ],
)
def test_bash_completes_commands_flags_values_and_files(cli: Run, typed: str, offered: list[str]) -> None:
    script = cli("completion", "bash").stdout
    words = typed.split(" ")
    ask = f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _torchsan; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "-c", f"touch script.py; {script}\n{ask}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_scripts_of_other_shells_name_every_command_and_flag(cli: Run, shell: str) -> None:
    script = cli("completion", shell).stdout
    for command, flags in command_flags(make_parser()).items():
        assert command in script
        for flag in flags:
            assert flag in script or f"-l {flag[2:]}" in script
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n", "-c", script], check=True)
