"""Which findings a suppression selects."""

from __future__ import annotations

import time

import pytest

from tests.samples import finding
from torchsan.errors import RecordingError
from torchsan.records import SourceLine
from torchsan.records.finding import fingerprint
from torchsan.records.suppression import Suppression, Suppressions

FOUND = finding(source=(SourceLine(file="/home/me/src/model.py", line=12, code="x = self.act(x)"),))


@pytest.mark.parametrize(
    "selector",
    [
        {"kind": "wrong-values"},
        {"check": "values"},
        {"op": "aten.relu.*"},
        {"kernel": "cpp_fused_*"},
        {"source": "model.py"},
        {"source": "model.py:12"},
        {"source": "src/*.py"},
        {"source": "/home/me/src/model.py:12"},
        {"id": fingerprint(FOUND)},
        {"kind": "wrong-values", "source": "model.py"},
    ],
)
def test_what_fits(selector: dict[str, str]) -> None:
    assert Suppression(reason="known", **selector).fits(FOUND)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "selector",
    [
        {"kind": "non-finite"},
        {"check": "stages"},
        {"op": "aten.tanh.*"},
        {"kernel": "cpp_fused"},
        {"source": "odel.py"},
        {"source": "model.py:1"},
        {"id": "0" * 16},
        {"kind": "wrong-values", "source": "other.py"},
    ],
)
def test_what_does_not(selector: dict[str, str]) -> None:
    assert not Suppression(reason="known", **selector).fits(FOUND)  # type: ignore[arg-type]


def test_it_ends_on_its_day() -> None:
    known = Suppression(reason="known", kind="wrong-values", expires="2027-03-01")
    assert not known.expired("2027-02-28")
    assert known.expired("2027-03-01")
    assert not Suppression(reason="known", kind="wrong-values").expired("2999-01-01")


def test_the_first_that_fits_is_named_and_those_that_do_nothing_are_told() -> None:
    other = finding(kernel="another")
    given = [
        Suppression(reason="old", kind="wrong-values", expires="2020-01-01"),
        Suppression(reason="known", kernel="anoth*"),
        Suppression(reason="again", kernel="another"),
        Suppression(reason="here", id=fingerprint(FOUND)),
        Suppression(reason="gone", id="0" * 16),
        Suppression(reason="before", id="1" * 16, baseline=True),
        Suppression(reason="never", op="aten.tanh.*"),
    ]
    all_ = Suppressions(given, "2027-01-01", [FOUND, other])
    assert (all_.of(FOUND), all_.of(other)) == (given[3], given[1])
    assert [text.rpartition("(")[2] for text in all_.idle()] == ["old)", "gone)", "never)"]


def test_a_baseline_of_many_is_looked_up_and_not_tried() -> None:
    findings = [finding(kernel=f"k{n}x") for n in range(3000)]
    given = [Suppression(reason="known", id=fingerprint(f), baseline=True) for f in findings]
    begun = time.process_time()
    all_ = Suppressions(given, "2027-01-01", findings)
    assert all(all_.of(f) for f in findings)
    assert time.process_time() - begun < 10


def test_more_than_anybody_writes_is_refused() -> None:
    given = [Suppression(reason="known", kernel=f"*{n}*") for n in range(2000)]
    with pytest.raises(RecordingError, match="2000 suppressions for 2000 findings"):
        Suppressions(given, "2027-01-01", [FOUND] * 2000)
