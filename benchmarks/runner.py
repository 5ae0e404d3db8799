"""Running a benchmark: each repetition in a process of its own, so that none inherits threads, caches or memory."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection

from benchmarks.page import Section
from benchmarks.row import Record

__all__ = ["run"]


def run(name: str, quick: bool) -> Section:
    """Run all repetitions of a benchmark, and say when each is done. What fails is in the section, and ends nothing."""
    module = importlib.import_module(f"benchmarks.{name}")
    title, _, about = (inspect.getdoc(module) or name).partition("\n\n")
    repetitions = 1 if quick else module.REPETITIONS
    section = Section(name=name, title=title.rstrip("."), about=about, repetitions=repetitions)
    print(f"\n== {name}: {section.title}", flush=True)
    for n in range(repetitions):
        start = time.monotonic()
        for sent in _repetition(name, quick):
            if isinstance(sent, str):
                section.failures.append(sent.splitlines()[-1])
                print(sent, file=sys.stderr, flush=True)
            else:
                section.records.append(sent)
        print(f"   repetition {n + 1} of {repetitions}: {time.monotonic() - start:.0f} s", flush=True)
    return section


def _repetition(name: str, quick: bool) -> Iterator[Record | str]:
    """Measure once; what comes is a record, or text that says how it failed."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(name, quick, sender))
    process.start()
    sender.close()
    try:
        while (sent := receiver.recv()) is not None:
            yield sent
    except EOFError:
        yield f"{name} ended before it was done"
    process.join()


def _measure(name: str, quick: bool, sender: Connection) -> None:
    """Send every record, then None; before that the traceback, if it fails."""
    try:
        for record in importlib.import_module(f"benchmarks.{name}").measure(quick):
            sender.send(record)
    except Exception:  # noqa: BLE001  # the other benchmarks go on, and the page says so
        sender.send(traceback.format_exc())
    sender.send(None)
