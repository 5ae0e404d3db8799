"""A program for `torchsan run`, and a way to plant a crash in one of its kernels."""

CRASH = """
import torch
from torch._inductor.graph import GraphLowering

original = GraphLowering.codegen

def codegen(self):
    wrapper, kernels = original(self)
    before, start, after = wrapper.value.rpartition(")\\n{\\n")
    assert start, wrapper.value
    wrapper.value = before + start + "*(volatile int*)nullptr = 1;\\n" + after
    return wrapper, kernels

GraphLowering.codegen = codegen

@torch.compile
def f(x, w):
    return ((x.sin() @ w).cos() @ w).tan()

print("running", flush=True)
f(torch.ones(4, 4), torch.ones(4, 4))
print("unreachable")
"""

LOOP = """
import torch

@torch.compile
def f(x):
    return x.sin()

x = torch.ones(4)
f(x)
print("ready", flush=True)
while True:
    x = f(x)
"""
