"""A wrong transformer, and what PyTorch has to find what is wrong in it. Each runs in processes of its own.

Two layers (d=64, batch 4, length 16), forward and backward, with the relu bug that Inductor can plant in itself. What
has not ended within TORCHSAN_BENCH_LIMIT seconds (600) is ended, and reported as "not within".
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BISECT", "PLAIN", "Ended", "met", "minify", "run"]

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
model = nn.Sequential(Layer(), Layer())
x = torch.randn(4, 16, 64)
"""
PLAIN = _MODEL + "torch.compile(model)(x).square().mean().backward()\n"
BISECT = (
    _MODEL
    + """
from torch._inductor.compiler_bisector import CompilerBisector

expected = model(x)

def good():
    torch._dynamo.reset()
    return torch.allclose(torch.compile(model)(x), expected, atol=1e-3)

print(CompilerBisector.do_bisect(good))
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended: after how long, in words, what it printed, and its peak memory in MB."""

    seconds: float
    how: str
    said: str
    memory: float = 0.0


def met(holds: bool) -> str:
    """Whether a goal is met, in a word."""
    return "met" if holds else "missed"


def run(folder: Path, program: str, before: list[str]) -> Ended:
    """Run a program in a process of its own, after the words of `before`, with caches of its own."""
    script = folder / "program.py"
    script.write_text(program)
    caches = {"TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(dir=folder)}
    return _supervised(folder, [*before, str(script)], os.environ | caches, LIMIT)


def minify(folder: Path) -> tuple[Ended, int | None]:
    """The accuracy minifier: the run that dumps a launcher, then the launcher's `minify`. Also how many nodes are left.

    None if it wrote no reproducer.
    """
    script = folder / "minify.py"
    script.write_text(PLAIN)
    environ = os.environ | {
        "TORCHDYNAMO_REPRO_AFTER": "aot",
        "TORCHDYNAMO_REPRO_LEVEL": "4",
        "TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(dir=folder),
    }
    first = _supervised(folder, [str(script)], environ, LIMIT)
    launchers = sorted(folder.rglob("minifier_launcher.py"))
    if not launchers:
        return Ended(seconds=first.seconds, how="gave nothing to minify", said=first.said), None
    left = max(1.0, LIMIT - first.seconds)
    second = _supervised(launchers[0].parent, [str(launchers[0]), "minify"], environ, left)
    sizes = [file.read_text().count(" = torch.ops.") for file in folder.rglob("checkpoints/*.py")]
    return Ended(seconds=first.seconds + second.seconds, how=second.how, said=second.said), min(sizes, default=None)


def _supervised(folder: Path, words: list[str], environ: dict[str, str], limit: float) -> Ended:
    start = time.perf_counter()
    with (folder / "said").open("w+") as said:
        command = [sys.executable, "-W", "ignore", *words]
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=said, stderr=said)
        peak = 0.0
        while process.poll() is None and time.perf_counter() - start < limit:
            peak = max(peak, _memory(process.pid))
            time.sleep(0.1)
        how = "done" if process.poll() is not None else f"not within {LIMIT:.0f} s"
        process.kill()
        process.wait()
        said.seek(0)
        return Ended(seconds=time.perf_counter() - start, how=how, said=said.read(), memory=peak)


def _memory(pid: int) -> float:
    import psutil  # type: ignore[import-untyped]  # has no types

    try:
        process = psutil.Process(pid)
        return float(max(p.memory_info().rss for p in (process, *process.children(recursive=True)))) / 1e6
    except psutil.Error:
        return 0.0
