"""Autocast is off around a layer. The compiled backward of that layer runs in bfloat16 all the same."""

import torch

torch.manual_seed(0)
layer = torch.nn.Linear(64, 64)


def precise(x):
    with torch.autocast("cpu", enabled=False):
        return layer(x).sin()


def gradient(fn):
    x = torch.linspace(-1, 1, 512).reshape(8, 64).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = fn(x)
    y.sum().backward()
    return x.grad


print("largest difference", (gradient(precise) - gradient(torch.compile(precise))).abs().max().item())
