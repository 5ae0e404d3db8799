"""What holds for every finding about a planted fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from torchsan.checks.collector import Collector
from torchsan.records import Check, Finding


@pytest.fixture(autouse=True)
def every_finding_is_named(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Values and stages say which nodes, operators and lines a finding is about, or in one line why not."""
    seen: list[Finding] = []
    add = Collector.add

    def noted(self: Collector, key: Any, finding: Finding, *args: Any, **kwargs: Any) -> None:
        seen.append(finding)
        add(self, key, finding, *args, **kwargs)

    monkeypatch.setattr(Collector, "add", noted)
    yield
    for finding in seen:
        if finding.check not in (Check.VALUES, Check.STAGES):
            continue
        named = finding.nodes and finding.ops and finding.source
        assert named or "\n" not in finding.evidence.get("unnamed", "\n"), finding
