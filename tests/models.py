"""Small models, forward and backward, for tests that compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Inputs = tuple[Any, ...]
Make = Callable[[], tuple[nn.Module, Inputs]]


def mlp() -> tuple[nn.Module, Inputs]:
    layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
    return layers, (torch.randn(4, 8),)


def cnn() -> tuple[nn.Module, Inputs]:
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)
    )
    return layers, (torch.randn(2, 3, 8, 8),)


class Transformer(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=dropout)
        self.head = nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.layer(self.embed(tokens)))
        return result


def transformer() -> tuple[nn.Module, Inputs]:
    return Transformer(), (torch.randint(0, 32, (2, 6)),)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[1], 6)
        outputs = []
        for t in range(x.shape[0]):
            h, c = self.cell(x[t], (h, c))
            outputs.append(h)
        return torch.stack(outputs)


def lstm() -> tuple[nn.Module, Inputs]:
    return Lstm(), (torch.randn(3, 2, 4),)


def llama() -> tuple[nn.Module, Inputs]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=50,
        use_cache=False,
    )
    model: nn.Module = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]  # transformers has no type for it
    return model, (torch.randint(0, 50, (2, 6)),)


def bert() -> tuple[nn.Module, Inputs]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=50,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model: nn.Module = BertModel(config)  # type: ignore[no-untyped-call]  # transformers has no type for it
    return model, (torch.randint(0, 50, (2, 6)),)


MODELS: dict[str, Make] = {f.__name__: f for f in (mlp, cnn, transformer, lstm, llama, bert)}


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a model's output, whatever they come in."""
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if hasattr(value, "values") else value
    return [t for v in values for t in tensors(v)] if isinstance(value, list | tuple | dict) or values else []


def step(model: nn.Module, call: Callable[..., Any], inputs: Inputs) -> list[torch.Tensor]:
    """One step forward and backward: the outputs, the gradients and what the model keeps."""
    outputs = tensors(call(*inputs))
    sum(o.float().square().sum() for o in outputs if o.requires_grad).backward()  # type: ignore[union-attr]  # there is one
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    for p in model.parameters():
        p.grad = None
    return [*(o.detach().clone() for o in outputs), *grads, *(b.clone() for b in model.buffers())]
