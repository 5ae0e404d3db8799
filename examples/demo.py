"""What `make demo` runs: torchsan on `examples/model.py`, and what to type next."""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
MODEL = HERE / "model.py"


def main() -> int:
    command = ["torchsan", "run", "examples/model.py"]
    print(f"$ {' '.join(command)}   (a real miscompile of PyTorch 2.13; takes some seconds)\n", flush=True)
    with tempfile.TemporaryDirectory() as out:
        run = [sys.executable, "-m", "torchsan", "run", "--out", str(Path(out) / "demo"), str(MODEL)]
        status = subprocess.run(run, cwd=HERE.parent, check=False).returncode
    if status != 1:
        print("\nNo wrong kernel was found here: your PyTorch or your CPU is not one that miscompiles this model.")
        return 0 if status == 0 else status
    print(
        "\nNow your own program:\n"
        "  .venv/bin/torchsan run your_script.py            every check\n"
        "  .venv/bin/torchsan run --watch print your_script.py   what every kernel reads and writes\n"
        "  .venv/bin/torchsan doctor                        what works on this machine"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
