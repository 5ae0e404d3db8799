"""Makes an environment with another PyTorch for the tests (`make test-torch TORCH=2.15.0`), and prints its Python.

Without a version it is the newest that is supported. The exit status is 75 if a package could not be had.

`.venvs/<version>` holds that PyTorch and the Triton that it asks for; everything else is `.venv`'s own. PyTorch's
builds on the package index are for CUDA, and do not load without its libraries, though nothing here calls them: 3 GB
that all environments share, in `.venvs/libraries`. The version that `constraints.txt` pins is `.venv` itself.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
MATRIX = ("2.12.1", "2.13.0", "2.14.1", "2.15.0")
"""What `make test-matrix` runs the tests on: the newest of each release that `seams.TESTED` lists."""
LIBRARIES = (
    "cuda-toolkit[cublas,cudart,cufft,cufile,cupti,curand,cusparse,nvjitlink,nvrtc]==13.2.2",
    "nvidia-cudnn-cu13==9.26.0.51",
    "nvidia-cusparselt-cu13==0.8.1",
    "nvidia-nccl-cu13==2.30.7",
    "nvidia-nvshmem-cu13==3.7.2",
)
"""What PyTorch 2.15 links, and curand, which older ones do. Those were built with older releases of these, and load."""


def pinned(root: Path = ROOT) -> str:
    """Return the version of PyTorch that `constraints.txt` pins."""
    match = re.search(r"^torch==(\S+)$", (root / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


def site_packages(environment: Path) -> Path:
    """Return where an environment keeps its packages."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def triton_for(requirements: list[str]) -> str | None:
    """Return the Triton among the requirements of a PyTorch, without the conditions: `triton==3.7.1`."""
    found = (re.match(r"triton[^;]*", line) for line in requirements)
    return next((match[0].strip() for match in found if match), None)


def install(*words: str) -> None:
    """Run pip; once more if that fails, since gigabytes are on their way. Exit with EX_TEMPFAIL if they do not come."""
    command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-warn-conflicts"]
    for last in (False, True):
        status = subprocess.run([*command, *words], cwd=ROOT, stdout=sys.stderr, check=False).returncode
        if status == 0:
            return
        if last:
            say(f"pip install {' '.join(words)} failed twice, with status {status}")
            raise SystemExit(os.EX_TEMPFAIL)
        time.sleep(10)


def libraries(folder: Path) -> Path:
    """Install the libraries that all environments share, once. Return the folder that the builds look for."""
    done = folder / "installed"
    if not done.exists() or done.read_text() != "\n".join(LIBRARIES):
        say(f"the CUDA libraries that PyTorch's builds link, into {folder} (once; 1.7 GB to download)")
        shutil.rmtree(folder, ignore_errors=True)
        install("--target", str(folder), *LIBRARIES)
        done.write_text("\n".join(LIBRARIES))
    return folder / "nvidia"


def make(version: str) -> Path:
    """Make the environment for a version of PyTorch if it is not there. Return its Python."""
    if version == pinned():
        return ROOT / ".venv" / "bin" / "python"
    environment = ROOT / ".venvs" / version
    python, done = environment / "bin" / "python", environment / "installed"
    if done.exists():
        return python
    say(f"an environment with PyTorch {version} in {environment} (once; 0.7 GB to download)")
    shutil.rmtree(environment, ignore_errors=True)
    venv.create(environment, with_pip=False)
    packages = site_packages(environment)
    (packages / "nvidia").symlink_to(libraries(ROOT / ".venvs" / "libraries"))
    install("--target", str(packages), "--no-deps", f"torch=={version}")
    (distribution,) = importlib.metadata.distributions(name="torch", path=[str(packages)])
    if (triton := triton_for(distribution.requires or [])) is not None:
        install("--target", str(packages), "--no-deps", triton)
    # What is here comes first. A nested .pth file would not be read, so the sources have a line of their own.
    (packages / "a_sources.pth").write_text(f"{ROOT / 'src'}\n")
    (packages / "z_shared.pth").write_text(f"import site; site.addsitedir({str(site_packages(ROOT / '.venv'))!r})\n")
    command = environment / "bin" / "torchsan"
    command.write_text(f"#!{python}\nfrom torchsan.cli.main import main\nraise SystemExit(main())\n")
    command.chmod(0o755)
    done.write_text(version)
    return python


def say(text: str) -> None:
    """Say what takes long; stdout is for the answer."""
    print(f"== {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(make(sys.argv[1] if len(sys.argv) > 1 else MATRIX[-1]))
