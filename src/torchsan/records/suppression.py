"""Findings that a user knows of: which they are, and why they do not count. No torch here."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchsan.errors import RecordingError
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
            and (self.id is None or self.id == fingerprint(finding))
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

    @property
    def is_an_id(self) -> bool:
        """Whether it names one finding, and nothing else of it."""
        return str(self) == f"id {self.id}"

    def __str__(self) -> str:
        names = ("kind", "check", "op", "kernel", "source", "id")
        return ", ".join(f"{name} {value}" for name in names if (value := getattr(self, name)) is not None)


_MOST_COMPARED = 1_000_000
"""Findings times suppressions that are more than an id: seconds. Nobody writes thousands of those by hand."""


class Suppressions:
    """Those of a run, tried on its findings. An id, of which a baseline can have many, is looked up instead.

    Raise RecordingError if there are more to try than any run has.
    """

    def __init__(self, given: Sequence[Suppression], day: str, findings: Sequence[Finding]) -> None:
        """Take those that a run on `day` was given, and what it found."""
        self._expired = [s for s in given if s.expired(day)]
        valid = [s for s in given if not s.expired(day)]
        ids = {s.id: s for s in reversed(valid) if s.is_an_id}
        others = [s for s in valid if not s.is_an_id]
        if len(others) * len(findings) > _MOST_COMPARED:
            raise RecordingError(
                f"{len(others)} suppressions for {len(findings)} findings are more than torchsan compares; the "
                "recording is damaged",
                slug="malformed-record",
            )
        self._of = {id(f): known for f in findings if (known := ids.get(fingerprint(f)))} if ids else {}
        used = {s.id for s in self._of.values()}
        self._idle = [s for s in ids.values() if s.id not in used]
        for suppression in others:
            fitting = {id(f): suppression for f in findings if suppression.fits(f)}
            self._of = fitting | self._of
            self._idle += [] if fitting else [suppression]

    def of(self, finding: Finding) -> Suppression | None:
        """Return what one of the findings falls under; None if it counts."""
        return self._of.get(id(finding))

    def idle(self) -> Iterator[str]:
        """Yield what to tell the user of those that have expired, or that no finding fits."""
        for suppression in self._expired:
            if not suppression.baseline:
                yield f"a suppression has expired on {suppression.expires}: {suppression} ({suppression.reason})"
        for suppression in self._idle:
            if not suppression.baseline:
                yield f"a suppression fits no finding of this run: {suppression} ({suppression.reason})"
