"""Runs programs on a Ray cluster, a task each, tried again when a node dies. Importing it imports no Ray and no torch.

A task returns its result, and the caller keeps it: what a node took with it is what it was running. A worker keeps its
server of trials for the next task.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchsan.errors import UsageError
from torchsan.recording.folder import loads_strictly
from torchsan.records import decode, encode
from torchsan.repro.exhibits import Loads
from torchsan.repro.trial_server import TrialServer
from torchsan.sweep.engine import Judge, Setting, in_flight
from torchsan.sweep.programs import Program
from torchsan.sweep.results import Result

_RETRIES = 8
_AHEAD = 2
"""Tasks in flight for each core, so that no core waits for the next."""

_judges: dict[str, Judge] = {}
"""Of a worker: by the setting. Its server and folder go with the process."""
_kept = ExitStack()


def run_on_ray(programs: Iterator[Program], address: str, setting: Setting, loads: Loads) -> Iterator[Result]:
    """Yield what comes of programs, in the order they end, from the Ray cluster at `address`, or `auto`.

    Raise UsageError if there is none.
    """
    ray = _connected(address)
    files = {file.name: file.read_text(encoding="utf-8") for file in loads.files}
    task = ray.remote(max_retries=_RETRIES, num_cpus=1)(judge_task)
    shared = ray.put(json.dumps({"setting": encode(setting), "files": files}))
    width = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))

    def some(waiting: set[Any]) -> tuple[list[Result], set[Any]]:
        done, rest = ray.wait(list(waiting), num_returns=1)
        return [decode(Result, loads_strictly(text)) for text in ray.get(done)], set(rest)

    try:
        yield from in_flight(programs, lambda p: task.remote(json.dumps(encode(p)), shared), some, width)
    finally:
        ray.shutdown()


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError as e:
        raise UsageError("--ray needs Ray: pip install 'torchsan[ray]'", slug="no-module") from e
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as e:
        raise UsageError(f"--ray {address}: no cluster there: {e}"[:400], slug="bad-option") from e
    return ray


def judge_task(program: str, shared: str) -> str:
    """Judge a program in a worker of the cluster; all that goes in and out is JSON."""
    return json.dumps(encode(_judge(shared)(decode(Program, loads_strictly(program)))))


def _judge(shared: str) -> Judge:
    if shared not in _judges:
        given = loads_strictly(shared)
        setting = decode(Setting, given["setting"])
        folder = _kept.enter_context(tempfile.TemporaryDirectory(prefix="torchsan-loads-", ignore_cleanup_errors=True))
        for name, text in given["files"].items():
            Path(folder, Path(name).name).write_text(text, encoding="utf-8")
        server = _kept.enter_context(TrialServer("", setting.warm))
        _judges[shared] = Judge(server, replace(setting, paths=(*setting.paths, folder)))
    return _judges[shared]
