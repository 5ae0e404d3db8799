"""Findings that a user knows of: which they are, and why they do not count. No torch here."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from torchsan.records.finding import Finding, fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """Selects findings by all of the fields that are not None; `op`, `kernel` and `source` are globs.

    `source` is a file, or `FILE:LINE`. `expires` is a date as in `2027-03-01`, from which on it does not apply.
    `baseline`: it comes from the report of an earlier run, so nobody has to be told if it is not needed any more.
    """

    reason: str
    kind: str | None = None
    check: str | None = None
    op: str | None = None
    kernel: str | None = None
    source: str | None = None
    id: str | None = None
    expires: str | None = None
    baseline: bool = False

    def fits(self, finding: Finding) -> bool:
        """Return whether it selects a finding; its date is not looked at."""
        return (
            self.kind in (None, finding.kind)
            and self.check in (None, finding.check)
            and (self.op is None or any(fnmatch.fnmatchcase(op, self.op) for op in finding.ops))
            and (self.kernel is None or fnmatch.fnmatchcase(finding.kernel or "", self.kernel))
            and (self.source is None or self._at_source(finding, self.source))
            and self.id in (None, fingerprint(finding))
        )

    @staticmethod
    def _at_source(finding: Finding, source: str) -> bool:
        for line in finding.source:
            file = line.file.replace("\\", "/")
            for place in (file, f"{file}:{line.line}"):
                # `model.py` means the file of that name wherever it is, as in a .gitignore.
                if fnmatch.fnmatchcase(place, source) or fnmatch.fnmatchcase(place, f"*/{source}"):
                    return True
        return False

    def expired(self, day: str) -> bool:
        """Return whether it does not apply any more on a day, given as in `2027-03-01`."""
        return self.expires is not None and day >= self.expires

    def __str__(self) -> str:
        names = ("kind", "check", "op", "kernel", "source", "id")
        return ", ".join(f"{name} {value}" for name in names if (value := getattr(self, name)) is not None)
