"""Each planted fault is found at its kernel and operator, and nothing else is; its clean twin has no `error`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._inductor.lowering as lowering

import torchsan
from tests.planted.faults import FAULTS, Fault, planted


def faults(*, twins: bool) -> list[object]:
    # A clean twin costs as much as the fault, so only every third runs every day.
    return [
        pytest.param(f, id=f.name, marks=[pytest.mark.slow] if f.slow or (twins and i % 3) else [])
        for i, f in enumerate(FAULTS)
    ]


@pytest.mark.parametrize("fault", faults(twins=False))
def test_a_planted_fault_is_found_where_it_is(fault: Fault) -> None:
    torch.manual_seed(0)
    with torchsan.session(check="values") as run, planted(fault) as changed:
        fault.program()
    assert changed, "the fault was not planted: Inductor generates other code now"
    assert any(f.kind == fault.kind for f in run.findings), f"not found; {run.coverage}"
    # Additions in any order differ by rounding from launch to launch, in a wrong kernel too.
    noise = [f for f in run.findings if (f.kind, f.severity) == ("nondeterministic", "warning")]
    for finding in (f for f in run.findings if f not in noise):
        assert (finding.kind, finding.severity, finding.stage) == (fault.kind, fault.severity, "kernel")
        assert set(finding.ops) & fault.ops, finding.ops
        assert finding.kernel
        assert finding.source or fault.backward
        assert finding.evidence["bad"] > 0


@pytest.mark.parametrize("fault", faults(twins=True))
def test_its_clean_twin_is_right(fault: Fault) -> None:
    torch.manual_seed(0)
    with torchsan.session(check="values") as run:
        fault.program()
    assert run.coverage.buffers_checked > 0
    assert not [f for f in run.findings if f.severity == "error"]


def test_a_fault_is_blamed_on_its_own_kernel_and_not_on_those_after_it() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (((x @ w).sin() @ w).cos() @ w).tanh()

    x, w = torch.randn(16, 16), torch.randn(16, 16)
    fault = Fault(
        name="first",
        program=lambda: torch.compile(program)(x, w),
        pattern=r"\.sin\(\)",
        wrong=".cos()",
        ops=frozenset(),
    )
    with torchsan.session(check="values") as run, planted(fault):
        fault.program()
    assert [f.ops for f in run.findings] == [("aten.sin.default",)]


def test_a_finding_says_where_in_the_source_and_how_it_looks() -> None:
    fault = next(f for f in FAULTS if f.name == "another_function")
    with torchsan.session(check="values") as run, planted(fault):
        fault.program()
    (finding,) = run.findings
    assert finding.source[0].file.endswith("faults.py")
    assert finding.evidence["pattern"] in ("all elements", "nearly all elements", "scattered elements")
    assert {"first_bad", "compiled", "eager", "float64", "allowed", "elements"} <= set(finding.evidence)
    with pytest.raises(torchsan.FindingsError, match="sin"):
        run.raise_if_findings()


def test_a_wrong_kernel_is_reported_once_however_often_it_runs() -> None:
    fault = next(f for f in FAULTS if f.name == "another_function")
    with torchsan.session(check="values", calls="all") as run, planted(fault):
        compiled = torch.compile(lambda x: x.sin() + 1)
        for _ in range(4):
            compiled(torch.randn(8, 16))
    assert len(run.findings) == 1


def test_a_wrong_kernel_that_is_launched_twice_is_one_cause() -> None:
    w = torch.randn(16, 16)
    fault = Fault(
        name="twice",
        program=lambda: torch.compile(lambda x: ((x @ w).sin() @ w).sin() @ w)(torch.randn(4, 16)),
        pattern=r"\.sin\(\)",
        wrong=".cos()",
        ops=frozenset(),
    )
    with torch.no_grad(), torchsan.session(check="values") as run, planted(fault):
        fault.program()
    first, second = run.findings
    assert first.kernel == second.kernel
    assert first.buffer != second.buffer
    assert (first.evidence.get("follows"), second.evidence.get("follows")) == (None, first.id)


def test_a_kernel_that_is_right_at_its_first_launch_is_judged_at_the_others_too() -> None:
    torch.manual_seed(0)
    w = torch.randn(16, 16)
    fault = Fault(
        name="only-large",
        program=lambda: torch.compile(lambda x: ((x @ w).sin() @ (w * 50)).sin() @ w)(torch.randn(4, 16)),
        pattern=r"tmp0\.sin\(\)",
        wrong="at::vec::minimum(tmp0, at::vec::Vectorized<float>(20.0f)).sin()",
        ops=frozenset(),
    )
    with torch.no_grad(), torchsan.session(check="values") as run, planted(fault):
        fault.program()
    (finding,) = run.findings
    with torch.no_grad(), torchsan.session(check="values") as clean:
        fault.program()
    assert finding.ops == ("aten.sin.default",)
    assert not clean.findings
    assert clean.coverage.buffers_checked == clean.coverage.buffers


def test_a_kernel_that_makes_inf_of_numbers_shows_what_it_had() -> None:
    x = torch.linspace(0.0, 60.0, 32).reshape(4, 8)
    fault = Fault(
        name="overflow",
        program=lambda: torch.compile(lambda x: (x.exp() * 2).sqrt())(x),
        pattern=r"(tmp\d+)\.exp\(\)",
        wrong=r"(\1.exp() * \1.exp() / \1.exp())",
        ops=frozenset(),
    )
    with torchsan.session(check="values") as run, planted(fault) as changed:
        fault.program()
    assert changed
    (finding,) = run.findings
    assert (finding.kind, finding.severity) == ("non-finite", "error")
    (index,) = [tuple(i["at"]) for i in finding.evidence["inputs"]]
    assert finding.evidence["inputs"][0]["value"] == pytest.approx(x[index].item())
    assert index == tuple(finding.evidence["first_bad"])
    assert any("from x[" in line for line in finding.evidence["text"]), finding.evidence["text"]
    assert "linspace" not in finding.source[0].code
    assert "x.exp()" in finding.source[0].code


def test_what_eager_makes_infinite_too_is_no_finding() -> None:
    with torchsan.session(check="values") as run:
        torch.compile(lambda x: (x.log() + 1).exp() / x)(torch.tensor([-1.0, 0.0, 1.0, 200.0]).repeat(8))
    assert run.coverage.buffers_checked
    assert not run.findings


@pytest.mark.parametrize("factor", [1.0, 1.01])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_is_written_to_a_cache_must_be_the_same_to_the_bit(
    dtype: torch.dtype, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is rounded where numbers are put in their places. Who reads them there is not to blame."""
    put = torch.ops.aten.index_put_.default
    real = lowering.lowerings[put]

    def wrong(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
        return real(x, indices, lowering.mul(values, factor) if factor != 1 else values, accumulate)

    monkeypatch.setitem(lowering.lowerings, put, wrong)

    def attend(cache: torch.Tensor, at: torch.Tensor, k: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, k)
        return torch.nn.functional.scaled_dot_product_attention(q, cache, cache)

    torch.manual_seed(0)
    cache, k, q = (torch.randn(4, n, 8).to(dtype) for n in (24, 1, 1))
    with torchsan.session() as run:
        torch.compile(attend)(cache, torch.tensor([5]), k, q)
    errors = [f for f in run.findings if f.severity == "error"]
    if factor == 1:
        assert not errors
        return
    (finding,) = errors
    assert finding.ops == ("aten.index_put_.default",)
    assert "(cache)" in finding.message
    assert finding.evidence["allowed"] == 0
    assert finding.evidence["pattern"] == "all of index 5 of dimension 1"
    assert not [f for f in run.findings if f.kind == "reordered-effect"]
