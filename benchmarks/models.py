"""The model that more than one benchmark trains, and how."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch._inductor.codecache import PyCodeCache

from torchsan.watch.calls import ProbedProgram

__all__ = ["LanguageModel", "Step", "model_and_tokens", "training", "unwatched"]

Step = Callable[[], None]


class LanguageModel(nn.Module):
    """A small language model: 4 layers of width 640, 24.9 million parameters."""

    def __init__(self, width: int = 640, vocabulary: int = 8192, layers: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 10, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = x[:, :-1] @ self.embed.weight.t()
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def model_and_tokens(layers: int) -> tuple[LanguageModel, torch.Tensor]:
    """Return the model with so many layers and 4 × 128 tokens for it, the same every time."""
    torch.manual_seed(0)
    return LanguageModel(layers=layers), torch.randint(0, 8192, (4, 128))


def training(layers: int, *, eager: bool = False) -> Step:
    """Compile the model anew, unless `eager`, and return its training step (forward, backward, SGD), warmed up."""
    torch._dynamo.reset()
    model, tokens = model_and_tokens(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    call = model if eager else torch.compile(model)

    def step() -> None:
        optimizer.zero_grad()
        call(tokens).backward()
        optimizer.step()

    step()
    step()
    return step


def unwatched(step: Step) -> Step:
    """Return `step` with all programs that are compiled by now entered as they are without a session."""
    entries = [m.call for m in PyCodeCache.modules if isinstance(getattr(m, "call", None), ProbedProgram)]
    observers = [entry._observers for entry in entries]

    def plain() -> None:
        for entry in entries:
            entry._observers = ()
        step()
        for entry, observing in zip(entries, observers, strict=True):
            entry._observers = observing

    return plain
