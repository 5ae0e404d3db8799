"""Jupyter and IPython: `%load_ext torchsan` adds the magic `%%torchsan`, which checks what a cell compiles."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from torchsan.errors import UsageError
from torchsan.options import OF_A_SESSION
from torchsan.session import Session, session


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]  # raises, as the original exits
        raise UsageError(f"%%torchsan: {message}; it takes the options of torchsan.session()", slug="usage")


def parse_line(line: str) -> dict[str, Any]:
    """Return what stands beside the magic as arguments of `torchsan.session()`. Raise UsageError."""
    parser = _Parser(prog="%%torchsan", add_help=False, allow_abbrev=False)
    for name in OF_A_SESSION:
        how: dict[str, Any] = {"action": "store_true", "default": None} if name == "no_guards" else {}
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    return {name: value for name, value in vars(parser.parse_args(shlex.split(line))).items() if value is not None}


def load_magic(shell: Any) -> None:
    """Add the magic to a shell of IPython."""

    def check_cell(line: str, cell: str) -> Session:
        """%%torchsan [--check LIST] [--watch LEVEL] [--out DIR] …: run this cell under torchsan and show its findings.

        The session is the value of the cell, in `_`; its options are those of `torchsan.session()`.
        """
        run = session(**parse_line(line))
        # As IPython runs a cell: under a name by which its lines are found, also by findings.
        source = shell.transform_cell(cell)
        code = compile(source, shell.compile.cache(source, shell.execution_count), "exec")
        try:
            with run:
                exec(code, shell.user_ns)  # noqa: S102  # Running the user's cell is the point.
        except BaseException:
            shell.display_pub.publish({"text/html": run._repr_html_(), "text/plain": repr(run)})
            raise
        return run

    shell.register_magic_function(check_cell, magic_kind="cell", magic_name="torchsan")
