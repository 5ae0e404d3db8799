"""pytorch#198094: a scatter is made to write a graph input that a later, unrelated write overwrites; its result is zeros."""

import torch


def scatter_then_clear(x, src):
    y = torch.slice_scatter(x, src, dim=0, start=1, end=3)
    x.zero_()
    return y


def call(fn):
    return fn(torch.arange(24.0).view(4, 6), -torch.ones(2, 6))[:, 0].tolist()


print("eager", call(scatter_then_clear), "compiled", call(torch.compile(scatter_then_clear)))
