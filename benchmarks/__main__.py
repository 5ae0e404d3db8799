"""`python -m benchmarks [NAME…] [--quick] [--page FILE]`: run the benchmarks named, or all, and print what comes of it.

`--page` writes the page of the documentation too, and its plot beside it. The exit status is 1 where one failed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from benchmarks.curves import curves
from benchmarks.page import lines, page
from benchmarks.plot import plot
from benchmarks.runner import run

BENCHMARKS = (
    *("culprit", "values", "stages", "crossref", "memory", "watch", "packages", "kernels", "store", "summarize"),
    *("startup", "unchecked", "default_run", "always_on", "fleet", "reports", "large_graph", "growth"),
)


def main(words: list[str]) -> int:
    """Run what the words of the command line ask for, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="torchsan beside what PyTorch offers")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all without one")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, once each")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="write the results there, and a plot beside it")
    options = parser.parse_args(words)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    start, machine, took = time.monotonic(), list(_machine(options.quick)), ""
    print("\n".join(machine))
    sections = []
    for name in options.names or BENCHMARKS:
        sections.append(run(name, options.quick))
        print("\n".join(f"   {text}" for text in lines(sections[-1])), flush=True)
        took = f"{(time.monotonic() - start) / 60:.1f} minutes for all of it"
        if options.page:  # What is measured stays, if the rest is interrupted.
            options.page.write_text(page(sections, [*machine, took]), encoding="utf-8")
            options.page.with_suffix(".svg").write_text(plot(sections), encoding="utf-8")
            if sections[-1].growths:
                picture = options.page.with_name(f"{sections[-1].name}.svg")
                picture.write_text(curves(sections[-1].growths), encoding="utf-8")
    print(f"\n{took}")
    return 1 if any(section.failures for section in sections) else 0


def _machine(quick: bool) -> Iterator[str]:
    """What it is measured on, without names of hosts or folders."""
    yield f"{_processor()}, {os.cpu_count()} cores, {platform.system()}"
    yield f"Python {platform.python_version()}, PyTorch {version('torch')}, torchsan {version('torchsan')}"
    when = datetime.datetime.now(datetime.UTC).date()
    yield f"{when}, {'with `--quick`, ' if quick else ''}load before the start {os.getloadavg()[0]:.1f}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [text.partition(":")[2].strip() for text in found if text.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
