"""What pyproject.toml declares, found by importlib.metadata whether or not this checkout is installed."""

from __future__ import annotations

import tomllib
from pathlib import Path

from torchsan import __version__

_ROOT = Path(__file__).parents[1]


def write_entry_points(folder: Path) -> None:
    """Make `folder`, once it is on the path, the place where torchsan seems to be installed."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    info = folder / f"torchsan-{__version__}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torchsan\nVersion: {__version__}\n")
    groups = project["entry-points"]
    text = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(text))
