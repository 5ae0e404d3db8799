"""From a wrong compiled model to the culprit: torchsan next to PyTorch's own tools. `python -m benchmarks values`.

Measured in one run: compiling and running without torchsan, `--check values`, `CompilerBisector` on the forward and the
accuracy minifier (`TORCHDYNAMO_REPRO_AFTER=aot`, level 4).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.transformer import BISECT, PLAIN, met, minify, run


def main() -> None:
    """Measure, and print all sides with their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        plain = run(here, PLAIN, [])
        ours = run(here, PLAIN, ["-m", "torchsan", "run", "--quiet", "--check", "values"])
        bisected = run(here, BISECT, [])
        minified, _ = minify(here)
    print("from start to named culprit            seconds   of torchsan's")
    for name, ended in (
        ("compile and run, no tool", plain),
        ("torchsan run --check values", ours),
        ("CompilerBisector", bisected),
        ("accuracy minifier", minified),
    ):
        ratio = ended.seconds / ours.seconds
        print(f"{name:<36}{ended.seconds:>10.1f}{ratio:>14.2f}x   memory {ended.memory:.0f} MB   {ended.how}")
    print(f"torchsan names it: {'relu' in ours.said}")
    time, memory = ours.seconds / plain.seconds, ours.memory / plain.memory
    print(f"goals: ≤ 2x of no tool: {time:.2f} ({met(time <= 2)}); memory ≤ 2x: {memory:.2f} ({met(memory <= 2)}); "
          f"≤ 1/6 of the bisector: {met(bisected.seconds >= 6 * ours.seconds)}; ≤ 1/20 of the minifier: "
          f"{met(minified.seconds >= 20 * ours.seconds)}")  # fmt: skip
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
        f"goal ≤ 6: {met(ratio <= 6)} ({run.coverage.buffers_checked} buffers, {len(run.findings)} findings)"
    )


if __name__ == "__main__":
    main()
