"""A wrong transformer, and what PyTorch has to find what is wrong in it. Each runs in processes of its own.

The layers have d=64, batch 4, length 16; the bug is the one of relu that Inductor can plant in itself. What has not
ended within TORCHSAN_BENCH_LIMIT seconds (600) is ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # has no types

__all__ = ["LIMIT", "Ended", "Programs", "minify", "run"]

LIMIT = float(os.environ.get("TORCHSAN_BENCH_LIMIT", "600"))

_MODEL = """
import sys
import torch
import torch._inductor.config
import torch.nn as nn
import torch.nn.functional as F

torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"


class Layer(nn.Module):
    def __init__(self, d=64, heads=4):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.before(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(self.up(self.after(x)).relu())


torch.manual_seed(0)
model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
x = torch.randn(4, 16, 64)
"""
_PLAIN = "torch.compile(model)(x).square().mean().backward()\n"
_BISECT = """
from torch._inductor.compiler_bisector import CompilerBisector

expected = model(x)

def good():
    torch._dynamo.reset()
    return torch.allclose(torch.compile(model)(x), expected, atol=1e-3)

print(CompilerBisector.do_bisect(good))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The program, and the one that bisects it, of a transformer with so many layers."""

    layers: int

    @property
    def plain(self) -> str:
        """Compile, forward and backward."""
        return self._model + _PLAIN

    @property
    def bisect(self) -> str:
        """Bisect the forward."""
        return self._model + _BISECT

    @property
    def _model(self) -> str:
        return _MODEL.replace("LAYERS", str(self.layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended: after how long, by itself or by us, what it printed, and its peak memory in MB."""

    seconds: float
    done: bool
    said: str
    memory: float = 0.0


def run(folder: Path, program: str, before: list[str]) -> Ended:
    """Run a program in a process of its own, after the words of `before`, with caches of its own."""
    script = folder / "program.py"
    script.write_text(program)
    caches = {"TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(dir=folder)}
    return _supervised(folder, [*before, str(script)], os.environ | caches, LIMIT)


def minify(folder: Path, program: str, limit: float) -> tuple[Ended, str | None]:
    """Run the accuracy minifier: the run that dumps a launcher, then the launcher's `minify`.

    Also return the smallest reproducer that it wrote, or None without one. Raise RuntimeError if nothing is wrong.
    """
    script = folder / "program.py"
    script.write_text(program)
    environ = os.environ | {
        "TORCHDYNAMO_REPRO_AFTER": "aot",
        "TORCHDYNAMO_REPRO_LEVEL": "4",
        "TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(dir=folder),
    }
    first = _supervised(folder, [str(script)], environ, limit)
    launchers = sorted(folder.rglob("minifier_launcher.py"))
    if not launchers and first.done:
        raise RuntimeError(f"the minifier has nothing to minify: {first.said[-1000:]}")
    if not launchers:
        return first, None
    left = max(1.0, limit - first.seconds)
    second = _supervised(launchers[0].parent, [str(launchers[0]), "minify"], environ, left)
    found = [file.read_text() for file in folder.rglob("checkpoints/*.py")]
    smallest = min(found, key=lambda text: text.count(" = torch.ops."), default=None)
    return Ended(seconds=first.seconds + second.seconds, done=second.done, said=second.said), smallest


def _supervised(folder: Path, words: list[str], environ: dict[str, str], limit: float) -> Ended:
    start = time.perf_counter()
    with (folder / "said").open("w+") as said:
        command = [sys.executable, "-W", "ignore", *words]
        process = psutil.Popen(command, cwd=folder, env=environ, stdout=said, stderr=subprocess.STDOUT)
        peak = 0.0
        while process.poll() is None and time.perf_counter() - start < limit:
            peak = max(peak, _memory(process))
            time.sleep(0.1)
        seconds, done = time.perf_counter() - start, process.poll() is not None
        _end(process)
        said.seek(0)
        return Ended(seconds=seconds, done=done, said=said.read(), memory=peak)


def _end(process: psutil.Popen) -> None:
    """End a process that may be over, and those that it started: the caches that they fill are removed next."""
    try:
        family = [*process.children(recursive=True), process]
    except psutil.Error:
        family = []
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def _memory(process: psutil.Popen) -> float:
    try:
        family = (process, *process.children(recursive=True))
        return float(max(member.memory_info().rss for member in family)) / 1e6
    except psutil.Error:
        return 0.0
