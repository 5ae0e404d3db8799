from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.samples import finding, graph
from torchsan.diff.export import DIFF_EXPORTERS
from torchsan.errors import UsageError
from torchsan.options import parse_options
from torchsan.recording import Reader, Writer
from torchsan.records import SourceLine
from torchsan.report import EXPORTERS, Exporter, Exports, add_export_flags
from torchsan.report.ranks import RANKS_EXPORTERS


@pytest.fixture
def recording(tmp_path: Path) -> Reader:
    writer = Writer.create(tmp_path / "run", command=["script.py"])
    writer.graph(graph())
    writer.finding(finding(evidence={"worst": float("nan"), "text": "\x1b[31mred\ud800"}))
    writer.close()
    return Reader(writer.path)


class Shout(Exporter[str]):
    name = "shout"
    help = "write it in capitals"

    def render(self, subject: str) -> str:
        return subject.upper()


def test_a_new_exporter_is_a_class_and_a_place_in_a_list(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_export_flags(parser, (Shout(),))
    exports = Exports((Shout(),), parser.parse_args(["--shout", str(tmp_path / "x")]))
    exports.write("hello")
    assert (tmp_path / "x").read_text() == "HELLO"
    assert not exports.to_stdout


def test_standard_output_is_a_target(capsys: pytest.CaptureFixture[str]) -> None:
    exports = Exports((Shout(),), argparse.Namespace(shout="-"))
    exports.write("hello")
    assert exports.to_stdout
    assert capsys.readouterr().out == "HELLO"


def test_what_is_not_asked_for_is_not_written() -> None:
    exports = Exports((Shout(),), argparse.Namespace(shout=None))
    exports.write("hello")
    assert not exports.to_stdout


@pytest.mark.parametrize("exporters", [EXPORTERS, RANKS_EXPORTERS, DIFF_EXPORTERS])
def test_every_exporter_has_a_name_of_its_own_and_says_what_it_writes(exporters: tuple[Exporter[Any], ...]) -> None:
    names = [e.name for e in exporters]
    assert len(set(names)) == len(names)
    assert all(e.help for e in exporters)


@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda e: str(e.name))
def test_every_exporter_of_a_recording_is_an_option_and_writes_what_it_renders(
    exporter: Exporter[Reader], recording: Reader, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "file"
    options = argparse.Namespace(**parse_options("the test", {exporter.name: target}))
    Exports(EXPORTERS, options).write(recording)
    assert target.read_text() == exporter.render(recording)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda e: str(e.name))
def test_every_exporter_is_a_flag_of_run_and_report_and_on_a_page_of_the_docs(exporter: Exporter[Reader]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    run, report = (page.partition(f"## `torchsan {command}`")[2].partition("\n## ")[0] for command in ("run", "report"))
    assert f"`--{exporter.name} FILE`" in run
    assert f"[--{exporter.name} FILE]" in report


def no_constants(name: str) -> Any:
    raise AssertionError(name)


def test_the_json_is_strict_and_its_file_replaced_at_once(recording: Reader, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("old")
    (tmp_path / "link.json").symlink_to(file)
    Exports(EXPORTERS, argparse.Namespace(json=str(tmp_path / "link.json"))).write(recording)
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads(file.read_text(), parse_constant=no_constants)["schema"] == 2
    assert {p.name for p in tmp_path.iterdir()} == {"report.json", "link.json", "run"}


def test_a_device_is_written_to_and_not_replaced(recording: Reader) -> None:
    Exports(EXPORTERS, argparse.Namespace(json="/dev/null")).write(recording)
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("target", ["", "missing/x.json", "run"])
@pytest.mark.parametrize("name", [e.name for e in EXPORTERS])
def test_what_cannot_be_written_is_refused_early(name: str, target: str, recording: Reader, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"cannot write --{name}"):
        Exports(EXPORTERS, argparse.Namespace(**{name: str(tmp_path / target)}))


def test_what_cannot_be_written_in_the_end_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write --shout"):
        Shout().put("text", str(tmp_path / "missing" / "x"))


ODD = (
    "\0",
    "\x1b",
    "\x85",
    "\u2028",
    "\ufffe",
    "\uffff",
    "\ud800",
    "\udcff",
    "\u202e",
    "]]>",
    "&amp;",
    "</script>",
    "%0A::",
)


@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda e: str(e.name))
def test_every_text_can_be_anything(exporter: Exporter[Reader], tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=ODD)
    for text in ODD:
        line = SourceLine(file=text, line=1, code=text, module=text)
        writer.finding(finding(message=text, kernel=text, nodes=(text,), source=(line,), evidence={text: text}))
        writer.skipped(text, text)
        writer.event("incomplete", {"what": text, "reason": text})
    writer.close()
    manifest = tmp_path / "run" / "manifest.json"
    changes = {"torch": "".join(ODD), "cwd": "".join(ODD), "command": ODD, "host": "".join(ODD)}
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))
    text = exporter.render(Reader(tmp_path / "run"))
    text.encode()
    if exporter.name in ("json", "sarif", "perfetto"):
        json.loads(text)
    if exporter.name == "junit":
        ElementTree.fromstring(text.encode())
