"""`torchsan open RECORDING`: the report of a recording as a page in the browser."""

from __future__ import annotations

import argparse
import sys
import tempfile
import webbrowser
from pathlib import Path

from torchsan.cli.report import opened
from torchsan.recording.folder import write_atomically
from torchsan.report.html import HtmlExporter


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `open` to the command line."""
    parser = commands.add_parser(
        "open",
        description="Write the page of a recording to a temporary file, print its path, and show it in the browser.",
    )
    parser.add_argument("recording", metavar="RECORDING", help="the folder that `torchsan run` wrote, or its URL")
    parser.add_argument("--no-browser", action="store_true", help="only write the page and print its path")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the page, print its path and show it; 0 also where there is no browser, since the page is there."""
    with opened(args.recording) as recording:
        page = HtmlExporter().render(recording)
    file = Path(tempfile.mkdtemp(prefix="torchsan-page-"), "report.html")
    write_atomically(file, page)
    sys.stdout.write(f"{file}\n")
    if not args.no_browser and not webbrowser.open(file.as_uri()):
        sys.stderr.write("torchsan: found no browser to show it in: open the file above in one\n")
    return 0
