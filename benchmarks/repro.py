"""From a wrong compiled model to a verified minimal reproducer: torchsan next to PyTorch's accuracy minifier.

`python -m benchmarks repro`. The same transformer as of `python -m benchmarks values`, from the start of the program.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from benchmarks.transformer import PLAIN, met, minify, run


def main() -> None:
    """Measure, and print both sides with what they came to."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        ours = run(here, PLAIN, ["-m", "torchsan", "run", "--quiet", "--repro", "--check", "values"])
        minified, nodes = minify(here)
    size = re.search(r"(\d+) operator calls?, \d+ lines.*", ours.said)
    verified = "verified" in ours.said and "NOT verified" not in ours.said
    print("from start to a minimal reproducer       seconds   nodes")
    print(f"{'torchsan run --repro':<38}{ours.seconds:>10.1f}   {size[0] if size else 'none'}; verified: {verified}")
    left = "no reproducer" if nodes is None else f"{nodes}"
    print(f"{'accuracy minifier':<38}{minified.seconds:>10.1f}   {left}; {minified.how}")
    ratio = minified.seconds / ours.seconds
    print(f"goals: ≤ 1/8 of the time: {ratio:.1f} ({met(ratio >= 8)}); "
          f"fewer nodes: {met(size is not None and (nodes is None or int(size[1]) < nodes))}")  # fmt: skip


if __name__ == "__main__":
    main()
