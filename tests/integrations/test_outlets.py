"""Where findings and figures are told."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.samples import finding
from torchsan.errors import UsageError
from torchsan.integrations.outlets import LogOutlet, PrometheusOutlet, TensorBoardOutlet, open_outlets

FIGURES = {"torchsan/errors": 1.0, "torchsan/cost": 0.0098}


def test_a_logger_gets_a_line_for_figures_and_one_for_a_finding(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="mine"):
        outlet = LogOutlet("mine")
        outlet.figures(FIGURES, 200)
        outlet.finding(finding(message="it is wrong"), 201)
        outlet.close()
    assert caplog.messages[0] == "step 200: errors 1, cost 0.0098"
    assert "step 201" in caplog.messages[1]
    assert "it is wrong" in caplog.messages[1]
    assert caplog.records[1].levelno == logging.ERROR


def test_prometheus_gets_a_file_that_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    file = tmp_path / "job.prom"
    outlet = PrometheusOutlet(str(file))
    for step in (100, 200):
        outlet.figures(FIGURES, step)
    outlet.finding(finding(), 200)
    outlet.close()
    lines = file.read_text().splitlines()
    assert lines[:2] == ["# TYPE torchsan_errors gauge", 'torchsan_errors{rank="3"} 1.0']
    assert lines[-1] == 'torchsan_step{rank="3"} 200.0'
    assert [entry.name for entry in tmp_path.iterdir()] == ["job.prom"]


def test_tensorboard_gets_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    outlet = TensorBoardOutlet(str(tmp_path))
    outlet.figures(FIGURES, 200)
    outlet.finding(finding(message="it is wrong"), 201)
    outlet.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (scalar,) = events.Scalars("torchsan/cost")
    assert (scalar.step, scalar.value) == (200, pytest.approx(0.0098))
    (text,) = events.Tensors("torchsan/findings/text_summary")
    assert text.step == 201


def test_outlets_are_opened_by_name(tmp_path: Path) -> None:
    mine = LogOutlet()
    opened = open_outlets(["log", f"prometheus:{tmp_path / 'a:b.prom'}", mine])
    assert [type(outlet) for outlet in opened] == [LogOutlet, PrometheusOutlet, LogOutlet]
    assert opened[2] is mine
    with pytest.raises(UsageError, match="allowed: log"):
        open_outlets("smoke-signals")
