from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import jsonschema

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
    for name in Options.__dataclass_fields__:
        assert f"`--{name.replace('_', '-')}" in text


def test_the_version_is_the_packages() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == torchsan.__version__
