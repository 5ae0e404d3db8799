"""Faults planted into the Triton that Inductor generates. Each program without its fault is the clean twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.planted.faults import Fault
from tests.triton_on_cpu import templates


def _ops(*names: str) -> frozenset[str]:
    return frozenset(f"aten.{n}" for n in names)


def _called(function: Callable[..., Any], *inputs: Tensor) -> Callable[[], Any]:
    return lambda: torch.compile(function)(*(i.clone() for i in inputs))


def _trained(function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], Any]:
    return lambda: torch.compile(function)(*(i.clone().requires_grad_() for i in inputs)).square().sum().backward()


def _with_templates(function: Callable[..., Any], *inputs: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        with templates():
            return torch.compile(function)(*inputs)

    return run


def _seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def _scattered(x: Tensor, i: Tensor) -> Tensor:
    return torch.zeros(16).index_put((i,), x, accumulate=True)


X, W = _seeded(13, 24), _seeded(24, 32)
ROW = _seeded(100)
INDEX = torch.arange(40) % 16
MASK = r"xmask = xindex < xnumel\b"

POINTWISE = [
    ("another_function", lambda x: x.sin() + 1, r"tl_math\.sin\(", "tl_math.cos(", "sin.default"),
    ("a_thousandth", lambda x: x.tanh(), r"libdevice\.tanh\(", "1.001 * libdevice.tanh(", "tanh.default"),
    ("another_constant", lambda x: x * 3, r"tl\.full\(\[1\], 3\.0,", "tl.full([1], 3.001,", "mul.Tensor"),
    ("a_mask_too_narrow", lambda x: x.exp(), MASK, "xmask = xindex < (xnumel - 3)", "exp.default"),
    ("an_index_off_by_one", lambda x: x[:, 1:] * 2, r"\(1 \+ x0 \+", "(x0 +", "mul.Tensor"),
    (
        "branches_swapped",
        lambda x: torch.where(x > 0, x.sin(), x * 2),
        r"tl\.where\((tmp\d+), (tmp\d+), (tmp\d+)\)",
        r"tl.where(\1, \3, \2)",
        "where.self",
    ),
    ("a_comparison_turned", lambda x: (x > 0.5) * x, r"(tmp\d+) > (tmp\d+)", r"\1 < \2", "gt.Scalar"),
    ("another_base", lambda x: x.softmax(-1), r"libdevice\.exp\(|tl_math\.exp\(", "libdevice.exp2(", "exp.default"),
    ("another_bound", lambda x: x.clamp(-1, 1), r"tl\.full\(\[1\], 1\.0,", "tl.full([1], 1.5,", "clamp_max.default"),
    ("a_seed_off_by_one", lambda x: torch.rand(100) + x[0, 0], r"tl\.rand\((\w+)", r"tl.rand(\1 + 1", "add.Tensor"),
]  # fmt: skip
REDUCTIONS = [
    ("a_reduction_without_its_last", lambda x: (x * 2).sum(-1), r"r0_mask = r0_index < r0_numel",
     "r0_mask = r0_index < (r0_numel - 1)", "sum.dim_IntList"),
    ("another_neutral_element", lambda x: x.exp().sum(-1), r"tl\.where\((r0_mask[^,]*|xmask[^,]*), (tmp\d+), 0\)",
     r"tl.where(\1, \2, 1)", "sum.dim_IntList"),
    ("another_index", lambda x: (x * 2).argmax(-1), r"triton_helpers\.max_with_index", "triton_helpers.min_with_index",
     "argmax.default"),
    ("a_scan_that_subtracts", lambda x: x.cumsum(-1), r"arg0_0 \+ arg1_0", "arg0_0 - arg1_0", "cumsum.default"),
    ("a_root_for_its_inverse", lambda x: F.layer_norm(x, (24,)), r"libdevice\.rsqrt\(", "tl.sqrt_rn(", "rsqrt.default"),
    ("another_divisor", lambda x: (x * 2).mean(-1), r"24\.0", "25.0", "mean.dim"),
]  # fmt: skip

FAULTS = [
    *(
        Fault(
            name=name,
            program=_called(function, X),
            pattern=pattern,
            wrong=wrong,
            ops=_ops(op),
        )
        for name, function, pattern, wrong, op in (*POINTWISE, *REDUCTIONS)
    ),
    Fault(
        name="a_cast_that_rounds",
        program=_called(lambda x: (x * 9).to(torch.int64), X),
        pattern=r"(tmp\d+)\.to\(tl\.int64\)",
        wrong=r"(\1 + 0.5).to(tl.int64)",
        ops=frozenset(["prims.convert_element_type.default"]),
    ),
    Fault(
        name="a_minimum_for_a_maximum",
        program=_called(lambda x: (x * 2).amax(-1), X),
        pattern=r"triton_helpers\.max2\(",
        wrong="triton_helpers.min2(",
        ops=_ops("amax.default"),
        kind="non-finite",  # The lanes that a mask hides are -inf for a maximum.
    ),
    Fault(
        name="a_sum_that_starts_at_one",
        program=_called(lambda x: (x * 2).sum(-1), _seeded(2, 3000)),
        pattern=r"(_tmp\d+ = tl\.full\(\[XBLOCK, R0_BLOCK\]), 0,",
        wrong=r"\1, 1,",
        ops=_ops("sum.dim_IntList"),
    ),
    Fault(
        name="additions_that_are_lost",
        program=_called(_scattered, _seeded(40), INDEX),
        pattern=r"tl\.atomic_add\((.*), sem='relaxed'\)",
        wrong=r"tl.store(\1)",
        ops=_ops("index_put.default", "index_put_.default"),
    ),
    Fault(
        name="additions_beyond_the_last",
        program=_called(lambda x, i: _scattered(x.exp(), i), _seeded(40), INDEX),
        pattern=r"(tl\.atomic_add\(.*), xmask, sem",
        wrong=r"\1, None, sem",
        ops=_ops("index_put.default", "index_put_.default"),
    ),
    Fault(
        name="a_scan_that_begins_anew",
        program=_called(lambda x: x.cumsum(-1), _seeded(2, 5000)),
        pattern=r"tl\.where\(r\w*offset > 0, \w+, (\w+)\)",
        wrong=r"\1",
        ops=_ops("cumsum.default"),
    ),
    Fault(
        name="a_number_rounded_down",
        program=_called(lambda x: (x / (x.abs().amax(-1, keepdim=True) / 127)).round().to(torch.int8), X),
        pattern=r"libdevice\.nearbyint\(",
        wrong="libdevice.floor(",
        ops=_ops("round.default"),
    ),
    Fault(
        name="a_minimum_that_drops_nan",
        program=_called(lambda x: torch.minimum(x.log(), x), X),
        pattern=r"(?:triton_helpers|tl)\.minimum\((\w+), (\w+)(?:, tl\.PropagateNan\.ALL)?\)",
        wrong=r"tl.minimum(\1, \2)",
        ops=_ops("minimum.default"),
    ),
    Fault(
        name="a_buffer_that_keeps_its_old_value",
        program=_called(lambda x, w: torch.mm(x, w).exp(), X, W),
        pattern=r"tl\.store\(in_out_ptr0 \+ \((\w+)\), tmp\d+",
        wrong=r"tl.store(in_out_ptr0 + (\1), tmp0",
        ops=_ops("exp.default"),
    ),
    Fault(
        name="the_derivative_of_another_function",
        program=_trained(lambda x: x.sin(), X),
        pattern=r"tl_math\.cos\(",
        wrong="tl_math.sin(",
        ops=_ops("cos.default", "mul.Tensor"),
        backward=True,
    ),
    Fault(
        name="an_epilogue_turned",
        program=_with_templates(lambda x, w: (x @ w).relu(), X, W),
        pattern=r"\b(triton_helpers|tl)\.maximum\(",  # before 2.15, and since
        wrong=r"\1.minimum(",
        ops=_ops("relu.default", "mm.default"),
    ),
    Fault(
        name="a_product_that_ends_early",
        program=_with_templates(lambda x, w: x @ w, X, W),
        pattern=r"range\(0, tl\.cdiv\(K, BLOCK_K\)\)",
        wrong="range(0, tl.cdiv(K, BLOCK_K) - 1)",
        ops=_ops("mm.default"),
    ),
    Fault(
        name="a_mask_too_wide",
        program=_called(lambda x: x.exp(), X),
        pattern=MASK,
        wrong="xmask = xindex < (xnumel + 3)",
        ops=_ops("exp.default"),
        kind="out-of-bounds-write",
    ),
    Fault(
        name="a_store_before_the_first_element",
        program=_called(lambda x: x.exp(), X),
        pattern=r"tl\.store\(out_ptr0 \+ \(x0\)(.*)",
        wrong=r"tl.store(out_ptr0 + (x0 - 2)\1; tl.store(out_ptr0 + (x0)\1",
        ops=_ops("exp.default"),
        kind="out-of-bounds-write",
    ),
    Fault(
        name="elements_that_nobody_wrote",
        program=_called(lambda x, w: torch.mm(x.exp(), w), X, W),
        pattern=MASK,
        wrong="xmask = xindex < (xnumel - 3)",
        ops=_ops("exp.default"),
        kind="uninitialized-read",
    ),
]
