"""User-written Triton kernels in compiled programs: judged by their own source, and never run unguarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

import torchsan
from torchsan.records import Finding, Severity

pytest.importorskip("triton")
from tests import triton_on_cpu
from tests.planted.plant import planted
from tests.programs import users_kernels as programs


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Iterator[None]:
    with triton_on_cpu.enabled():
        yield


X = torch.randn(9, 48, generator=torch.Generator().manual_seed(0))
Program = Callable[[Tensor], Tensor]


def _run(
    program: Program, check: str, replaced: tuple[str, str] | None = None, dtype: torch.dtype = torch.float32
) -> tuple[list[Finding], dict[str, list[str]]]:
    """The findings, and what was skipped with its reasons; with a part of the generated program replaced."""
    torch._dynamo.reset()
    changed: list[bool] = []

    def change(source: str) -> str:
        assert replaced is not None
        changed.append(replaced[0] in source)
        return source.replace(*replaced)

    with torchsan.session(check=check) as run, planted(change) if replaced else nullcontext():
        torch.compile(program)(X.to(dtype))
    assert not replaced or any(changed), "the fault was not planted: Inductor generates other code now"
    skipped: dict[str, list[str]] = {}
    for each in run.coverage.skipped:
        skipped.setdefault(each.what, []).append(each.reason)
    assert "torchsan failed" not in str(skipped)
    return list(run.findings), skipped


@pytest.mark.parametrize(
    "program",
    [
        programs.into_empty,
        programs.autotuned,
        programs.softmax_of_rows,
        pytest.param(programs.in_place, marks=pytest.mark.slow),
        pytest.param(programs.into_an_input, marks=pytest.mark.slow),
        pytest.param(programs.into_zeros, marks=pytest.mark.slow),
        pytest.param(programs.twice_in_place, marks=pytest.mark.slow),
        pytest.param(programs.centred_columns, marks=pytest.mark.slow),
        pytest.param(programs.product_of_matrices, marks=pytest.mark.slow),
        pytest.param(programs.counted, marks=pytest.mark.slow),
        pytest.param(programs.perturbed, marks=pytest.mark.slow),
    ],
)
def test_a_healthy_kernel_is_run_again_and_has_no_finding(program: Program) -> None:
    findings, skipped = _run(program, "values,stages,memory")
    assert [f for f in findings if f.severity is Severity.ERROR] == []
    assert "no reference" not in str(skipped)
    assert "stages of graph 0" not in skipped


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("program", [programs.into_empty, programs.softmax_of_rows, programs.product_of_matrices])
def test_a_healthy_kernel_in_half_precision_has_no_finding(program: Program, dtype: torch.dtype) -> None:
    findings, skipped = _run(program, "values,stages,memory", dtype=dtype)
    assert [f for f in findings if f.severity is Severity.ERROR] == []
    assert "no reference" not in str(skipped)


def test_everything_is_checked() -> None:
    torch._dynamo.reset()
    with torchsan.session(check="values,stages") as run:
        torch.compile(programs.into_empty)(X.clone())
    assert not run.coverage.skipped
    # What the user's kernel is given, what it leaves, and what is computed from that.
    assert run.coverage.buffers_checked == 3


@pytest.mark.parametrize(
    ("program", "right", "wrong", "kernel"),
    [
        pytest.param(programs.autotuned, "i < n) * 3", "i < n) * 3.0003", "tuned_0", marks=pytest.mark.slow),
        pytest.param(programs.in_place, "i < n) + 1", "i < n) + 1.0001", "increment_0", marks=pytest.mark.slow),
        pytest.param(programs.softmax_of_rows, "tl.sum(e, 0)", "tl.sum(e, 0) * 1.0001", "softmax_0"),
        (programs.centred_columns, "tl.sum(x, 0) / n", "tl.sum(x, 0) / (n - 1)", "centre_0"),
        pytest.param(
            programs.product_of_matrices, "(0, K, BLOCK)", "(0, 32, BLOCK)", "product_0", marks=pytest.mark.slow
        ),
        pytest.param(
            programs.counted, "x * 0 + 1.0, i < n)", "x * 0 + 1.0, i < n - 1)", "count_0", marks=pytest.mark.slow
        ),
        pytest.param(programs.perturbed, "tl.rand(seed", "tl.rand(seed + 1", "perturb_0", marks=pytest.mark.slow),
    ],
)
def test_what_is_compiled_wrong_is_named(program: Program, right: str, wrong: str, kernel: str) -> None:
    findings, _ = _run(program, "values", (right, wrong))
    assert [(f.kind, f.kernel) for f in findings] == [("wrong-values", kernel)]
    assert "triton_kernel_wrapper_mutation" in findings[0].ops
    assert findings[0].source[0].file.endswith("users_kernels.py")


def test_the_configuration_that_ran_is_named() -> None:
    findings, _ = _run(programs.autotuned, "values", ("i < n) * 3", "i < n) * 4"))
    assert findings[0].evidence["configuration"] == "BLOCK=32, num_warps=4, num_stages=3"
    assert "ran with BLOCK=32, num_warps=4, num_stages=3" in findings[0].evidence["text"]


def test_a_kernel_that_looks_at_bits_has_no_reference_and_no_finding() -> None:
    findings, skipped = _run(programs.without_signs, "values")
    assert not findings
    reason = "no reference: Triton's interpreter cannot run looking_at_bits: it looks at the bits of a number"
    assert skipped["buf0 of graph 0 inference"] == [reason]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # what Dynamo does itself
def test_a_users_kernel_in_forward_and_backward() -> None:
    torch._dynamo.reset()
    x = X.clone().requires_grad_()
    with torchsan.session() as run:
        torch.compile(programs.forward_and_backward)(x).sum().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    assert [f for f in run.findings if f.severity is Severity.ERROR] == []
    assert "no reference" not in str(run.coverage.skipped)
    assert x.grad is not None


def test_a_users_kernel_that_writes_out_of_bounds_is_named_with_all_checks_on() -> None:
    findings, skipped = _run(programs.out_of_bounds, "values,stages,metadata,memory")
    assert [(f.kind, f.kernel, f.buffer) for f in findings] == [("out-of-bounds-write", "beyond_0", "buf0")]
    assert "8 elements after the end" in findings[0].message
    assert "beyond writes outside of its tensors" in skipped["stages of graph 0"][0]


def test_a_users_kernel_that_reads_out_of_bounds_is_named() -> None:
    findings, _ = _run(programs.reading_beyond, "values")
    assert [(f.kind, f.kernel, f.severity) for f in findings] == [
        ("out-of-bounds-read", "neighbours_0", Severity.ERROR)
    ]
    assert findings[0].message == "neighbours_0 reads 1 element after the end of a"
    assert "triton_kernel_wrapper_mutation" in findings[0].ops
    assert findings[0].source[0].file.endswith("users_kernels.py")


@pytest.mark.parametrize(
    ("program", "kernel"),
    [
        (programs.counted_into_empty, "count_0"),
        pytest.param(programs.without_its_last_block, "triton_poi_fused_cos_0", marks=pytest.mark.slow),
    ],
)
def test_what_a_users_kernel_should_have_written_and_is_read_is_named(program: Program, kernel: str) -> None:
    findings, _ = _run(program, "values,stages,memory")
    errors = [f for f in findings if f.severity is Severity.ERROR]
    assert [(f.kind, f.kernel) for f in errors] == [("uninitialized-read", kernel)]
    assert all(f.evidence["follows"] == errors[0].id for f in findings if f not in errors)


def test_what_a_users_kernel_leaves_unwritten_and_nobody_reads_is_no_error() -> None:
    findings, _ = _run(programs.a_part_of_a_buffer, "values,stages,memory")
    assert [f for f in findings if f.severity is not Severity.NOTE] == []


@pytest.mark.fixed_in("2.15")
def test_a_row_that_pytorch_copies_from_beyond_its_end_is_found() -> None:
    """https://github.com/pytorch/pytorch/issues/192226: the copy of a row that begins inside of its storage."""
    findings, _ = _run(programs.into_a_row, "stages")
    assert [(f.kind, f.check) for f in findings] == [("wrong-values", "stages")]
