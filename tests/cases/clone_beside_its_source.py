"""pytorch#198031: the clone that a custom operator gets beside the tensor it mutates is removed: op(y, x) becomes op(x, x)."""

import torch


@torch.library.custom_op("cases_clone::double_and_add", mutates_args={"x"})
def double_and_add(y: torch.Tensor, x: torch.Tensor) -> None:
    x.mul_(2)
    x.add_(y)


def thrice(x):
    y = x.clone()
    double_and_add(y, x)


def call(fn):
    x = torch.ones(3)
    fn(x)
    return x.tolist()


print("eager", call(thrice), "compiled", call(torch.compile(thrice)))
