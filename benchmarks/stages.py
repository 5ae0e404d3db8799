"""What `--check stages` adds to compiling and running models: `python -m benchmarks.stages [--all | MODEL…]`.

Each model is compiled and trained for a few steps (those of `transformers` for one), with the stages check and without
it, in processes of their own that take turns. Processor time counts (the compiler's children too), since others may
share the machine; the best of each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.programs.models import MODELS

GOAL = 1.5
ROUNDS = 2
STEPS = 5
_QUICK = ("mlp", "cnn", "transformer")


def main() -> None:
    """Measure, and print both sides with their ratio."""
    models = list(_MODELS) if "--all" in sys.argv else [m for m in sys.argv[1:] if m in _MODELS] or list(_QUICK)
    print(f"compile and train                  {'plain':>9}{'stages':>10}{'ratio':>8}   goal ≤ {GOAL}")
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

    torch.manual_seed(0)
    start = _spent()
    if how == "plain":
        _MODELS[model]()
    else:
        with torchsan.session(check="stages") as run:
            _MODELS[model]()
        run.raise_if_findings()
    print(_spent() - start)


def _spent() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _train(model: Any, shape: tuple[int, ...]) -> None:
    import torch

    compiled: Any = torch.compile(model)
    for _ in range(STEPS):
        compiled(torch.randn(shape)).square().mean().backward()


def _mlp() -> None:
    from torch import nn

    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 8))
    _train(model, (32, 64))


def _cnn() -> None:
    from torch import nn

    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(32, 10))
    _train(model, (8, 3, 32, 32))


def _transformer() -> None:
    from torch import nn

    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    _train(model, (4, 16, 64))


_MODELS: dict[str, Callable[[], None]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "transformer": _transformer,
    **MODELS,
}


if __name__ == "__main__":
    if "--measure" in sys.argv:
        _measure(*sys.argv[-2:])
    else:
        main()
