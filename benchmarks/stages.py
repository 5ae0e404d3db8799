"""What `--check stages` adds to compiling and training models.

Each model is compiled and trained for five steps (those of `transformers` for one), with the stages check and without
it, in processes of their own that take turns. Processor time counts (the compiler's children too), the best of each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.programs.models import MODELS

from benchmarks.row import Kind, Record, Row, Skipped

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 2

_ROUNDS = 2
_STEPS = 5


def measure(quick: bool) -> Iterator[Record]:
    """Measure both sides in turns; with `quick`, of one model."""
    models = ("mlp",) if quick else ("mlp", "cnn", "transformer")
    for model in models:
        least = {"plain": float("inf"), "stages": float("inf")}
        for _ in range(1 if quick else _ROUNDS):
            for how in least:
                least[how] = min(least[how], _seconds(model, how))
        yield Row(
            what=f"compile and train, {model}",
            kind=Kind.COST,
            unit="s",
            ours=least["stages"],
            peer="not checked",
            theirs=least["plain"],
            goal=1.5,
        )
    if quick:
        yield Skipped(what="the stages of a convolutional network and of a transformer", why="each is compiled twice")


def _seconds(model: str, how: str) -> float:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.stages", model, how]
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
    for _ in range(_STEPS):
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
    _measure(*sys.argv[1:])
