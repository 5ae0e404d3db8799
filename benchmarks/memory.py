"""What `--check memory` costs, and false alarms.

A decoder-only language model of 25 million parameters (9 with `--quick`), compiled, each way in a process of its own;
the fastest step counts, in wall-clock and in processor time. Then healthy programs, each under the check and under
PyTorch's own `track_memory_lifecycle="assert"`.
"""

from __future__ import annotations

import logging
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import torchsan
from benchmarks.row import Kind, Limit, Record, Row, Skipped

__all__ = ["PROGRAMS", "REPETITIONS", "measure", "with_pytorchs_tracker", "with_torchsan"]

REPETITIONS = 3

_STEPS, _WARMUP = 5, 2
_TRACKER = "`track_memory_lifecycle`"


class Language(nn.Module):
    """A decoder-only language model of 25 million parameters."""

    def __init__(self, width: int = 512, layers: int = 6, words: int = 6000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class _Step(NamedTuple):
    """The fastest training step in seconds, in processor seconds, the peak memory in MiB, the number of errors."""

    wall: float
    processor: float
    peak: float
    errors: float


def measure(quick: bool) -> Iterator[Record]:
    """Measure a step without torchsan, with the ledger alone and with guard zones; then try healthy programs."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    plain = _in_a_process("plain", quick)
    if quick:
        yield Skipped(what="`--check memory --no-guards`", why="it compiles the model once more")
    else:
        yield from _costs("`--check memory --no-guards`", plain, _in_a_process("ledger", quick), 1.1, None)
    yield from _costs("`--check memory`", plain, _in_a_process("guards", quick), 2.5, 1.3)
    yield from _alarms(dict(list(PROGRAMS.items())[:1]) if quick else PROGRAMS)


def _costs(what: str, plain: _Step, ours: _Step, time_goal: float, memory_goal: float | None) -> Iterator[Row]:
    note = f"{ours.errors:.0f} errors"
    for name, unit, goal in (("wall", "s", time_goal), ("processor", "s", None), ("peak", "MiB", memory_goal)):
        before, after = getattr(plain, name), getattr(ours, name)
        label = {"wall": "a step", "processor": "a step, processor time", "peak": "peak memory"}[name]
        yield Row(
            what=f"{what}, {label}",
            kind=Kind.COST,
            unit=unit,
            ours=after,
            peer="not checked",
            theirs=before,
            goal=goal,
            note=note if name == "wall" else "",
        )


def _in_a_process(mode: str, quick: bool) -> _Step:
    """Measure in a process of its own: peak memory is that of the whole process."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", mode, *(["--quick"] if quick else [])]
    line = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    return _Step(*(float(word) for word in line.split()))


def _session(mode: str) -> AbstractContextManager[Any]:
    if mode == "plain":
        return nullcontext()
    return torchsan.session(check="memory", calls="all", no_guards=mode == "ledger")


def _step(mode: str, layers: int) -> _Step:
    """Train, and return the fastest step."""
    torch.manual_seed(0)
    model = Language(layers=layers)
    tokens = torch.randint(0, 6000, (8, 128))
    with _session(mode) as run:
        compiled = torch.compile(model)
        seconds, processor = [], []
        for i in range(_WARMUP + _STEPS):
            start, start_processor = time.perf_counter(), time.process_time()
            compiled(tokens).backward()
            model.zero_grad()
            if i >= _WARMUP:
                seconds.append(time.perf_counter() - start)
                processor.append(time.process_time() - start_processor)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    errors = sum(f.severity == "error" for f in run.findings) if run is not None else 0
    return _Step(min(seconds), min(processor), peak, errors)


def mlp_inference() -> None:
    with torch.no_grad():
        torch.compile(_mlp())(torch.randn(8, 32))


def mlp_training() -> None:
    torch.compile(_mlp())(torch.randn(8, 32)).sum().backward()


def two_calls() -> None:
    compiled = torch.compile(_mlp())
    for _ in range(2):
        compiled(torch.randn(8, 32)).sum().backward()


def transformer_layer() -> None:
    torch.compile(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True))(torch.randn(2, 8, 32)).sum().backward()


def cnn() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten())
    torch.compile(model)(torch.randn(2, 3, 12, 12)).sum().backward()


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))


PROGRAMS: dict[str, Callable[[], None]] = {
    "MLP, inference": mlp_inference,
    "MLP, training": mlp_training,
    "two calls": two_calls,
    "transformer layer": transformer_layer,
    "CNN with batch norm": cnn,
}


def with_pytorchs_tracker(program: Callable[[], None]) -> str:
    """Run a program under `track_memory_lifecycle="assert"` and return what it says."""
    torch._dynamo.reset()
    with (
        torch._inductor.config.patch({"test_configs.track_memory_lifecycle": "assert", "fx_graph_cache": False}),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        try:
            program()
        except Exception as e:  # noqa: BLE001  # whatever it raises is its verdict
            return f"raises `{type(e).__name__}: {str(e).splitlines()[0][:60]}`"
        finally:
            # It leaves its state behind after a failure, which would spoil the next program.
            from torch._inductor.runtime import debug_utils

            debug_utils.local.memory_tracker = None
    return "nothing"


def with_torchsan(program: Callable[[], None]) -> str:
    """Run a program under the memory check and return what it finds."""
    with torchsan.session(check="memory") as run:
        program()
    found = [f"{f.severity}: {f.message}" for f in run.findings]
    return "; ".join(found) or f"nothing, in {run.coverage.kernels} kernels"


def _alarms(programs: dict[str, Callable[[], None]]) -> Iterator[Record]:
    """How many healthy programs each of the two complains about."""
    said: dict[str, str] = {}
    ours = 0
    for name, program in programs.items():
        torch.manual_seed(0)
        said[name] = with_pytorchs_tracker(program)
        ours += not with_torchsan(program).startswith("nothing")
    raised = {name: text for name, text in said.items() if text.startswith("raises")}
    yield Row(
        what=f"false alarms on {len(programs)} healthy programs",
        kind=Kind.LESS,
        unit="",
        ours=ours,
        peer=_TRACKER,
        theirs=len(raised),
        goal=0,
    )
    if raised:
        which, error = "; ".join(raised), next(iter(raised.values())).partition(":")[0]
        cannot = f"run {len(raised)} of {len(programs)} healthy programs ({which}): it {error}`"
        yield Limit(who=_TRACKER, cannot=cannot)
    yield Limit(who=_TRACKER, cannot="tell bytes, the peak or who holds a buffer: it knows names only")
    yield Limit(
        who="`--check memory`",
        cannot="put guard zones around memory that is not on the CPU, or find reads out of bounds",
    )


if __name__ == "__main__":
    logging.getLogger("torch").setLevel(logging.ERROR)
    print(*_step(sys.argv[1], layers=1 if "--quick" in sys.argv else 6))
