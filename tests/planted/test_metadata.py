"""Each planted mistake is found, as what it is, and nothing else is; in eager code and inside `torch.compile`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

from tests.planted.operators import PLANTED, operator
from torchsan.calls import CrossReference, crossref
from torchsan.checks.metadata.operator import check_operator
from torchsan.errors import FindingsError
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
    "wrong_meta": (MISMATCH, {"dtype"}),
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
_TOGETHER = (
    "wrong_small_mutation",
    "wrong_dtype",
    "wrong_second",
    "wrong_mutation",
    "wrong_data_mutation",
    "wrong_offset",
    "wrong_requires_grad",
    "wrong_number",
    "wrong_meta",
)
_CLEAN = ("right", "right_number", "right_tuple", "right_mutation", "right_meta")
_STOPS = ("wrong_size", "wrong_rank", "wrong_stride", "wrong_layout", "wrong_none")
_SHARES = ("wrong_alias", "wrong_alias_of_outputs", "wrong_fake_view")
"""PyTorch itself warns of operators whose results share memory, and raises where the variable CI is set."""
_NOT_COMPILED = {
    "wrong_device": "Torch not compiled with CUDA|Found no NVIDIA driver",  # without CUDA in the build, and with it
    "wrong_view": "output has alias annotations",
}
"""What PyTorch says to those that it cannot compile."""


def watched(function: Callable[..., Any], *args: Any, **options: Any) -> CrossReference:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Inductor warns about some of the planted mistakes itself.
        # The program's own assertion about what the fake kernel promised.
        with crossref() as run, contextlib.suppress(AssertionError, RuntimeError, TypeError):
            torch.compile(function, **options)(*args)
    return run


def compiled(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Finding, ...]:
    return watched(function, *args, **options).findings


def assert_in_the_kernel(finding: Finding, name: str) -> None:
    assert finding.kind is EXPECTED[name][0]
    assert fields(finding) == EXPECTED[name][1]
    assert finding.severity is Severity.ERROR
    assert finding.stage is Stage.KERNEL
    assert finding.ops == (f"planted.{name}.default",)
    assert finding.graph is not None
    assert finding.nodes
    assert finding.source[0].file == __file__


@pytest.mark.xdist_group("compiled")
def test_planted_mistakes_are_found_inside_a_compiled_program_and_the_clean_ones_are_not() -> None:
    def program(x: torch.Tensor) -> list[Any]:
        return [operator(name)(x * i) for i, name in enumerate((*_TOGETHER, *_CLEAN), start=1)]

    # Since 2.14 the program itself asks what an operator returned, and ends at the first that is wrong.
    with inductor_config.patch(size_asserts=False):
        findings = compiled(program, sample())
    found = {f.ops[0].split(".")[1]: f for f in findings}
    assert set(found) == set(_TOGETHER), findings
    for name, finding in found.items():
        assert_in_the_kernel(finding, name)


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize("name", _STOPS)
def test_a_mistake_that_stops_the_program_is_found_before_it_does(name: str) -> None:
    (finding,) = compiled(lambda x: operator(name)(x + 1), sample())
    assert_in_the_kernel(finding, name)


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize("name", _SHARES)
@pytest.mark.parametrize("ci", [True, False])
def test_sharing_memory_is_found_whether_pytorch_raises_at_it_or_not(name: str, ci: bool) -> None:
    from torch._functorch import config

    with config.patch(check_custom_op_aliasing=True, error_on_custom_op_aliasing=ci):
        (finding,) = compiled(lambda x: operator(name)(x + 1), sample())
    assert_in_the_kernel(finding, name)


@pytest.mark.xdist_group("compiled")
def test_an_operator_without_a_result_is_clean_inside_a_compiled_program() -> None:
    assert not compiled(lambda x: (operator("right_none")(x + 1), x + 2), sample())


@pytest.mark.xdist_group("compiled")
def test_another_payload_of_a_nan_is_a_mutation_inside_a_compiled_program() -> None:
    (finding,) = compiled(lambda x: operator("wrong_nan_mutation")(x + 1), torch.full((3, 4), float("nan")))
    assert_in_the_kernel(finding, "wrong_nan_mutation")


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize(("name", "number"), [("wrong_symbolic", 1), ("right", 0)])
def test_a_mistake_with_symbols_is_found_where_sizes_are_dynamic(name: str, number: int) -> None:
    findings = compiled(lambda x: operator(name)(x + 1), sample(), dynamic=True)
    assert len(findings) == number
    for finding in findings:
        assert_in_the_kernel(finding, name)
        assert {d["against"] for d in finding.evidence["differences"]} >= {"symbolic"}


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize(("name", "number"), [("wrong_dynamic", 1), ("right_dynamic", 0)])
def test_a_size_that_depends_on_data_is_compared_inside_a_compiled_program(name: str, number: int) -> None:
    from torch._dynamo import config

    with config.patch(capture_dynamic_output_shape_ops=True):
        # Nothing computes with it: a kernel that reads floats as doubles reads past their end.
        findings = compiled(lambda x: operator(name)(x + 1), sample())
    assert len(findings) == number
    for finding in findings:
        assert_in_the_kernel(finding, name)


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize(("name", "number"), [("wrong_dynamic", 1), ("right_dynamic", 0)])
def test_an_operator_at_a_graph_break_is_found_in_eager_code(name: str, number: int) -> None:
    run = watched(lambda x: operator(name)(x + 1) * 2, sample())
    assert run.coverage.graphs == 2
    assert [(f.kind, f.stage, fields(f)) for f in run.findings] == [(MISMATCH, Stage.EAGER, {"dtype"})] * number


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize("name", _NOT_COMPILED)
def test_what_pytorch_cannot_compile_is_found_where_it_runs(name: str) -> None:
    """There is no compiled program to look at; `torchsan ops` says so beside what it found in eager code."""

    def program(x: torch.Tensor) -> Any:
        return operator(name)(x + 1)

    with crossref() as run, pytest.raises(Exception, match=_NOT_COMPILED[name]):
        torch.compile(program)(sample())
    assert not run.findings
    assert not run.coverage.graphs
    result = check_operator(operator(name), [((sample(),), {})], watch=crossref)
    assert result.ways["eager"] == "metadata-mismatch"
    assert result.ways["compiled"].startswith("failed: ")
    assert {f for finding in result.findings for f in fields(finding)} == EXPECTED[name][1]


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize(("name", "number"), [("wrong_dtype", 1), ("right", 0)])
def test_what_a_wrong_operator_leaves_to_the_backward_is_not_reported_beside_it(name: str, number: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = operator(name)(x.detach())
        return (x.sin() * doubled).cos().sum()

    x = sample().requires_grad_()
    with crossref() as run, inductor_config.patch(size_asserts=False):  # as above
        step = torch.compile(program)
        for _ in range(2):
            step(x).backward()
    assert run.coverage.graphs == 2
    assert len(run.findings) == number
    for finding in run.findings:
        assert_in_the_kernel(finding, name)


@pytest.mark.xdist_group("compiled")
def test_fail_fast_raises_inside_a_compiled_program() -> None:
    def program(x: torch.Tensor) -> Any:
        return operator("wrong_dtype")(x + 1), operator("wrong_mutation")(x + 2)

    with crossref(fail_fast=True) as run, pytest.raises(FindingsError, match="wrong_"):
        torch.compile(program)(sample())
    assert len(run.findings) == 1


def test_every_planted_mistake_was_compiled() -> None:
    rest = {"wrong_nan_mutation", "wrong_symbolic", "wrong_dynamic"}
    assert {*_TOGETHER, *_STOPS, *_SHARES, *_NOT_COMPILED, *rest} == set(EXPECTED)
