"""`torchsan sweep ops|models|FILE`: judges many programs, each in a process of its own, and says what is new."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsan.cli.repro import progress, silent
from torchsan.cli.supervise import cleaned_up
from torchsan.errors import UsageError
from torchsan.options import parse_options
from torchsan.records import Check
from torchsan.sweep.operators import DTYPES, WAYS

if TYPE_CHECKING:
    from torchsan.repro.exhibits import Loads
    from torchsan.repro.trial_server import TrialServer
    from torchsan.sweep.conduct import Conducted, Engine
    from torchsan.sweep.engine import Setting
    from torchsan.sweep.programs import Program
    from torchsan.sweep.report import Sweep
    from torchsan.sweep.results import Result, Results
    from torchsan.sweep.verify import Verifier

_DESCRIPTION = """\
Judge many programs by all checks, each in a process of its own with limits of time and memory, and say what of it is \
new. A crash or a hang is a result. Ctrl-C keeps all, and --resume goes on from there.
"""
CHECKS = (Check.VALUES, Check.STAGES, Check.METADATA, Check.MEMORY)
_SWEPT = ("target", "globs", "dtype", "way", "samples", "seed")
"""What says which programs they are, and is kept for --resume."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `sweep` to the command line."""
    parser = commands.add_parser(
        "sweep",
        description=_DESCRIPTION,
        usage="torchsan sweep [options] ops|models [GLOB…]\n       torchsan sweep [options] FILE",
    )
    flag = parser.add_argument
    flag(
        "target",
        nargs="?",
        metavar="ops|models|FILE",
        help="PyTorch's operator database, architectures from configs, or a list of programs; "
        "may be left out with --resume",
    )
    flag("globs", nargs="*", metavar="GLOB", help="only operators or models of these names")
    flag("--dtype", metavar="LIST", help=f"of `ops`: default {','.join(DTYPES)}")
    flag("--way", metavar="LIST", help=f"of `ops`: any of {','.join(WAYS)}; default all")
    flag("--samples", metavar="N", type=int, default=4, help="of each operator and dtype; default 4")
    add_sweep_flags(parser)
    parser.set_defaults(run=run)


def add_sweep_flags(parser: argparse.ArgumentParser) -> None:
    """Add what `sweep` and `fuzz` have in common."""
    from torchsan.report.exporter import add_export_flags
    from torchsan.sweep.report import SWEEP_EXPORTERS

    flag = parser.add_argument
    flag("--check", metavar="LIST", help=f"which checks; default {','.join(CHECKS)}")
    flag("--load", metavar="MODULE", action="append", default=[], help="import a module or .py file first, in each")
    flag("--time", metavar="T", help="stop after so long, such as 90s, 30m or 1h")
    flag("--seed", metavar="N", type=int, default=0, help="of the inputs, and of `fuzz`; default 0")
    flag("--limit", metavar="SECONDS", type=float, default=120.0, help="for one program; default 120")
    flag("--memory", metavar="GB", type=float, default=8.0, help="for one program; default 8")
    flag("--jobs", metavar="N", type=int, default=os.cpu_count() or 1, help="programs at once; default one a core")
    flag("--ray", metavar="ADDRESS", help="run them on a Ray cluster: its address, or auto")
    flag("--out", metavar="DIR", type=Path, help="where the results go; default torchsan-sweeps/<time>")
    flag("--resume", action="store_true", help="go on in --out, or in the newest sweep here: nothing is run twice")
    flag("--baseline", metavar="FILE", help="the JSON of an earlier sweep: only what is new since counts")
    flag("--no-verify", action="store_true", help="do not run what is new again to see whether it comes every time")
    flag("--no-repro", action="store_true", help="make no reproducers of what is new")
    flag("--repro-limit", metavar="SECONDS", type=float, default=60.0, help="for one reproducer; default 60")
    flag("--quiet", action="store_true", help="what is new and the verdict only")
    add_export_flags(parser, SWEEP_EXPORTERS)


def parse_time(text: str | None) -> float | None:
    """Return `90s`, `30m`, `1h` or a number as seconds. Raise UsageError for anything else."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--time {text!r:.40}: expected a time such as 90s, 30m or 1h", slug="bad-option")
    return float(match[1]) * _UNITS[match[2] or "s"]


def run(args: argparse.Namespace) -> int:
    """Sweep, report, and return the status of the contract."""
    from torchsan.sweep.results import DATABASE, Results

    if args.target is not None and (Path(args.target) / DATABASE).is_file():  # `--resume DIR` means that folder.
        args.out, args.target, args.resume = Path(args.target), None, True
    plan = Plan.of(args)
    if args.target is None and not args.resume:
        raise UsageError("name what to sweep: ops, models or a FILE of programs", slug="usage")
    if args.target is None and not (plan.folder / DATABASE).is_file():
        raise UsageError("there is no sweep to resume here; name what to sweep", slug="usage")
    with cleaned_up(), Results(plan.folder) as results:
        if args.target is None:
            vars(args).update(_swept(results.noted("swept"), plan.folder))
        if args.target is None:
            raise UsageError(f"{plan.folder} does not say what was swept: name it", slug="usage")
        results.note("swept", {name: getattr(args, name) for name in _SWEPT})
        programs, warm = _programs(args, plan.loads)
        return plan.carry_out(programs, results, warm=warm, total=len(programs))


def _swept(noted: Any, folder: Path) -> dict[str, Any]:
    """What an earlier sweep said of its programs. Raise UsageError if that is not what one says."""
    if noted is None:
        return {}
    texts = (str, type(None))
    kinds = {"target": texts, "globs": (list,), "dtype": texts, "way": texts, "samples": (int,), "seed": (int,)}
    good = isinstance(noted, dict) and all(isinstance(noted.get(name), kinds[name]) for name in _SWEPT)
    if not good or not all(isinstance(glob, str) for glob in noted["globs"]):
        raise UsageError(f"{folder} does not say what was swept: name it", slug="usage")
    return {name: noted[name] for name in _SWEPT}


def _programs(args: argparse.Namespace, loads: Loads) -> tuple[list[Program], tuple[str, ...]]:
    """The programs of a sweep, and modules that they have in common."""
    from torchsan.sweep.programs import read_programs

    if args.target == "ops":
        from torchsan.sweep.operators import Chosen, operator_programs
        from torchsan.torch_internals.operator_database import DATABASE_MODULE

        chosen = Chosen(
            globs=tuple(args.globs),
            dtypes=_words("dtype", args.dtype, None) or DTYPES,
            ways=_words("way", args.way, WAYS) or WAYS,
            samples=args.samples,
            seed=args.seed,
        )
        return operator_programs(chosen, dict(zip(loads.modules, args.load, strict=True))), (DATABASE_MODULE,)
    if args.target == "models":
        from torchsan.sweep.models import installed, model_programs

        return model_programs(args.globs, args.seed), installed()
    if args.globs:
        raise UsageError(f"{args.target} is a FILE: there is nothing to choose with {args.globs[0]}", slug="usage")
    return read_programs(Path(args.target)), ()


def _words(name: str, text: str | None, allowed: Sequence[str] | None) -> tuple[str, ...]:
    words = tuple(filter(None, (text or "").split(",")))
    for word in words:
        if allowed is not None and word not in allowed:
            raise UsageError(f"--{name} {word!r:.40}: expected any of {', '.join(allowed)}", slug="bad-option")
    return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the flags that `sweep` and `fuzz` share ask for, checked before anything runs."""

    args: argparse.Namespace
    folder: Path
    seconds: float | None
    checks: tuple[str, ...]
    baseline: frozenset[str]
    loads: Loads

    @classmethod
    def of(cls, args: argparse.Namespace) -> Plan:
        """Read the flags. Raise UsageError for what cannot be."""
        from torchsan.report.exporter import Exports
        from torchsan.repro.exhibits import parse_loads
        from torchsan.sweep.report import SWEEP_EXPORTERS
        from torchsan.sweep.results import place_for
        from torchsan.sweep.triage import read_baseline

        if args.jobs < 1 or args.limit <= 0 or args.memory <= 0:
            raise UsageError("--jobs, --limit and --memory are numbers above 0", slug="usage")
        Exports(SWEEP_EXPORTERS, args)
        checks = parse_options("the command line", {"check": args.check})["check"] if args.check else CHECKS
        return cls(
            args=args,
            folder=place_for(args.out, resume=args.resume),
            seconds=parse_time(args.time),
            checks=tuple(str(check) for check in checks),
            baseline=read_baseline(args.baseline) if args.baseline else frozenset(),
            loads=parse_loads(args.load),
        )

    def setting(self, warm: Sequence[str] = ()) -> Setting:
        """Return how the programs are run."""
        from torchsan.sweep.engine import Setting
        from torchsan.sweep.programs import setting_key

        folders = [str(Path.cwd()), *(str(file.parent) for file in self.loads.files)]
        return Setting(
            key=setting_key(self.checks, self.loads.modules, folders),
            checks=self.checks,
            loads=self.loads.modules,
            paths=(str(Path.cwd()),) if self.loads.modules else (),
            warm=tuple(warm),
            seconds=self.args.limit,
            memory=int(self.args.memory * 2**30),
        )

    def carry_out(
        self,
        programs: Iterable[Program],
        results: Results,
        *,
        warm: Sequence[str] = (),
        total: int | None = None,
        watch: Callable[[Result], None] = lambda result: None,
        shrink: bool = False,
    ) -> int:
        """Judge the programs, say what came of them, and return the exit status."""
        from torchsan.report.exporter import Exports
        from torchsan.report.printing import print_lines
        from torchsan.sweep.conduct import Progress, conduct
        from torchsan.sweep.report import SWEEP_EXPORTERS, sweep_lines

        start = time.monotonic()
        setting = self.setting(warm)
        shown = Progress(None if self.args.quiet else sys.stderr, total, self.seconds)
        done = conduct(programs, setting.key, results, self._engine(setting), shown, seconds=self.seconds, watch=watch)
        missing = 0 if total is None else total - len(done.results)
        sweep = replace(self._sorted(done, setting, shrink=shrink), seconds=time.monotonic() - start, missing=missing)
        exports = Exports(SWEEP_EXPORTERS, self.args)
        exports.write(sweep)
        print_lines(sweep_lines(sweep, quiet=self.args.quiet), sys.stderr if exports.to_stdout else sys.stdout)
        return 130 if done.interrupted else sweep.exit

    def _verifier(self, server: TrialServer, setting: Setting, *, shrink: bool) -> Verifier:
        from torchsan.repro.trials import Limits
        from torchsan.sweep.engine import Judge
        from torchsan.sweep.verify import Verifier

        limits = Limits(jobs=self.args.jobs, trial=setting.seconds, total=self.args.repro_limit)
        return Verifier(
            judge=Judge(server, setting),
            folder=self.folder,
            loads=self.loads,
            limits=None if self.args.no_repro else limits,
            shrink=shrink,
            progress=silent if self.args.quiet else progress,
        )

    def _engine(self, setting: Setting) -> Engine:
        from torchsan.sweep.cluster import run_on_ray
        from torchsan.sweep.engine import run_locally

        if self.args.ray is not None:
            return partial(run_on_ray, address=self.args.ray, setting=setting, loads=self.loads)
        return partial(run_locally, setting=setting, jobs=self.args.jobs, loads=self.loads)

    def _sorted(self, done: Conducted, setting: Setting, *, shrink: bool) -> Sweep:
        """What was found, with what is new of it verified, unless the user has no more patience."""
        from torchsan.repro.trial_server import Stopped, TrialServer
        from torchsan.sweep.report import Sweep
        from torchsan.sweep.triage import finds_of, sorted_out
        from torchsan.torch_internals.seams import torch_version

        torch = torch_version() or ""
        finds = finds_of(done.results)
        found = list(sorted_out(finds, self.baseline, torch))
        if any(find.counts for find in found) and not (self.args.no_verify or done.interrupted):
            try:
                with TrialServer("", setting.warm) as server, tempfile.TemporaryDirectory() as folder:
                    self.loads.copy_to(Path(folder))
                    there = replace(setting, paths=(*setting.paths, folder))
                    verify = self._verifier(server, there, shrink=shrink)
                    for n, find in enumerate(found):
                        found[n] = verify(find) if find.counts else find
            except (KeyboardInterrupt, Stopped):
                done.interrupted = True
        return Sweep(
            command=("torchsan", *sys.argv[1:]),
            torch=torch,
            results=tuple(done.results),
            finds=tuple(found),
            seconds=0.0,
            reused=done.reused,
            folder=str(self.folder),
        )
