"""Which findings a suppression selects."""

from __future__ import annotations

import pytest

from tests.samples import finding
from torchsan.records import SourceLine
from torchsan.records.finding import fingerprint
from torchsan.records.suppression import Suppression

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
