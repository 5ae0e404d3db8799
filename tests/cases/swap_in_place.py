"""pytorch#198131, as people meet it: two tensors that are swapped in place are both the second one afterwards."""

import torch


def swap(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def call(fn):
    x, y = torch.zeros(3), torch.ones(3)
    fn(x, y)
    return x.tolist(), y.tolist()


print("eager", call(swap), "compiled", call(torch.compile(swap)))
