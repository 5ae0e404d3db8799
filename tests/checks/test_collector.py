"""A finding is recorded once for each key, amended, and handed to the policy; the first errors keep an exhibit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.samples import finding
from torchsan.checks.collector import Collector, raise_error
from torchsan.errors import FindingsError
from torchsan.graphs.data import Keep
from torchsan.recording import Reader, Recorder, Writer
from torchsan.records import Check, Exhibit, Finding, Severity
from torchsan.store import Store


def exhibit(found: Finding, keep: Keep, config: Mapping[str, Any]) -> Exhibit:
    keep("x0", torch.ones(4))
    return Exhibit(finding=found.id, check=found.check, nodes=(), inputs=(), outputs=())


def test_a_finding_is_recorded_once_for_each_key_of_its_check() -> None:
    recorder = Recorder()
    collector = Collector(recorder)
    for check, key in [(Check.VALUES, 1), (Check.VALUES, 1), (Check.VALUES, 2), (Check.MEMORY, 1)]:
        collector.add(key, finding(check=check))
    assert [(f.id, f.check) for f in recorder.findings] == [("F1", "values"), ("F2", "values"), ("F3", "memory")]
    assert collector.find(Check.MEMORY, 1) == recorder.findings[2]
    assert collector.find(Check.MEMORY, 2) is None


def test_one_that_is_known_is_merged_at_once_and_counted_in_the_end() -> None:
    recorder = Recorder()
    collector = Collector(recorder)
    collector.add("key", finding(Severity.WARNING, evidence={"n": 1}))

    def merge(known: Finding, new: Finding) -> Finding:
        return replace(new, id=known.id, evidence={"n": known.evidence["n"] + 1})

    collector.add("key", finding(Severity.ERROR), merge=merge)
    assert [(f.id, f.severity, f.evidence) for f in recorder.findings] == [("F1", Severity.ERROR, {"n": 2})]
    collector.amend(Check.VALUES, "key", lambda known: replace(known, evidence={"n": 9}))
    assert recorder.findings[0].evidence == {"n": 2}
    collector.close()
    assert recorder.findings[0].evidence == {"n": 9}


def test_the_policy_is_asked_at_every_error_and_about_nothing_else() -> None:
    asked: list[str] = []
    collector = Collector(Recorder(), on_error=lambda f: asked.append(f.id))
    collector.add(1, finding(Severity.WARNING))
    collector.add(2, finding())
    collector.add(2, finding())
    assert asked == ["F2"]
    collector.amend(Check.VALUES, 2, lambda known: known)
    collector.add(2, finding(), merge=lambda known, _: known)
    assert asked == ["F2"] * 3


def test_fail_fast_raises_a_finding_that_is_recorded() -> None:
    recorder = Recorder()
    collector = Collector(recorder, on_error=raise_error)
    with pytest.raises(FindingsError, match=r"(?s)F1: wrong-values: .* other values.*at model.py:12"):
        collector.add(1, finding())
    assert len(recorder.findings) == 1


def test_exhibits_are_kept_of_the_first_errors(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=())
    collector = Collector(writer, tensors=tmp_path / "run" / "tensors", max_bytes=3 * 16)
    collector.add("warning", finding(Severity.WARNING), exhibit)
    for n in range(10):
        collector.add(n, finding(), exhibit)
    collector.close()
    writer.close()
    recording = Reader(tmp_path / "run")
    assert [e["exhibit"]["finding"] for e in recording.events("exhibit")] == [f"F{n}" for n in range(2, 10)]
    assert [e["finding"] for e in recording.events("no-exhibit")] == ["F10", "F11"]
    with Store(tmp_path / "run" / "tensors") as store:
        assert sorted(store.names()) == ["repro/F2/x0", "repro/F3/x0", "repro/F4/x0"]


def test_an_exhibit_that_cannot_be_made_is_said_in_the_recording(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=())
    collector = Collector(writer, tensors=tmp_path / "run" / "tensors")

    def fails(found: Finding, keep: Keep, config: Mapping[str, Any]) -> Exhibit:
        raise ValueError("no such thing\nat all")

    collector.add(1, finding(), fails)
    collector.close()
    writer.close()
    (event,) = Reader(tmp_path / "run").events("no-exhibit")
    assert event == {"finding": "F1", "reason": "ValueError: no such thing"}
