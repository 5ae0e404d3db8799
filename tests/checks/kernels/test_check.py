"""`--check kernels`: operators of a library and Triton kernels, refereed when a compiled program meets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torchsan

_kept: dict[Any, torch.Tensor] = {}


def _by_shape(x: torch.Tensor) -> torch.Tensor:
    return _kept.setdefault(tuple(x.shape), torch.sin(x)).clone()


def _half_written(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    y[: len(x) // 2] = x[: len(x) // 2] * 2
    return y


_FUNCTIONS = {
    "by_shape": _by_shape,
    "half_written": _half_written,
    "twice": lambda x: x * 2,
    "softplus": lambda x: (1 + x.exp()).log(),
    # It is named after an operator, and is another one.
    "gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    library: Any = torch.library.Library("refereed", "DEF")  # type: ignore[no-untyped-call]  # torch's own
    for name, function in _FUNCTIONS.items():
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, function, "CPU")
        torch.library.register_fake(f"refereed::{name}", torch.empty_like, lib=library)
    yield
    library._destroy()


def refereed(name: str, check: str = "kernels") -> Any:
    torch._dynamo.reset()
    operator = getattr(torch.ops.refereed, name)
    with torchsan.session(check=check) as run:
        torch.compile(lambda x: operator(x.sin()) + 1, backend="inductor")(torch.linspace(-1, 1, 40))
    return run


def errors(run: Any) -> list[tuple[str, str, str]]:
    return [(f.kind, f.check, f.kernel) for f in run.findings if f.severity == "error"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("by_shape", "cheat"),
        pytest.param("half_written", "uninitialized-read", marks=pytest.mark.slow),
        pytest.param("softplus", "wrong-values", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_operator_is_named_where_the_program_calls_it(name: str, kind: str) -> None:
    run = refereed(name)
    assert (kind, "kernels", f"torch.ops.refereed.{name}.default") in errors(run)
    finding = run.findings[0]
    assert finding.graph is not None and finding.ops == (f"refereed.{name}.default",)
    assert finding.source and finding.source[-1].file == __file__


@pytest.mark.parametrize("name", ["gelu", pytest.param("twice", marks=pytest.mark.slow)])
def test_a_right_operator_has_no_error(name: str) -> None:
    run = refereed(name)
    assert errors(run) == [] and run.coverage.ops_checked == 1
    assert any("nothing says what" in s.reason for s in run.coverage.skipped)


def test_a_program_without_kernels_of_its_own_shows_nothing() -> None:
    torch._dynamo.reset()
    with torchsan.session(check="kernels") as run:
        torch.compile(torch.sin)(torch.ones(4))
    assert any("nothing was refereed" in s.reason for s in run.coverage.skipped)


def test_the_program_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    refereed("twice", "kernels,metadata")
    assert torch.equal(torch.get_rng_state(), state)


def test_triton_kernels_of_a_compiled_program_are_refereed() -> None:
    pytest.importorskip("triton")
    from tests import triton_on_cpu
    from tests.kernels.wrong_triton import racy_histogram_kernel
    from tests.programs.users_kernels import add

    def program(x: torch.Tensor) -> torch.Tensor:
        y, counts = torch.empty_like(x), torch.zeros(8, dtype=torch.int32)
        add[(3,)](x, x.sin(), y, x.numel(), BLOCK=16)
        racy_histogram_kernel[(3,)](x.int(), counts, x.numel(), BLOCK=16)
        return y + counts.sum()

    torch._dynamo.reset()
    with triton_on_cpu.enabled(), torchsan.session(check="kernels") as run:
        torch.compile(program)(torch.linspace(0, 7, 40))
    assert {(f.kind, f.message.partition(":")[0]) for f in run.findings} == {("race", "racy_histogram_kernel")}
    assert all(f.graph is not None and f.source for f in run.findings)
