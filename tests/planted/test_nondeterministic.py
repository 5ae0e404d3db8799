"""Kernels that differ from themselves: found, with the severity that fits, and not where there are none."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from torch._inductor.select_algorithm import extern_kernels

import torchsan
from tests.planted.plant import in_kernel, planted
from torchsan.records import Finding

COUNTER = "static int launches = 0; launches++;"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def program(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def found(code: str, x: torch.Tensor) -> tuple[Finding, ...]:
    with torchsan.session(check="values") as run, planted(in_kernel("cpp_fused", f"{{ {COUNTER} {code} }}")) as changed:
        result = torch.compile(program)(x)
    assert changed
    assert result.shape == x.shape
    return run.findings


def test_a_kernel_that_gives_another_result_every_time_is_an_error() -> None:
    (finding,) = found("out_ptr0[3] = launches;", torch.randn(4, 8))
    assert (finding.kind, finding.severity, finding.stage) == ("nondeterministic", "error", "kernel")
    assert finding.ops == ("aten.sin.default", "aten.add.Tensor")
    assert finding.source[0].code == "return x.sin() + 1"
    assert finding.evidence["first_bad"] == [0, 3]
    assert (finding.evidence["first"], finding.evidence["second"]) == (1.0, 2.0)
    assert finding.evidence["eager_repeats"] is True
    assert finding.evidence["bad"] == 1


def test_two_results_of_a_kernel_that_differ_from_themselves_are_one_cause() -> None:
    code = f"{{ {COUNTER} out_ptr0[3] = launches; out_ptr1[3] = launches; }}"
    with torchsan.session(check="values") as run, planted(in_kernel("cpp_fused", code)) as changed:
        torch.compile(lambda x: (x.sin() + 1, x.cos()))(torch.randn(4, 8))
    assert changed
    first, second = run.findings
    assert first.ops != second.ops
    assert (first.evidence.get("follows"), second.evidence.get("follows")) == (None, first.id)


def test_within_rounding_it_is_a_warning_unless_the_user_asked_for_the_same_every_time() -> None:
    code = "out_ptr0[3] = std::nextafterf(1.5f, 1.5f + launches % 2);"
    x = torch.full((4, 8), 0.5).asin_()
    (finding,) = found(code, x)
    assert (finding.kind, finding.severity) == ("nondeterministic", "warning")
    torch._dynamo.reset()
    torch.use_deterministic_algorithms(True)
    try:
        (finding,) = found(code, x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert (finding.kind, finding.severity) == ("nondeterministic", "error")


def test_the_program_goes_on_with_what_the_first_launch_gave() -> None:
    with torchsan.session(check="values"), planted(in_kernel("cpp_fused", f"{{ {COUNTER} out_ptr0[3] = launches; }}")):
        compiled = torch.compile(program)
        results = [compiled(torch.zeros(4, 8))[0, 3].item() for _ in range(4)]
    # The first two calls are checked, and launched five times for it. (The kernel may be one that has run before.)
    assert [result - results[0] for result in results] == [0.0, 5.0, 10.0, 11.0]


def accumulate(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.zeros(5, 4).index_add(0, index, x.sin())


@pytest.mark.parametrize(
    ("change", "severity"),
    [("std::nextafterf(out_ptr0[3], launches % 2 ? 1e9f : -1e9f)", "note"), ("launches", "error")],
)
def test_another_order_of_atomic_additions_is_a_note(change: str, severity: str) -> None:
    code = f"{{ {COUNTER} out_ptr0[3] = {change}; }}"
    with torchsan.session(check="values") as run, planted(in_kernel("cpp_fused_index_add", code)) as changed:
        torch.compile(accumulate)(torch.randn(300, 4), torch.arange(300) % 5)
    assert "atomic_add" in changed[0]
    (finding,) = run.findings
    assert (finding.kind, finding.severity) == ("nondeterministic", severity)
    assert "hardware" not in finding.evidence


def overwrite(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2).add_(1)
    return x.sum(0)


def draw(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (accumulate, (torch.randn(300, 4), torch.arange(300) % 5)),
        (overwrite, (torch.randn(16, 8),)),
        (draw, (torch.randn(16, 8),)),
    ],
    ids=["atomic additions", "in place", "random numbers"],
)
def test_kernels_that_add_to_or_overwrite_or_draw_are_no_error(function: object, inputs: tuple[torch.Tensor]) -> None:
    torch.manual_seed(0)
    plain = torch.compile(function)(*(i.clone() for i in inputs))  # type: ignore[call-overload]  # any function
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torchsan.session(check="values") as run:
        checked = torch.compile(function)(*(i.clone() for i in inputs))  # type: ignore[call-overload]  # as above
    assert run.coverage.buffers_checked
    assert not [f for f in run.findings if f.severity == "error"]
    torch.testing.assert_close(checked, plain)


FLIP = "if (launches == 1) { auto bits = reinterpret_cast<uint32_t*>(out_ptr0); bits[5] ^= 1u << 30; }"


def test_a_bit_that_flips_once_in_a_kernel_is_told_with_the_machine() -> None:
    (finding,) = found(FLIP, torch.randn(4, 8))
    assert (finding.kind, finding.severity) == ("nondeterministic", "error")
    hardware = finding.evidence["hardware"]
    assert hardware["host"] == platform.node()
    assert hardware["cpu"]
    assert hardware["core"] in hardware["cores"]
    assert hardware["launches"] == 5
    assert "a fault of the machine" in finding.evidence["text"][-1]
    assert f"once in 5 launches on {platform.node()}" in finding.message


def test_a_kernel_that_is_another_every_time_is_no_fault_of_the_machine() -> None:
    (finding,) = found("out_ptr0[3] = launches;", torch.randn(4, 8))
    assert "hardware" not in finding.evidence


@pytest.mark.parametrize("always", [False, True])
def test_a_bit_that_flips_in_a_library_call_is_told_from_a_library_that_is_wrong(always: bool) -> None:
    real, seen = getattr(extern_kernels, "mm"), 0  # noqa: B009  # it is made when asked for

    def flipping(*args: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        nonlocal seen
        seen += 1
        result: torch.Tensor = real(*args, out=out)
        if seen == 1 or always:
            result.view(torch.int32).view(-1)[7] ^= 1 << 29
        return result

    x, w = torch.randn(8, 8), torch.randn(8, 8)
    with torchsan.session(check="values") as run, patch.object(extern_kernels, "mm", flipping):
        torch.compile(lambda x: (x @ w).relu())(x)
    (finding,) = run.findings
    assert finding.ops == ("aten.mm.default",)
    if always:
        assert (finding.kind, finding.severity) == ("wrong-values", "error")
        assert "hardware" not in finding.evidence
    else:
        assert (finding.kind, finding.severity) == ("nondeterministic", "error")
        assert finding.evidence["hardware"]["host"] == platform.node()
        assert finding.evidence["first_bad"] == [0, 7]
