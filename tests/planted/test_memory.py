"""Planted memory bugs, each found with its kind and its launch, and none in the clean twin."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.planted.plant import both, errors, in_kernel, in_loop, lanes, replaced, run
from torchsan.records import Direction, Kind, Severity

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit._script")

Compile = Callable[..., Any]
kept: list[torch.Tensor] = []


def products(compile_: Compile) -> None:
    """Two matrix products with fused kernels between them, forward and backward."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a = torch.mm(x, w).relu()
        return (torch.mm(a, w) + a).sin()

    x, w = torch.ones(16, 16, requires_grad=True), torch.ones(16, 16, requires_grad=True)
    compile_(f)(x, w).sum().backward()


def integers(compile_: Compile) -> None:
    """Buffers of integers and of bool."""
    compile_(lambda x: (x * 2).to(torch.int64).cumsum(0) > 3)(torch.ones(33, 17))


def dtypes(compile_: Compile) -> None:
    """Each in a program of its own: which of them share a kernel is not the same in every PyTorch."""
    compile_(lambda x: (x + 1).sum(0))(torch.ones(33, 17))
    integers(compile_)
    compile_(lambda x: x.bfloat16().exp())(torch.ones(97))  # One more than vectors of any width hold.


def two_products(compile_: Compile) -> None:
    """Two matrix products that live at the same time."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, w).relu() + torch.mm(w, x).exp()

    compile_(f)(torch.arange(256.0).view(16, 16) / 256, torch.ones(16, 16))


def saved(compile_: Compile) -> None:
    """Masks of bool, offsets of int8 and a result of bfloat16 that are saved for backward, which has an index."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        pooled = F.max_pool2d(torch.mm(x, w).relu().view(1, 1, 16, 16), 2)
        return F.dropout(pooled, 0.5).bfloat16().exp()

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 16, generator=generator, requires_grad=True)
    compile_(f)(x, torch.randn(16, 16, generator=generator)).sum().backward()


_UNPOOL = "cpp_fused__to_copy_max_pool2d_with_indices_max_pool2d_with_indices_backward_mul_native_dropout_backward_0"


def test_the_clean_twins_are_clean() -> None:
    for program in (products, dtypes, two_products, saved):
        assert run(program) == []


def test_stores_outside_of_a_buffer_of_each_dtype() -> None:
    findings = run(
        dtypes,
        both(
            in_kernel("cpp_fused_add_sum", "at::vec::Vectorized<float>(1).store(out_ptr0 + 17);"),
            in_kernel("cpp_fused__to_copy_mul", "out_ptr0[561] = 7;"),
            in_kernel("cpp_fused_gt", "out_ptr0[-1] = true;"),
            in_kernel("cpp_fused__to_copy_exp", "out_ptr0[-1] = at::BFloat16(1);"),
        ),
    )
    assert {(f.kind, f.severity) for f in findings} == {(Kind.OUT_OF_BOUNDS_WRITE, Severity.ERROR)}
    assert len(findings) == 4
    by_kernel = {(f.kernel or "").rpartition("_")[0]: f.evidence for f in findings}
    assert by_kernel["cpp_fused_add_sum"]["elements after the end"] == lanes(torch.float32)
    assert by_kernel["cpp_fused__to_copy_mul"]["elements after the end"] == 1
    assert by_kernel["cpp_fused_gt"]["elements before the start"] == 1
    assert by_kernel["cpp_fused__to_copy_exp"]["elements before the start"] == 1
    assert all(f.source and f.source[0].file.endswith("test_memory.py") for f in findings)


@pytest.mark.parametrize("forward", [True, False])
def test_a_vector_stored_past_the_end(forward: bool) -> None:
    kernel = "cpp_fused_add_sin_1" if forward else "cpp_fused_add_cos_mul_0"
    pointer = "out_ptr0" if forward else "in_out_ptr0"
    findings = run(
        products, in_kernel(kernel, f"at::vec::Vectorized<float>(1).store({pointer} + 252);"), forward=forward
    )
    (finding,) = findings
    assert finding.kind is Kind.OUT_OF_BOUNDS_WRITE
    assert finding.kernel == kernel
    assert finding.evidence["elements after the end"] == lanes(torch.float32) - 4
    assert finding.graph is not None
    assert finding.graph.direction is (Direction.FORWARD if forward else Direction.BACKWARD)


def test_a_loop_that_stops_short_in_each_dtype() -> None:
    edit = both(
        in_loop("cpp_fused_add_sum", "17L)", "16L)"),
        in_loop("cpp_fused__to_copy_mul", "561L", "560L"),
        in_loop("cpp_fused_gt", "561L", "560L"),
        in_loop("cpp_fused__to_copy_exp", "97L", "96L"),
    )
    findings = run(dtypes, edit)
    assert {(f.kind, f.severity) for f in findings} == {(Kind.UNINITIALIZED_READ, Severity.ERROR)}
    assert len(findings) == 4
    assert {f.evidence["unwritten"] for f in findings} == {1}
    (reader,) = [f for f in findings if f.kernel == "torch.ops.aten.cumsum.default"]
    assert reader.evidence["left by"].startswith("cpp_fused__to_copy_mul")


@pytest.mark.parametrize("forward", [True, False])
def test_a_launch_that_reads_what_another_left_unwritten(forward: bool) -> None:
    """The first product is computed for half of the rows; the fused kernel reads all of them."""
    whole, half = ("buf0", "buf0[:8]") if forward else ("buf2", "buf2[:8]")
    call = "extern_kernels.mm(primals_1, primals_2, out=buf0)" if forward else "permute_1, alpha=1, beta=1, out=buf2)"
    new = call.replace(f"out={whole}", f"out={half}").replace("primals_1,", "primals_1[:8],")
    edit = (
        replaced((call, new))
        if forward
        else replaced(
            ("extern_kernels.addmm(buf0, buf0, permute_1", "extern_kernels.addmm(buf0[:8], buf0[:8], permute_1"),
            (call, new),
        )
    )
    findings = errors(run(products, edit, forward=forward))
    assert [f.kind for f in findings] == [Kind.UNINITIALIZED_READ]
    assert findings[0].kernel == ("cpp_fused_relu_0" if forward else "cpp_fused_threshold_backward_1")
    assert findings[0].evidence["unwritten"] == 128


def test_backward_stores_outside_of_what_forward_saved(tmp_path: Path) -> None:
    """The buffers keep their guard zones on their way through autograd."""
    code = """const_cast<int8_t*>(in_ptr0)[-1] = 3; const_cast<at::BFloat16*>(in_ptr2)[64] = 1;
        const_cast<bool*>(in_ptr3)[-1] = true;"""
    findings = run(saved, in_kernel(_UNPOOL, code), forward=False, out=tmp_path / "run")
    assert {(f.kind, f.severity, f.kernel) for f in findings} == {
        (Kind.OUT_OF_BOUNDS_WRITE, Severity.ERROR, _UNPOOL),
    }
    found = {f.buffer: f.evidence for f in findings}
    assert sorted(map(str, found)) == ["exp", "getitem_1", "gt"]
    assert found["getitem_1"]["elements before the start"] == found["gt"]["elements before the start"] == 1
    assert found["exp"]["elements after the end"] == 1
    (artifact,) = (tmp_path / "run" / "artifacts").glob("*max_pool2d*")
    assert {e["kernel source"] for e in found.values()} == {artifact.name}
    assert artifact.suffix == ".cpp"


@pytest.mark.parametrize(("pointer", "buffer"), [("out_ptr1", "buf1"), ("out_ptr2", "buf2")])
def test_an_operator_that_reads_what_a_loop_left_unwritten(pointer: str, buffer: str) -> None:
    """The operator gets a view of each. What it does with the index fails: what is unwritten there is too large."""

    def short(source: str) -> str:
        return re.sub(rf"(\w+\.store\({pointer} \+ )", r"if (x0 < 7) \1", source, count=1)

    def program(compile_: Compile) -> None:
        with pytest.raises(RuntimeError, match="out of bounds") if buffer == "buf1" else nullcontext():
            saved(compile_)

    findings = run(program, short, forward=False)
    assert [(f.kind, f.severity, f.kernel, f.buffer) for f in findings] == [
        (Kind.UNINITIALIZED_READ, Severity.ERROR, "aten.scatter_reduce_.two", buffer)
    ]
    assert findings[0].evidence["left by"] == _UNPOOL


def test_a_read_and_a_write_of_a_gap() -> None:
    """A product gets room between its rows and leaves it alone; the fused kernels read it, and one writes it."""
    edit = replaced(
        ("buf0 = empty_strided_cpu((16, 16), (16, 1)", "buf0 = empty_strided_cpu((16, 16), (20, 1)"),
        ("buf2 = empty_strided_cpu((16, 16), (16, 1)", "buf2 = empty_strided_cpu((16, 16), (24, 1)"),
        ("buf3 = empty_strided_cpu((16, 16), (16, 1)", "buf3 = empty_strided_cpu((16, 16), (20, 1)"),
    )

    def forward_only(compile_: Compile) -> None:
        f = compile_(lambda x, w: (torch.mm(torch.mm(x, w).relu(), w) + 1).sin())
        f(torch.ones(16, 16, requires_grad=True), torch.ones(16, 16, requires_grad=True))

    assert run(forward_only) == []
    findings = errors(run(forward_only, edit))
    assert {(f.kind, f.kernel) for f in findings} == {
        (Kind.UNINITIALIZED_READ, "cpp_fused_relu_0"),
        (Kind.UNINITIALIZED_READ, "cpp_fused_add_sin_1"),
        (Kind.OUT_OF_BOUNDS_WRITE, "cpp_fused_add_sin_1"),
    }


def test_what_nobody_reads_is_a_note() -> None:
    scratch = """buf9 = empty_strided_cpu((17, 16), (16, 1), torch.float32)
        extern_kernels.mm(primals_1, primals_2, out=buf9[:16])
        del buf9
        buf2 = """
    findings = run(products, replaced(("buf2 = ", scratch)))
    assert [(f.kind, f.severity) for f in findings] == [(Kind.UNINITIALIZED_READ, Severity.NOTE)]
    assert findings[0].evidence["unwritten"] == 16


def test_a_wrong_reuse() -> None:
    """The second product is written over the first, which is still to be read."""

    def edit(source: str) -> str:
        allocation = "buf1 = empty_strided_cpu((16, 16), (16, 1), torch.float32)"
        assert allocation in source
        return source.replace(allocation, "buf1 = buf0")

    findings = errors(run(two_products, edit))
    assert [f.kind for f in findings] == [Kind.CLOBBERED_BUFFER]
    assert findings[0].kernel == "extern_kernels.mm"
    assert findings[0].buffer == "buf2", "the name under which it is read"
    assert findings[0].evidence["read by"].startswith("cpp_fused")


def test_a_wrong_reuse_in_backward() -> None:
    edit = replaced(("buf2 = empty_strided_cpu((16, 16), (16, 1), torch.float32)", "buf2 = buf1"))
    findings = errors(run(products, edit, forward=False))
    (finding,) = findings
    assert (finding.kind, finding.kernel, finding.buffer) == (Kind.CLOBBERED_BUFFER, "extern_kernels.mm", "buf1")
    assert finding.evidence["written over by"] == "extern_kernels.mm"


def test_a_store_into_a_buffer_that_the_kernel_only_reads() -> None:
    edit = in_kernel("cpp_fused_add_sin_1", "const_cast<float*>(in_ptr1)[3] = 42;")
    findings = errors(run(products, edit))
    assert [(f.kind, f.kernel, f.buffer) for f in findings] == [(Kind.CLOBBERED_BUFFER, "cpp_fused_add_sin_1", "buf1")]


def test_a_dropped_free() -> None:
    findings = run(integers, replaced(("        del buf0\n", "")))
    assert [(f.kind, f.severity, f.buffer) for f in findings] == [(Kind.LEAKED_BUFFER, Severity.WARNING, "buf0")]
    assert findings[0].kernel == "torch.ops.aten.cumsum.default"
    assert findings[0].evidence["bytes"] == 33 * 17 * 8


def test_a_name_that_is_kept_to_the_end() -> None:
    findings = run(integers, replaced(("        del buf0\n", "        spare = buf0\n        del buf0\n")))
    assert [(f.kind, f.buffer, f.kernel) for f in findings] == [
        (Kind.LEAKED_BUFFER, "spare", "torch.ops.aten.cumsum.default")
    ]


def test_an_early_free() -> None:
    edit = replaced(("        del buf1\n", ""), ("        buf3 = relu", "        del buf1\n        buf3 = relu"))

    def program(compile_: Compile) -> None:
        with pytest.raises(UnboundLocalError):
            products(compile_)

    findings = run(program, edit, forward=False)
    assert [(f.kind, f.kernel, f.buffer) for f in findings] == [(Kind.EARLY_FREE, "extern_kernels.addmm", "buf1")]


_IN_A_LIST = "        __import__('sys').modules['tests.planted.test_memory'].kept.append(buf1)\n"


@pytest.mark.parametrize(
    ("keep", "holder"),
    [
        ("        self.kept = buf1\n", "Runner"),
        (_IN_A_LIST, "global `kept` of module tests.planted.test_memory"),
    ],
)
def test_a_reference_that_is_kept(keep: str, holder: str) -> None:
    kept.clear()
    edit = replaced(("        del buf1\n", f"{keep}        del buf1\n"))
    try:
        findings = run(products, edit, forward=False)
    finally:
        kept.clear()
    assert [(f.kind, f.severity, f.buffer) for f in findings] == [(Kind.LEAKED_BUFFER, Severity.ERROR, "buf1")]
    assert findings[0].evidence["bytes"] == 1024
    assert any(holder in link for link in findings[0].evidence["held by"]), findings[0].evidence


def test_a_reference_to_what_the_last_launch_reads_is_kept() -> None:
    """Nothing frees it by name: it goes with the function, or does not."""
    kept.clear()
    edit = replaced(
        ("        buf2 = buf0; del buf0", f"{_IN_A_LIST.replace('buf1', 'buf0')}        buf2 = buf0; del buf0")
    )

    def program(compile_: Compile) -> None:
        f = compile_(lambda x, w: torch.mm(x.relu(), w).sin() * torch.mm(w, x).exp())
        f(torch.ones(16, 16), torch.ones(16, 16))

    try:
        assert run(program) == []
        findings = run(program, edit)
    finally:
        kept.clear()
    assert [(f.kind, f.severity, f.buffer) for f in findings] == [(Kind.LEAKED_BUFFER, Severity.ERROR, "buf0")]


def test_a_report_goes_with_the_recording(tmp_path: Path) -> None:
    (finding,) = run(products, in_kernel("cpp_fused_relu_0", "in_out_ptr0[256] = 1;"), out=tmp_path / "run")
    source = (tmp_path / "run" / "artifacts" / finding.evidence["kernel source"]).read_text()
    assert "in_out_ptr0[256] = 1;" in source


@pytest.fixture
def operators() -> Iterator[Any]:
    library: Any = torch.library.Library("planted", "FRAGMENT")
    yield library
    library._destroy()


def _define(library: Any, schema: str, body: Callable[..., Any]) -> None:
    library.define(schema)
    name = schema.partition("(")[0]
    library.impl(name, body, "CPU")
    library.impl(name, lambda x: None if "-> ()" in schema else torch.empty_like(x), "Meta")


def with_operator(compile_: Compile) -> None:
    """An operator of the user's between two fused kernels."""

    def f(x: torch.Tensor) -> Any:
        y = x.sin() + 1
        return torch.ops.planted.peek(y).cos(), (y * 2).sum()

    compile_(f)(torch.arange(64.0))


def test_an_operator_whose_hook_keeps_its_input(operators: Any) -> None:
    hooks: list[Callable[[torch.Tensor], None]] = []

    def peek(x: torch.Tensor) -> torch.Tensor:
        for hook in hooks:
            hook(x)
        return x + 1

    _define(operators, "peek(Tensor x) -> Tensor", peek)
    assert run(with_operator) == []

    held: dict[str, torch.Tensor] = {}

    def hook(x: torch.Tensor) -> None:
        held["last"] = x

    hooks.append(hook)
    (finding,) = run(with_operator)
    held.clear()
    assert (finding.kind, finding.severity) == (Kind.LEAKED_BUFFER, Severity.ERROR)
    assert finding.evidence["bytes"] == 256
    assert any("hook" in link or "test_an_operator" in link for link in finding.evidence["held by"]), finding.evidence


def with_mutation(compile_: Compile) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch.ops.planted.change(y)
        return y.cos()

    compile_(f)(torch.arange(64.0))


def test_an_operator_that_resizes_what_it_is_given(operators: Any) -> None:
    grow = [True]

    def change(x: torch.Tensor) -> None:
        x.mul_(2)
        if grow:
            x.untyped_storage().resize_(4096)

    _define(operators, "change(Tensor(a!) x) -> ()", change)
    findings = errors(run(with_mutation))
    assert [(f.kind, f.kernel) for f in findings] == [(Kind.UNEXPECTED_ALLOCATION, "torch.ops.planted.change.default")]
    assert findings[0].evidence == {"planned": 256, "actual": 4096, "launch": 1}
    grow.clear()
    assert run(with_mutation) == []
