"""`python -m benchmarks [NAME…]`: run the benchmarks named, or all."""

from __future__ import annotations

import importlib
import sys

BENCHMARKS = ["summarize", "startup", "store", "watch", "values", "stages", "crossref", "memory", "repro", "packages"]


def main(names: list[str]) -> int:
    """Run the benchmarks in `names`; return 2 where one is unknown."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
