"""The callback for the Trainer of transformers, with the real package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.test_job import Told, wrong_product

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")


def train(tmp_path: Path, **options: Any) -> Any:
    from torchsan.integrations.transformers import TorchsanCallback

    class Data(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, n: int) -> Any:
            return {"x": torch.full((8,), float(n)), "labels": torch.ones(4)}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8, 4))

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
            return {"loss": (x @ self.weight - labels).square().mean()}

    torch._dynamo.reset()
    callback = TorchsanCallback(budget="50%", **options)
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=4,
        torch_compile=True,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = transformers.Trainer(Model(), args, train_dataset=Data(), callbacks=[callback])
    trainer.train()
    return callback, trainer.state.global_step


@pytest.mark.slow
def test_a_healthy_training_is_checked_to_its_end(tmp_path: Path) -> None:
    told = Told()
    callback, steps = train(tmp_path, to=told, every=4)
    assert steps == 8
    assert told.steps == [4, 8, 8]
    assert told.closed
    assert not [f for f in callback.job.findings if f.severity == "error"]
    assert told.last["torchsan/buffers_checked"] > 0


@pytest.mark.slow
def test_an_error_stops_it_if_that_is_asked_for(tmp_path: Path) -> None:
    told = Told()
    with wrong_product():
        callback, steps = train(tmp_path, to=told, on_finding="stop")
    assert steps < 8
    assert callback.job.should_stop
    assert told.found[0][1].kind == "wrong-values"
