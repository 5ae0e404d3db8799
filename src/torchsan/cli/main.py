"""The command `torchsan`."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress

from torchsan._version import __version__
from torchsan.cli.started import stand_firm
from torchsan.errors import TorchsanError, UsageError

_TASKS = {
    "check a program": {
        "run": "run a program under torchsan",
    },
    "see what was found": {
        "report": "show a recording again",
        "open": "show a recording in the browser",
        "explain": "what a kind of finding means, and what to do",
        "repro": "make a reproducer of a finding",
    },
    "look at values, and compare": {
        "values": "show what was watched",
        "diff": "where two recordings differ first",
        "export": "recordings as tables for SQL engines",
    },
    "check a part by itself": {
        "ops": "check the operators of a library",
        "check-kernel": "is this kernel right?",
        "check-package": "check an AOTInductor package against eager",
        "cache": "compare a folder of compile caches with fresh compiles",
    },
    "look for bugs of PyTorch or a backend": {
        "sweep": "look for bugs of PyTorch or of a backend",
        "fuzz": "look for bugs with made-up programs",
    },
    "look after things": {
        "doctor": "what works on this machine",
        "store": "look after a tensor store",
        "completion": "let bash, zsh or fish complete what you type",
    },
}
"""The commands and what each does, by what one wants to do."""
_COMMANDS = tuple(name for names in _TASKS.values() for name in names)
_EPILOG = """\
examples:
  torchsan run train.py --epochs 1      run a program, check everything, report
  torchsan run --check memory -m pkg    a module, one check
  torchsan run --json r.json train.py   and a report for programs
  torchsan report torchsan-runs/…       the report again
  torchsan report runs/*                many recordings in one report
  torchsan values torchsan-runs/…       what --watch saw
  torchsan diff run-1 run-2             where two recordings differ first
  torchsan repro torchsan-runs/…        the first error by itself, as a script
  torchsan ops my_library               check the operators that a library registers
  torchsan check-package model.pt2      check what AOTInductor built
  torchsan check-kernel softmax.py      is this kernel right?
  torchsan open torchsan-runs/…         the report as a page in the browser
  torchsan explain wrong-values         what a kind of finding means, and what to do
  torchsan doctor                       what works on this machine

exit status of run, report and diff:
  0  clean       1  findings of severity `error`; recordings that differ
  2  wrong usage 3  torchsan itself failed
  4  incomplete, such as nothing compiled: silence is never success
  When the program fails and there is no finding, its own status (128 + signal for a crash).

Options can also stand in [tool.torchsan] of pyproject.toml, and in
TORCHSAN_OPTIONS="check=values,memory:watch=print"; flags win over the variable, the variable over the file.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]  # raises, as the original exits
        from torchsan.cli import run

        given = re.findall(r"--[\w-]+", message)
        near = difflib.get_close_matches(given[0], run.FLAGS, n=1) if given else []
        hint = f"did you mean {near[0]}?" if near and near[0] != given[0] else f"see `{self.prog} --help`"
        if near and near[0] == given[0] and message.startswith("unrecognized"):
            hint = f"{near[0]} is an option of `torchsan run`"
        raise UsageError(f"{message}; {hint}", slug="usage")


def make_parser(commands: Sequence[str] = _COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the command line with these commands; of the others it knows the names.

    A command is imported when it is added, and only then: `torchsan --help` needs none of them.
    """
    parser = _Parser(
        prog="torchsan",
        description="The sanitizer for compiled PyTorch: says which kernel, pass or operator is wrong, and where.",
        epilog=f"{_by_task()}\n{_EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"torchsan {__version__}")
    added = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser, help="see below")
    for name in _COMMANDS:
        if name in commands:
            importlib.import_module(f"torchsan.cli.{name.replace('-', '_')}").add_parser(added)
        else:
            added.add_parser(name)
    return parser


def _by_task() -> str:
    """The commands below what they are for: argparse would list them in one row."""
    lines = []
    for task, names in _TASKS.items():
        lines += [f"{task}:", *(f"  {name:<15} {does}" for name, does in names.items()), ""]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    stand_firm()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # Closed by whoever started us; what we say there is for nobody.
            setattr(sys, name, io.StringIO())
    words = sys.argv[1:] if argv is None else argv
    try:
        args = make_parser(words[:1]).parse_args(words)
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except UsageError as e:
        return _complain(str(e), 2)
    except TorchsanError as e:
        return _complain(str(e), 3)
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain about that once more when it flushes at exit.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except Exception as e:  # The last resort: torchsan failed, and says so with the status for it.
        if os.environ.get("TORCHSAN_DEBUG"):
            raise
        if isinstance(e, OSError) and e.errno == errno.ENAMETOOLONG:
            return _complain(f"{e.strerror}: {e.filename!s:.200} [usage]", 2)
        return _complain(
            f"torchsan itself failed: {type(e).__name__}: {e}; this is a bug in torchsan: please report it, with the "
            "traceback that TORCHSAN_DEBUG=1 gives [internal-error]",
            3,
        )


def _complain(message: str, status: int) -> int:
    from torchsan.report.findings import clean

    with suppress(OSError, ValueError):
        sys.stderr.write(f"torchsan: error: {clean(message, 4000)}\n")  # It may quote a recording.
    return status
