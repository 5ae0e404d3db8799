"""pytorch#139789: a graph compiled for separate inputs is reused, on the second call, for inputs that overlap."""

import torch


def double_then_add(x, y):
    x.mul_(2)
    return x + y


def twice(fn):
    fn(torch.ones(4), torch.ones(4))
    base = torch.ones(8)
    return fn(base[:4], base[2:6])


print("eager   ", twice(double_then_add).tolist())
print("compiled", twice(torch.compile(double_then_add, backend="aot_eager")).tolist())
