"""The fake kernel promises float32, the real one returns float64: compiled consumers read doubles as floats."""

import torch


@torch.library.custom_op("cases::widen", mutates_args=())
def widen(x: torch.Tensor) -> torch.Tensor:
    return x.double()


@widen.register_fake
def _(x):
    return torch.empty_like(x)


torch.manual_seed(0)
x = torch.randn(4, 16)
print("eager   ", (widen(x) + 1)[0, :3].tolist())
print("compiled", torch.compile(lambda x: widen(x) + 1)(x)[0, :3].tolist())
