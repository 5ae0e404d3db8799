"""Models of `transformers`, built small from their configurations: forward, loss and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 64,
}


def _tokens() -> torch.Tensor:
    return torch.randint(0, 64, (2, 12))


def _train(model: Any, **inputs: Any) -> None:
    model.train()
    loss = torch.compile(model)(**inputs).loss
    loss.backward()


def llama() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens = _tokens()
    _train(LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2)), input_ids=tokens, labels=tokens)


def mistral() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    tokens = _tokens()
    _train(MistralForCausalLM(MistralConfig(**SMALL, num_key_value_heads=2)), input_ids=tokens, labels=tokens)


def qwen2() -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokens = _tokens()
    _train(Qwen2ForCausalLM(Qwen2Config(**SMALL, num_key_value_heads=2)), input_ids=tokens, labels=tokens)


def gpt2() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = _tokens()
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=32)
    _train(GPT2LMHeadModel(config), input_ids=tokens, labels=tokens)


def bert() -> None:
    from transformers import BertConfig, BertForMaskedLM

    tokens = _tokens()
    mask = torch.ones_like(tokens)
    mask[:, -3:] = 0
    _train(BertForMaskedLM(BertConfig(**SMALL)), input_ids=tokens, attention_mask=mask, labels=tokens)


def distilbert() -> None:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(vocab_size=64, dim=32, hidden_dim=64, n_layers=1, n_heads=4)
    _train(DistilBertForSequenceClassification(config), input_ids=_tokens(), labels=torch.tensor([0, 1]))


def t5() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    small: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4} | {
        "decoder_start_token_id": 0
    }
    config = T5Config(vocab_size=64, **small)
    _train(T5ForConditionalGeneration(config), input_ids=_tokens(), labels=_tokens())


def vit() -> None:
    from transformers import ViTConfig, ViTForImageClassification

    small = {k: v for k, v in SMALL.items() if k != "vocab_size"} | {"num_labels": 3}
    model = ViTForImageClassification(ViTConfig(**small, image_size=16, patch_size=4))
    _train(model, pixel_values=torch.randn(2, 3, 16, 16), labels=torch.tensor([0, 2]))


MODELS: dict[str, Callable[[], None]] = {
    f.__name__: f for f in (llama, mistral, qwen2, gpt2, bert, distilbert, t5, vit)
}
