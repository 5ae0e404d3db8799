"""Recordings as tables of DuckDB, and as Parquet files."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import duckdb
import pytest

from tests.fleet.conftest import MakeRun
from tests.samples import finding
from torchsan.cli.main import main
from torchsan.errors import UsageError
from torchsan.fleet import Tables, find_recordings


def test_many_are_read_by_several_processes(runs: Path) -> None:
    progress = io.StringIO()
    with Tables.read(find_recordings([str(runs)]), progress) as tables:
        assert tables.rows("SELECT host, count(*) AS n FROM runs GROUP BY host ORDER BY host") == [
            {"host": f"node{n}", "n": 4} for n in range(3)
        ]
        assert tables.rows("SELECT DISTINCT message FROM findings") == [{"message": "odd ? text"}]
    assert "read 12 of 12 recordings" in progress.getvalue()


def test_other_engines_read_the_files(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--parquet", str(tmp_path / "tables"), str(runs)]) == 0
    files = capsys.readouterr().out.split()
    assert [Path(file).name for file in files] == ["runs.parquet", "findings.parquet", "kernels.parquet"]
    with duckdb.connect() as connection:
        assert connection.execute(f"SELECT count(*) FROM '{files[2]}'").fetchone() == (24,)
    assert sorted(f.name for f in (tmp_path / "tables").iterdir()) == sorted(Path(file).name for file in files)


def test_a_run_that_cannot_be_read_is_among_them(make_run: MakeRun) -> None:
    folder = make_run("run")
    (folder / "manifest.json").write_text("{}")
    with Tables.read([str(folder)]) as tables:
        assert tables.rows("SELECT status FROM runs") == [{"status": "incomplete"}]


def test_without_duckdb_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(UsageError, match=r"torchsan\[fleet\]"), Tables.read([]):
        pass


def test_a_number_that_no_table_holds_is_damage_of_its_run_alone(make_run: MakeRun) -> None:
    folders = [make_run("bad", finding(call=2**63)), make_run("good", finding())]
    with Tables.read([str(folder) for folder in folders]) as tables:
        assert tables.rows("SELECT status FROM runs ORDER BY run") == [{"status": "incomplete"}, {"status": "findings"}]


def test_a_place_whose_name_is_no_text_is_refused(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / os.fsdecode(b"tables-\xff")
    assert main(["export", "--parquet", str(target), str(make_run("run"))]) == 2
    assert "only names that are UTF-8" in capsys.readouterr().err
