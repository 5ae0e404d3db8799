"""Each planted mistake is found, as what it is, and nothing else is; in eager code and inside `torch.compile`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.planted.operators import PLANTED, operator
from torchsan.checks.metadata.crossref import crossref
from torchsan.records import Finding, Kind, Severity, Stage

MISMATCH, MUTATION, ALIAS = Kind.METADATA_MISMATCH, Kind.UNDECLARED_MUTATION, Kind.UNDECLARED_ALIAS

EXPECTED: dict[str, tuple[Kind, set[str]]] = {
    "wrong_size": (MISMATCH, {"size"}),
    "wrong_rank": (MISMATCH, {"size"}),
    "wrong_dtype": (MISMATCH, {"dtype"}),
    "wrong_stride": (MISMATCH, {"stride"}),
    "wrong_offset": (MISMATCH, {"offset"}),
    "wrong_layout": (MISMATCH, {"layout"}),
    "wrong_device": (MISMATCH, {"device"}),
    "wrong_requires_grad": (MISMATCH, {"requires_grad"}),
    "wrong_none": (MISMATCH, {"structure"}),
    "wrong_number": (MISMATCH, {"structure"}),
    "wrong_second": (MISMATCH, {"dtype"}),
    "wrong_view": (MISMATCH, {"alias"}),
    "wrong_fake_view": (MISMATCH, {"alias"}),
    "wrong_symbolic": (MISMATCH, {"size"}),
    "wrong_dynamic": (MISMATCH, {"dtype"}),
    "wrong_alias": (ALIAS, {"alias"}),
    "wrong_alias_of_outputs": (ALIAS, {"alias"}),
    "wrong_mutation": (MUTATION, {"bits"}),
    "wrong_small_mutation": (MUTATION, {"bits"}),
    "wrong_nan_mutation": (MUTATION, {"bits"}),
    "wrong_data_mutation": (MUTATION, {"bits"}),
}


def sample() -> torch.Tensor:
    x = torch.arange(1.0, 13).reshape(3, 4)
    x[0, 0] = 0.5
    return x


def fields(finding: Finding) -> set[str]:
    return {d["field"] for d in finding.evidence["differences"]}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_planted_mistake_is_found_in_eager_code(name: str) -> None:
    with crossref() as run:
        operator(name)(sample() if name != "wrong_nan_mutation" else torch.full((3, 4), float("nan")))
    assert [f.kind for f in run.findings] == [EXPECTED[name][0]], run.findings
    (finding,) = run.findings
    assert fields(finding) == EXPECTED[name][1]
    assert finding.severity is Severity.ERROR
    assert finding.stage is Stage.EAGER
    assert finding.ops == (f"planted.{name}.default",)
    assert finding.source[0].file == __file__
    assert "operator(name)(sample()" in finding.source[0].code
    assert finding.evidence["fix"]


@pytest.mark.parametrize("name", [n for n in PLANTED if n.startswith("right")])
def test_a_clean_operator_is_not_reported(name: str) -> None:
    with crossref() as run:
        for x in (sample(), sample().t(), sample()[1:], torch.empty(0, 4)):
            operator(name)(x)
    assert not run.findings
    assert run.coverage.ops_checked


def test_a_mutation_that_is_declared_and_never_happens_is_a_note() -> None:
    with crossref() as run:
        for _ in range(3):
            operator("wrong_declaration")(sample())
    (finding,) = run.findings
    assert finding.severity is Severity.NOTE
    assert finding.kind is MUTATION
    run.raise_if_findings()


def test_an_operator_without_a_fake_kernel_is_skipped_and_its_memory_is_still_checked() -> None:
    with crossref() as run:
        operator("without_fake")(sample())
    assert not run.findings
    assert any("planted.without_fake.default" in s.what for s in run.coverage.skipped)


def test_one_finding_an_operator_with_a_count_and_a_call_that_can_be_pasted() -> None:
    with crossref() as run:
        for _ in range(3):
            operator("wrong_dtype")(sample())
        operator("wrong_dtype")(sample().t())
    (finding,) = run.findings
    assert finding.evidence["count"] == 4
    call = finding.evidence["call"]
    assert call == "torch.ops.planted.wrong_dtype.default(torch.empty_strided((3, 4), (4, 1), dtype=torch.float32))"
    assert eval(call).dtype is torch.float64  # noqa: S307  # the point is that it runs


# What stops a compiled program at once is compiled alone, the rest in one program.
_TOGETHER = ("wrong_small_mutation", "wrong_dtype", "wrong_second", "wrong_mutation")
_CLEAN = ("right", "right_number", "right_tuple", "right_mutation")
_ALONE = ("wrong_size", "wrong_stride", "wrong_alias")  # PyTorch itself raises at the last where CI is set.


def compiled(function: Callable[..., Any], *args: Any) -> tuple[Finding, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Inductor warns about some of the planted mistakes itself.
        # The program's own assertion about what the fake kernel promised.
        with crossref() as run, contextlib.suppress(AssertionError, RuntimeError):
            torch.compile(function)(*args)
    return run.findings


@pytest.mark.xdist_group("compiled")
def test_planted_mistakes_are_found_inside_a_compiled_program_and_the_clean_ones_are_not() -> None:
    def program(x: torch.Tensor) -> list[Any]:
        return [operator(name)(x * i) for i, name in enumerate((*_TOGETHER, *_CLEAN), start=1)]

    findings = compiled(program, sample())
    found = {f.ops[0].split(".")[1]: f for f in findings}
    assert set(found) == set(_TOGETHER), findings
    for name, finding in found.items():
        assert finding.kind is EXPECTED[name][0]
        assert finding.severity is Severity.ERROR
        assert finding.stage is Stage.KERNEL
        assert finding.graph is not None
        assert finding.nodes
        assert finding.source[0].file == __file__


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize("name", _ALONE)
def test_a_mistake_that_stops_the_program_is_found_before_it_does(name: str) -> None:
    findings = compiled(lambda x: operator(name)(x + 1) * 2, sample())
    assert [(f.kind, f.stage) for f in findings] == [(EXPECTED[name][0], Stage.KERNEL)], findings
    assert fields(findings[0]) == EXPECTED[name][1]
