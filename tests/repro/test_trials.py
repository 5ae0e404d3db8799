"""What came of a trial is remembered, unless it had no chance."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.repro.made_up import exhibit
from torchsan.records import Check, Finding, Kind, Severity
from torchsan.repro.trial_server import Stopped
from torchsan.repro.trials import Trials

FINDING = Finding(check=Check.VALUES, kind=Kind.WRONG_VALUES, severity=Severity.ERROR, message="")


class TooSlow:
    """A zygote whose trials take longer than they may."""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"id": 0, "status": -9, "seconds": request["timeout"], "timeout": True}


def trials(folder: Path, *, limit: float, left: float) -> Trials:
    return Trials(
        FINDING,
        TooSlow(),  # type: ignore[arg-type]  # it is only asked
        folder,
        write=lambda candidate, folder: "repro.py",
        checks=("values",),
        loads=(),
        limit=limit,
        deadline=time.monotonic() + left,
        jobs=1,
        progress=lambda text: None,
        known={},
    )


def test_a_trial_that_takes_too_long_does_not_show_the_finding(tmp_path: Path) -> None:
    some = trials(tmp_path, limit=5, left=100)
    assert some.first([exhibit()]) is None
    assert list(some.known.values()) == [False]


def test_nothing_is_known_of_a_trial_that_the_end_of_all_time_cut_short(tmp_path: Path) -> None:
    some = trials(tmp_path, limit=100, left=5)
    with pytest.raises(Stopped, match="the time limit"):
        some.first([exhibit()])
    assert some.known == {}
