"""What keeps a checkout from being released is said; the whole of it is `make release-check`."""

from __future__ import annotations

import sys
import time
import zipfile
from pathlib import Path

import pytest
from tools import release_check
from tools.release_check import ReleaseError

import torchsan


def test_this_checkout_declares_its_version() -> None:
    assert release_check.declared_version() == torchsan.__version__


@pytest.mark.parametrize(
    ("version", "changelog", "problem"),
    [("x = 1\n", "", "says no version"), ('__version__ = "0.2.0"\n', "## 0.1.0 (2026-01-01)\n", "no section")],
)
def test_a_version_that_the_changelog_does_not_know(tmp_path: Path, version: str, changelog: str, problem: str) -> None:
    (tmp_path / "src" / "torchsan").mkdir(parents=True)
    (tmp_path / "src" / "torchsan" / "_version.py").write_text(version)
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    with pytest.raises(ReleaseError, match=problem):
        release_check.declared_version(tmp_path)


def test_the_section_of_a_development_version_is_that_of_its_release(tmp_path: Path) -> None:
    (tmp_path / "src" / "torchsan").mkdir(parents=True)
    (tmp_path / "src" / "torchsan" / "_version.py").write_text('__version__ = "0.2.0.dev0"\n')
    (tmp_path / "CHANGELOG.md").write_text("## 0.2.0 (unreleased)\n")
    assert release_check.declared_version(tmp_path) == "0.2.0.dev0"


def test_a_wheel_holds_what_is_tracked(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("torchsan/a.py", "torchsan/page.html", "torchsan-1.dist-info/METADATA"):
            archive.writestr(name, "")
    release_check.compare_contents(wheel, tmp_path, {"torchsan/a.py", "torchsan/page.html"})
    with pytest.raises(ReleaseError, match=r"missing \['torchsan/b.py'\], not tracked \['torchsan/page.html'\]"):
        release_check.compare_contents(wheel, tmp_path, {"torchsan/a.py", "torchsan/b.py"})


@pytest.mark.slow
def test_the_wheel_is_small_and_quickly_installed_beside_a_pytorch(tmp_path: Path) -> None:
    sdist, wheel = release_check.build(tmp_path / "dist", torchsan.__version__)
    assert max(sdist.stat().st_size, wheel.stat().st_size) < 3_000_000
    target = tmp_path / "installed"
    start = time.monotonic()
    release_check.run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wheel)
    assert time.monotonic() - start < 10
    code = f"import sys; sys.path.insert(0, {str(target)!r}); import torchsan; print(torchsan.__file__)"
    assert str(target) in release_check.run(sys.executable, "-c", code, cwd=tmp_path)
