"""What `--check stages` adds to compiling and running models: `python -m benchmarks.stages [--all]`.

Each model is compiled and trained for a few steps, with the stages check and without it, in processes of their own that
take turns. Processor time counts (the compiler's children too), since others may share the machine; the best of each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

GOAL = 1.5
ROUNDS = 2
STEPS = 5
_QUICK = ("mlp", "cnn", "transformer")


def main() -> None:
    """Measure, and print both sides with their ratio."""
    models = list(_MODELS) if "--all" in sys.argv else list(_QUICK)
    print(f"compile and {STEPS} steps of training   {'plain':>9}{'stages':>10}{'ratio':>8}   goal ≤ {GOAL}")
    for model in models:
        best = [float("inf"), float("inf")]
        for _ in range(ROUNDS):
            for side, how in enumerate(("plain", "stages")):
                best[side] = min(best[side], _seconds(model, how))
        ratio = best[1] / best[0]
        print(f"{model:<33}{best[0]:>7.1f} s{best[1]:>8.1f} s{ratio:>8.2f}   {'met' if ratio <= GOAL else 'missed'}")


def _seconds(model: str, how: str) -> float:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.stages", "--measure", model, how]
    environ = os.environ | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=environ, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def _measure(model: str, how: str) -> None:
    import torch

    import torchsan

    step = _MODELS[model]()
    torch.manual_seed(0)
    start = _spent()
    if how == "plain":
        _train(step)
    else:
        with torchsan.session(check="stages") as run:
            _train(step)
        run.raise_if_findings()
    print(_spent() - start)


def _spent() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _train(step: Callable[[], Any]) -> None:
    for _ in range(STEPS):
        step().backward()


def _mlp() -> Callable[[], Any]:
    import torch
    from torch import nn

    model = torch.compile(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 8)))
    return lambda: model(torch.randn(32, 64)).square().mean()


def _cnn() -> Callable[[], Any]:
    import torch
    from torch import nn

    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = torch.compile(nn.Sequential(*layers, nn.Linear(32, 10)))
    return lambda: model(torch.randn(8, 3, 32, 32)).square().mean()


def _transformer() -> Callable[[], Any]:
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    model = torch.compile(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    return lambda: model(torch.randn(4, 16, 64)).square().mean()


def _from_config(make: Callable[[], Any]) -> Callable[[], Callable[[], Any]]:
    def build() -> Callable[[], Any]:
        import torch

        model: Any = torch.compile(make())
        ids = torch.randint(256, (2, 16))
        return lambda: model(input_ids=ids, labels=ids).loss

    return build


def _gpt2() -> Any:
    t: Any = __import__("transformers")  # It is annotated, but not for calling.
    return t.GPT2LMHeadModel(t.GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=256, n_positions=64))


def _llama() -> Any:
    t: Any = __import__("transformers")
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return t.LlamaForCausalLM(t.LlamaConfig(vocab_size=256, **size))


_MODELS: dict[str, Callable[[], Callable[[], Any]]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "transformer": _transformer,
    "gpt2": _from_config(_gpt2),
    "llama": _from_config(_llama),
}


if __name__ == "__main__":
    if "--measure" in sys.argv:
        _measure(*sys.argv[-2:])
    else:
        main()
