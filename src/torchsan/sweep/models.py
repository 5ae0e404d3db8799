"""Programs that train architectures for a step, small and without weights: those of the libraries that are installed.

Importing it imports no torch.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torchsan.errors import UsageError
from torchsan.sweep.programs import Program

LIBRARIES = ("transformers", "timm", "torchvision")

_TEXT = """\
import torch
from torchsan.sweep.models import {library}_model

torch.manual_seed({seed})
model, inputs, loss_of = {library}_model({name!r})
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
compiled = torch.compile(model)
for _ in range(2):
    loss = loss_of(compiled(**inputs))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_SIZES = {
    **dict.fromkeys(
        ("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "embed_dim", "word_embed_proj_dim"), 32
    ),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "n_inner", "moe_intermediate_size"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "shared_expert_intermediate_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "num_experts_per_tok", "num_local_experts"), 2),
    **dict.fromkeys(("num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "v_head_dim", "d_kv"), 8),
    **dict.fromkeys(("qk_rope_head_dim",), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "sliding_window"), 64),
    **dict.fromkeys(("vocab_size",), 64),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
}
"""Settings of configurations that make a model large, and what they are here."""
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def model_programs(globs: Sequence[str], seed: int) -> list[Program]:
    """Return a program for each architecture of these names, such as `transformers/Llama*`, or for all.

    It imports the libraries. Raise UsageError if there are none.
    """
    found = []
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is None:
            continue
        for name in _NAMES[library]():
            label = f"{library}/{name}"
            if not globs or any(fnmatch.fnmatchcase(label, g) or fnmatch.fnmatchcase(name, g) for g in globs):
                found.append(Program(name=label, text=_TEXT.format(library=library, name=name, seed=seed)))
    if not found:
        what = f"no model is called {' or '.join(globs)}" if globs else "there are no models"
        raise UsageError(f"{what}; they come from {', '.join(LIBRARIES)}, as installed", slug="no-models")
    return found


def installed() -> tuple[str, ...]:
    """Return which of the libraries are installed."""
    return tuple(library for library in LIBRARIES if importlib.util.find_spec(library) is not None)


def _transformers_names() -> Iterator[str]:
    names = importlib.import_module("transformers.models.auto.modeling_auto")
    mappings = (names.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, names.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    for mapping in mappings:
        yield from dict.fromkeys(name for name in mapping.values() if isinstance(name, str))


_NAMES: dict[str, Callable[[], Iterator[str]]] = {
    "transformers": _transformers_names,
    "timm": lambda: iter(importlib.import_module("timm").list_models()),
    "torchvision": lambda: iter(
        importlib.import_module("torchvision.models").list_models(module=importlib.import_module("torchvision.models"))
    ),
}


def transformers_model(name: str) -> tuple[Any, dict[str, Any], Callable[[Any], Any]]:
    """Return a small language model, inputs for it, and how its loss is found in what it returns."""
    import torch

    kind = getattr(importlib.import_module("transformers"), name)
    config = kind.config_class()
    for place in (config, getattr(config, "text_config", config)):
        for setting, value in _SIZES.items():
            if isinstance(getattr(place, setting, None), int):
                setattr(place, setting, value)
        for setting in _TOKENS:
            if isinstance(getattr(place, setting, None), int):
                setattr(place, setting, 0)
        if isinstance(getattr(place, "layer_types", None), list):
            place.layer_types = place.layer_types[: place.num_hidden_layers]
    tokens = torch.randint(1, 64, (2, 12))
    return kind(config), {"input_ids": tokens, "labels": tokens}, lambda out: out.loss


def timm_model(name: str) -> tuple[Any, dict[str, Any], Callable[[Any], Any]]:
    """Return a network for images, one for it, and a loss."""
    import torch

    model: Any = importlib.import_module("timm").create_model(name, pretrained=False, num_classes=4)
    return model, {"x": torch.randn(2, *model.default_cfg["input_size"])}, _classified


def torchvision_model(name: str) -> tuple[Any, dict[str, Any], Callable[[Any], Any]]:
    """Return a network for images, one for it, and a loss."""
    import torch

    model: Any = importlib.import_module("torchvision.models").get_model(name, weights=None, num_classes=4)
    return model, {"x": torch.randn(2, 3, 224, 224)}, _classified


def _classified(out: Any) -> Any:
    import torch

    scores = out if isinstance(out, torch.Tensor) else next(iter(out))
    return torch.nn.functional.cross_entropy(scores, torch.tensor([0, 1]))
