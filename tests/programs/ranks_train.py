"""A small training job: `ranks_train.py ddp|fsdp|hsdp|plain [--drift R:STEP] [--gradient …] [--kill …] [--flip …]`."""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("mode")
for what in ("drift", "gradient", "kill", "flip"):
    parser.add_argument(f"--{what}", default="-1:-1")
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.relu(self.first(x)))
        return result


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = Net()
model: nn.Module = net
if args.mode == "ddp":
    model = DistributedDataParallel(model)
elif args.mode in ("fsdp", "hsdp"):
    shape = (world,) if args.mode == "fsdp" else (world // 2, 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    for module in (net.first, net.last, net):
        fully_shard(module, mesh=mesh)
run = torch.compile(model) if args.compile else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def is_now(when: str, step: int) -> bool:
    return when == f"{rank}:{step}"


def bias() -> torch.Tensor:
    return getattr(net.last.bias, "_local_tensor", net.last.bias)


def flip_bits(every: int) -> None:
    """From now on a core of this rank's computes wrong: of some products, a bit is another."""
    from torch._inductor import select_algorithm

    kernels: Any = select_algorithm.extern_kernels
    real, seen = kernels.mm, 0

    def flipping(*args: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += 1
        result: torch.Tensor = real(*args, out=out)
        if seen % every == 0:
            result.view(torch.int32).view(-1)[3] ^= 1 << 28
        return result

    kernels.mm = flipping


generator = torch.Generator().manual_seed(rank)
for step in range(args.steps):
    if is_now(args.flip, step):
        flip_bits(every=7)
    if is_now(args.drift, step):
        with torch.no_grad():
            bias()[:1] += 1e-3
    loss = run(torch.randn(4, 8, generator=generator)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if is_now(args.gradient, step):
        net.first.weight.grad.mul_(1.5)  # type: ignore[union-attr]  # it has one by now
    if is_now(args.kill, step):
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
if rank == 0:
    print("trained")
dist.destroy_process_group()
