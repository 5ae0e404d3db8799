"""A custom operator returns a view of its input although its schema says it doesn't."""

import torch

lib = torch.library.Library("cases_alias", "DEF")
lib.define("same(Tensor x) -> Tensor")
lib.impl("same", lambda x: x.view(x.shape), "CPU")
torch.library.register_fake("cases_alias::same", lambda x: torch.empty_like(x), lib=lib)


def add_to_copy(x):
    doubled = x * 2
    copy = torch.ops.cases_alias.same(doubled)
    copy.add_(5)
    return doubled.sum(), copy.sum()


torch.manual_seed(0)
x = torch.randn(4, 16)
print("eager   ", [t.item() for t in add_to_copy(x)])
print("compiled", [t.item() for t in torch.compile(add_to_copy)(x)])
