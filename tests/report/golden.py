"""Gold files: what a report looked like when somebody last looked at it.

`TORCHSAN_RENEW_GOLD=1 pytest tests/report tests/cli/test_diff.py` writes them anew; look at what `git diff` says
before you commit.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["assert_golden", "assert_golden_json"]

FOLDER = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    """The text is that of the gold file `name`, or becomes it."""
    file = FOLDER / name
    if os.environ.get("TORCHSAN_RENEW_GOLD"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"{name} differs; {__doc__}"


def assert_golden_json(name: str, value: Any) -> None:
    """The same for JSON values."""
    assert_golden(name, json.dumps(value, indent=2, allow_nan=False) + "\n")
