"""Vision networks, each with the blocks of a known architecture, small, in training: an `error` is a false alarm.

Half of them have the batch norms around convolutions whose channel means cancel, where a judge of rounding that knows
only one order of summation cries wolf.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv(i: int, o: int, k: int = 3, s: int = 1, g: int = 1) -> nn.Sequential:
    """Convolution, batch norm, ReLU."""
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, groups=g, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.shortcut = inner, shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.shortcut(x) + self.inner(x)
        return y


class Concatenated(nn.Module):
    """Branches side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([b(x) for b in self.branches], 1)


class SqueezeExcite(nn.Module):
    """Channels weighted by what all pixels say."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))))


class ChannelsLast(nn.Module):
    """A module on (N, H, W, C)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return y


class Attention(nn.Module):
    """Self-attention over pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(channels), nn.MultiheadAttention(channels, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        y: Tensor = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return y.transpose(1, 2).reshape(n, c, h, w)


class Shuffle(nn.Module):
    """Channels of two groups interleaved."""

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class UNet(nn.Module):
    """Down, up, and across."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = conv(3, 16), conv(16, 32, s=2), conv(48, 8)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = F.interpolate(self.second(a), scale_factor=2.0, mode="bilinear")
        y: Tensor = self.last(torch.cat([a, b], 1))
        return y


def head(channels: int) -> nn.Sequential:
    """From pixels to classes."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def bottleneck(c: int) -> nn.Sequential:
    return nn.Sequential(conv(c, c // 4, 1), conv(c // 4, c // 4), nn.Conv2d(c // 4, c, 1), nn.BatchNorm2d(c))


def inverted(c: int) -> nn.Sequential:
    return nn.Sequential(
        conv(c, 4 * c, 1), conv(4 * c, 4 * c, g=4 * c), SqueezeExcite(4 * c), nn.Conv2d(4 * c, c, 1), nn.BatchNorm2d(c)
    )


def convnext(c: int) -> nn.Sequential:
    mixed = nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))
    return nn.Sequential(nn.Conv2d(c, c, 7, padding=3, groups=c), ChannelsLast(mixed))


def dense(c: int) -> nn.Sequential:
    grow = nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 12, 3, padding=1))
    return nn.Sequential(Concatenated(nn.Identity(), grow), nn.BatchNorm2d(c + 12), nn.ReLU())


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "tiny_vit": lambda: nn.Sequential(nn.BatchNorm2d(96), nn.Conv2d(96, 384, 1), nn.BatchNorm2d(384)),
    "resnet": lambda: nn.Sequential(conv(3, 32, 7, 2), nn.MaxPool2d(3, 2, 1), Residual(bottleneck(32)), head(32)),
    "vgg": lambda: nn.Sequential(conv(3, 16), conv(16, 16), nn.MaxPool2d(2), conv(16, 32), nn.Dropout(0.5), head(32)),
    "mobilenet": lambda: nn.Sequential(conv(3, 16, 3, 2), Residual(inverted(16)), nn.Hardswish(), head(16)),
    "efficientnet": lambda: nn.Sequential(
        conv(3, 16, 3, 2), Residual(inverted(16)), nn.SiLU(), conv(16, 40, 1), head(40)
    ),
    "densenet": lambda: nn.Sequential(conv(3, 16), dense(16), nn.AvgPool2d(2), head(28)),
    "inception": lambda: nn.Sequential(
        conv(3, 16), Concatenated(conv(16, 8, 1), conv(16, 8, 5), nn.AvgPool2d(3, 1, 1)), head(32)
    ),
    "convnext": lambda: nn.Sequential(nn.Conv2d(3, 24, 4, 4), Residual(convnext(24)), head(24)),
    "unet": UNet,
    "shufflenet": lambda: nn.Sequential(conv(3, 16), conv(16, 16, 1, g=2), Shuffle(), conv(16, 16, g=16), head(16)),
    "squeezenet": lambda: nn.Sequential(
        conv(3, 16, 3, 2), Concatenated(nn.Conv2d(16, 8, 1), nn.Conv2d(16, 8, 3, padding=1)), nn.ReLU(), head(16)
    ),
    "regnet": lambda: nn.Sequential(
        conv(3, 32, 3, 2), Residual(nn.Sequential(conv(32, 32, g=4), SqueezeExcite(32))), head(32)
    ),
    "swin": lambda: nn.Sequential(nn.Conv2d(3, 32, 4, 4), Residual(Attention(32)), Residual(convnext(32)), head(32)),
    "group_norm_net": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.Mish(), nn.InstanceNorm2d(16), head(16)
    ),
}


def train(name: str) -> None:
    """Two steps of training: forward, loss, backward, update."""
    model = NETWORKS[name]().train()
    channels = 96 if name == "tiny_vit" else 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    compiled = torch.compile(model)
    side = 56 if name == "tiny_vit" else 32
    for _ in range(2):
        optimizer.zero_grad()
        compiled(torch.randn(2, channels, side, side)).square().mean().backward()
        optimizer.step()
