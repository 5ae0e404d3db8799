from __future__ import annotations

import dataclasses
import importlib
import math
import tracemalloc
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from tests.tensors.tensors_of import FLOAT8, INTEGERS, NUMERIC, element_values, from_bytes, same, tensors
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from torchsan.records.codec import decode, encode
from torchsan.records.tensor import TensorSummary
from torchsan.tensors import compare, describe, digest, summarize
from torchsan.tensors.native import library


def finite(v: Any) -> bool:
    return math.isfinite(v.real) and math.isfinite(v.imag)


def root(x: Fraction) -> float:
    """Return the square root, also of what no float holds."""
    shift = max(0, (x.denominator.bit_length() - x.numerator.bit_length() + 200) // 2 * 2) if x else 0
    return float(Fraction(math.isqrt(int(x * 2**shift)), 2 ** (shift // 2)))


def exact_std(values: Sequence[Any]) -> float:
    parts = [[Fraction(v.real) for v in values], [Fraction(v.imag) for v in values]]
    variance = Fraction(0)
    for part in parts:
        mean = sum(part) / Fraction(len(part))
        variance += sum((p - mean) ** 2 for p in part) / Fraction(len(part))
    return root(variance)


def is_subnormal(v: float, dtype: torch.dtype) -> bool:
    return 0 < abs(v) < torch.finfo(dtype).smallest_normal


@pytest.fixture(params=["compiled", "numpy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with what reads large tensors, compiled and not, and call no tensor small."""
    module = importlib.import_module("torchsan.tensors.summarize")
    for threshold in ("_LARGE", "_COMPILED"):
        monkeypatch.setattr(module, threshold, 1)
    monkeypatch.setattr(module, "_SHOWN", -1)
    if request.param == "numpy":
        monkeypatch.setattr(module, "library", lambda: None)
    elif library() is None:
        pytest.skip("no C++ compiler here")
    return str(request.param)


@settings(deadline=None, max_examples=300)
@given(tensors())
def test_every_statistic_is_that_of_the_elements(t: torch.Tensor) -> None:
    check(t)


def check(t: torch.Tensor) -> None:
    values = element_values(t)
    summary = summarize(t)
    kept = [v for v in values if finite(v)]
    inexact = t.dtype.is_floating_point or t.dtype.is_complex
    sizes = [abs(v) if t.dtype.is_complex else v + 0 for v in kept]
    assert summary.meta == describe(t)
    assert summary.reason is None
    assert summary.count == len(values)
    assert summary.zeros == sum(v == 0 for v in values)
    assert summary.nan == sum(v != v for v in values)
    if t.dtype.is_complex:
        assert summary.posinf == len(values) - len(kept) - summary.nan
    else:
        assert summary.posinf == sum(v == math.inf for v in values)
        assert summary.neginf == sum(v == -math.inf for v in values)
    if inexact:
        assert summary.subnormals == sum(is_subnormal(v.real, t.dtype) or is_subnormal(v.imag, t.dtype) for v in kept)
    if not kept:
        assert (summary.minimum, summary.maximum, summary.mean, summary.std) == (None,) * 4
        return
    assert summary.minimum is not None and summary.maximum is not None and summary.std is not None
    close = 1e-15 if t.dtype.is_complex else 0
    assert summary.minimum == pytest.approx(min(sizes), rel=close, abs=0)
    assert summary.maximum == pytest.approx(max(sizes), rel=close, abs=0)
    check_moments(summary, kept)


def check_moments(summary: TensorSummary, kept: Sequence[Any]) -> None:
    top = max(max(abs(v.real), abs(v.imag)) for v in kept)
    mean, std = summary.mean, summary.std
    assert mean is not None and std is not None
    for part in ("real", "imag"):
        exact = float(sum(Fraction(getattr(v, part)) for v in kept) / len(kept))
        # The smallest steps of float64 bound what scaling back can do.
        assert getattr(mean, part) == pytest.approx(exact, rel=1e-12, abs=1e-14 * top + 1e-323)
    assert std == pytest.approx(exact_std(kept), rel=1e-6, abs=1e-14 * top + 1e-323)


@settings(deadline=None, max_examples=200)
@given(tensors())
def test_few_elements_are_all_shown_and_travel_as_json(t: torch.Tensor) -> None:
    values = element_values(t)
    summary = summarize(t)
    if len(values) > 64:
        assert summary.values is None
    else:
        assert summary.values is not None
        assert len(summary.values) == len(values)
        assert all(type(a) is type(b) and same(a, b) for a, b in zip(summary.values, values, strict=True))
    assert repr(decode(TensorSummary, encode(summary))) == repr(summary)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_the_ends_of_every_integer_are_exact(dtype: torch.dtype) -> None:
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    summary = summarize(torch.tensor([low, high, high], dtype=dtype))
    assert (summary.minimum, summary.maximum) == (low, high)
    assert summary.mean == (low + 2 * high) / 3


def test_neighbours_at_the_end_of_int64_have_their_std() -> None:
    t = torch.tensor([2**63 - 1, 2**63 - 3], dtype=torch.int64)
    assert summarize(t).std == 1.0
    assert summarize(t.repeat(400_000)).std == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_all_codes_of_a_float8_are_counted(dtype: torch.dtype) -> None:
    t = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    values = element_values(t)
    summary = summarize(t)
    assert summary.nan == sum(math.isnan(v) for v in values)
    assert summary.maximum == torch.finfo(dtype).max
    assert summary.minimum == min(v for v in values if math.isfinite(v))
    assert summary.zeros == values.count(0.0)
    if dtype is not torch.float8_e8m0fnu:
        assert same(values[77], t[77].float().item())


def test_moments_near_the_end_of_float64_do_not_overflow() -> None:
    top = torch.finfo(torch.float64).max
    summary = summarize(torch.tensor([top, -top, top, -top], dtype=torch.float64))
    assert (summary.mean, summary.std) == (0.0, top)
    large = summarize(torch.full((600_000,), 1e300, dtype=torch.float64))
    assert large.mean == pytest.approx(1e300, rel=1e-12)
    assert large.std == pytest.approx(0.0, abs=1e287)
    spread = summarize(torch.tensor([1e300, 3e300], dtype=torch.float64).repeat(300_000))
    assert spread.std == pytest.approx(1e300, rel=1e-9)


def test_moments_of_subnormals_do_not_underflow() -> None:
    summary = summarize(torch.tensor([1e-310, 3e-310], dtype=torch.float64))
    assert summary.subnormals == 2
    assert summary.mean == pytest.approx(2e-310, rel=1e-9)
    assert summary.std == pytest.approx(1e-310, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (1e6, 1), (3, 100), (-50, 1e-3), (0, 1e-30), (0, 1e30)])
@pytest.mark.usefixtures("engine")
def test_moments_of_many_elements_agree_with_float64(dtype: torch.dtype, offset: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(1)
    t = (offset + scale * torch.randn(700_001, generator=generator, dtype=torch.float64)).to(dtype)
    if not t.isfinite().all():
        pytest.skip("out of the range of the dtype")
    wide = t.double()
    mean, std = wide.mean().item(), wide.std(correction=0).item()
    summary = summarize(t)
    assert summary.std == pytest.approx(std, rel=1e-6, abs=1e-12 * abs(mean))
    assert summary.mean == pytest.approx(mean, rel=1e-6, abs=1e-6 * std)
    assert (summary.minimum, summary.maximum) == (t.min().item(), t.max().item())


@pytest.mark.usefixtures("engine")
def test_a_few_odd_elements_among_millions_are_found() -> None:
    generator = torch.Generator().manual_seed(1)
    t = torch.randn(5_000_000, generator=generator)
    clean = summarize(t)
    t[1], t[-1], t[2_500_000], t[3], t[4_999_990], t[77] = 1e-40, -1e-41, math.nan, -0.0, math.inf, -math.inf
    summary = summarize(t)
    odd = (summary.nan, summary.posinf, summary.neginf, summary.subnormals, summary.zeros - clean.zeros)
    assert odd == (1, 1, 1, 2, 1)
    assert summary.minimum == t[t.isfinite()].min().item()
    assert summary.std == pytest.approx(t[t.isfinite()].double().std(correction=0).item(), rel=1e-6)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("dims", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_order_of_dimensions_in_memory_does_not_matter(dims: tuple[int, ...]) -> None:
    t = torch.randn(70, 80, 90, generator=torch.Generator().manual_seed(1)).permute(dims)
    t[1, 2, 3], t[4, 5, 6] = 99.0, 1e-40
    for view in (t, t[:, 1:], t[::2]):
        summary = summarize(view)
        assert summary.std == pytest.approx(view.double().std(correction=0).item(), rel=1e-9)
        assert (summary.maximum, summary.minimum) == (view.max().item(), view.min().item())
        assert summary.subnormals == (view.abs() < 1e-38).sum().item() - summary.zeros


@pytest.mark.usefixtures("engine")
def test_an_outlier_in_front_does_not_drown_the_rest() -> None:
    t = torch.randn(300_000, generator=torch.Generator().manual_seed(1))
    t[0] = 1e12
    exact = t.double()
    assert summarize(t).std == pytest.approx(exact.std(correction=0).item(), rel=1e-6)
    t[0] = 1e4
    exact = t.double()
    assert summarize(t).std == pytest.approx(exact.std(correction=0).item(), rel=1e-6)


@pytest.mark.usefixtures("engine")
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors())
def test_what_reads_large_tensors_counts_as_what_reads_small_ones(t: torch.Tensor) -> None:
    check(t)


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", NUMERIC, ids=str)
def test_compiled_code_says_of_many_elements_what_numpy_does(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library() is None:
        pytest.skip("no C++ compiler here")
    size = 300_001 * dtype.itemsize
    random = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    odd = from_bytes(random.numpy().tobytes(), dtype)
    tame = torch.randn(300_001, generator=torch.Generator().manual_seed(2)).mul(40).abs().to(dtype)
    module = importlib.import_module("torchsan.tensors.summarize")
    for t in (odd, tame, torch.zeros_like(tame)):
        with monkeypatch.context() as patch:
            compiled = summarize(t)
            patch.setattr(module, "library", lambda: None)
            plain = summarize(t)
        # Of the widest numbers the float64 sums of both are off by what rounding leaves.
        close = {"mean": pytest.approx(plain.mean, rel=1e-9, nan_ok=True), "std": pytest.approx(plain.std, rel=1e-6)}
        ends = {end: pytest.approx(getattr(plain, end), rel=1e-15) for end in ("minimum", "maximum")}
        for name, value in {**dataclasses.asdict(plain), **close, **(ends if dtype.is_complex else {})}.items():
            assert dataclasses.asdict(compiled)[name] == value, name


def test_without_a_compiler_there_is_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library.__wrapped__() is None


def test_the_library_is_built_once_and_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if library.__wrapped__() is None:
        pytest.skip("no C++ compiler here")
    (built,) = (tmp_path / "torchsan").iterdir()
    before = built.stat().st_mtime_ns
    assert library.__wrapped__() is not None
    assert built.stat().st_mtime_ns == before


def test_code_that_others_can_write_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "torchsan").mkdir()
    (tmp_path / "torchsan").chmod(0o777)
    assert library.__wrapped__() is None


def test_memory_off_its_alignment_is_read() -> None:
    raw = torch.zeros(4 * 3_000_000 + 1, dtype=torch.uint8)
    t = torch.frombuffer(raw.numpy(), dtype=torch.float32, offset=1, count=3_000_000)
    assert summarize(t).zeros == 3_000_000


def test_a_huge_expanded_tensor_takes_little_memory() -> None:
    tracemalloc.start()
    try:
        summary = summarize(torch.tensor([1.0, 3.0]).expand(10_000_000, 2))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (summary.count, summary.mean, summary.std) == (20_000_000, 2.0, 1.0)
    assert peak < 64 << 20


@pytest.mark.parametrize("name", ["bits8", "bits16", "float4_e2m1fn_x2", "int4", "uint1"])
def test_dtypes_without_numbers_are_described_only(name: str) -> None:
    summary = summarize(torch.empty(6, dtype=getattr(torch, name)))
    assert (summary.count, summary.meta.dtype, summary.values) == (6, name, None)
    assert summary.reason == f"elements of {name} are not read as numbers"


def test_tensors_without_readable_elements_say_why() -> None:
    with FakeTensorMode():
        fake = torch.empty(3)
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)
    reasons = [summarize(t).reason for t in (torch.empty(3, device="meta"), fake, torch.eye(3).to_sparse(), freed)]
    assert reasons == [
        "a meta tensor has no elements",
        "a fake tensor has no elements",
        "the elements of sparse tensors are not read",
        "its storage has been resized below what the tensor needs",
    ]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_looking_changes_nothing_that_the_program_can_see() -> None:
    t = torch.randn(3_000_000, requires_grad=True)
    views = [t, t.view(1000, 3000).t(), t[::2]]
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with Recorder() as mode, torch.enable_grad():
        summaries = [summarize(v) for v in views]
        assert torch.is_grad_enabled()
    assert mode.seen == []
    assert [s.count for s in summaries] == [3_000_000, 3_000_000, 1_500_000]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_tensors_inside_vmap_and_fake_mode_are_survived() -> None:
    reasons = []

    def look(x: torch.Tensor) -> torch.Tensor:
        reasons.append(summarize(x).reason)
        return x

    torch.vmap(look)(torch.ones(2, 3))
    assert reasons == ["Tensor keeps its elements elsewhere"]
    real = torch.ones(3)
    with FakeTensorMode():
        assert summarize(real).mean == 1.0


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")  # of 2.12
def test_inside_a_compiled_function_it_runs_uncompiled() -> None:
    seen: list[Any] = []

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        seen.append((summarize(y).mean, compare(y, x).max_abs, digest(y), describe(y).shape))
        return y * 2

    x = torch.zeros(3)
    assert torch.equal(torch.compile(program, backend="eager")(x), torch.full((3,), 2.0))
    assert seen == [(1.0, 1.0, digest(torch.ones(3)), (3,))]


def test_a_subclass_that_holds_its_elements_elsewhere_is_not_asked() -> None:
    class Elsewhere(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("dispatched")

    t = torch.Tensor._make_wrapper_subclass(Elsewhere, (3,), dtype=torch.float32)
    assert summarize(t).reason == "Elsewhere keeps its elements elsewhere"
