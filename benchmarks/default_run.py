"""What `torchsan run` costs training scripts: all checks, default options, from start to end.

50 steps of a language model of 24.9 million parameters (10 and 20 steps with `--quick`) with AdamW, compile included;
processor time of the process and all that come from it, the capture referee's among them, which belong to nobody, and
memory of the largest of them. Cold: no compile cache; warm: the second run with the caches that the first one left.
What torchsan tries once for each PyTorch (`doctor --canary`) is off. On one thread, so that waiting for each other on a
machine with other work to do is not taken for work. Then five small models, 200 steps each with AdamW, cold: there is
little to train in them, so that compiling and checking is most of it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.row import Kind, Record, Row

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 1

_SCRIPT = """
import torch
from benchmarks.models import model_and_tokens

model, tokens = model_and_tokens(layers=LAYERS)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
compiled = torch.compile(model)
for step in range(STEPS):
    optimizer.zero_grad()
    loss = compiled(tokens)
    loss.backward()
    optimizer.step()
print(f"{loss.item():.3f}")
"""


_SMALL = """
import sys
import torch
from torch import nn

torch.manual_seed(0)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(32, 64), nn.Linear(64, 8)

    def forward(self, x):
        h = x.new_zeros(len(x), 64)
        for step in x.unbind(1):
            h = self.cell(step, h)
        return self.out(h)


def convolutions():
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(32, 10))


def attention():
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MODELS = {
    "multilayer perceptron": (
        lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 8)), (64, 256)
    ),
    "convolutional network": (convolutions, (16, 3, 32, 32)),
    "transformer with dropout": (attention, (8, 32, 64)),
    "recurrent network": (Recurrent, (16, 8, 32)),
    "autoencoder": (
        lambda: nn.Sequential(
            nn.Linear(512, 128), nn.SiLU(), nn.Linear(128, 16), nn.SiLU(), nn.Linear(16, 128), nn.SiLU(),
            nn.Linear(128, 512),
        ),
        (64, 512),
    ),
}
make, shape = MODELS[sys.argv[1]]
model = make()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
compiled = torch.compile(model)
for step in range(200):
    optimizer.zero_grad()
    compiled(torch.randn(shape)).square().mean().backward()
    optimizer.step()
"""
_MODELS = (
    "multilayer perceptron",
    "convolutional network",
    "transformer with dropout",
    "recurrent network",
    "autoencoder",
)
_TO_START = (
    "A script that is done in seconds pays for the start: what the checks import and build, and the first two calls of "
    "each graph, which are replayed in float64; `--calls 1` and fewer checks shorten that."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Used:
    """What a process and its children took."""

    seconds: float
    megabytes: float


def measure(quick: bool) -> Iterator[Record]:
    """Run the script without torchsan and with it, each with caches of its own, cold and then warm."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "train.py"
        text = _SCRIPT.replace("LAYERS", "1" if quick else "4").replace("STEPS", "20" if quick else "50")
        script.write_text(text)
        commands = {
            "plain": [str(script)],
            "sanitized": ["-m", "torchsan", "run", "--quiet", "--out", str(folder / "runs" / "cold"), str(script)],
        }
        used: dict[tuple[str, str], _Used] = {}
        for state in ("cold", "warm"):
            for who, words in commands.items():
                words = [word.replace("cold", state) for word in words]
                used[state, who] = _run(words, folder / f"cache-{who}")
    for state, goal in (("cold", 1.35), ("warm", 1.3)):
        yield Row(
            what=f"a training script, {state} compile caches, processor time",
            kind=Kind.COST,
            unit="s",
            ours=used[state, "sanitized"].seconds,
            peer="the script without torchsan",
            theirs=used[state, "plain"].seconds,
            goal=goal,
        )
    yield Row(
        what="a training script, peak memory",
        kind=Kind.COST,
        unit="MB",
        ours=used["cold", "sanitized"].megabytes,
        peer="the script without torchsan",
        theirs=used["cold", "plain"].megabytes,
        goal=1.25,
    )
    if not quick:
        with tempfile.TemporaryDirectory() as name:
            yield from _small(Path(name))


def _small(folder: Path) -> Iterator[Row]:
    """The same of small models, with cold caches."""
    script = folder / "small.py"
    script.write_text(_SMALL)
    for n, model in enumerate(_MODELS):
        plain = _run([str(script), model], folder / f"cache-small-{n}")
        words = ["-m", "torchsan", "run", "--quiet", "--out", str(folder / "runs" / str(n)), str(script), model]
        ours = _run(words, folder / f"cache-small-sanitized-{n}")
        for what, unit, used, theirs, goal in (
            ("processor time", "s", ours.seconds, plain.seconds, 1.35),
            ("peak memory", "MB", ours.megabytes, plain.megabytes, 1.25),
        ):
            yield Row(
                what=f"{model}, {what}",
                kind=Kind.COST,
                unit=unit,
                ours=used,
                peer="the script without torchsan",
                theirs=theirs,
                goal=goal,
                reason=_TO_START,
            )


_SUBREAPER = 36
"""Of Linux: processes that have lost their parent belong to this one from then on."""


def _run(words: list[str], cache: Path) -> _Used:
    root = Path(__file__).resolve().parent.parent
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": paths}
    environ |= {"TORCHSAN_CANARY": "off", "OMP_NUM_THREADS": "1"}
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen([sys.executable, "-W", "ignore", *words], env=environ, stdout=subprocess.DEVNULL)
    seconds = megabytes = 0.0
    try:
        for pid, status, usage in _ended():
            if pid == process.pid and os.waitstatus_to_exitcode(status) != 0:
                raise RuntimeError(f"{' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}")
            seconds += usage.ru_utime + usage.ru_stime
            megabytes = max(megabytes, usage.ru_maxrss / 1000)
    finally:
        if prctl is not None:
            prctl(_SUBREAPER, 0, 0, 0, 0)
    return _Used(seconds=seconds, megabytes=megabytes)


def _ended() -> Iterator[tuple[int, int, resource.struct_rusage]]:
    """Wait for every child, those that were left to this process included."""
    while True:
        try:
            yield os.wait4(-1, 0)
        except ChildProcessError:
            return
