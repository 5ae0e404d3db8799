"""The texts of a recording: each read once, cut if it is very long, and packed into a part of the page of its own."""

from __future__ import annotations

from typing import Any

from torchsan.errors import RecordingError
from torchsan.recording import Reader

__all__ = ["Texts"]

_LONGEST = 12_000_000
"""Characters of one text. A wrapper with 2,000 kernels has some 8 million; packed, it is a tenth of that."""
_ALL = 60_000_000


class Texts:
    """Reads artifacts, and numbers the texts that the page takes along."""

    def __init__(self, recording: Reader) -> None:
        self._recording = recording
        self._read: dict[str, str] = {}
        self._left = _ALL
        self.parts: dict[str, Any] = {}

    def read(self, name: str) -> str:
        """The text of an artifact; one that cannot be read is a text that says so."""
        if name not in self._read:
            try:
                self._read[name] = self._recording.artifact(name)
            except RecordingError as e:
                self._read[name] = f"({e})"
        return self._read[name]

    def part(self, name: str) -> dict[str, Any]:
        """Put an artifact into the page. Return its part, and its size as it is and as it is shown."""
        text = self.read(name)
        shown = text[: max(0, min(_LONGEST, self._left))]
        self._left -= len(shown)
        key = f"text-{len(self.parts)}"
        self.parts[key] = shown.encode("utf-8", "replace").decode("utf-8")
        return {
            "text": key,
            "bytes": len(text.encode("utf-8", "replace")),
            "lines": text.count("\n") + (not text.endswith("\n") and bool(text)),
            "cut": len(text) if len(shown) < len(text) else None,
        }
