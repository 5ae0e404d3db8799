"""What calls cost that torchsan does not check: later steps under the default options.

Each workload runs in two processes, plainly and in a session with every check, which take turns; both are warmed up
until torchsan has checked what it checks. Figures are processor time of the fastest block of steps, on one thread.
`generate` makes 64 tokens with a Llama of 4 layers and a static cache; the ragged batches have another length in every
step.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

import torchsan
from benchmarks.row import Kind, Record, Row

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 3

Step = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workload:
    """`make` gives a step; the first `warm` of them are not counted, then blocks of `block` steps are timed."""

    what: str
    make: Callable[[], Step]
    warm: int
    block: int
    goal: float
    reason: str = ""


def measure(quick: bool) -> Iterator[Record]:
    """Measure each workload plainly and in a session, in turns."""
    for name, workload in WORKLOADS.items():
        with _Process(name, sanitized=False) as plain, _Process(name, sanitized=True) as sanitized:
            rounds = 4 if quick else 12
            times = [(plain.block(), sanitized.block()) for _ in range(rounds)]
        theirs, ours = (min(column) / workload.block * 1000 for column in zip(*times, strict=True))
        yield Row(
            what=workload.what,
            kind=Kind.COST,
            unit="ms",
            ours=ours,
            peer="the same without torchsan",
            theirs=theirs,
            goal=workload.goal,
            reason=workload.reason,
        )


class _Process:
    """A process with a workload, warmed up."""

    def __init__(self, name: str, *, sanitized: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._ask, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(name, sanitized, theirs))
        self._process.start()
        theirs.close()
        self._ask.recv()

    def block(self) -> float:
        """Seconds of processor time of one block of steps."""
        self._ask.send("block")
        seconds: float = self._ask.recv()
        return seconds

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._ask.close()
        self._process.join()


def _serve(name: str, sanitized: bool, end: Connection) -> None:
    if not sanitized:
        _blocks(WORKLOADS[name], end)
        return
    with tempfile.TemporaryDirectory() as folder, torchsan.session(out=f"{folder}/run") as run:
        _blocks(WORKLOADS[name], end)
    errors = [f.message for f in run.findings if f.severity == "error"]
    assert not errors, errors


def _blocks(workload: _Workload, end: Connection) -> None:
    torch.set_num_threads(1)  # Threads that wait for each other would be most of the time.
    step = workload.make()
    for _ in range(workload.warm):
        step()
    end.send("ready")
    while True:
        try:
            end.recv()
        except EOFError:
            return
        start = time.process_time()
        for _ in range(workload.block):
            step()
        end.send(time.process_time() - start)


def _layers() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))))
    x = torch.randn(4, 64)
    compiled = torch.compile(model)

    def step() -> Any:
        with torch.no_grad():
            return compiled(x)

    return step


def _training() -> Step:
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True) for _ in range(4)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 32, 128)
    compiled = torch.compile(model)

    def step() -> None:
        optimizer.zero_grad()
        compiled(x).square().mean().backward()
        optimizer.step()

    return step


def _generate() -> Step:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        max_position_embeddings=256,
    )
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]  # has no types
    model.eval()
    model.forward = torch.compile(model.forward)
    prompt = torch.randint(0, 256, (1, 8))
    options = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False, "cache_implementation": "static"}
    return lambda: model.generate(prompt, **options)


def _ragged() -> Step:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)))
    compiled = torch.compile(model, dynamic=True)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        length = 16 + int(torch.randint(0, 512, (), generator=generator))
        compiled(torch.randn(4, length, 64)).square().mean().backward()

    return step


WORKLOADS = {
    "layers": _Workload(what="a call of 8 small layers", make=_layers, warm=200, block=400, goal=1.01),
    "training": _Workload(what="a training step of about 20 ms", make=_training, warm=60, block=20, goal=1.02),
    "generate": _Workload(what="64 tokens of `generate`", make=_generate, warm=6, block=1, goal=1.02),
    "ragged": _Workload(what="a step with new sizes, after 20 of them", make=_ragged, warm=20, block=20, goal=1.1),
}
