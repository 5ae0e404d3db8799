"""From a wrong compiled model to the culprit: torchsan next to PyTorch's own tools. `python -m benchmarks values`.

A two-layer transformer (d=64, batch 4, length 16), forward and backward, with the relu bug that Inductor can plant in
itself. Measured in one run: compiling and running without torchsan, `--check values`, `CompilerBisector` on the forward
and the accuracy minifier (`TORCHDYNAMO_REPRO_AFTER=aot`, level 4), each in processes of its own, the last two with a
time limit: what they had not found by then is reported as "not within".
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
LIMIT = float(os.environ.get("TORCHSAN_BENCH_LIMIT", "600"))

MODEL = """
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
PLAIN = MODEL + "torch.compile(model)(x).square().mean().backward()\n"
BISECT = (
    MODEL
    + """
from torch._inductor.compiler_bisector import CompilerBisector

expected = model(x)

def good():
    torch._dynamo.reset()
    return torch.allclose(torch.compile(model)(x), expected, atol=1e-3)

print(CompilerBisector.do_bisect(good))
"""
)


def main() -> None:
    """Measure, and print all sides with their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        plain, _, memory = _run(here, PLAIN, [])
        ours, found, our_memory = _run(here, PLAIN, ["-m", "torchsan", "run", "--quiet", "--check", "values"])
        bisect, bisected, _ = _run(here, BISECT, [])
        minify, minified = _minify(here)
    print("from start to named culprit            seconds   of torchsan's")
    print(f"{'compile and run, no tool':<36}{plain:>10.1f}{plain / ours:>14.2f}x   memory {memory:.0f} MB")
    print(f"{'torchsan run --check values':<36}{ours:>10.1f}{1.0:>14.2f}x   memory {our_memory:.0f} MB")
    for name, seconds, ended in (("CompilerBisector", bisect, bisected), ("accuracy minifier", minify, minified)):
        print(f"{name:<36}{seconds:>10.1f}{seconds / ours:>14.2f}x   {ended}")
    print(f"torchsan names it: {'relu' in found}")
    print(f"goals: ≤ 2x of no tool: {ours / plain:.2f} ({_met(ours / plain <= 2)}); memory ≤ 2x: "
          f"{our_memory / memory:.2f} ({_met(our_memory / memory <= 2)}); ≤ 1/6 of the bisector: "
          f"{_met(bisect >= 6 * ours)}; ≤ 1/20 of the minifier: {_met(minify >= 20 * ours)}")  # fmt: skip

    _print_checked_step()


def _print_checked_step() -> None:
    """What a checked step of training costs, next to an eager one."""
    import torch

    import torchsan
    from benchmarks.models import LanguageModel
    from benchmarks.row import best

    torch.manual_seed(0)
    model = LanguageModel()
    tokens = torch.randint(0, 8192, (4, 128))

    def step(call: Any) -> None:
        model.zero_grad()
        call(tokens).backward()

    step(model)
    eager = best(lambda: step(model), seconds=5)
    with torchsan.session(check="values", calls="all") as run:
        compiled = torch.compile(model)
        step(compiled)
        checked = best(lambda: step(compiled), seconds=10)
    ratio = checked / eager
    print(
        f"a step of 24.9 million parameters: eager {eager:.2f} s, compiled and checked {checked:.2f} s: {ratio:.1f}x, "
        f"goal ≤ 6: {_met(ratio <= 6)} ({run.coverage.buffers_checked} buffers, {len(run.findings)} findings)"
    )


def _met(holds: bool) -> str:
    return "met" if holds else "missed"


def _run(folder: Path, program: str, before: list[str]) -> tuple[float, str, float]:
    """Run a program in a process of its own; return seconds, what it said, and its peak memory in MB."""
    script = folder / "program.py"
    script.write_text(program)
    caches = {"TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(dir=folder)}
    start = time.perf_counter()
    command = [sys.executable, "-W", "ignore", *before, str(script)]
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(command, cwd=folder, env=os.environ | caches, stdout=said, stderr=said)
        peak = 0.0
        while process.poll() is None and time.perf_counter() - start < LIMIT:
            peak = max(peak, _memory(process.pid))
            time.sleep(0.1)
        ended = "done" if process.poll() is not None else f"not within {LIMIT:.0f} s"
        process.kill()
        process.wait()
        said.seek(0)
        text = said.read()
    return (
        time.perf_counter() - start,
        f"{ended}: {text.strip().splitlines()[-1] if text.strip() else ''} {text}" if before else ended,
        peak,
    )


def _memory(pid: int) -> float:
    import psutil  # type: ignore[import-untyped]  # has no types

    try:
        process = psutil.Process(pid)
        return float(max(p.memory_info().rss for p in (process, *process.children(recursive=True)))) / 1e6
    except psutil.Error:
        return 0.0


def _minify(folder: Path) -> tuple[float, str]:
    """The accuracy minifier: the run that dumps a launcher, then the launcher's `minify`."""
    script = folder / "minify.py"
    script.write_text(PLAIN)
    environ = os.environ | {
        "TORCHDYNAMO_REPRO_AFTER": "aot",
        "TORCHDYNAMO_REPRO_LEVEL": "4",
        "TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(dir=folder),
    }
    start = time.perf_counter()
    try:
        subprocess.run([sys.executable, str(script)], cwd=folder, env=environ, capture_output=True, timeout=LIMIT)
        launchers = sorted(folder.rglob("minifier_launcher.py"))
        if not launchers:
            return time.perf_counter() - start, "gave nothing to minify"
        left = max(1.0, LIMIT - (time.perf_counter() - start))
        command = [sys.executable, str(launchers[0]), "minify"]
        subprocess.run(command, cwd=launchers[0].parent, env=environ, capture_output=True, timeout=left)
    except subprocess.TimeoutExpired:
        return time.perf_counter() - start, f"not within {LIMIT:.0f} s"
    return time.perf_counter() - start, "done"


if __name__ == "__main__":
    main()
