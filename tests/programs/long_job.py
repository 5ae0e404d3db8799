"""A long job: `long_job.py SECONDS|steps:N [--wrong-from STEP]` trains a small compiled model and prints what it does.

A line for every hundredth step: its number, the median time of the last hundred in milliseconds of the processor, and
the memory of the process in MB, without its libraries.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("length")
parser.add_argument("--wrong-from", type=int, default=-1)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
compiled = torch.compile(model)
steps = int(args.length.removeprefix("steps:")) if args.length.startswith("steps:") else sys.maxsize
until = time.monotonic() + (float(args.length) if steps == sys.maxsize else 1e9)


def go_wrong() -> None:
    from torch._inductor.select_algorithm import extern_kernels

    kernels: Any = extern_kernels  # its names are made when they are asked for
    real = kernels.mm

    def wrong(*given: Any, **named: Any) -> Any:
        return real(*given, **named).mul_(1.01)

    kernels.mm = wrong


def memory() -> float:
    """What the process itself has; how much of its libraries is in memory, the system decides."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024 / 1e6


times: list[float] = []
step = 0
while step < steps and time.monotonic() < until:
    if step == args.wrong_from:
        go_wrong()
    began = time.process_time()
    optimizer.zero_grad()
    compiled(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    times.append(time.process_time() - began)
    step += 1
    if step % 100 == 0:
        print(step, f"{1000 * median(times):.4f}", f"{memory():.2f}", flush=True)
        times.clear()
