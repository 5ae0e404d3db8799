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
    print(f"$ {' '.join(command)}   (a real miscompile of PyTorch; it is compiled first)\n", flush=True)
    out = f"torchsan-runs/demo-{time.strftime('%Y-%m-%d-%H%M%S')}"
    page = f"{out}.html"
    (HERE.parent / "torchsan-runs").mkdir(exist_ok=True)
    run = [sys.executable, "-m", "torchsan", "run", "--out", out, "--html", page, str(MODEL)]
    start = time.monotonic()
    status = subprocess.run(run, cwd=HERE.parent, check=False).returncode
    print(f"\n({time.monotonic() - start:.0f} s)")
    if status != 1:
        print("\nNo wrong kernel was found here: your PyTorch or your CPU is not one that miscompiles this model.")
        return 0 if status == 0 else status
    print(
        f"\nThe wrong kernel by itself, as a script for a bug report (one to two minutes):\n"
        f"  {COMMAND} repro {out}\n"
        "\nNow your own program:\n"
        f"  {COMMAND} run your_script.py            every check\n"
        f"  {COMMAND} run --watch print your_script.py   what every kernel reads and writes\n"
        f"  {COMMAND} doctor                        what works on this machine\n"
        f"\nThe same as a page, with the kernel, the nodes and the source side by side:\n"
        f"  {(HERE.parent / page).as_uri()}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
