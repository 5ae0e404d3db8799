"""`Trainer(…, callbacks=[TorchsanCallback(budget="1%")])` of transformers."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from torchsan.integrations.job import Job

__all__ = ["TorchsanCallback"]


class TorchsanCallback(TrainerCallback):
    """Checks a sample of the launches of a Trainer's compiled model, from `train()` to its end.

    The arguments are those of `torchsan.integrations.Job`.

    >>> trainer = Trainer(model, args, train_dataset=data, callbacks=[TorchsanCallback(budget="1%")])
    """

    def __init__(self, **options: Any) -> None:
        self.job = Job(**options)
        """What was found and seen."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.job.open()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.job.step(state.global_step)
        if self.job.should_stop:
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.job.close()
