"""Models to build packages of: fixed sizes, or with a batch that may be of any size."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(self.up(x).relu()).softmax(-1).cumsum(0)


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 4, 3), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> Any:
        y = F.max_pool2d(self.norm(self.first(x)).relu(), 2)
        return self.head(self.second(y).mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self, d: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x: torch.Tensor) -> Any:
        b, t, d = x.shape
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (y.reshape(b, t, self.heads, d // self.heads).transpose(1, 2) for y in parts)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        return x + self.down(self.up(self.after(x)).relu())


MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "mlp": (Mlp, (4, 16)),
    "cnn": (Cnn, (2, 3, 16, 16)),
    "transformer": (Transformer, (2, 8, 32)),
}


def exported(name: str, *, dynamic: bool = False) -> tuple[torch.export.ExportedProgram, torch.Tensor]:
    """The model, exported, and what to call it with."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(*shape)
    sizes = {"x": {0: torch.export.Dim("batch", min=2, max=64)}} if dynamic else None
    return torch.export.export(model, (x,), dynamic_shapes=sizes), x
