"""`torchsan fuzz`: makes programs that are written to hurt, judges them, and makes what it finds small."""

from __future__ import annotations

import argparse
import itertools

from torchsan.cli.supervise import cleaned_up
from torchsan.cli.sweep import Plan, add_sweep_flags
from torchsan.errors import UsageError

_DESCRIPTION = """\
Make programs that are valid and written to hurt, and judge each by all checks, until --time is up or Ctrl-C: views \
and writes through them, odd shapes and dtypes, reductions, scatters, gradients, random numbers, several sizes, \
Inductor's settings. What reaches something new in the compiler is kept, and more is made from it. Each find is made \
small.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `fuzz` to the command line."""
    parser = commands.add_parser("fuzz", description=_DESCRIPTION)
    parser.add_argument("--size", metavar="N", type=int, default=8, help="lines of a program; default up to 8")
    parser.add_argument("--programs", metavar="N", type=int, help="stop after so many programs")
    add_sweep_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fuzz, report, and return the status of the contract."""
    from torchsan.sweep.fuzz import Fuzzer
    from torchsan.sweep.results import Results

    if args.size < 1 or (args.programs is not None and args.programs < 1):
        raise UsageError("--size and --programs are numbers above 0", slug="usage")
    plan = Plan.of(args)
    with cleaned_up(), Results(plan.folder) as results:
        earlier = [result.program for result in results]
        fuzzer = Fuzzer(seed=args.seed, size=args.size)
        made = fuzzer.programs(start=len(earlier))
        fresh = itertools.islice(made, args.programs) if args.programs is not None else made
        return plan.carry_out(itertools.chain(earlier, fresh), results, watch=fuzzer.watch, shrink=True)
