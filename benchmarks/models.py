"""The model that more than one benchmark trains."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["LanguageModel"]


class LanguageModel(nn.Module):
    """A small language model: 4 layers of width 640, 24.9 million parameters."""

    def __init__(self, width: int = 640, vocabulary: int = 8192) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 10, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(4)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = x[:, :-1] @ self.embed.weight.t()
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
