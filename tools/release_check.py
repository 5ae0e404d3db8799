"""Builds what a release would publish and uses it as a stranger would (`make release-check`).

In a temporary folder: the sdist, the wheel from that sdist, a fresh environment with the wheel and the pinned PyTorch,
and in it `torchsan --version`, `torchsan doctor` and one check of a program that PyTorch compiles wrongly. The two
files are left in `dist/` only if all of that works.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
WRONG_PROGRAM = ROOT / "tests" / "cases" / "uint8_amin.py"


class ReleaseError(Exception):
    """What keeps this checkout from being released."""


def declared_version(root: Path = ROOT) -> str:
    """Return the version that `_version.py` says; raise ReleaseError if the changelog does not know it."""
    text = (root / "src" / "torchsan" / "_version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"$', text, re.M)
    if match is None:
        raise ReleaseError("src/torchsan/_version.py says no version")
    release = match[1].partition(".dev")[0]
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(release)} \(", changelog, re.M):
        raise ReleaseError(f"CHANGELOG.md has no section '## {release} (date)'")
    return match[1]


def compare_contents(wheel: Path, src: Path, tracked: set[str]) -> None:
    """Raise ReleaseError unless the wheel holds the tracked files under `src` and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    missing, extra = sorted(tracked - packed), sorted(packed - tracked)
    if missing or extra:
        raise ReleaseError(f"{wheel.name} is not what {src} holds: missing {missing}, not tracked {extra}")


def run(*command: str | Path, status: int = 0, cwd: Path = ROOT) -> str:
    """Run a command as a stranger would, without this checkout on the path. Return its output."""
    print("$", *command, flush=True)
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TORCHSAN_OPTIONS")}
    environ["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
    done = subprocess.run(command, cwd=cwd, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != status:
        raise ReleaseError(f"status {done.returncode} instead of {status}:\n{done.stdout}")
    return done.stdout


def build(folder: Path, version: str) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, in `folder`. Raise ReleaseError if one is not what it should be."""
    run(sys.executable, "-m", "build", "--outdir", folder)
    (wheel,) = folder.glob(f"torchsan-{version}-*.whl")
    (sdist,) = folder.glob(f"torchsan-{version}.tar.gz")
    tracked = run("git", "ls-files", "--", ".", cwd=ROOT / "src").split()
    compare_contents(wheel, ROOT / "src", set(tracked))
    return sdist, wheel


def check(folder: Path) -> None:
    """Build in `folder`, install there, and try it."""
    version = declared_version()
    sdist, wheel = build(folder / "dist", version)
    venv.create(folder / "fresh", with_pip=True)
    scripts = folder / "fresh" / ("Scripts" if os.name == "nt" else "bin")
    run(scripts / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    said = run(scripts / "torchsan", "--version", cwd=folder)
    if said != f"torchsan {version}\n":
        raise ReleaseError(f"torchsan --version says {said!r}, not {version}")
    print(run(scripts / "torchsan", "doctor", cwd=folder))
    found = run(scripts / "torchsan", "run", "--check", "values", WRONG_PROGRAM, cwd=folder, status=1)
    if "wrong-values" not in found:
        raise ReleaseError(f"the wrong kernel was not found:\n{found}")

    (ROOT / "dist").mkdir(exist_ok=True)
    for file in (sdist, wheel):
        shutil.copy(file, ROOT / "dist")
        print(f"dist/{file.name}: {file.stat().st_size:,} bytes")


def main() -> int:
    """Check this checkout; return the exit status."""
    with tempfile.TemporaryDirectory(prefix="torchsan-release-") as folder:
        try:
            check(Path(folder))
        except ReleaseError as error:
            print(f"release-check: {error}", file=sys.stderr)
            return 1
    print("release-check: sdist and wheel work")
    return 0


if __name__ == "__main__":
    sys.exit(main())
