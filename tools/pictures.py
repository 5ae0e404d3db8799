"""Makes the pictures of the documentation anew (`make pictures`), in the Chromium of the system or Playwright's own.

They show what `torchsan run --html` writes about `examples/model.py`, and what `torchsan diff --html` writes about two
runs of a linear layer that began with other weights. Look at them before you commit them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
VARIABLE = "TORCHSAN_CHROMIUM"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LINEAR = """
import sys
import torch

torch.manual_seed(int(sys.argv[1]))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(16, 8)

    def forward(self, x):
        return torch.relu(self.fc(x))


net = torch.compile(Net())
net(torch.ones(4, 16))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A part of a page: which file and address, how large the window is, and in which colours."""

    name: str
    page: str
    route: str
    width: int
    height: int
    theme: Literal["light", "dark"] = "light"


PICTURES = (
    Picture(name="report.png", page="report.html", route="#findings/F1", width=1360, height=1200),
    Picture(name="report-phone.png", page="report.html", route="#findings/F1", width=390, height=844, theme="dark"),
    Picture(
        name="report-artifact.png",
        page="report.html",
        route="#artifacts/graph0-inference.fx.py",
        width=1360,
        height=900,
    ),
    Picture(name="diff.png", page="diff.html", route="", width=1360, height=840),
)


def chromium() -> str | None:
    """Return the browser that the user names, or that of the system; None if there is none, for Playwright's own."""
    return os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, _NAMES)), None)


def make_pages(folder: Path) -> None:
    """Write the pages that are shown into a folder."""
    (folder / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "model.py", folder / "examples")  # So that no picture shows where this lies.
    _torchsan(folder, "run", "--html", "report.html", "--out", "run", "examples/model.py")
    (folder / "linear.py").write_text(_LINEAR)
    for seed in ("1", "2"):
        _torchsan(folder, "run", "--check", "values", "--watch", "save", "--out", f"seed{seed}", "linear.py", seed)
    _torchsan(folder, "diff", "--html", "diff.html", "seed1", "seed2")


def _torchsan(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "torchsan", *words]
    status = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False).returncode
    if status not in (0, 1):
        raise SystemExit(f"torchsan {' '.join(words)} ended with {status}")


def main() -> None:
    """Make the pages, and a picture of each part."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        make_pages(folder)
        # As root Chromium runs without its sandbox or not at all; what it shows here is our own.
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for picture in PICTURES:
            size = {"width": picture.width, "height": picture.height}
            page = browser.new_context(viewport=size, color_scheme=picture.theme).new_page()  # type: ignore[arg-type]  # a TypedDict
            page.goto(f"{(folder / picture.page).as_uri()}{picture.route}")
            page.wait_for_timeout(500)
            page.screenshot(path=ROOT / "docs" / picture.name)
            print(f"== wrote docs/{picture.name}", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
