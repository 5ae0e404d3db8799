"""One report over many runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fleet.conftest import MakeRun
from tests.samples import finding
from torchsan.cli.main import main
from torchsan.fleet import Tables, find_recordings
from torchsan.fleet.rows import Row
from torchsan.fleet.summary import summarize_fleet
from torchsan.records import Severity


def test_the_same_finding_is_shown_once_with_the_host_that_stands_out(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(runs)]) == 1
    text = capsys.readouterr().out
    assert text.count("error: wrong-values") == 1
    assert "in 4 of 12 runs, on 1 of 3 hosts (node0), torch" in text
    assert "torchsan: findings: 12 runs on 3 hosts: 8 clean, 4 findings; 24 kernels in 12 graphs" in text
    assert f"torchsan report --finding F1 {runs}/day-0/run-0" in text


def test_a_host_stands_out_if_chance_does_not_explain_it(runs: Path, make_run: MakeRun) -> None:
    for n in range(12, 36):  # Four of four on one host, of thirty-six runs in all.
        make_run(f"day-2/run-{n}", host=f"node{1 + n % 2}")
    with Tables.read(find_recordings([str(runs)])) as tables:
        (group,) = summarize_fleet(tables).groups
    assert group["standing_out"] == [{"host": "node0", "runs": 4, "of": 4, "elsewhere": 0, "others": 32}]


def test_what_all_hosts_have_is_no_matter_of_hosts(make_run: MakeRun, tmp_path: Path) -> None:
    for n in range(12):
        make_run(f"run-{n}", finding(), host=f"node{n % 3}")
    with Tables.read(find_recordings([str(tmp_path / "runs")])) as tables:
        (group,) = summarize_fleet(tables).groups
    assert group["hosts"] == ["node0", "node1", "node2"]
    assert group["standing_out"] == []


def test_errors_come_first_then_warnings(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("a", finding(Severity.NOTE, kernel="n"), finding(Severity.WARNING, kernel="w"), finding(kernel="e"))
    make_run("b", finding(Severity.NOTE, kernel="n"))
    with Tables.read(find_recordings([str(tmp_path / "runs")])) as tables:
        assert [g["severity"] for g in summarize_fleet(tables).groups] == ["error", "warning", "note"]


def test_the_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--json", "-", f"{runs}/day-0/*", f"{runs}/day-1/run-6", "--exit-code", "9"]) == 9
    report = json.loads(capsys.readouterr().out)
    assert report["status"] == "findings"
    assert report["runs"] == {"total": 7, "hosts": 3, "clean": 4, "findings": 3}
    (found,) = report["findings"]
    assert (found["id"], found["runs"], found["hosts"], found["ranks"]) == ("F1", 3, ["node0"], [])
    assert found["source"] == [{"file": "model.py", "line": 12, "code": "x = self.act(x)"}]


def test_clean_and_incomplete(make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a")
    assert main(["report", str(tmp_path / "runs")]) == 0
    (make_run("b") / "manifest.json").write_text("{}")
    assert main(["report", str(tmp_path / "runs")]) == 4
    assert "1 run: " in capsys.readouterr().out


def test_what_takes_one_recording_says_so(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--html", "x.html", str(runs)]) == 2
    assert "--html takes one recording" in capsys.readouterr().err


def test_many_findings_take_no_more_queries_than_few(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes milliseconds: a recording with tens of thousands of findings took minutes."""
    asked: list[str] = []
    rows = Tables.rows

    def counted(tables: Tables, query: str) -> list[Row]:
        asked.append(query)
        return rows(tables, query)

    monkeypatch.setattr(Tables, "rows", counted)
    counts = []
    for n in (1, 30):
        folder = make_run(f"run-{n}", *(finding(kernel=f"k{i}x") for i in range(n)))
        with Tables.read([str(folder)]) as tables:
            asked.clear()
            assert len(summarize_fleet(tables).groups) == n
        counts.append(len(asked))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("job", ["runs", "ranks"])
def test_a_report_over_many_overwrites_none_of_them(
    job: str, make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("rank-0", "rank-1") if job == "ranks" else ("a", "b")
    folders = [make_run(name, finding()) for name in names]
    before = (folders[0] / "manifest.json").read_bytes()
    assert main(["report", f"--json={folders[0] / 'manifest.json'}", str(tmp_path / "runs")]) == 2
    assert "would overwrite what it reports on" in capsys.readouterr().err
    assert (folders[0] / "manifest.json").read_bytes() == before
