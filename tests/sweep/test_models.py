"""Programs that train architectures: which there are, and that a small one of each kind trains."""

from __future__ import annotations

import pytest
import torch

from torchsan.errors import UsageError
from torchsan.sweep.models import installed, model_programs, transformers_model


def test_models_are_chosen_by_their_names() -> None:
    pytest.importorskip("transformers")
    assert "transformers" in installed()
    (program,) = model_programs(["transformers/LlamaForCausalLM"], 3)
    assert program.name == "transformers/LlamaForCausalLM"
    assert "torch.manual_seed(3)" in program.text
    names = [p.name for p in model_programs(["Bert*", "GPT2*"], 0)]
    assert {"transformers/GPT2LMHeadModel", "transformers/BertForMaskedLM"} <= set(names)
    with pytest.raises(UsageError):
        model_programs(["no such model"], 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM"])
def test_a_small_model_has_a_loss_and_gradients(name: str) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, inputs, loss_of = transformers_model(name)
    assert sum(p.numel() for p in model.parameters()) < 200_000
    loss_of(model(**inputs)).backward()
    assert any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters())
