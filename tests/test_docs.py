from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import yaml  # type: ignore[import-untyped]  # it ships no types

import torchsan
from torchsan.options import Options
from torchsan.report.json_report import report_schema

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "reference"


def test_every_slug_is_explained() -> None:
    sources = "\n".join(p.read_text() for p in (ROOT / "src").rglob("*.py"))
    slugs = set(re.findall(r'slug="([a-z-]+)"', sources))
    explained = set(re.findall(r"^`([a-z-]+)`\n:", (DOCS / "errors.md").read_text(), re.MULTILINE))
    assert slugs - explained == set()


def test_the_json_in_the_docs_is_valid() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", (DOCS / "json.md").read_text(), re.DOTALL)
    jsonschema.validate(json.loads(example), report_schema())


def test_every_option_is_documented() -> None:
    text = (DOCS / "cli.md").read_text()
    for name in {*Options.__dataclass_fields__} - {"suppress"}:  # It has no flag: a page of its own tells of it.
        assert f"`--{name.replace('_', '-')}" in text


def test_the_version_stands_in_one_place() -> None:
    assert "version" in pyproject()["project"]["dynamic"]
    place = ROOT / pyproject()["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{torchsan.__version__}"' in place.read_text()


def test_every_test_that_security_md_names_exists() -> None:
    promised = re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text())
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert promised
    assert [name for name in promised if f"def {name}(" not in tests] == []


def test_what_github_reads_is_well_formed() -> None:
    forms = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github").rglob("*.yml")}
    assert {"ci.yml", "dependabot.yml", "bug.yml", "feature.yml"} <= set(forms)
    for name in ("bug.yml", "feature.yml"):
        assert {"name", "description", "body"} <= set(forms[name])
        ids = [part["id"] for part in forms[name]["body"]]
        assert len(set(ids)) == len(ids)
    steps = [step.get("run") for job in forms["ci.yml"]["jobs"].values() for step in job["steps"]]
    assert ".ci/run" in steps
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {"ruff", "ruff-format", "mypy"} <= {hook["id"] for hook in hooks}


def test_the_architecture_draws_the_house_as_it_is() -> None:
    text = (ROOT / "docs/explanation/architecture.md").read_text()
    tree = text.partition("src/torchsan/\n")[2].partition("```")[0]
    drawn = set(re.findall(r"^  ([a-z_]+)(?:/|\.py) ", tree, re.MULTILINE))
    parts = [p for p in (ROOT / "src" / "torchsan").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
    hidden = {"__init__", "__main__", "_version"}
    assert drawn - {"__init__"} == {p.stem for p in parts} - hidden
    contract = next(c for c in pyproject()["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    layers = [layer.removeprefix("torchsan.") for layer in contract["layers"]]
    places = [tree.index(f"\n  {layer}") for layer in reversed(layers) if layer in drawn]
    assert places == sorted(places)


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())
