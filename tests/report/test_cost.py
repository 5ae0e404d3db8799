"""Where the time went, and what the options would have saved, from the figures of the recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.samples import graph
from torchsan.options import Options
from torchsan.recording import Program, Reader, Writer, finalize
from torchsan.records import (
    CallTimes,
    Check,
    Direction,
    Forecast,
    GraphCost,
    GraphId,
    LaunchCost,
    LaunchTime,
    RunCost,
)
from torchsan.report.cost import cost_lines, forecast_text, savings
from torchsan.report.json_report import as_json, report_schema

LAUNCHES = (
    LaunchCost(nth=0, parts={"values": 2.0, "memory": 0.25, "torchsan": 0.5}),
    LaunchCost(nth=1, parts={"values": 3.0}),
)
COST = RunCost(
    seconds=20.0,
    parts={"compile": 6.0, "values": 5.0, "memory": 0.25, "stages": 1.0, "torchsan": 0.75, "cache": 0.0},
    later={"values": 2.0, "stages": 0.5, "torchsan": 0.25},
    graphs=(GraphCost(graph=GraphId(0), direction=Direction.FORWARD, parts={"values": 5.0}, launches=LAUNCHES),),
)


def recorded(folder: Path, cost: RunCost | None, **options: Any) -> Reader:
    writer = Writer.create(folder / "run", command=["script.py"], options=Options(**options))
    writer.graph(graph())
    launch = LaunchTime(nth=0, launches=2, seconds=0.5, bytes_read=8, bytes_written=4)
    times = CallTimes(graph=GraphId(0), direction=Direction.FORWARD, call=0, launches=(launch,))
    writer.event("times", {"times": times})
    if cost is not None:
        writer.event("cost", {"cost": cost})
    writer.close()
    finalize(writer.path, Program(exit=0))
    return Reader(writer.path)


def test_the_table_has_the_parts_the_dearest_kernels_and_what_saves_most(tmp_path: Path) -> None:
    text = "\n".join(line.text for line in cost_lines(recorded(tmp_path, COST)))
    assert (
        text
        == """
Where the time went: 20.0 s
  the program          7.0 s   35%
  compiling it         6.0 s   30%
  check values         5.0 s   25%   2.0 s of it in later calls
  check stages         1.0 s    5%   0.50 s of it in later calls
  check memory        0.25 s    1%
  torchsan itself     0.75 s    4%   reads the generated code, records
The dearest to check of 2 kernels
      3.0 s  graph 0 forward, 1 cpp_fused_relu_1, most of it values
      2.8 s  graph 0 forward, 0 cpp_fused_relu_0, most of it values
  --check stages,metadata,memory,cache: about 5.0 s less (25%); it leaves out values
  --budget 1%: about 3.1 s less (15%); it looks at all of each first call, then samples launches; values only"""
    )


def test_a_recording_without_figures_says_so(tmp_path: Path) -> None:
    recording = recorded(tmp_path, None)
    assert "is not in this recording" in cost_lines(recording)[1].text
    assert as_json(recording)["cost"] is None


def test_json_has_the_same_figures_and_each_check_of_each_kernel(tmp_path: Path) -> None:
    report = as_json(recorded(tmp_path, COST))
    jsonschema.validate(report, report_schema())
    cost = report["cost"]
    assert (cost["seconds"], cost["program"], cost["compile"], cost["torchsan"]) == (20.0, 7.0, 6.0, 0.75)
    assert cost["checks"] == {"values": 5.0, "memory": 0.25, "stages": 1.0, "cache": 0.0}
    assert cost["later_calls"] == {"values": 2.0, "stages": 0.5}
    assert [saving["option"] for saving in cost["savings"]][-1] == "--calls 1"
    assert [timing["checks"] for timing in report["timings"]] == [{"values": 2.0, "memory": 0.25}]


def test_what_was_chosen_already_is_not_suggested() -> None:
    def options(**given: Any) -> list[str]:
        return [saving.option.partition(" ")[0] for saving in savings(COST, Options(**given))]

    assert options() == ["--check", "--budget", "--calls"]
    assert "--calls" not in options(calls=1)
    assert options(budget=0.01) == ["--check"]
    assert options(check=(Check.VALUES,), calls=(0, 7)) == ["--budget"]
    assert savings(RunCost(seconds=20.0, parts={"values": 0.1}, later={}), Options()) == []


@pytest.mark.parametrize("seconds", [1e300, -1.0])
def test_figures_that_no_clock_shows_are_none(tmp_path: Path, seconds: float) -> None:
    cost = RunCost(seconds=seconds, parts={}, later={})
    assert as_json(recorded(tmp_path, cost))["cost"] is None


def test_a_forecast_names_the_call_and_the_remedy() -> None:
    seen = Forecast(
        graph=GraphId(0),
        direction=Direction.FORWARD,
        call=0,
        done=5,
        launches=100,
        seconds=5.0,
        plain=0.01,
        left=95.0,
    )
    assert forecast_text(seen) == (
        "checking this call of graph 0 forward takes about 95.0 s more: 5 of its 100 launches took 5.0 s, 0.01 s of it "
        "the kernels themselves; --budget 1% or fewer checks take less, and --explain-cost tells where the time goes"
    )
