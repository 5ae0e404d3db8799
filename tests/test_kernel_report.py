"""`torchsan.check_kernel`: what it takes, and what its report says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import torchsan
from torchsan.kernel_report import as_html, as_json, as_sarif
from torchsan.report.json_report import report_schema


def wrong(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + (x > 2.0)


@pytest.fixture(scope="module")
def report() -> torchsan.KernelReport:
    return torchsan.check_kernel(wrong, torch.relu, (torch.randn(20, 30),))


def test_a_report_is_truthy_when_the_kernel_is_right() -> None:
    report = torchsan.check_kernel(torch.relu, torch.relu, (torch.randn(20, 30),))
    assert report and report.status == "clean" and report.exit == 0
    report.raise_if_findings()


def test_a_wrong_kernel_has_findings_that_can_be_raised(report: torchsan.KernelReport) -> None:
    assert not report and report.exit == 1
    assert report.findings[-1].kind == "wrong-values" and report.findings[-1].check == "kernels"
    with pytest.raises(torchsan.FindingsError, match="wrong-values"):
        report.raise_if_findings()


def test_a_failure_is_shrunk_and_can_be_made_again(report: torchsan.KernelReport) -> None:
    from torchsan.kernels.inputs import Example, Trial

    evidence = report.findings[-1].evidence
    values = {**evidence["trial"], "sizes": tuple(evidence["trial"]["sizes"])}
    leaves = Example.of((torch.randn(20, 30),)).make(Trial(**values))
    assert leaves[0].numel() < 600
    assert not torch.equal(wrong(leaves[0]), torch.relu(leaves[0]))


def test_a_triton_kernel_is_given_its_grid() -> None:
    pytest.importorskip("triton")
    from tests.programs.users_kernels import add

    def adding(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, n: int, block: int) -> None:
        torch.add(x, y, out=out)

    example = (torch.randn(40), torch.randn(40), torch.zeros(40), 40, 16)
    report = torchsan.check_kernel(add, adding, example, grid=(3,))
    assert report and {t["sizes"] for t in report.tried["trials"]} == {None}
    bound = torchsan.check_kernel(add[(2,)], adding, example)
    assert not bound and {t["sizes"] for t in bound.tried["trials"]} == {None}
    with pytest.raises(torchsan.UsageError, match="without a grid"):
        torchsan.check_kernel(add, adding, example)


def test_too_few_inputs_show_nothing(report: torchsan.KernelReport) -> None:
    some = [t for t in report.tried["trials"] if t["outcome"] == "right"][:7]
    few = replace(report, findings=(), tried={**report.tried, "trials": some})
    assert some and few.status == "incomplete" and few.exit == 4


def test_inputs_may_be_a_function_of_a_seed() -> None:
    def inputs(seed: int) -> tuple[torch.Tensor]:
        return (torch.randn(5, 6, generator=torch.Generator().manual_seed(seed)),)

    assert torchsan.check_kernel(torch.clamp_min, lambda x, y: x.clamp(min=y), lambda s: (*inputs(s), 0.0))
    assert not torchsan.check_kernel(torch.abs, torch.relu, inputs)


def test_without_a_reference_the_operator_of_that_name_is_taken() -> None:
    def my_gelu(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x)

    def unheard_of(x: torch.Tensor) -> torch.Tensor:
        return x

    assert torchsan.check_kernel(my_gelu, None, (torch.randn(8, 9),))
    with pytest.raises(torchsan.UsageError, match="give a reference"):
        torchsan.check_kernel(unheard_of, None, (torch.randn(8, 9),))


def test_inputs_that_the_reference_does_not_take_are_an_error_of_usage() -> None:
    with pytest.raises(torchsan.UsageError, match="reference raises"):
        torchsan.check_kernel(torch.relu, torch.matmul, (torch.randn(2),))


def test_a_random_reference_is_compared_with_the_same_seed_or_not_at_all() -> None:
    report = torchsan.check_kernel(lambda x: x * 2, lambda x: x + torch.rand_like(x), (torch.randn(9),))
    assert report.status == "incomplete" and report.exit == 4


def test_the_json_is_that_of_every_report(report: torchsan.KernelReport) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    values = as_json(report)
    tried = values.pop("tried")
    jsonschema.validate(values, report_schema())
    json.dumps(tried)
    assert tried["seeds"] and tried["versions"]["torch"] and len(tried["digest"]) == 64
    assert {t["outcome"] for t in tried["trials"]} >= {"right", "wrong-values"}


def test_the_same_kernel_gets_the_same_verdict() -> None:
    # With time enough for all of them: which sizes are too dear is a matter of how busy the machine is.
    one, two = (torchsan.check_kernel(torch.tanh, torch.tanh, (torch.ones(3, 4),), time=600.0) for _ in range(2))
    assert one.tried["digest"] == two.tried["digest"]


def test_it_is_told_to_browsers_and_to_code_scanning(report: torchsan.KernelReport) -> None:
    page = as_html(report)
    assert "wrong-values" in page and "<script" not in page and report.tried["digest"] in page
    log = json.loads(as_sarif(report))
    assert log["version"] == "2.1.0" and log["runs"][0]["results"][-1]["ruleId"] == "wrong-values"
