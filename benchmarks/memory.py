"""The memory check: what it costs on a training step, and what it says where PyTorch's own tracker raises.

Run it with `python -m benchmarks.memory`. Prints two tables in Markdown.
"""

from __future__ import annotations

import logging
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import torchsan

STEPS, WARMUP = 5, 2
MODES = {"plain": "", "ledger": " (goal 1.1×)", "guards": " (goal 2.5×, memory 1.3×)"}


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


def _session(mode: str) -> AbstractContextManager[Any]:
    if mode == "plain":
        return nullcontext()
    return torchsan.session(check="memory", calls="all", no_guards=mode == "ledger")


def measure(mode: str) -> tuple[float, float, int, int]:
    """Return the seconds of the fastest training step, its processor seconds, the peak memory, the number of errors.

    The fastest, and processor time beside it, because others share the machine.
    """
    torch.manual_seed(0)
    model = Language()
    tokens = torch.randint(0, 6000, (8, 128))
    with _session(mode) as run:
        compiled = torch.compile(model)
        seconds, processor = [], []
        for i in range(WARMUP + STEPS):
            start, start_processor = time.perf_counter(), time.process_time()
            compiled(tokens).backward()
            model.zero_grad()
            if i >= WARMUP:
                seconds.append(time.perf_counter() - start)
                processor.append(time.process_time() - start_processor)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    errors = sum(f.severity == "error" for f in run.findings) if run is not None else 0
    return min(seconds), min(processor), peak, errors


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


def main() -> None:
    """Print what the check costs, and the two trackers side by side."""
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    if len(sys.argv) > 1 and sys.argv[1] in MODES:
        print(*measure(sys.argv[1]))
        return
    print("| training step, 25 million parameters | wall clock | processor | peak memory | errors |")
    print("| --- | --- | --- | --- | --- |")
    base: list[float] = []
    for mode, goal in MODES.items():
        # A process of its own: peak memory is that of the whole process.
        command = [sys.executable, "-m", "benchmarks.memory", mode]
        line = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
        wall, processor, peak, errors = (float(word) for word in line.split())
        base = base or [wall, processor, peak]
        print(
            f"| {mode}{goal} | {wall:.3f} s, {wall / base[0]:.2f}× | {processor:.3f} s, {processor / base[1]:.2f}× "
            f"| {peak / 2**20:.0f} MiB, {peak / base[2]:.2f}× | {errors:.0f} |",
            flush=True,
        )
    print()
    print('| program | PyTorch, `track_memory_lifecycle="assert"` | torchsan, `--check memory` |')
    print("| --- | --- | --- |")
    for name, program in PROGRAMS.items():
        torch.manual_seed(0)
        print(f"| {name} | {with_pytorchs_tracker(program)} | {with_torchsan(program)} |", flush=True)


if __name__ == "__main__":
    main()
