"""The report as JUnit XML."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.samples import finding
from torchsan.recording import Program, Reader, Writer, finalize
from torchsan.records import Check, Finding, Severity
from torchsan.records.finding import DEFAULT_CHECKS
from torchsan.report.junit import JunitExporter


def suite(folder: Path, *findings: Finding) -> ElementTree.Element:
    writer = Writer.create(folder, command=["train.py"])
    for f in findings:
        writer.finding(f)
    writer.close()
    finalize(folder, Program(exit=0))
    found = ElementTree.fromstring(JunitExporter().render(Reader(folder)).split("\n", 1)[1]).find("testsuite")
    assert found is not None
    return found


def test_a_check_with_errors_is_a_test_that_fails(tmp_path: Path) -> None:
    found = suite(
        tmp_path / "run", finding(message="off\x00 \ud800 & <b>"), finding(Severity.WARNING, check=Check.MEMORY)
    )
    assert (found.get("tests"), found.get("failures"), found.get("errors")) == (str(len(DEFAULT_CHECKS)), "1", "0")
    failure = found.find("testcase[@classname='torchsan.values']/failure")
    assert failure is not None
    assert failure.get("type") == "wrong-values"
    assert "& <b>" in str(failure.get("message"))
    assert "at model.py:12" in str(failure.text)
    assert found.find("testcase[@classname='torchsan.memory']/failure") is None


def test_what_is_incomplete_is_an_error(tmp_path: Path) -> None:
    error = suite(tmp_path / "run").find("testcase/error")
    assert error is not None
    assert "nothing was compiled" in str(error.text)
