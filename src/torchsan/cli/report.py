"""`torchsan report RECORDING`: the findings again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torchsan.aoti.launches import as_recording
from torchsan.errors import UsageError
from torchsan.fleet import Tables, find_recordings, several
from torchsan.options import parse_options
from torchsan.recording import Reader, is_url, local_copy, rank_folders
from torchsan.recording.folder import ARTIFACTS, EVENTS, MANIFEST, TENSORS, as_local
from torchsan.report import EXPORTERS, Exports, Verdict, add_export_flags
from torchsan.report.cost import print_cost
from torchsan.report.findings import clean, count
from torchsan.report.github import tell_github
from torchsan.report.printing import print_lines
from torchsan.report.terminal import kernel_details, print_finding, print_report
from torchsan.report.verdict import verdict


@contextmanager
def opened(path: str) -> Iterator[Reader]:
    """Give the recording at `path`, for as long as the context lasts; raise RecordingError if there is none."""
    with local_copy(path) as folder:
        recording = Reader(as_recording(folder))
        recording.place = path if as_local(path) is None else None
        yield recording


def files_of(path: str) -> list[Path]:
    """What a report must not overwrite of the recording at `path`."""
    here = as_local(path)
    # Of a killed run, the last events are in what SQLite keeps beside the log.
    names = (MANIFEST, *(EVENTS + part for part in ("", "-wal", "-shm", "-journal")), ARTIFACTS, TENSORS)
    return [] if here is None else [here / name for name in names]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `report` to the command line."""
    parser = commands.add_parser("report", description="Show what a recording says.")
    parser.add_argument(
        "recordings",
        metavar="RECORDING",
        nargs="+",
        help="the folder that `torchsan run` wrote, or its URL; of several, or of a folder of many, one report",
    )
    add_export_flags(parser, EXPORTERS)
    parser.add_argument("--artifacts", metavar="DIR", type=Path, help="write a page for every artifact, as Markdown")
    parser.add_argument("--all", action="store_true", help="list every kernel and everything that was not checked")
    parser.add_argument("--finding", metavar="ID", help="show one finding with all of its evidence, such as F1")
    parser.add_argument("--kernels", metavar="GLOB", help="show all that is recorded about kernels of this name")
    parser.add_argument("--explain-cost", action="store_true", help="tell where the time of the run went")
    parser.add_argument("--quiet", action="store_true", help="findings and verdict only")
    parser.add_argument("--follow", action="store_true", help="show a run that is going on, until it ends")
    parser.add_argument("--exit-code", metavar="N", default="1", help="exit with N instead of 1 for errors found")
    parser.add_argument("--github", action="store_true", help="also write annotations for GitHub Actions to stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report to stdout and return the status that the run had."""
    exports = Exports(EXPORTERS, args, keep=[file for path in args.recordings for file in files_of(path)])
    found: int = parse_options("the command line", {"exit-code": args.exit_code})["exit_code"]
    if args.follow:
        return _follow(args.recordings).exit_as(found)
    if several(args.recordings):
        return _run_fleet(args, found)
    (args.recording,) = args.recordings
    with local_copy(args.recording) as folder:
        url = args.recording if as_local(args.recording) is None else None
        if rank_folders(folder):
            return _run_ranks(folder, url, args).exit_as(found)
        recording = Reader(as_recording(folder))
        recording.place = url
        exports.write(recording)
        if args.artifacts is not None:
            from torchsan.report.artifacts import write_artifacts

            written = write_artifacts(recording, args.artifacts)
            sys.stderr.write(f"torchsan: wrote {count(written, 'artifact')}: {clean(args.artifacts / 'index.md')}\n")
        if not exports.to_stdout:
            _print(recording, args)
        if args.github:
            tell_github(recording, sys.stdout)
        return verdict(recording).exit_as(found)


def _print(recording: Reader, args: argparse.Namespace) -> None:
    if args.finding is not None:
        print_finding(recording, args.finding, sys.stdout)
    if args.kernels is not None:
        print_lines(kernel_details(recording, args.kernels), sys.stdout)
    if args.finding is None and args.kernels is None:
        print_report(recording, sys.stdout, quiet=args.quiet, everything=args.all)
    if args.explain_cost:
        print_cost(recording, sys.stdout)


def _follow(places: Sequence[str]) -> Verdict:
    from torchsan.report.follow import follow

    if len(places) != 1 or is_url(places[0]):
        raise UsageError("--follow takes the folder of one recording", slug="usage")
    return follow(Path(places[0]), sys.stdout)


def _run_fleet(args: argparse.Namespace, found: int) -> int:
    """Report over many recordings, as one."""
    from torchsan.fleet.summary import FLEET_EXPORTERS, fleet_lines, summarize_fleet

    of_one = {e.name for e in EXPORTERS} - {e.name for e in FLEET_EXPORTERS}
    for flag in (*sorted(of_one), "finding", "kernels", "artifacts", "explain_cost"):
        if getattr(args, flag) not in (None, False):
            raise UsageError(f"--{flag.replace('_', '-')} takes one recording", slug="usage")
    places = find_recordings(args.recordings)
    exports = Exports(FLEET_EXPORTERS, args, keep=[file for place in places for file in files_of(place)])
    with Tables.read(places, sys.stderr if sys.stderr.isatty() else None) as tables:
        fleet = summarize_fleet(tables)
    exports.write(fleet)
    if not exports.to_stdout:
        print_lines(fleet_lines(fleet, quiet=args.quiet), sys.stdout)
    return found if fleet.exit == 1 else fleet.exit


def _run_ranks(folder: Path, url: str | None, args: argparse.Namespace) -> Verdict:
    from torchsan.report.ranks import RANKS_EXPORTERS, open_ranks, print_ranks

    ranks = open_ranks(folder, url)
    of_one = {e.name for e in EXPORTERS} - {e.name for e in RANKS_EXPORTERS}
    for flag in (*sorted(of_one), "finding", "kernels", "artifacts", "explain_cost"):
        if getattr(args, flag) not in (None, False):
            which = f"the recording of one rank, such as {args.recording}/rank-0"
            raise UsageError(f"--{flag.replace('_', '-')} takes {which}", slug="usage")
    kept = [file for reader in ranks.readers.values() for file in files_of(str(reader.path))]
    exports = Exports(RANKS_EXPORTERS, args, keep=kept)
    exports.write(ranks)
    if not exports.to_stdout:
        print_ranks(ranks, sys.stdout, quiet=args.quiet)
    return ranks.verdict
