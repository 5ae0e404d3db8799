"""pytorch#198131: the copy of a full slice is removed as a no-op, so the source is copied after it was updated."""

import torch


def save_then_update(dst, src):
    dst[0:, :] = src[0:, :]
    src.add_(1)
    return src


def call(fn):
    dst, src = torch.zeros(3, 4), torch.arange(12.0).view(3, 4)
    fn(dst, src)
    return dst[0].tolist()


print("eager", call(save_then_update), "compiled", call(torch.compile(save_then_update)))
