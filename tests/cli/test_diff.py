"""The command, its reports against gold files, and recordings that are damaged or hostile."""

from __future__ import annotations

import functools
import json
import re
import sqlite3
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
import torch

from tests.diff.made_up import TEXT, inputs, record, run
from tests.report.golden import assert_golden, assert_golden_json
from torchsan.cli.main import main
from torchsan.diff.export import diff_schema
from torchsan.options import Watch
from torchsan.recording.shipping import send
from torchsan.report.html.plain import digest, static


def same() -> int:
    record(Path("a"), [run(inputs())])
    record(Path("b"), [run(inputs())])
    return 0


def rounding() -> int:
    b = run(inputs())
    b["mm"] = torch.nextafter(b["mm"], b["mm"] * 2)
    b |= {"relu": torch.relu(b["mm"] * 0.5), "sum_1": torch.relu(b["mm"] * 0.5).sum(-1)}
    record(Path("a"), [run(inputs())] * 2)
    record(Path("b"), [b] * 2)
    return 0


def different() -> int:
    record(Path("a"), [run(inputs())], command=["model.py", "--scale", "0.5"])
    other = TEXT.replace("(mm, 0.5)", "(mm, 0.25)")
    record(Path("b"), [run(inputs(), 0.25)], text=other, memory=2048, command=["model.py", "--scale", "0.25"])
    return 1


def incomplete() -> int:
    record(Path("a"), [run(inputs())] * 2)
    record(Path("b"), [run(inputs())], watch=Watch.OFF)
    return 4


def test_recordings_are_read_where_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert different() == main(["diff", "a", "b"])
    here = capsys.readouterr().out
    for name in "ab":
        send(Path(name), f"memory://there/{name}")
    assert main(["diff", "memory://there/a", "memory://there/b"]) == 1
    there = capsys.readouterr().out
    assert "memory://there/a" in there
    assert there.replace("memory://there/", "") == here


MADE: dict[str, Callable[[], int]] = {f.__name__: f for f in (same, rounding, different, incomplete)}


@pytest.mark.parametrize("name", MADE)
def test_the_reports(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    status = MADE[name]()
    capfd.readouterr()
    assert main(["diff", "--json", "diff.json", "--html", "diff.html", "a", "b"]) == status
    out, err = capfd.readouterr()
    assert err == ""
    assert_golden(f"diff-{name}.txt", out)
    assert len(out.splitlines()) <= 60
    report = json.loads(Path("diff.json").read_text())
    jsonschema.validate(report, diff_schema())
    assert_golden_json(f"diff-{name}.json", report)
    page = Path("diff.html").read_text()
    assert f">{report['status']}</span>" in page
    assert ("Where the runs begin to differ" in page) == bool(report["values"])


def test_json_alone_on_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    same()
    assert main(["diff", "--json", "-", "a", "b"]) == 0
    assert json.loads(capfd.readouterr().out)["status"] == "same"


def test_quiet_is_the_first_difference_and_the_verdict(capfd: pytest.CaptureFixture[str]) -> None:
    different()
    assert main(["diff", "--quiet", "a", "b"]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[1].startswith("First difference: relu")
    assert lines[-1].startswith("torchsan: the two runs differ first at relu")
    assert not any("First of each kind" in line for line in lines)


def test_a_long_table_is_cut_unless_all_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    names = [f"p{n:03}" for n in range(100)]
    record(Path("a"), [], probes={n: torch.zeros(1) for n in names})
    record(Path("b"), [], probes={n: torch.ones(1) for n in names})
    assert main(["diff", "a", "b"]) == 1
    short = capfd.readouterr().out
    assert len(short.splitlines()) <= 60
    assert "80 rows more (--all)" in short
    assert main(["diff", "--all", "a", "b"]) == 1
    whole = capfd.readouterr().out
    assert all(n in whole for n in names)


def test_recordings_that_do_not_belong_together(capfd: pytest.CaptureFixture[str]) -> None:
    record(Path("a"), [run(inputs())])
    text = TEXT.replace("aten.", "aten.linalg_").replace("code: ", "code: other ")
    record(Path("b"), [run(inputs())], text=text)
    assert main(["diff", "a", "b"]) == 2
    assert "a and b do not belong together" in capfd.readouterr().err


def damage_manifest() -> None:
    Path("b/manifest.json").write_text("{")


def damage_log() -> None:
    data = Path("b/events.sqlite").read_bytes()
    Path("b/events.sqlite").write_bytes(data[: len(data) // 3])


def damage_event() -> None:
    with sqlite3.connect("b/events.sqlite") as connection:
        connection.execute("UPDATE events SET body = '{\"watched\": 1}' WHERE kind = 'watched'")
    connection.close()


def remove() -> None:
    Path("b").rename("c")


@pytest.mark.parametrize("damage", [damage_manifest, damage_log, damage_event, remove], ids=lambda f: f.__name__)
def test_a_damaged_recording_is_refused_with_a_reason(
    damage: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    same()
    damage()
    assert main(["diff", "a", "b"]) == 2
    err = capfd.readouterr().err
    assert re.search(r"^torchsan: error: .*\[(no-recording|malformed-record)\]$", err.strip())


@pytest.mark.parametrize("depth", [1000, 3000])
@pytest.mark.parametrize(
    "text",
    [
        "import os; os.system('touch pwned')",
        TEXT.replace("torch.ops.aten.relu.default(mul)", "torch.ops.aten.from_file.default('pwned', True, 4)"),
        TEXT.replace("torch.ops.aten.relu.default(mul)", "__import__('os').system('touch pwned')"),
        TEXT.replace("torch.ops.aten.relu.default(mul)", "torch.ops.aten.full.default([1000000, 1000000], 1)"),
        TEXT.replace("torch.ops.aten.relu.default(mul)", "(" * 5000 + ")" * 5000),
        TEXT.replace("torch.ops.aten.relu.default(mul)", "mul" + "[0]" * 5000),
    ],
    ids=["statement", "operator", "call", "memory", "nested", "deep"],
)
def test_nothing_in_a_recording_is_executed(text: str, depth: int, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(functools.partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(depth)  # Who imports what decides about it.
    record(Path("a"), [run(inputs())], text=text)
    record(Path("b"), [run(inputs(), 0.25)], text=text)
    assert main(["diff", "a", "b"]) == 1
    assert not Path("pwned").exists()


HOSTILE = "<script>alert(1)</script>\" onload='x' \x1b[2J\u202e"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        ours = "lang charset content http-equiv name class scope id type data-name placeholder role aria-label".split()
        assert all(name in [*ours, "viewbox", "x", "y", "width", "height"] for name, _ in attrs)


def test_what_a_recording_says_is_text(capfd: pytest.CaptureFixture[str]) -> None:
    command = [HOSTILE]
    record(Path("a"), [], probes={HOSTILE: torch.zeros(1)}, command=command)
    record(Path("b"), [], probes={HOSTILE: torch.ones(1)}, command=["x"])
    assert main(["diff", "--html", "d.html", "a", "b"]) == 1
    out = capfd.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    page = Path("d.html").read_text()
    parser = Tags()
    parser.feed(page)
    assert parser.tags.count("script") == 1
    assert "&lt;script&gt;" in page
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert f"default-src 'none'; style-src 'sha256-{digest(static('report.css'))}'" in page
    assert f"script-src 'sha256-{digest(script)}'" in page
