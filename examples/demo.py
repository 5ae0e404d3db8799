"""What `make demo` runs: torchsan on `examples/model.py`, and what to type next."""

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
MODEL = HERE / "model.py"
COMMAND = os.path.relpath(Path(sys.executable).with_name("torchsan"))


def main() -> int:
    command = ["torchsan", "run", "examples/model.py"]
    print(f"$ {' '.join(command)}   (a real miscompile of PyTorch; takes some seconds)\n", flush=True)
    out = f"torchsan-runs/demo-{time.strftime('%Y-%m-%d-%H%M%S')}"
    run = [sys.executable, "-m", "torchsan", "run", "--out", out, str(MODEL)]
    status = subprocess.run(run, cwd=HERE.parent, check=False).returncode
    if status != 1:
        print("\nNo wrong kernel was found here: your PyTorch or your CPU is not one that miscompiles this model.")
        return 0 if status == 0 else status
    print(
        f"\nThe wrong kernel by itself, as a script for a bug report (takes a minute):\n"
        f"  {COMMAND} repro {out}\n"
        "\nNow your own program:\n"
        f"  {COMMAND} run your_script.py            every check\n"
        f"  {COMMAND} run --watch print your_script.py   what every kernel reads and writes\n"
        f"  {COMMAND} doctor                        what works on this machine"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
