"""A wrong factor of one operator is an error that names it, at every site and of every size; without it, nothing is."""

from __future__ import annotations

import re

import pytest
import torch

import torchsan
from tests.planted.plant import in_kernel, planted
from tests.planted.scaled import SHAPES, SITES, called
from torchsan.records import Finding, Severity

pytestmark = pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")

FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16
USUAL = {"library": "matmul", "decomposition": "decomposed"}
"""The shape of computation that a fault at a site is tried in, if it is not `pointwise`."""


def found(site: str, dtype: torch.dtype, error: float, rows: int = 8, shape: str = "") -> list[Finding]:
    """What torchsan says of a program with `rows` × 32 elements and an operator that is off by `error`."""
    torch._dynamo.reset()
    form = SHAPES[shape or USUAL.get(site, "pointwise")]
    with torchsan.session(check=("values", "stages")) as run, SITES[site][0](form.op, error):
        called(form, dtype, rows, torch.compile)
    assert not [s for s in run.coverage.skipped if "failed" in s.reason]
    return [f for f in run.findings if f.severity is not Severity.NOTE]


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("site", "dtype", "error", "rows"),
    [
        ("kernel", FLOAT32, 1e-6, 128),
        slow("kernel", FLOAT32, 1e-5, 8),
        slow("kernel", FLOAT32, 1e-4, 8),
        slow("kernel", FLOAT32, 1e-3, 8),
        slow("kernel", FLOAT32, -1e-2, 8),
        slow("kernel", FLOAT32, 0.1, 8),
        slow("kernel", torch.float64, 1e-12, 8),
        ("kernel", BFLOAT16, 2e-2, 8),
        ("kernel", BFLOAT16, 4e-3, 128),
        slow("kernel", BFLOAT16, -4e-2, 8),
        slow("kernel", BFLOAT16, 0.1, 8),
        slow("kernel", FLOAT16, 2e-2, 8),
        slow("kernel", FLOAT16, 4e-3, 128),
        slow("kernel", FLOAT16, 0.1, 8),
        ("library", FLOAT32, 1e-5, 8),
        slow("library", FLOAT32, 0.1, 8),
        slow("library", BFLOAT16, 2e-2, 8),
        slow("library", BFLOAT16, 0.1, 8),
        slow("decomposition", FLOAT32, 1e-5, 8),
        slow("decomposition", FLOAT32, 1e-3, 8),
        slow("decomposition", FLOAT32, 0.1, 8),
        slow("decomposition", BFLOAT16, 0.1, 8),
        slow("decomposition", BFLOAT16, 2e-2, 8),
        slow("joint", FLOAT32, 1e-5, 8),
        slow("joint", FLOAT32, 0.1, 8),
        slow("joint", BFLOAT16, 2e-2, 8),
        slow("joint", BFLOAT16, 0.1, 8),
        ("post-grad", FLOAT32, 1e-5, 8),
        slow("post-grad", FLOAT32, 1e-4, 8),
        slow("post-grad", FLOAT32, 1e-3, 8),
        slow("post-grad", FLOAT32, 1e-2, 8),
        slow("post-grad", FLOAT32, 0.1, 8),
        ("post-grad", BFLOAT16, 0.1, 8),
        slow("post-grad", BFLOAT16, 2e-2, 8),
        slow("post-grad", BFLOAT16, 4e-3, 128),
        slow("post-grad", FLOAT16, 2e-2, 8),
    ],
)
def test_a_wrong_factor_is_an_error_that_names_the_operator(
    site: str, dtype: torch.dtype, error: float, rows: int
) -> None:
    errors = [f for f in found(site, dtype, error, rows) if f.severity is Severity.ERROR]
    assert errors
    for finding in errors:
        assert (finding.kind, finding.stage) == ("wrong-values", SITES[site][1])
        assert f"aten.{SHAPES[USUAL.get(site, 'pointwise')].op}.default" in finding.ops
        assert finding.nodes
        assert finding.source


@pytest.mark.parametrize(
    ("site", "shape", "dtype", "error", "rows"),
    [
        ("kernel", "sum of 100", FLOAT32, 1e-5, 8),
        slow("kernel", "sum of 100", FLOAT32, 1e-6, 128),
        slow("kernel", "sum of 100", FLOAT32, 1e-4, 8),
        slow("kernel", "sum of 100", FLOAT32, -1e-2, 8),
        slow("kernel", "sum of 100", BFLOAT16, 2e-2, 256),
        slow("kernel", "sum of 100", torch.float64, 1e-12, 8),
        ("kernel", "sum of 100000", FLOAT32, 1e-5, 1),
        slow("kernel", "sum of 100000", FLOAT32, 1e-5, 4),
        slow("kernel", "sum of 100000", FLOAT32, -1e-4, 1),
        slow("kernel", "sum of 100000", FLOAT32, 1e-3, 4),
        slow("kernel", "sum of 100000", FLOAT32, 0.1, 4),
        slow("kernel", "larger addend", FLOAT32, 1e-5, 8),
        slow("kernel", "larger addend", FLOAT32, 1e-4, 8),
        slow("kernel", "larger addend", FLOAT32, 1e-3, 8),
        slow("kernel", "larger addend", FLOAT32, 0.1, 8),
        slow("kernel", "normalisation", FLOAT32, 1e-5, 8),
        slow("kernel", "normalisation", FLOAT32, 1e-2, 8),
        slow("kernel", "normalisation", BFLOAT16, 2e-2, 64),
        slow("kernel", "wide normalisation", FLOAT32, 1e-5, 8),
        slow("kernel", "wide normalisation", FLOAT32, 1e-4, 8),
        slow("kernel", "softmax", FLOAT32, 1e-5, 8),
        slow("kernel", "softmax", FLOAT32, 1e-2, 8),
        slow("kernel", "softmax", BFLOAT16, 2e-2, 64),
        slow("kernel", "wide softmax", FLOAT32, 1e-4, 4),
        slow("kernel", "loss", FLOAT32, 1e-5, 100),
        slow("kernel", "loss", FLOAT32, 1e-3, 100),
        ("kernel", "gradient", FLOAT32, 1e-5, 8),
        slow("kernel", "gradient", FLOAT32, 1e-3, 8),
        slow("kernel", "gradient", FLOAT32, 0.1, 8),
        slow("kernel", "gradient", BFLOAT16, 2e-2, 64),
        ("library", "convolution", BFLOAT16, 1e-2, 28),
        slow("library", "convolution", BFLOAT16, 4e-3, 28),
        slow("library", "convolution", FLOAT16, 4e-3, 28),
        slow("library", "convolution", FLOAT32, 1e-5, 28),
        slow("library", "library gradient", FLOAT32, 1e-5, 8),
        slow("library", "library gradient", BFLOAT16, 2e-2, 64),
        slow("decomposition", "decomposed gradient", FLOAT32, 1e-5, 8),
        slow("decomposition", "decomposed gradient", FLOAT32, 1e-3, 8),
        slow("decomposition", "decomposed gradient", BFLOAT16, 2e-2, 8),
        slow("joint", "gradient", FLOAT32, 1e-5, 8),
        slow("joint", "gradient", BFLOAT16, 2e-2, 8),
        slow("post-grad", "gradient", FLOAT32, 1e-5, 8),
        slow("post-grad", "gradient", FLOAT32, 1e-2, 8),
        slow("post-grad", "gradient", BFLOAT16, 2e-2, 8),
        slow("post-grad", "sum of 100", FLOAT32, 1e-5, 8),
        slow("post-grad", "sum of 100000", FLOAT32, 1e-5, 1),
        slow("joint", "wide normalisation", FLOAT32, 1e-5, 8),
    ],
)
def test_a_wrong_factor_is_an_error_in_any_shape_of_computation(
    site: str, shape: str, dtype: torch.dtype, error: float, rows: int
) -> None:
    errors = [f for f in found(site, dtype, error, rows, shape) if f.severity is Severity.ERROR]
    assert errors
    for finding in errors:
        assert (finding.kind, finding.stage) == ("wrong-values", SITES[site][1])
        assert f"aten.{SHAPES[shape].op}.default" in finding.ops


WEIGHT = {Severity.ERROR: 2, Severity.WARNING: 1}


@pytest.mark.parametrize(
    ("site", "shape", "dtype", "errors"),
    [
        ("kernel", "pointwise", FLOAT32, (1e-7, 1e-5, 3.0)),
        slow("kernel", "pointwise", FLOAT32, (1e-7, 1e-6, 1e-5, 1e-3, 0.1, 3.0)),
        slow("kernel", "pointwise", BFLOAT16, (1e-3, 4e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.5, 3.0)),
        slow("kernel", "pointwise", FLOAT16, (1e-4, 1e-3, 4e-3, 2e-2, 0.1, 3.0)),
        slow("kernel", "sum of 100", FLOAT32, (1e-7, 1e-6, 1e-5, 1e-4, 1e-2, 0.5)),
        slow("kernel", "normalisation", BFLOAT16, (1e-3, 4e-3, 2e-2, 0.1, 0.5)),
        slow("kernel", "gradient", BFLOAT16, (1e-3, 4e-3, 2e-2, 0.1, 0.5)),
        slow("library", "matmul", FLOAT32, (1e-7, 1e-6, 1e-5, 1e-3, 0.1)),
        slow("decomposition", "decomposed", FLOAT32, (1e-7, 1e-6, 1e-5, 1e-3, 0.1)),
        slow("post-grad", "pointwise", BFLOAT16, (1e-4, 4e-3, 2e-2, 0.1)),
    ],
)
def test_a_larger_error_is_never_a_milder_finding(
    site: str, shape: str, dtype: torch.dtype, errors: tuple[float, ...]
) -> None:
    worst = [max([WEIGHT[f.severity] for f in found(site, dtype, e, 64, shape)], default=0) for e in errors]
    assert worst == sorted(worst)
    assert worst[-1] == WEIGHT[Severity.ERROR]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "dtype", "rows"),
    [(s, d, 4 if "100000" in s or "wide" in s else 64) for s in SHAPES for d in (FLOAT32, BFLOAT16)],
)
def test_nothing_is_found_in_a_healthy_shape_of_computation(shape: str, dtype: torch.dtype, rows: int) -> None:
    torch._dynamo.reset()
    with torchsan.session(check=("values", "stages")) as run:
        called(SHAPES[shape], dtype, rows, torch.compile)
    assert not [f for f in run.findings if f.severity is not Severity.NOTE]


@pytest.mark.parametrize(
    ("site", "dtype", "rows"),
    [
        ("kernel", BFLOAT16, 128),
        slow("kernel", FLOAT32, 128),
        slow("kernel", FLOAT16, 128),
        slow("kernel", torch.float64, 8),
        slow("library", FLOAT32, 8),
        slow("library", BFLOAT16, 128),
        slow("decomposition", BFLOAT16, 8),
        slow("decomposition", FLOAT32, 8),
        slow("joint", BFLOAT16, 8),
        slow("post-grad", BFLOAT16, 8),
    ],
)
def test_nothing_is_found_without_it(site: str, dtype: torch.dtype, rows: int) -> None:
    assert found(site, dtype, 0.0, rows) == []


def test_the_size_of_a_shared_error_is_told() -> None:
    finding, *_ = found("kernel", BFLOAT16, 2e-2, 128)
    shared = finding.evidence["shared"]
    assert "tanh" in shared["nodes"]
    assert shared["what"] == "factor"
    assert shared["size"] == pytest.approx(0.02, rel=0.2)
    assert "too large" in finding.message


@pytest.mark.parametrize("left_out", [True, False])
def test_one_term_of_a_hundred_thousand_that_a_sum_leaves_out_is_found(left_out: bool) -> None:
    """Relative to what the rounding of so many terms may amount to it is nothing; for other data it is left out too."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(4, 100_000)
    code = f"for (int i = 0; i < 4; i++) out_ptr0[i] -= {int(left_out)} * in_ptr0[i * 100000 + 99999];"
    with torchsan.session(check="values") as run, planted(in_kernel("cpp_fused", code)) as changed:
        torch.compile(lambda x: x.sum(-1))(x)
    assert changed
    errors = [f for f in run.findings if f.severity is Severity.ERROR]
    assert [(f.kind, f.ops) for f in errors] == [("wrong-values", ("aten.sum.dim_IntList",))] * left_out


CPP = {FLOAT32: "float", BFLOAT16: "at::BFloat16", FLOAT16: "at::Half"}


@pytest.mark.parametrize(
    ("dtype", "error"),
    [
        (BFLOAT16, 0.03),
        (BFLOAT16, 0.0),
        slow(BFLOAT16, -0.02),
        slow(BFLOAT16, 0.2),
        slow(FLOAT16, 4e-3),
        slow(FLOAT16, 0.0),
        (FLOAT32, 1e-5),
        slow(FLOAT32, 1e-4),
        slow(FLOAT32, 0.0),
    ],
)
def test_an_error_of_a_few_elements_is_found(dtype: torch.dtype, error: float) -> None:
    """In one element of hundreds, as in the rest of a vectorised loop: on other data it is off by the same."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(64, 67).to(dtype)
    code = f"for (int i = 0; i < 3; i++) out_ptr0[i * 64] = {CPP[dtype]}(float(out_ptr0[i * 64]) * {1 + error!r});"
    with torchsan.session(check="values") as run, planted(in_kernel("cpp_fused", code)) as changed:
        torch.compile(lambda x: x + torch.tanh(x) * torch.sigmoid(x))(x)
    assert changed
    kinds = [f.kind for f in run.findings if f.severity is not Severity.NOTE]
    assert kinds == ["wrong-values"] * (error != 0)
    assert all(0 < f.evidence["bad"] <= 3 and "aten.tanh.default" in f.ops for f in run.findings)


def test_an_offset_of_one_addend_names_it() -> None:
    """As large an offset, or a factor, of the sum explains it nearly as well."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(64, 64).to(BFLOAT16)
    code = "for (int i = 0; i < 4096; i++) out_ptr0[i] = at::BFloat16(std::sqrt(std::abs(float(in_ptr0[i]))) + 1.02f);"
    with torchsan.session(check="values") as run, planted(in_kernel("cpp_fused", code)) as changed:
        torch.compile(lambda x: x.abs().sqrt() + 1)(x)
    assert changed
    assert [f.kind for f in run.findings] == ["wrong-values"]
    assert {"aten.sqrt.default", "aten.add.Tensor"} <= set(run.findings[0].ops)


@pytest.mark.parametrize(
    ("dtype", "error"),
    [(BFLOAT16, 0.02), slow(BFLOAT16, 0.0), slow(FLOAT16, 0.02), slow(FLOAT32, 1e-4), slow(FLOAT32, 0.0)],
)
def test_an_attention_that_is_given_something_else_is_found(dtype: torch.dtype, error: float) -> None:
    """No factor of the result: an operator without a kernel of Inductor's is put to other data, too."""
    torch._dynamo.reset()
    name = "_scaled_dot_product_flash_attention_for_cpu"
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 32, 16).to(dtype) for _ in range(3))

    def edit(code: str) -> str:
        return re.sub(rf"({name}\.default\()(\w+), ", rf"\1\2 * {1 + error}, ", code)

    with torchsan.session(check="values") as run, planted(edit) as changed:
        torch.compile(torch.nn.functional.scaled_dot_product_attention)(q, 2 * k, v)
    assert changed
    errors = [f for f in run.findings if f.severity is not Severity.NOTE]
    assert [(f.kind, f.ops) for f in errors] == [("wrong-values", (f"aten.{name}.default",))] * (error != 0)


def average(mean: torch.Tensor, x: torch.Tensor) -> None:
    mean.mul_(0.9).add_(x, alpha=0.1)


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [(BFLOAT16, 0.91), (BFLOAT16, 0.9), slow(FLOAT16, 0.904), slow(FLOAT32, 0.900003), slow(FLOAT32, 0.9)],
)
def test_what_is_left_in_an_argument_is_judged_as_closely_as_a_result(dtype: torch.dtype, factor: float) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    mean, x = (torch.randn(64, 64).to(dtype) for _ in range(2))

    def edit(code: str) -> str:
        return re.sub(r"static_cast<(\w+)>\(0\.9\)", rf"static_cast<\1>({factor} )", code)

    with torchsan.session(check="values") as run, planted(edit) as changed, torch.no_grad():
        torch.compile(average)(mean, x)
    assert changed
    errors = [f for f in run.findings if f.severity is not Severity.NOTE]
    assert [f.kind for f in errors] == ["wrong-values"] * (factor != 0.9)
    assert all("aten.mul.Tensor" in f.ops and f.source for f in errors)


def test_a_library_call_whose_result_is_only_copied_is_named_itself() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 12, 12), torch.randn(8, 4, 3, 3)
    with torchsan.session(check="values") as run, SITES["library"][0]("convolution", 1e-4):
        torch.compile(torch.nn.functional.conv2d)(x, w)
    (finding,) = run.findings
    assert (finding.kernel, finding.ops) == ("extern_kernels.convolution", ("aten.convolution.default",))
    assert finding.kernel not in finding.evidence["through"]
    assert run.coverage.kernels > 1


@pytest.mark.parametrize(("decay", "lists"), [(0.99, True), (0.9999, True), slow(0.99, False), slow(0.9999, False)])
def test_a_compiled_optimizer_is_judged_so_too_with_operators_on_lists_as_well(decay: float, lists: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(64, 64).to(BFLOAT16)) for _ in range(2)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(parameters, lr=0.01, foreach=lists)

    def edit(code: str) -> str:
        return re.sub(r"static_cast<(\w+)>\(0\.9999\)", rf"static_cast<\1>({decay} )", code)

    with torchsan.session(check="values") as run, planted(edit) as changed:
        torch.compile(optimizer.step)()
    assert changed
    assert run.coverage.buffers_checked == run.coverage.buffers
    errors = [f for f in run.findings if f.severity is not Severity.NOTE]
    assert bool(errors) == (decay != 0.9999)
    assert all(f.kind == "wrong-values" and any("mul" in op for op in f.ops) for f in errors)


def test_an_expanded_input_is_put_to_other_data_as_it_lies_in_memory() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.randn(64, 1).to(BFLOAT16).expand(64, 64)

    def edit(code: str) -> str:
        return re.sub(r"static_cast<(\w+)>\(0\.9\)", r"static_cast<\1>(0.91)", code)

    with torchsan.session(check="values") as run, planted(edit) as changed:
        torch.compile(lambda x: x.sigmoid() * 0.9)(x)
    assert changed
    assert [f.kind for f in run.findings if f.severity is Severity.ERROR] == ["wrong-values"]
