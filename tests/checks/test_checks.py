"""The registry of checks, and everything that must agree with it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from torchsan import pytest_plugin
from torchsan.checks import REGISTRY, Observed, Reproduction, observers
from torchsan.cli.main import main
from torchsan.options import Options
from torchsan.recording import Writer
from torchsan.records import Check, Kind
from torchsan.report.json_report import report_schema

ROOT = Path(__file__).parents[2]
NAMES = ",".join(REGISTRY)


def test_every_check_has_an_entry_and_every_kind_a_check() -> None:
    assert tuple(REGISTRY) == tuple(Check)
    assert {kind for entry in REGISTRY.values() for kind in entry.kinds} == set(Kind)
    assert all(entry.observes and entry.summary for entry in REGISTRY.values())


@pytest.mark.parametrize("check", REGISTRY)
def test_every_check_has_the_same_modules(check: Check) -> None:
    for module in ("check", "watch", "findings", "exhibit"):
        importlib.import_module(f"torchsan.checks.{check}.{module}")


@pytest.mark.parametrize("check", REGISTRY)
def test_the_docs_say_what_the_registry_says(check: Check) -> None:
    entry = REGISTRY[check]
    assert f"| `--check {check}` | {entry.summary} |" in (ROOT / "README.md").read_text()
    page = (ROOT / entry.page).read_text()
    assert [kind for kind in sorted(entry.kinds) if f"`{kind}`" not in page] == []
    assert entry.page.removeprefix("docs/").removesuffix(".md") in (ROOT / "docs/index.md").read_text()


@pytest.mark.parametrize("page", ["cli", "pytest"])
def test_the_pages_of_the_flags_list_the_checks(page: str) -> None:
    assert f"`{NAMES}`" in (ROOT / "docs" / "reference" / f"{page}.md").read_text()


def test_the_kinds_are_documented() -> None:
    page = (ROOT / "docs/reference/json.md").read_text()
    assert [kind for kind in Kind if f"`{kind}`" not in page] == []


def test_the_schema_and_the_help_list_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_schema()["$defs"]["finding"]["properties"]["check"]["enum"] == list(Check)
    assert NAMES in pytest_plugin._HELP
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert NAMES in capsys.readouterr().out


def test_the_checks_of_the_options_are_made_and_the_collector_is_closed_last(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=())
    made = observers(Options(check=(Check.MEMORY, Check.VALUES)), writer)
    assert [o.name for o in made] == ["memory check", "values check", "collector"]
    writer.close()


def test_what_a_finding_takes_to_be_shown_is_known() -> None:
    assert REGISTRY[Check.METADATA].reproduction is Reproduction.OPERATOR
    assert Observed.OPERATORS in REGISTRY[Check.METADATA].observes


def test_the_registry_needs_no_torch() -> None:
    code = "import sys, torchsan.checks; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
