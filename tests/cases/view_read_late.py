"""pytorch#198101: a read through a view with another dtype is computed after a later write to the same memory."""

import torch


def read_then_write(x):
    y = x.view(torch.int32) * 2
    y.sub_(-4)
    x[:, 2:5] = 2
    return y.view(torch.int64)


def call(fn):
    return fn(torch.arange(-12, 12).view(4, 6))[0].tolist()


print("eager   ", call(read_then_write))
print("compiled", call(torch.compile(read_then_write)))
