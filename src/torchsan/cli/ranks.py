"""`torchsan run -m torch.distributed.run …`: the launcher starts each rank under a torchsan of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torchsan.cli.supervise import supervised
from torchsan.errors import RecordingError, UsageError
from torchsan.options import Options
from torchsan.recording import is_url, local_copy
from torchsan.recording.folder import create_place

LAUNCHED = "TORCHSAN_LAUNCHED"
"""Set for ranks that torchsan has launched: they leave the report to it."""

_LAUNCHER = "torch.distributed.run"
_NOT_FOR_RANKS = ("out", "json", "html", "quiet", "repro")


def is_launcher(command: Sequence[str]) -> bool:
    """Return whether the program is torchrun, as a module or as its script."""
    if command[:1] == ["-m"]:
        return command[1:2] == [_LAUNCHER]
    return Path(command[0]).name == "torchrun"


def run_ranks(command: Sequence[str], options: Options, flags: Mapping[str, Any]) -> int:
    """Run the launcher with `torchsan run` before the user's script, and report over all ranks."""
    if options.html is not None:
        raise UsageError(
            "--html takes the recording of one rank: `torchsan report --html FILE DIR/rank-0`", slug="usage"
        )
    from torchsan.report.ranks import open_ranks, print_ranks, write_ranks_json

    arguments = list(command[2:] if command[0] == "-m" else command[1:])
    before, script = _split(arguments)
    url = options.out if is_url(options.out) else None
    place = url or str(create_place(options.out))
    ours = ["--out", place, "--quiet"]
    for name, value in flags.items():
        if name not in _NOT_FOR_RANKS:
            flag = f"--{name.replace('_', '-')}"
            ours += [flag] if value is True else [flag, str(value)]
    launched = [sys.executable, "-m", _LAUNCHER, *before, "-m", "torchsan", "run", *ours, *script]
    os.environ[LAUNCHED] = place
    with supervised(launched, None) as program, ExitStack() as stack:
        try:
            ranks = open_ranks(stack.enter_context(local_copy(place)), url)
        except RecordingError as e:
            sys.stderr.write(f"torchsan: incomplete: {e}\n")
            return program.status or 4
        print_ranks(ranks, sys.stderr, quiet=options.quiet)
        sys.stderr.write(f"again: torchsan report {place}\n")
        if options.repro:
            sys.stderr.write(f"no reproducer was made; of a rank's finding: torchsan repro {place}/rank-N\n")
        if options.json is not None:
            write_ranks_json(ranks, options.json)
        outcome = ranks.verdict
        return outcome.exit if outcome.exit == 1 else (program.status or outcome.exit)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the launcher's own arguments, and the script or module with its own, as `torchsan run` takes them."""
    from torch.distributed.run import get_args_parser

    known = get_args_parser().parse_args(arguments)
    if known.no_python:
        raise UsageError(
            "--no-python starts a program that is not Python; let it start `python -m torchsan run SCRIPT` itself",
            slug="usage",
        )
    if getattr(known, "run_path", False):
        raise UsageError("--run-path is not supported under torchsan; leave it out", slug="usage")
    rest = [known.training_script, *known.training_script_args]
    before = arguments[: len(arguments) - len(rest)]
    if known.module:
        return [a for a in before if a not in ("-m", "--module")], ["-m", *rest]
    return before, rest
