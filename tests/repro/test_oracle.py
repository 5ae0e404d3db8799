"""The same finding, and not some other failure."""

from __future__ import annotations

import pytest

from tests.repro.made_up import finding
from torchsan.records import Check, Direction, Finding, GraphId, GraphRef, Kind, Severity, Stage
from torchsan.repro.oracle import find_same, same_finding


def test_names_of_kernels_and_buffers_do_not_matter() -> None:
    assert same_finding(finding(kernel="cpp_fused_sin_0", buffer="buf0"), finding(kernel="cpp_fused_sin_3"))


@pytest.mark.parametrize(
    "other",
    [
        {"kind": Kind.NON_FINITE},
        {"severity": Severity.NOTE},
        {"check": Check.STAGES},
        {"stage": Stage.AOT},
        {"ops": ("aten.cos.default",)},
        {"ops": ()},
    ],
    ids=str,
)
def test_another_kind_check_stage_or_operator_is_another_finding(other: dict[str, object]) -> None:
    assert not same_finding(finding(), finding(**other))


def by(name: str | None, *patterns: str) -> Finding:
    evidence = {"pass": {"name": name, "patterns": list(patterns)}}
    return finding(check=Check.STAGES, stage=Stage.JOINT_PASSES, ops=(), evidence=evidence)


def test_a_pass_is_known_by_the_pattern_that_fired() -> None:
    wanted = by("pass_pattern_0", "_sfdp_pattern_1")
    assert same_finding(wanted, by("pass_pattern_1", "other", "_sfdp_pattern_1"))
    assert not same_finding(wanted, by("pass_pattern_0", "_sfdp_pattern_2"))
    assert not same_finding(wanted, by("pass_pattern_0"))
    assert same_finding(by("remove_noops"), by("remove_noops"))
    assert not same_finding(by("remove_noops"), by("reinplace"))
    assert same_finding(by(None), by("reinplace"))


def test_an_operator_is_the_same_wherever_the_check_sees_it() -> None:
    fields = {"check": Check.METADATA, "kind": Kind.METADATA_MISMATCH, "ops": ("lib.op.default",)}
    seen = finding(**fields, stage=Stage.EAGER, evidence={"seen": {"eager": 1, "kernel": 2}})
    assert same_finding(finding(**fields, stage=Stage.KERNEL), seen)
    assert not same_finding(finding(**fields, stage=Stage.AOT), seen)


def at(side: str, *part: int, **fields: object) -> Finding:
    place = {"side": side, "dim": 0} | dict(zip(("count", "of"), part, strict=False))
    return finding(evidence={"place": place}, **fields)


def test_what_is_wrong_at_one_end_stays_there() -> None:
    tail = at("last", 8, 64)
    assert same_finding(tail, at("last", 2, 10))
    assert not same_finding(tail, at("first", 2, 10))
    assert not same_finding(tail, at("all"))
    assert not same_finding(tail, at("scattered"))
    assert not same_finding(at("index"), at("edges"))


def test_which_elements_are_wrong_for_their_values_sake_may_change() -> None:
    assert same_finding(at("scattered"), at("all"))
    assert same_finding(at("last", 63, 64), at("all"))
    assert same_finding(at("one"), at("first", 2, 4))
    assert same_finding(at("last", 2, 4, kind=Kind.NONDETERMINISTIC), at("scattered", kind=Kind.NONDETERMINISTIC))


def test_sentences_are_not_compared() -> None:
    """A recording from before findings had these data has them in words alone."""
    old = finding(evidence={"pattern": "the last 8 of 64 along dimension 1"}, pass_="pass_pattern_0: _sfdp_pattern_1")
    assert same_finding(old, at("all"))


def test_a_kernel_that_writes_out_of_bounds_has_values_of_any_kind() -> None:
    graph = GraphRef(id=GraphId(0), direction=Direction.INFERENCE)
    values = finding(kind=Kind.NONDETERMINISTIC, kernel="k", graph=graph)
    overflow = finding(kind=Kind.OUT_OF_BOUNDS_WRITE, check=Check.MEMORY, kernel="k", graph=graph)
    assert find_same(finding(), [values, overflow]) is values
    assert find_same(finding(), [values]) is None
    assert find_same(finding(kind=Kind.LEAKED_BUFFER), [values, overflow]) is None
