"""`torchsan run SCRIPT`: runs a program in a child process, watches it, and reports however it ends.

Nothing here imports torch or rich before the program has ended: it starts as soon as Python does. With `--repro` what
makes reproducers imports them meanwhile, in processes and a thread of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torchsan.canary import Beside, untested
from torchsan.cli.supervise import Progress, cleaned_up, supervised
from torchsan.errors import InternalError, RecordingError, TorchsanError, UsageError
from torchsan.options import Options, Watch, When, resolve_options
from torchsan.recording import Program, Rank, Reader, create_folder, current_rank, finalize, is_url, local_copy
from torchsan.recording.flight import in_flight, shared_page, was_started
from torchsan.recording.folder import NoSpaceError, create_place, remove_folder
from torchsan.records import Check, InFlight
from torchsan.report import EXPORTERS, Exports, Status, Verdict, add_export_flags, verdict
from torchsan.report.exporter import Subject
from torchsan.report.findings import clean
from torchsan.report.live import Shown
from torchsan.session import ship

if TYPE_CHECKING:
    from torchsan.repro.trial_server import TrialServer

LAUNCHED = "TORCHSAN_LAUNCHED"
"""Set for ranks that torchsan has launched: they leave the report to it."""

_LAUNCHER = "torch.distributed.run"
_NOT_FOR_RANKS = {
    "out",
    "quiet",
    "verbose",
    "github",
    "explain_cost",
    "exit_code",
    "repro",
    *(e.name for e in EXPORTERS),
}

_DESCRIPTION = """\
Run a program and watch what Inductor makes of it. The program gets its own arguments, stdin, stdout and exit status; \
findings and messages go to stderr, and everything is kept in a recording.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `run` to the command line. Options end where the program begins, as with python itself."""
    parser = commands.add_parser(
        "run",
        description=_DESCRIPTION,
        usage="torchsan run [options] SCRIPT [ARGS…]\n       torchsan run [options] -m MODULE [ARGS…]",
        allow_abbrev=False,
    )
    flag = parser.add_argument
    flag("--check", metavar="LIST", help=f"any of {','.join(Check)}; default all but kernels")
    flag("--watch", metavar="LEVEL", help=f"values that kernels read and write: {'|'.join(Watch)}; default off")
    flag("--kernels", metavar="GLOB[,GLOB…]", help="only these kernels; !GLOB excludes")
    flag("--when", metavar="WHEN", help=f"watch {'|'.join(When)} a launch; default both")
    flag("--out", metavar="DIR", help="where the recording goes, a folder or a URL; default torchsan-runs/<time>")
    add_export_flags(parser, EXPORTERS)
    flag("--calls", metavar="N|all|steps:…", help="how many calls of each compiled graph to check, or which; default 2")
    flag("--budget", metavar="P%", help="sample launches all through the run, for this share of its time, such as 1%%")
    flag("--max-memory", metavar="N", help="leave out launches whose check needs more memory for copies, such as 2G")
    flag("--max-bytes", metavar="N", help="how much to keep of tensors, and of the log, such as 2G; default no limit")
    flag("--no-guards", action="store_true", default=None, help="no guard zones around compiled buffers")
    flag("--repro", action="store_true", default=None, help="make a reproducer of the first error")
    flag("--fail-fast", action="store_true", default=None, help="stop at the first finding of severity error")
    flag("--baseline", metavar="FILE", help="the JSON of an earlier run: what it found does not count")
    flag("--quiet", action="store_true", default=None, help="findings and verdict only")
    flag("--verbose", action="store_true", default=None, help="also list kernels, memory and what was not checked")
    flag(
        "--explain-cost",
        action="store_true",
        default=None,
        help="tell where the time went, and what would save how much",
    )
    flag("--github", action="store_true", default=None, help="annotations for GitHub Actions, where it is automatic")
    flag("--exit-code", metavar="N", help="exit with N instead of 1 for findings of severity error")
    flag("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module")
    flag("program", nargs=argparse.REMAINDER, metavar="SCRIPT", help="run a script")
    parser.set_defaults(run=run)


_NAMES = tuple(field.name for field in dataclasses.fields(Options))
FLAGS = tuple("--" + name.replace("_", "-") for name in _NAMES)


def run(args: argparse.Namespace) -> int:
    """Run the program and return the status of the contract."""
    given = {name: value for name in _NAMES if (value := getattr(args, name, None)) is not None}
    options = resolve_options(given, os.environ, Path.cwd())
    command = _command(args)
    exports = Exports(EXPORTERS, options, keep=[Path(command[0]), Path(command[0], "__main__.py")] if command else ())
    _check(command)
    if _is_launcher(command):
        return _run_ranks(command, options, given)
    rank = current_rank(os.environ)
    if rank is not None:
        options = _of_rank(options, rank)
        exports = Exports(EXPORTERS, options)
    outcome, program = _run_recorded(command, options, exports)
    # A launcher ends all ranks when one exits with another status: what was found must not stop the job.
    return outcome.exit_as(options.exit_code) if rank is None else program.status or 0


def _run_recorded(command: list[str], options: Options, exports: Exports[Reader]) -> tuple[Verdict, Program]:
    """Run the program to its end with a recording, and report; return the verdict, and the program."""
    url = options.out if is_url(options.out) else None
    try:
        folder = create_folder(None if url else options.out, command=command, options=options)
    except NoSpaceError as e:
        return _run_without_recording(command, e)
    shipper = ship(folder, url) if url else None
    shown = Shown(folder, sys.stderr)
    every = 2.0 if sys.stderr.isatty() and not options.quiet else None
    foretell = None if options.quiet else shown.foretell
    progress = None if LAUNCHED in os.environ else Progress(folder, sys.stderr, shown.show, every, foretell)
    with (
        _trial_server() if options.repro else nullcontext() as server,
        closing(Beside(options.check)) as canary,
        _Page() as page,
    ):
        child = _child_command(str(folder), page, command)
        with supervised(child, progress.show if progress else None, inherited=page.inherited) as program:
            if progress is not None:
                progress.close()
            finalize(folder, program, canary.finish(), page.in_flight() if program.signal is not None else ())
            sent = shipper is not None and shipper.finish()
            try:
                outcome = _report(
                    folder, options, exports, program, url if sent else None, started=page.started, shown=shown
                )
            except UsageError:
                if shipper is not None:
                    shipper.discard()
                raise
        if server and outcome.status is Status.FINDINGS:
            _reproduce(folder, options, server)
    if sent:
        remove_folder(folder)
    return outcome, program


def _unrecorded(program: Program) -> Verdict:
    return Verdict(status=Status.INCOMPLETE, exit=program.status or 4)


class _Page:
    """What the program's process leaves behind however it ends, also where nothing can be recorded."""

    def __init__(self) -> None:
        self._descriptor = shared_page()
        self.inherited = () if self._descriptor is None else (self._descriptor,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for descriptor in self.inherited:
            os.close(descriptor)

    @property
    def started(self) -> bool:
        """Whether the program was started."""
        return any(map(was_started, self.inherited))

    def in_flight(self) -> Iterator[InFlight]:
        """What ran when the program died."""
        for descriptor in self.inherited:
            yield from in_flight(descriptor)


def _run_without_recording(command: list[str], reason: NoSpaceError) -> tuple[Verdict, Program]:
    """Run the program where nothing can be recorded: that is no reason not to run it."""
    with _Page() as page:
        program = _run_unchecked(_child_command("", page, command), reason, page.inherited)
    return _unrecorded(program), program


def _run_unchecked(command: list[str], reason: NoSpaceError, inherited: Sequence[int] = ()) -> Program:
    sys.stderr.write(f"torchsan: nothing is recorded and nothing checked: {clean(reason)}; the program runs without\n")
    with supervised(command, None, inherited=inherited) as program:
        sys.stderr.write("torchsan: incomplete: the run could not be recorded, so nothing was checked\n")
    return program


def _of_rank(options: Options, rank: Rank) -> Options:
    """Each rank has files of its own, and says what it found, not what it saw: there are others beside it.

    They wait for each other, so nobody stays behind to make a reproducer.
    """
    reports: dict[str, Any] = {
        name: str(Path(file).with_name(f"{Path(file).stem}-rank-{rank.rank}{Path(file).suffix}"))
        for name in (e.name for e in EXPORTERS)
        if (file := getattr(options, name)) not in (None, "-")
    }
    return dataclasses.replace(options, out=rank.folder(options.out), quiet=True, repro=False, **reports)


def _command(args: argparse.Namespace) -> list[str]:
    """Return the program and its arguments, as one would give them to python."""
    if args.module is not None:
        if not args.module:
            raise UsageError("-m needs the name of a module", slug="usage")
        return ["-m", *args.module]
    program: list[str] = args.program
    return program[1:] if program[:1] == ["--"] else program


def _check(command: list[str]) -> None:
    """Raise UsageError for a program that is not there, before anything runs."""
    if not command:
        raise UsageError("no program: torchsan run SCRIPT [ARGS…], or -m MODULE [ARGS…]", slug="usage")
    if command[0] != "-m" and not Path(command[0]).exists():
        raise UsageError(f"no such script: {command[0]}", slug="no-program")


def _child_command(folder: str, page: _Page, command: list[str]) -> list[str]:
    # Private, but what multiprocessing uses for the same end, and the flags have no other list.
    flags: Callable[[], list[str]] = subprocess._args_from_interpreter_flags  # type: ignore[attr-defined]
    shared = str(*page.inherited) or "-1"
    return [sys.executable, *flags(), str(Path(__file__).with_name("_child.py")), folder, shared, *command]


def _report(
    folder: Path,
    options: Options,
    exports: Exports[Reader],
    program: Program,
    url: str | None,
    *,
    started: bool,
    shown: Shown,
) -> Verdict:
    from torchsan.report.cost import print_cost
    from torchsan.report.terminal import print_report

    try:
        recording = Reader(folder)
    except RecordingError as e:
        if started:  # The disk was full, or the program moved or removed the recording: it has run.
            sys.stderr.write(f"torchsan: incomplete: the run could not be recorded: {clean(e)}\n")
            return _unrecorded(program)
        raise InternalError(f"the recording of this run cannot be read: {e}", slug="internal-error") from e
    recording.place = url
    recording.program = program  # On a full disk this is not in the recording, but we know it.
    if recording.failure is not None:
        if recording.failure.status == 2:
            remove_folder(folder)
        error = UsageError if recording.failure.status == 2 else InternalError
        raise error(recording.failure.message, slug=recording.failure.slug)
    if program.exit and not started and not recording.events("started"):
        raise InternalError(
            f"the program was not started: its process ended in torchsan, with status {program.exit}; "
            "what it said stands above",
            slug="internal-error",
        )
    if LAUNCHED in os.environ:
        return verdict(recording)
    with suppress(OSError):  # Nobody listens to stderr any more; the JSON and the status still count.
        how = {"quiet": options.quiet, "verbose": options.verbose}
        print_report(recording, sys.stderr, **how, hint=_hint(recording), shown=shown.findings)
        if options.explain_cost:
            print_cost(recording, sys.stderr)
        if (caveat := untested()) is not None and verdict(recording).exit == 0 and not options.verbose:
            sys.stderr.write(f"torchsan: {caveat}\n")  # A clean run is told in one line, without what was skipped.
    _tell_github(recording, options)
    return _write(exports, recording, verdict(recording))


def _tell_github(recording: Reader, options: Options) -> None:
    from torchsan.report.findings import in_github_actions
    from torchsan.report.github import tell_github

    # Standard output belongs to the program, then to what was asked for; a job reads both streams.
    if options.github or in_github_actions(os.environ):
        with suppress(OSError):
            tell_github(recording, sys.stdout if options.github else sys.stderr)


def _write(exports: Exports[Subject], subject: Subject, outcome: Verdict) -> Verdict:
    """Write what was asked for, and return the outcome of the run: also its own when the disk is full by now."""
    try:
        exports.write(subject)
    except NoSpaceError as e:
        sys.stderr.write(f"torchsan: incomplete: {clean(e)}\n")
        return outcome if outcome.exit else Verdict(status=Status.INCOMPLETE, exit=4)
    return outcome


@contextmanager
def _trial_server() -> Iterator[TrialServer]:
    """What a reproducer will need, ready as soon as the program has ended."""
    from torchsan.repro.trial_server import TrialServer

    with TrialServer(caches=False) as server:
        server.get_ready()
        yield server


def _reproduce(folder: Path, options: Options, server: TrialServer) -> None:
    """Make a reproducer of the first error, beside the recording. Whatever comes of it, the status stays the run's."""
    from torchsan.cli.repro import make_and_say

    out = folder.with_name(f"{folder.name}-repro")
    try:
        with cleaned_up():
            make_and_say(Reader(folder), server, out=out, quiet=options.quiet, to=sys.stderr)
    except TorchsanError as e:
        sys.stderr.write(f"torchsan: no reproducer: {clean(str(e), 2000)}\n")


def _hint(recording: Reader) -> str | None:
    if recording.coverage().kernels or find_compiler() is not None:
        return None
    return "Inductor needs a C++ compiler, and there is none here: `torchsan doctor` says what to install"


def find_compiler() -> str | None:
    """Return the path of the C++ compiler that Inductor uses, or None: CXX if it is set, else the platform's own."""
    return shutil.which(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"))


def _is_launcher(command: Sequence[str]) -> bool:
    """Return whether the program is torchrun, as a module or as its script."""
    if command[:1] == ["-m"]:
        return command[1:2] == [_LAUNCHER]
    return Path(command[0]).name == "torchrun"


def _run_ranks(command: Sequence[str], options: Options, flags: Mapping[str, Any]) -> int:
    """Run the launcher with `torchsan run` before the user's script, and report over all ranks."""
    from torchsan.report.ranks import RANKS_EXPORTERS, open_ranks, print_ranks

    for name in sorted({e.name for e in EXPORTERS} - {e.name for e in RANKS_EXPORTERS}):
        if getattr(options, name) is not None:
            raise UsageError(
                f"--{name} takes the recording of one rank: `torchsan report --{name} FILE DIR/rank-0`", slug="usage"
            )
    arguments = list(command[2:] if command[0] == "-m" else command[1:])
    before, script = _split_launcher(arguments)
    url = options.out if is_url(options.out) else None
    try:
        place = url or str(create_place(options.out))
    except NoSpaceError as e:
        return _run_unchecked([sys.executable, "-m", _LAUNCHER, *arguments], e).status or 4
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
        if options.explain_cost:
            sys.stderr.write(f"where the time of a rank went: torchsan report --explain-cost {place}/rank-N\n")
        if options.repro:
            sys.stderr.write(f"no reproducer was made; of a rank's finding: torchsan repro {place}/rank-N\n")
        outcome = _write(Exports(RANKS_EXPORTERS, options), ranks, ranks.verdict)
        if outcome.status is Status.FINDINGS:
            return options.exit_code
        return program.status or outcome.exit


def _split_launcher(arguments: list[str]) -> tuple[list[str], list[str]]:
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
