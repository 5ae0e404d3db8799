"""What is the same, what is known, and what is new."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sweep.made_up import finding, result
from torchsan.errors import UsageError
from torchsan.records import Kind, Severity, SourceLine, Stage
from torchsan.sweep.results import Outcome
from torchsan.sweep.triage import Known, State, finds_of, known_bugs, prints_of, read_baseline, sorted_out


def test_one_bug_in_several_programs_is_one_find() -> None:
    here = replace(finding(), kernel="cpp_fused_amin_0", source=(SourceLine(file="a.py", line=1),))
    there = replace(finding(), kernel="cpp_fused_add_amin_3", source=(SourceLine(file="b.py", line=9),))
    (find,) = finds_of([result("long", here, text="x = 1\n" * 9), result("short", there), result("clean")])
    assert find.programs == ("long", "short")
    assert find.example.program.name == "short"
    assert (find.kind, find.dtype, find.state, find.counts) == ("wrong-values", "uint8", State.NEW, True)


@pytest.mark.parametrize("other", [finding(dtype="int8"), finding("aten.amax.default"), finding(pass_="a_pass")])
def test_another_dtype_operator_or_pass_is_another_find(other: object) -> None:
    assert len(finds_of([result("one", finding()), result("two", other)])) == 2  # type: ignore[arg-type]  # a finding


def test_an_operator_that_is_wrong_by_itself_comes_before_what_was_compiled_with_it() -> None:
    for op in ("aten.a.default", "aten.b.default", "aten.c.default"):  # However their fingerprints are ordered.
        compiled, itself = finding(op), replace(finding(op), stage=Stage.EAGER, kind=Kind.UNDECLARED_MUTATION)
        assert [f.kind for f in finds_of([result("one", compiled, itself)])] == [itself.kind, compiled.kind]


def test_programs_that_break_alike_are_one_find() -> None:
    said = "Traceback\nInductorError: KeyError: 'buf{}' at {}\n"
    failed = [result(str(n), outcome=Outcome.FAILED, output=said.format(n, 7 * n)) for n in (1, 2)]
    crashed = result("crashed", outcome=Outcome.CRASHED, signal=4, eagerly=True)
    slow = result("slow", outcome=Outcome.HUNG, eagerly=True)
    finds = {find.kind: find for find in finds_of([*failed, crashed, slow, result("no", outcome=Outcome.INVALID)])}
    assert set(finds) == {"failed", "crashed", "hung"}
    assert finds["failed"].programs == ("1", "2")
    assert "KeyError" in finds["failed"].message
    assert finds["crashed"].message == "it dies of SIGILL, compiled and eagerly"
    assert finds["crashed"].counts
    assert finds["hung"].severity is Severity.WARNING
    assert not finds["hung"].counts


def test_two_operators_whose_metadata_fail_are_two_finds() -> None:
    said = (
        "TorchRuntimeError: RuntimeError when making fake tensor call\n  Why: {}(*(x,), **{{}}): got {}('no\\nmore')\n"
    )
    failed = [
        result(name, outcome=Outcome.FAILED, output=said.format(name, error))
        for name, error in (("cov", "RuntimeError"), ("pool", "ValueError"))
    ]
    messages = sorted(find.message for find in finds_of(failed))
    assert [m.rpartition(": ")[2] for m in messages] == ["got RuntimeError('no", "got ValueError('no"]


def test_what_is_in_the_baseline_does_not_count(tmp_path: Path) -> None:
    old, new = result("old", finding("aten.old.default")), result("new", finding("aten.new.default"))
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps({"findings": [{"fingerprint": name} for name in prints_of(old)]}))
    states = {f.programs: f.state for f in sorted_out(finds_of([old, new]), read_baseline(str(file)), "2.13.0+cpu")}
    assert states == {("old",): State.BASELINE, ("new",): State.NEW}
    file.write_text("[]")
    with pytest.raises(UsageError):
        read_baseline(str(file))


def test_a_known_bug_fits_by_all_that_is_said_of_it() -> None:
    (find,) = finds_of([result("amin/uint8/forward", finding())])
    fitting = Known(reason="#1", kind="wrong-values", stage="kernel", op="aten.am*", dtype="uint8", program="amin/*")
    assert fitting.fits(find, (2, 13))
    for other in ({"dtype": "int8"}, {"op": "aten.sum*"}, {"program": "amax/*"}, {"torch": "2.13"}, {"message": "x*"}):
        assert not replace(fitting, **other).fits(find, (2, 13))
    assert replace(fitting, torch="2.14").fits(find, (2, 13))


def test_the_list_that_comes_with_torchsan_has_reasons() -> None:
    for known in known_bugs():
        assert known.reason
        assert known.op or known.program or known.message, known
