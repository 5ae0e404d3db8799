"""The callback for the Trainer of Lightning, with the real package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations.test_job import Told, wrong_product

lightning = pytest.importorskip("lightning.pytorch")


def fit(tmp_path: Path, **options: Any) -> Any:
    from torchsan.integrations.lightning import TorchsanCallback

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]  # an extra
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8, 4))
            self.loss = torch.compile(lambda x: (x @ self.weight).square().mean())

        def training_step(self, batch: Any, index: int) -> Any:
            return self.loss(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    torch._dynamo.reset()
    callback = TorchsanCallback(budget="50%", **options)
    data = torch.utils.data.TensorDataset(torch.randn(32, 8))
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[callback],
        logger=lightning.loggers.CSVLogger(str(tmp_path)),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data, batch_size=4))
    return callback, trainer


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_a_healthy_fit_is_told_to_the_loggers_of_the_trainer(tmp_path: Path) -> None:
    callback, trainer = fit(tmp_path, every=4)
    assert trainer.global_step == 8
    assert not [f for f in callback.job.findings if f.severity == "error"]
    (file,) = tmp_path.rglob("metrics.csv")
    assert "torchsan/buffers_checked" in file.read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_an_error_stops_it_if_that_is_asked_for(tmp_path: Path) -> None:
    told = Told()
    with wrong_product():
        callback, trainer = fit(tmp_path, to=told, on_finding="stop")
    assert trainer.global_step < 8
    assert callback.job.should_stop
    assert told.found[0][1].kind == "wrong-values"
