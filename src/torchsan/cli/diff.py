"""`torchsan diff A B`: where two recordings differ first."""

from __future__ import annotations

import argparse
import sys

from torchsan.cli.report import files_of, opened
from torchsan.diff import compare_recordings
from torchsan.diff.compare import SECONDS
from torchsan.diff.export import DIFF_EXPORTERS
from torchsan.diff.text import diff_lines
from torchsan.report.exporter import Exports, add_export_flags
from torchsan.report.printing import print_lines

_DESCRIPTION = """\
Compare two recordings of one program: eager against compiled, two versions of PyTorch or of the model, two machines, \
two ranks. Values are aligned by graph, node and call, and a difference is judged: rounding, or not. Record both with \
`torchsan run --watch save`.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `diff` to the command line."""
    parser = commands.add_parser("diff", description=_DESCRIPTION)
    flag = parser.add_argument
    flag("a", metavar="A", help="a recording: its folder, or its URL")
    flag("b", metavar="B", help="another one of the same program")
    add_export_flags(parser, DIFF_EXPORTERS)
    flag("--all", action="store_true", help="list everything that differs")
    flag("--quiet", action="store_true", help="the first difference and the verdict only")
    flag(
        "--time-limit",
        metavar="SECONDS",
        type=float,
        default=SECONDS,
        help="how long to replay operators to tell rounding from more, 0 for not at all; default %(default)g",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the comparison to stdout and return the status of the contract."""
    exports = Exports(DIFF_EXPORTERS, args, keep=[*files_of(args.a), *files_of(args.b)])
    show = sys.stderr.isatty() and not args.quiet
    with opened(args.a) as a, opened(args.b) as b:
        try:
            diff = compare_recordings(a, b, seconds=args.time_limit, progress=_progress if show else None)
        finally:
            if show:
                sys.stderr.write("\r\x1b[K")
        exports.write(diff)
        if not exports.to_stdout:
            print_lines(diff_lines(diff, everything=args.all, quiet=args.quiet), sys.stdout)
        return diff.status.exit


def _progress(done: int, calls: int) -> None:
    sys.stderr.write(f"\r\x1b[Ktorchsan: comparing call {done + 1} of {calls}")
    sys.stderr.flush()
