"""`torchsan repro RECORDING [FINDING]`: one finding by itself, minimised and verified."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from torchsan.cli.report import opened
from torchsan.cli.supervise import cleaned_up
from torchsan.errors import UsageError
from torchsan.report.findings import clean, count, shown_path

if TYPE_CHECKING:
    from torchsan.recording import Reader
    from torchsan.repro.exhibits import Loads
    from torchsan.repro.trial_server import TrialServer
    from torchsan.repro.trials import Limits, Made

_DESCRIPTION = """\
Cut one finding out of a recording: a folder with repro.py (plain PyTorch), its tensors, a README.md for the bug \
report and a small recording. Every step is tried in a fresh process, and what is written is run again in another \
folder. Nothing in the recording is executed but PyTorch's own operators. Ctrl-C keeps the smallest so far; the same \
command goes on from there.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `repro` to the command line."""
    parser = commands.add_parser("repro", description=_DESCRIPTION)
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
    from torchsan.repro.trial_server import TrialServer
    from torchsan.repro.trials import Limits

    if args.jobs < 1 or args.trial_limit <= 0 or args.time_limit <= 0:
        raise UsageError("--jobs and the limits are numbers above 0", slug="usage")
    limits = Limits(jobs=args.jobs, trial=args.trial_limit, total=args.time_limit)
    with cleaned_up():
        if args.check is not None:
            return _reduce_script(args, limits)
        loads = parse_loads(args.load)
        # A module that the user names may lie here, but not in what somebody sent.
        here = Path.cwd().resolve()
        own = loads.modules and Path(args.recording).resolve() not in (here, *here.parents)
        with opened(args.recording) as recording, TrialServer(str(here) if own else "", caches=False) as server:
            return make_and_say(
                recording,
                server,
                finding=args.finding,
                out=args.out,
                loads=loads,
                limits=limits,
                with_store=args.with_store,
                quiet=args.quiet,
                to=sys.stdout,
            )


def _reduce_script(args: argparse.Namespace, limits: Limits) -> int:
    """Reduce the user's own script with their own oracle; return 0 if the result still shows the problem."""
    from torchsan.repro.statements import reduce_script
    from torchsan.repro.trials import require_free

    if args.finding is not None or args.load or args.with_store:
        raise UsageError("--check CMD goes with a script, and not with FINDING, --load or --with-store", slug="usage")
    script = Path(args.recording)
    out = args.out or Path("torchsan-repros") / script.stem
    require_free(out)
    made = reduce_script(script, out, args.check, limits, silent if args.quiet else progress)
    return _say(made, "run once more, it does not show the problem", sys.stdout)


def make_and_say(
    recording: Reader,
    server: TrialServer,
    *,
    finding: str | None = None,
    out: Path | None = None,
    loads: Loads | None = None,
    limits: Limits | None = None,
    with_store: bool = False,
    quiet: bool,
    to: TextIO,
) -> int:
    """Make a reproducer, with progress on standard error, and say what came of it. Return the status of `repro`."""
    from torchsan.repro.exhibits import Loads, read_wanted
    from torchsan.repro.trials import Limits, require_free

    wanted = read_wanted(recording, finding, loads or Loads())
    out = out or Path("torchsan-repros") / f"{recording.path.name}-{wanted.finding.id}"
    require_free(out)
    server.get_ready()
    from torchsan.repro.make import make  # It imports torch, while the server does.
    from torchsan.repro.render import LOAD_HINT

    made = make(wanted, out, server, limits or Limits(), silent if quiet else progress, with_store=with_store)
    to.write(f"{clean(f'{wanted.finding.id}: {wanted.finding.message}', 1000)}\n")
    status = _say(made, "it does not reproduce by itself", to)
    if status and not (loads and loads.modules):
        to.write(f"{LOAD_HINT}\n")
    return status


def _say(made: Made, otherwise: str, to: TextIO) -> int:
    """Say what came of it; return the status of `repro`."""
    verdict = "verified" if made.verified else f"NOT verified: {otherwise}"
    size = f"{made.content}, {len(made.file.read_text().splitlines())} lines, {count(made.trials, 'trial')}"
    lines = [f"{verdict}: {shown_path(made.file)} ({size})"]
    if made.stopped is not None:
        lines.append(f"not minimised to the end: {made.stopped}")
    to.write("".join(f"{clean(line, 1000)}\n" for line in lines))
    return 0 if made.verified else 4


def silent(text: str) -> None:
    """No progress."""


def progress(text: str) -> None:
    """Say on standard error what is going on."""
    with suppress(OSError):
        sys.stderr.write(f"torchsan: {text}\n")
        sys.stderr.flush()
