"""Each memory fault in buffers of each dtype, forward and backward, in one program; and its clean twin.

Forward and backward compute the same, so that one edit plants a fault in either. A launch of `FIRST` writes a buffer of
each dtype, one of `SECOND` another four, and one of `THIRD` reads all eight; matrix products keep the three apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.planted.plant import Edit, in_kernel, in_loop, lanes, run, swapped
from torchsan.records import Direction, Finding, Kind, Severity

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit._script"),
    # Dynamo makes one when it meets an autograd function.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.xdist_group("planted-memory-dtypes"),
]

FIRST = "cpp_fused__to_copy_add_exp_gt_mul_sigmoid_0"
SECOND = "cpp_fused__to_copy_add_div_exp_gt_sigmoid_1"
THIRD = "cpp_fused_add_mul_where_2"
ROWS, COLUMNS = 8, 64
N = ROWS * COLUMNS


class Buffer(NamedTuple):
    """A buffer that `FIRST` writes through `pointer`, and `rival`, of the same dtype, that `SECOND` writes."""

    name: str
    rival: str
    pointer: str
    dtype: torch.dtype
    cpp: str

    def allocation(self, name: str, stride: int = COLUMNS) -> str:
        return f"{name} = empty_strided_cpu(({ROWS}, {COLUMNS}), ({stride}, 1), {self.dtype})\n"


BUFFERS = (
    Buffer("buf4", "buf9", "out_ptr3", torch.float32, "float"),
    Buffer("buf1", "buf6", "out_ptr2", torch.int64, "int64_t"),
    Buffer("buf2", "buf7", "out_ptr0", torch.bool, "bool"),
    Buffer("buf3", "buf8", "out_ptr1", torch.bfloat16, "at::BFloat16"),
)


def stages(x: Tensor, w: Tensor) -> Tensor:
    a = torch.mm(x, w)
    i, m, h = (a.exp() * 3).to(torch.int64), a.sigmoid() > 0.5, (a + 1).exp().to(torch.bfloat16)
    f = a + i + m + h
    b = torch.mm(f, w)
    i2, m2, h2 = (b.exp() / 3).to(torch.int64), b.sigmoid() > 0.9, (b + 2).exp().to(torch.bfloat16)
    f2 = b + i2 + m2 + h2
    c = torch.mm(f2, w)
    mixed = torch.where(m, c, f) * i + torch.where(m2, c, f2) * i2 + h * h2
    return torch.mm(mixed, w)


class Stages(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(w)
        return stages(x, w)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (w,) = ctx.saved_tensors
        return stages(gradient, w), None


def program(compile_: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, generator=generator, requires_grad=True)
    compiled = compile_(lambda x, w: Stages.apply(x, w))
    compiled(x, torch.eye(COLUMNS) / 8).backward(torch.randn(ROWS, COLUMNS, generator=generator))


def no_reuse() -> AbstractContextManager[Any]:
    """Every buffer gets its own memory and its own `del`."""
    patch: AbstractContextManager[Any] = torch._inductor.config.patch(allow_buffer_reuse=False, inplace_buffers=False)
    return patch


def with_steps(compile_: Callable[..., Any]) -> None:
    with no_reuse():
        program(compile_)


class Fault(NamedTuple):
    """What is planted in `buffers`, and what is to be found in each of them."""

    edit: Edit
    kind: Kind
    kernel: str
    """The launch to blame."""
    evidence: Callable[[Buffer], dict[str, Any]]
    severity: Severity = Severity.ERROR
    buffers: tuple[Buffer, ...] = BUFFERS


def each(code: Callable[[Buffer], str]) -> str:
    return " ".join(code(b) for b in BUFFERS)


def element(b: Buffer, at: int) -> str:
    return f"{b.pointer}[{at}] = {b.cpp}(1);"


def vector(b: Buffer, at: str) -> str:
    """A store of one vector; there are none of bool, but bytes do as well."""
    scalar = "int8_t" if b.dtype is torch.bool else b.cpp
    kind = f"at::vec::Vectorized<{scalar}>"
    return (
        f"{kind}({scalar}(1)).store(reinterpret_cast<{scalar}*>({b.pointer}) + ({at.format(size=f'{kind}::size()')}));"
    )


def gap(source: str) -> str:
    """Room between the rows of the buffers: `FIRST` leaves it alone, and `THIRD` does not know of it."""
    source = swapped(*((b.allocation(b.name), b.allocation(b.name, COLUMNS + 8)) for b in BUFFERS))(source)
    for b in BUFFERS:
        at = f"{b.pointer} + static_cast<int64_t>"
        padded = f"{at}(x0 / {COLUMNS} * {COLUMNS + 8} + x0 % {COLUMNS})"
        source = in_loop(FIRST, f"{at}(x0)", padded)(source)
    return source


def short(b: Buffer) -> Edit:
    """The last row is not stored. Of one buffer only: what is unwritten in one would hide what is in another."""
    store = rf"(\w+\.store\({b.pointer} \+ )"
    return lambda source: re.sub(store, rf"if (x0 < {N - COLUMNS}) \1", source, count=1)


def instead_of_free(text: str) -> Edit:
    """Put a line before each `del` of the buffers, or nothing in its place."""
    deletes = {b.name: f"        del {b.name}\n" for b in BUFFERS}
    return swapped(*((d, text and f"        {text.format(name)}\n{d}") for name, d in deletes.items()))


def kept_bytes(b: Buffer) -> dict[str, Any]:
    return {"bytes": N * b.dtype.itemsize}


AFTER, BEFORE = "elements after the end", "elements before the start"
FAULTS = {
    "one element past the end": Fault(
        in_kernel(FIRST, each(lambda b: element(b, N))),
        Kind.OUT_OF_BOUNDS_WRITE,
        FIRST,
        lambda b: {AFTER: 1, BEFORE: None},
    ),
    "one element before the start": Fault(
        in_kernel(FIRST, each(lambda b: element(b, -1))),
        Kind.OUT_OF_BOUNDS_WRITE,
        FIRST,
        lambda b: {AFTER: None, BEFORE: 1},
    ),
    "one vector past the end": Fault(
        in_kernel(FIRST, each(lambda b: vector(b, f"{N}"))),
        Kind.OUT_OF_BOUNDS_WRITE,
        FIRST,
        lambda b: {AFTER: lanes(b.dtype), BEFORE: None},
    ),
    "one vector before the start": Fault(
        in_kernel(FIRST, each(lambda b: vector(b, "-{size}"))),
        Kind.OUT_OF_BOUNDS_WRITE,
        FIRST,
        lambda b: {AFTER: None, BEFORE: lanes(b.dtype)},
    ),
    **{
        f"a loop that stops short, {b.dtype}": Fault(
            short(b),
            Kind.UNINITIALIZED_READ,
            "extern_kernels.mm" if b.dtype is torch.float32 else THIRD,
            lambda b: {"unwritten": COLUMNS, "first": N - COLUMNS, "left by": FIRST},
            buffers=(b,),
        )
        for b in BUFFERS
    },
    "a read of a gap": Fault(
        gap,
        Kind.UNINITIALIZED_READ,
        THIRD,
        lambda b: {"unwritten": 8 * (ROWS - 1), "first": COLUMNS, "read by": THIRD},
    ),
    "a wrong reuse": Fault(
        swapped(*((b.allocation(b.rival), f"{b.rival} = {b.name}\n") for b in BUFFERS)),
        Kind.CLOBBERED_BUFFER,
        SECOND,
        lambda b: {"written by": FIRST, "written over by": SECOND, "read by": THIRD},
    ),
    "a dropped free": Fault(instead_of_free(""), Kind.LEAKED_BUFFER, THIRD, kept_bytes, Severity.WARNING),
    "a reference in the wrapper": Fault(instead_of_free("self.kept_{0} = {0}"), Kind.LEAKED_BUFFER, THIRD, kept_bytes),
    **{
        f"an early free, {b.dtype}": Fault(
            swapped((f"        del {b.name}\n", ""), ("        del buf5\n", f"        del buf5, {b.name}\n")),
            Kind.EARLY_FREE,
            THIRD,
            lambda b: {"freed after": "extern_kernels.mm" if b.dtype is torch.float32 else FIRST},
            buffers=(b,),
        )
        for b in BUFFERS
    },
}


def test_the_clean_twin_is_clean() -> None:
    assert run(with_steps) == []


@pytest.mark.slow
def test_the_clean_twin_that_reuses_memory_is_clean() -> None:
    assert run(program) == []


DIRECTIONS = (Direction.FORWARD, Direction.BACKWARD)
SLOW = ("a loop", "an early free", "a reference")
BUT_QUICK = [
    ("a loop that stops short, torch.int64", Direction.BACKWARD),
    ("a loop that stops short, torch.bool", Direction.FORWARD),
    ("an early free, torch.int64", Direction.BACKWARD),
]


def cases() -> Iterator[Any]:
    """Each fault in each direction; of those that are planted in one buffer at a time most are slow."""
    for name in FAULTS:
        for d in DIRECTIONS:
            slow = name.startswith(SLOW) and (name, d) not in BUT_QUICK
            yield pytest.param(name, d, id=f"{name}, {d}", marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("name", "direction"), list(cases()))
def test_a_fault_in_each_dtype(name: str, direction: Direction) -> None:
    fault = FAULTS[name]

    def faulty(compile_: Callable[..., Any]) -> None:
        with pytest.raises(UnboundLocalError) if fault.kind is Kind.EARLY_FREE else nullcontext():
            with_steps(compile_)

    findings = run(faulty, fault.edit, forward=direction is Direction.FORWARD)
    assert sorted((f.kind, f.severity, f.kernel, f.buffer) for f in findings) == sorted(
        (fault.kind, fault.severity, fault.kernel, b.name) for b in fault.buffers
    )
    assert {f.graph.direction for f in findings if f.graph is not None} == {direction}
    by_buffer = {f.buffer: f.evidence for f in findings}
    for b in fault.buffers:
        expected = fault.evidence(b)
        assert {k: by_buffer[b.name].get(k) for k in expected} == expected


kept: list[Tensor] = []
hooks: list[Callable[[Tensor], None]] = []


def peek(x: Tensor) -> Tensor:
    for hook in hooks:
        hook(x)
    return x.clone()


def look(x: Tensor) -> Tensor:
    """An operator of the user's looks at a buffer of each dtype."""
    y = x.sin() + 1
    seen = [torch.ops.planted.peek(v) for v in (y, (y * 8).to(torch.int64), y > 1, (y * 2).to(torch.bfloat16))]
    total: Tensor = seen[0] + seen[1] + seen[2] + seen[3]
    return total


class Look(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return look(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return look(gradient)


def with_operator(compile_: Callable[..., Any]) -> None:
    x = torch.arange(64.0, requires_grad=True)
    with no_reuse():
        compile_(lambda x: Look.apply(x).cos())(x).sum().backward()


@pytest.fixture
def operator() -> Iterator[None]:
    library: Any = torch.library.Library("planted", "FRAGMENT")
    library.define("peek(Tensor x) -> Tensor")
    library.impl("peek", peek, "CPU")
    library.impl("peek", torch.empty_like, "Meta")
    hooks.clear()
    yield
    hooks.clear()
    library._destroy()


def leaks(findings: list[Finding]) -> list[tuple[Any, ...]]:
    assert {f.kernel for f in findings} == {"torch.ops.planted.peek.default"}
    return sorted((f.kind, f.severity, f.graph and f.graph.direction, f.evidence["bytes"]) for f in findings)


LEAKS = sorted(
    (Kind.LEAKED_BUFFER, Severity.ERROR, direction, 64 * b.dtype.itemsize) for direction in DIRECTIONS for b in BUFFERS
)


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_a_reference_in_a_hook_in_each_dtype() -> None:
    assert run(with_operator) == []
    held: dict[int, Tensor] = {}

    def hook(x: Tensor) -> None:
        held[len(held)] = x

    hooks.append(hook)
    findings = run(with_operator)
    held.clear()
    assert leaks(findings) == LEAKS
    for finding in findings:
        assert any("hook" in link or "test_a_reference" in link for link in finding.evidence["held by"])


@pytest.mark.slow
@pytest.mark.usefixtures("operator")
def test_a_reference_in_a_global_list_in_each_dtype() -> None:
    hooks.append(lambda x: kept.append(x))
    findings = run(with_operator)
    kept.clear()
    assert leaks(findings) == LEAKS
    for finding in findings:
        assert finding.evidence["held by"][0] == f"global `kept` of module {__name__}"
        assert "kept.append(x)" in finding.source[0].code
