"""What benchmarks came to is told as it is: on the page and in its plot, with spread, goals, reasons and failures."""

from __future__ import annotations

import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
from benchmarks.curves import curves
from benchmarks.page import Section, described, figure, judged, lines, page, verdict
from benchmarks.plot import plot
from benchmarks.row import Comparison, Growth, Kind, Limit, Record, Row, Skipped, compared
from benchmarks.sensitivity import Curve
from benchmarks.sensitivity import lines as sensitivity_lines
from benchmarks.sensitivity import plot as sensitivity_plot

COST = Row(what="a step", kind=Kind.COST, unit="s", ours=3.0, peer="plain", theirs=2.0, goal=1.5, reason="It hashes.")
SPEED = Row(what="to the culprit", kind=Kind.SPEED, unit="s", ours=10.0, peer="the <minifier>", theirs=250.0, goal=20)
RATE = Row(what="put", kind=Kind.SPEED, unit="GB/s", ours=1.4, peer="`numpy.save`", theirs=2.0, goal=0.7)
ALONE = Row(what="import adds", kind=Kind.LESS, unit="s", ours=0.25, goal=0.3, note="a | b")


def of(*rows: Row) -> Comparison:
    return Comparison(rows)


def section(*rows: Row) -> Section:
    records: list[Record] = [*rows]
    records += [Limit(who="DebugMode", cannot="show a kernel"), Skipped(what="the bisector", why="it is slow")]
    return Section(name="some", title="Some", about="What it is.", repetitions=3, records=[*records, *records])


def test_a_ratio_is_told_with_its_median_and_spread() -> None:
    three = of(COST, replace(COST, ours=4.0), replace(COST, ours=2.4))
    assert described(three) == "1.50× (1.20 to 2.00)"
    assert judged(three) == "≤ 1.5×"
    assert three.ours == 3.0


@pytest.mark.parametrize(
    ("row", "value", "said"),
    [
        (COST, 1.5, "met"),
        (replace(COST, ours=3.1), 1.55, "missed"),
        (SPEED, 25.0, "met"),
        (replace(SPEED, theirs=100.0), 10.0, "missed"),
        (replace(SPEED, theirs=100.0, ended=True), 10.0, "open"),
        (RATE, 0.7, "met"),
        (replace(RATE, goal=None), 0.7, ""),
        (ALONE, 0.25, "met"),
        (replace(ALONE, kind=Kind.MORE), 0.25, "missed"),
    ],
)
def test_a_goal_is_met_or_missed(row: Row, value: float, said: str) -> None:
    assert math.isclose(row.value, value)
    assert verdict(of(row)) == said


def test_a_ratio_without_a_peer_is_refused() -> None:
    with pytest.raises(ValueError, match="a step: a ratio needs"):
        _ = replace(COST, theirs=None).value


def test_a_peer_that_was_ended_makes_a_ratio_the_least() -> None:
    assert described(of(replace(SPEED, ended=True))) == "≥ 25.0×"


def test_figures_have_three_digits() -> None:
    values = (0, 0.0123, 0.736, 1.857, 24.53, 356.2, 12345.6)
    assert [figure(v, "s") for v in values] == ["0", "0.012", "0.74", "1.86", "24.5", "356", "12346"]
    assert figure(3, "") == "3"


def test_repetitions_of_a_row_are_gathered_by_what_is_compared() -> None:
    other = replace(COST, peer="eager")
    assert [len(c.rows) for c in compared([COST, other, COST])] == [2, 1]


def test_what_is_printed() -> None:
    assert list(lines(section(RATE))) == [
        "put, beside numpy.save  0.70× (0.70 to 0.70)  [1.40 and 2.00 GB/s]  goal ≥ 0.7×: met",
        "not measured: the bisector, since it is slow",
        "DebugMode cannot show a kernel",
    ]


def test_the_page_has_figures_reasons_and_limits() -> None:
    missed = replace(COST, ours=4.0)
    text = page([section(missed, RATE, ALONE)], ["some processor"]).replace("\N{NO-BREAK SPACE}", " ")
    assert "2 of 3 goals are met" in text
    assert "| a step | 4.00 s | plain | 2.00 s | 2.00× (2.00 to 2.00) | ≤ 1.5× | **missed** |  |" in text
    assert "| import adds | 0.25 s |  |  | 0.25 s (0.25 to 0.25) | ≤ 0.3 s | met | a \\| b |" in text
    assert "- Missed: a step, beside plain. It hashes." in text
    assert "- Not measured: the bisector, since it is slow." in text
    assert text.count("| DebugMode | show a kernel |") == 1
    assert "- some processor" in text


def test_the_page_gives_no_reason_for_a_goal_that_is_met_and_owns_up_to_a_missing_one() -> None:
    assert "It hashes." not in page([section(COST)], [])
    assert "Not explained yet." in page([section(replace(COST, ours=4.0, reason=""))], [])


def test_the_page_says_what_failed() -> None:
    failed = Section(name="some", title="Some", about="", repetitions=1, failures=["ValueError: a | b"])
    assert "**Failed**: ValueError: a \\| b" in page([failed], [])


def test_the_plot_tells_met_from_missed_by_shape_and_by_text() -> None:
    ended = replace(SPEED, what="ended", theirs=30.0, ended=True)
    svg = plot([section(replace(COST, ours=4.0), SPEED, ended, RATE, ALONE)])
    root = ElementTree.fromstring(svg)
    texts = ["".join(e.itertext()) for e in root.iter() if e.tag.endswith("text")]
    assert "2.00×, goal ≤ 1.5×: missed" in texts
    assert "≥ 3.00×, goal ≥ 20×: open" in texts
    assert any("to the culprit / the <minifier>" in text for text in texts)
    assert not any("import adds" in text for text in texts)  # not a ratio
    assert root.find("{*}rect") is not None  # a background of its own


def test_the_plot_of_nothing_is_a_picture_still() -> None:
    assert ElementTree.fromstring(plot([])).tag.endswith("svg")


GROWTH = Growth(of="time", unit="s", by="kernels", points=((3, 0.5), (30, 1.0), (300, 10.0), (3000, 200.0)))


def test_growth_is_judged_by_the_last_decade() -> None:
    assert GROWTH.exponent == pytest.approx(math.log10(20))
    assert GROWTH.text == "3: 0.5 s, 30: 1 s, 300: 10 s, 3000: 200 s"
    assert Growth(of="a", unit="", by="b", points=((1, 7.0), (10, 7.0))).exponent == 0


def test_growth_is_drawn_with_what_is_in_proportion_and_shown_on_the_page() -> None:
    flat = replace(GROWTH, of="memory", unit="MB", points=((3, 7.0), (3000, 7.0)))
    picture = ElementTree.fromstring(curves([GROWTH, flat]))
    texts = ["".join(e.itertext()) for e in picture.iter() if e.tag.endswith("text")]
    assert {"time (s) by kernels", "3", "3k", "0.5", "200", "exponent 1.30", "memory (MB) by kernels"} <= {*texts}
    assert len(picture.findall("{*}circle")) == 6
    measured = Section(name="growth", title="Growth", about="", repetitions=1, records=[GROWTH, flat, GROWTH])
    assert measured.growths == [GROWTH, flat]
    assert "![Growth](growth.svg)" in page([measured], [])


def test_the_smallest_error_is_the_one_down_to_which_all_are_found() -> None:
    found = {"torchsan": [0.1, 1e-2, 1e-3, 1e-5], "assert_close": [0.1], "minifier": []}
    curve = Curve(site="kernel", shape="softmax", dtype=torch.float32, found=found, alarms=("assert_close",))
    assert [curve.smallest(who) for who in found] == [1e-3, None, None]
    table = list(sensitivity_lines([curve]))
    assert "| float32 | kernel | softmax | 1e-03 | complains without it | nothing |" in table
    assert table[-2:] == [
        "False alarms on the 1 healthy twins: torchsan 0, assert_close 1, minifier 0.",
        "Rows in which torchsan found an error and missed a larger one: 1.",
    ]
    picture = ElementTree.fromstring(sensitivity_plot([curve]))
    assert len(picture.findall("{*}circle")) == 4
