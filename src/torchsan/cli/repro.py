"""`torchsan repro RECORDING [FINDING]`: one finding by itself, minimised and verified."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from torchsan.cli.report import opened
from torchsan.errors import UsageError
from torchsan.report.findings import clean, count, shown_path

if TYPE_CHECKING:
    from torchsan.repro.make import Wanted
    from torchsan.repro.trial_server import TrialServer

_DESCRIPTION = """\
Cut one finding out of a recording: a folder with repro.py (plain PyTorch), its tensors, a README.md for the bug \
report and a small recording. Every step is tried in a fresh process, and what is written is run again in another \
folder. Nothing in the recording is executed but PyTorch's own operators. Ctrl-C keeps the smallest so far; the same \
command goes on from there.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `repro` to the command line."""
    parser = commands.add_parser("repro", help="make a reproducer of a finding", description=_DESCRIPTION)
    flag = parser.add_argument
    flag("recording", metavar="RECORDING", help="the folder that `torchsan run` wrote, or its URL")
    flag("finding", metavar="FINDING", nargs="?", help="such as F2; default the first of severity error")
    flag("--out", metavar="DIR", type=Path, help="where it goes; default torchsan-repros/<recording>-<finding>")
    flag(
        "--load",
        metavar="MODULE",
        action="append",
        default=[],
        help="a module, or a .py file, to import first: the one that registers your operators",
    )
    flag("--with-store", action="store_true", help="keep the tensors in a store; repro.py takes them by load_tensor")
    flag("--jobs", metavar="N", type=int, default=min(2, os.cpu_count() or 1), help="trials at once; default 2")
    flag("--trial-limit", metavar="SECONDS", type=float, default=120.0, help="for one trial; default 120")
    flag("--time-limit", metavar="SECONDS", type=float, default=900.0, help="for all of them; default 900")
    flag(
        "--check",
        metavar="CMD",
        help="reduce a script of yours (in the place of RECORDING) for as long as CMD FILE "
        "exits with 0, which says that FILE still shows the problem; {} in CMD stands for FILE",
    )
    flag("--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make the reproducer; return 0 if it is verified, 4 if it does not reproduce by itself."""
    from torchsan.repro.exhibits import parse_loads
    from torchsan.repro.make import Wanted
    from torchsan.repro.trial_server import TrialServer

    if args.jobs < 1 or args.trial_limit <= 0 or args.time_limit <= 0:
        raise UsageError("--jobs and the limits are numbers above 0", slug="usage")
    if args.check is not None:
        return _reduce_script(args)
    with opened(args.recording) as recording, TrialServer() as zygote:
        wanted = Wanted(
            recording=recording,
            finding=args.finding,
            out=args.out,
            loads=parse_loads(args.load),
            with_store=args.with_store,
            jobs=args.jobs,
            limit=args.trial_limit,
            total=args.time_limit,
        )
        return make_and_say(wanted, zygote, quiet=args.quiet, to=sys.stdout)


def _reduce_script(args: argparse.Namespace) -> int:
    """Reduce the user's own script with their own oracle; return 0 if the result still shows the problem."""
    from torchsan.repro.statements import OwnOracle, reduce_script

    if args.finding is not None or args.load or args.with_store:
        raise UsageError("--check CMD goes with a script, and not with FINDING, --load or --with-store", slug="usage")
    script = Path(args.recording)
    out = args.out or Path("torchsan-repros") / script.stem
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty; choose another folder with --out", slug="out-exists")
    oracle = OwnOracle(command=args.check, limit=args.trial_limit, jobs=args.jobs, total=args.time_limit)
    made = reduce_script(script, out, oracle, (lambda text: None) if args.quiet else _progress)
    verdict = "verified" if made.verified else "NOT verified: run once more, it does not show the problem"
    size = f"{made.statements} statements, {made.lines} lines, {made.trials} trials"
    sys.stdout.write(f"{verdict}: {made.file} ({size})\n")
    if made.stopped is not None:
        sys.stdout.write(f"not minimised to the end: {made.stopped}\n")
    return 0 if made.verified else 4


def make_and_say(wanted: Wanted, zygote: TrialServer, *, quiet: bool, to: TextIO) -> int:
    """Make a reproducer, with progress on standard error, and say what came of it. Return the status of `repro`."""
    from torchsan.repro.make import make

    made = make(wanted, zygote, (lambda text: None) if quiet else _progress)
    size = f"{count(made.nodes, 'operator call')}, {made.lines} lines, {count(made.trials, 'trial')}"
    verdict = "verified" if made else "NOT verified: it does not reproduce by itself"
    script = shown_path(made.folder / "repro.py")
    lines = [f"{made.finding.id}: {made.finding.message}", f"{verdict}: {script} ({size})"]
    if made.stopped is not None:
        lines.append(f"not minimised to the end: {made.stopped}")
    to.write("".join(f"{clean(line, 1000)}\n" for line in lines))
    return 0 if made else 4


def _progress(text: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"torchsan: {text}\n")
        sys.stderr.flush()
