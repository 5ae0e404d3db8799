"""`Trainer(callbacks=[TorchsanCallback(budget="1%")])` of Lightning."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:  # The package has two names.
    from pytorch_lightning import Callback

from torchsan.integrations.job import Job
from torchsan.records import Finding

__all__ = ["TorchsanCallback"]


class TorchsanCallback(Callback):  # type: ignore[misc]  # an extra, which not every machine has
    """Checks a sample of the launches of a compiled module, from `fit` to its end.

    The arguments are those of `torchsan.integrations.Job`; without `to`, figures go to the Trainer's own loggers.

    >>> trainer = Trainer(callbacks=[TorchsanCallback(budget="1%")])
    """

    def __init__(self, **options: Any) -> None:
        self._loggers = _Loggers()
        self.job = Job(**{"to": ["log", self._loggers], **options})
        """What was found and seen."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._loggers.trainer = trainer
        self.job.open()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.job.step(trainer.global_step)
        if self.job.should_stop:
            trainer.should_stop = True

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self.job.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.job.close()


class _Loggers:
    """The loggers of a Trainer."""

    trainer: Any = None

    def figures(self, figures: Any, step: int) -> None:
        for logger in self.trainer.loggers:
            logger.log_metrics(dict(figures), step)

    def finding(self, finding: Finding, step: int) -> None:
        """Findings are counted among the figures; loggers take numbers."""

    def close(self) -> None:
        self.trainer = None
