"""What calls cost that torchsan does not check: later steps under the default options.

Each workload runs in two processes, plainly and in a session with every check, which take turns; both are warmed up
until torchsan has checked what it checks. Figures are processor time of the fastest block of steps, on one thread.
`generate` makes 64 tokens with a Llama of 4 layers and a static cache; the ragged batches have another length in every
step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.beside import Step, Worker
from benchmarks.row import Kind, Record, Row

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 3


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
    for workload in WORKLOADS:
        make, warm, block = workload.make, workload.warm, workload.block
        with Worker(make, warm, None) as plain, Worker(make, warm, {}) as sanitized:
            rounds = 4 if quick else 12
            times = [[sum(w.block(block).processor) for w in (plain, sanitized)] for _ in range(rounds)]
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


WORKLOADS = (
    _Workload(what="a call of 8 small layers", make=_layers, warm=200, block=400, goal=1.01),
    _Workload(what="a training step of about 20 ms", make=_training, warm=60, block=20, goal=1.02),
    _Workload(what="64 tokens of `generate`", make=_generate, warm=6, block=1, goal=1.02),
    _Workload(what="a step with new sizes, after 20 of them", make=_ragged, warm=20, block=20, goal=1.1),
)
