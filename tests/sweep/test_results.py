"""The database of results: nothing that was added is lost."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.sweep.made_up import finding, result
from torchsan.cli.main import main
from torchsan.errors import UsageError
from torchsan.sweep.results import Outcome, Results, place_for


def test_what_was_added_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    wrong = result("wrong", finding(), covers=("forward fused amin",))
    crashed = result("crashed", outcome=Outcome.CRASHED, signal=4, output="Illegal instruction")
    with Results(tmp_path / "new" / "folder") as results:
        results.add(wrong)
        results.add(crashed)
        results.note("swept", ["ops", "amin"])
    with Results(tmp_path / "new" / "folder") as results:
        assert list(results) == [wrong, crashed]
        assert results.get(wrong.address) == wrong
        assert results.get("nothing") is None
        assert results.noted("swept") == ["ops", "amin"]
        assert results.noted("nothing") is None


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as error:
        Results(tmp_path / "file")
    assert error.value.slug == "unwritable-out"


def test_a_folder_with_results_is_used_only_to_resume(tmp_path: Path) -> None:
    with Results(tmp_path / "a"):
        pass
    with pytest.raises(UsageError):
        place_for(tmp_path / "a", resume=False)
    assert place_for(tmp_path / "a", resume=True) == tmp_path / "a"
    assert place_for(tmp_path / "b", resume=False) == tmp_path / "b"


def test_to_resume_without_a_folder_is_to_take_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fresh = place_for(None, resume=True)
    assert fresh.parts[0] == "torchsan-sweeps"
    for name in ("2026-01-01-000000", "2026-01-02-000000"):
        with Results(Path("torchsan-sweeps", name)):
            pass
    os.mkdir("torchsan-sweeps/2027-no-results")
    assert place_for(None, resume=True) == Path("torchsan-sweeps/2026-01-02-000000")
    assert place_for(None, resume=False) not in (fresh.parent / "2026-01-02-000000", fresh.parent / "2027-no-results")


def _sql(text: str, *values: object) -> Callable[[Path], None]:
    def tamper(file: Path) -> None:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute(text, values)

    return tamper


def _link(file: Path) -> None:
    file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(file.parent.parent / "elsewhere")


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


_COUNTING = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS name, x AS body FROM c"


@pytest.mark.parametrize(
    "tamper",
    [
        _link,
        _pipe,
        lambda file: file.write_bytes(b"nothing of SQLite's" * 400),
        lambda file: (file.parent / "results.sqlite-wal").symlink_to(file),
        _sql(f"CREATE VIEW more AS {_COUNTING}"),
        _sql("CREATE TRIGGER t AFTER INSERT ON about BEGIN DELETE FROM results; END"),
        _sql("UPDATE results SET body = 'no JSON'"),
        _sql("UPDATE results SET body = ?", b"\xff"),
        _sql("UPDATE results SET body = ?", "[" * 100_000),
        _sql("UPDATE results SET body = '{}'"),
        _sql("UPDATE results SET address = 'another'"),
    ],
)
def test_results_that_were_tampered_with_are_refused(tmp_path: Path, tamper: Callable[[Path], None]) -> None:
    with Results(tmp_path / "sweep") as results:
        results.add(result("wrong", finding()))
    tamper(tmp_path / "sweep" / "results.sqlite")
    with pytest.raises(UsageError), Results(tmp_path / "sweep") as results:
        list(results)


@pytest.mark.parametrize("noted", ["[1]", '{"target": 5}', '{"target": "ops", "globs": 3}', "no JSON", '"' + "x" * 9])
def test_a_sweep_that_does_not_say_what_it_was_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], noted: str
) -> None:
    with Results(tmp_path / "sweep") as results:
        results.note("swept", None)
    _sql("UPDATE about SET body = ?", noted)(tmp_path / "sweep" / "results.sqlite")
    assert main(["sweep", "--resume", "--out", str(tmp_path / "sweep")]) == 2
    assert "[usage]" in capsys.readouterr().err
