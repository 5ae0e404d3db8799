"""`torchsan export --parquet DIR RUNS…`: recordings as tables, for SQL engines."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchsan.errors import UsageError
from torchsan.fleet import Tables, find_recordings


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `export` to the command line."""
    parser = commands.add_parser(
        "export",
        description="Write the tables `runs`, `findings` and `kernels` of some recordings as Parquet files, "
        "which DuckDB, Spark, Ray Data and others read.",
    )
    parser.add_argument("recordings", metavar="RUNS", nargs="+", help="recordings, folders of them, globs or URLs")
    parser.add_argument("--parquet", metavar="DIR", required=True, help="the folder to write the tables to")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the tables and print the files."""
    with Tables.read(find_recordings(args.recordings), sys.stderr if sys.stderr.isatty() else None) as tables:
        try:
            files = tables.write_parquet(Path(args.parquet))
        except OSError as e:
            raise UsageError(f"cannot write --parquet {args.parquet}: {e.strerror or e}", slug="bad-target") from e
    for file in files:
        sys.stdout.write(f"{file}\n")
    return 0
