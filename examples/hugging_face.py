"""A callback for the Trainer of Hugging Face that checks the first steps, then lets the training run at full speed.

    python examples/hugging_face.py

trains a tiny Llama, built from a config, for six steps with `torch_compile=True`, and checks the first two.
"""

import tempfile
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import torchsan


class TorchsanCallback(TrainerCallback):
    """Watches the first `steps` optimizer steps. The other arguments are those of `torchsan.session()`.

    Raises FindingsError when they are over if something is wrong. What was compiled for them is compiled once more
    afterwards, as it is without torchsan.
    """

    def __init__(self, steps: int = 2, **options: Any) -> None:
        self._steps = steps
        self._session = torchsan.session(**options)
        self._open = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.open()
        self._open = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= self._steps:
            self._finish()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._finish()

    def _finish(self) -> None:
        if not self._open:
            return
        self._open = False
        self._session.close()
        coverage = self._session.coverage
        print(
            f"torchsan: checked {coverage.buffers_checked} of {coverage.buffers} buffers of {coverage.kernels} kernels"
        )
        for finding in self._session.findings:
            print(f"torchsan: {finding.severity}: {finding.kind}: {finding.message}")
        self._session.raise_if_findings()


class Digits(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sentences that count."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, n: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) + n) % 32
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        hidden_act="relu",
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=6,
            per_device_train_batch_size=4,
            torch_compile=True,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=LlamaForCausalLM(config),
            args=arguments,
            train_dataset=Digits(),
            callbacks=[TorchsanCallback(steps=2, check=("values", "memory"))],
        )
        trainer.train()
    print(f"trained {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
