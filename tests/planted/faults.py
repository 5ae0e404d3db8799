"""Faults planted into what Inductor generates: each an edit of the program's source between codegen and compile.

Whoever runs one sees a miscompile as real as PyTorch's own; without the edit the same program is its clean twin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor.config
import torch._inductor.graph
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`pattern` is replaced by `wrong` in the generated source; `ops` are the operators that may be blamed for it."""

    name: str
    program: Callable[[], Any]
    pattern: str
    wrong: str
    ops: frozenset[str]
    kind: str = "wrong-values"
    severity: str = "error"
    backward: bool = False
    slow: bool = True
    """Whether it waits for `make test-all`; one of each sort does not."""


@contextmanager
def planted(fault: Fault) -> Iterator[list[str]]:
    """Plant the fault in whatever is compiled inside; yield the sources that it was planted in."""
    codegen = torch._inductor.graph.GraphLowering.codegen
    changed: list[str] = []

    def edited(self: Any) -> Any:
        result = codegen(self)
        if self.is_backward == fault.backward:
            text, n = re.subn(fault.pattern, fault.wrong, result[0].value)
            if n:
                changed.append(text)
                result[0].value = text
        return result

    with patch.object(torch._inductor.graph.GraphLowering, "codegen", edited):
        yield changed


def _fused(function: Callable[..., Any], *inputs: Tensor, dynamic: bool | None = None) -> Callable[[], Any]:
    def run() -> Any:
        return torch.compile(function, dynamic=dynamic)(*(i.clone() for i in inputs))

    return run


def _training(function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        leaves = [i.clone().requires_grad_() for i in inputs]
        return torch.compile(function)(*leaves).square().sum().backward()

    return run


def _seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def _frozen(model: torch.nn.Module, x: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        with torch.no_grad(), torch._inductor.config.patch(freezing=True):
            return torch.compile(model.eval())(x)

    return run


X = _seeded(32, 64)
ODD = _seeded(7, 13)
ROW = _seeded(100)
INDEX = torch.arange(40) % 16
ONE_HALF = torch.where(torch.arange(64) == 5, 0.5, _seeded(64))
WEIGHT = _seeded(64, 64)
MASK = torch.where(torch.arange(64) % 4 == 0, -torch.inf, 0.0)
V = r"at::vec::Vectorized<float>"


def _ops(*names: str) -> frozenset[str]:
    return frozenset(f"aten.{n}" for n in names)


FAULTS = [
    Fault(
        name="another_function",
        slow=False,
        program=_fused(lambda x: x.sin() + 1, X),
        pattern=r"\.sin\(\)",
        wrong=".cos()",
        ops=_ops("sin.default"),
    ),
    Fault(
        name="relu_of_the_wrong_bound",
        program=_fused(lambda x: (x * 2).relu(), X),
        pattern=r"decltype\((tmp\d+)\)\(0\)",
        wrong=r"decltype(\1)(1)",
        ops=_ops("relu.default"),
    ),
    Fault(
        name="a_relative_error_of_a_thousandth",
        slow=False,
        program=_fused(lambda x: x.exp(), X),
        pattern=r"(tmp\d+)\.exp_u20\(\)|(tmp\d+)\.exp\(\)",
        wrong=rf"(\1\2.exp() * {V}(1.001f))",
        ops=_ops("exp.default"),
    ),
    Fault(
        name="a_sum_that_starts_at_one",
        slow=False,
        program=_fused(lambda x: x.sum(-1), X),
        pattern=r"float tmp_acc0 = 0;",
        wrong="float tmp_acc0 = 1;",
        ops=_ops("sum.dim_IntList"),
    ),
    Fault(
        name="a_maximum_that_starts_at_zero",
        program=_fused(lambda x: x.amax(-1), -X.abs() - 1),
        pattern=r"-std::numeric_limits<float>::infinity\(\)",
        wrong="0",
        ops=_ops("amax.default"),
    ),
    Fault(
        name="a_loop_that_stops_short",
        program=_fused(lambda x: x.cos() * 3, X),
        pattern=r"x0<static_cast<int64_t>\(2048L\)",
        wrong="x0<static_cast<int64_t>(2032L)",
        ops=_ops("cos.default", "mul.Tensor"),
    ),
    Fault(
        name="a_wrong_constant",
        program=_fused(lambda x: x * 0.5 + x.tanh(), X),
        pattern=r"static_cast<float>\(0\.5\)",
        wrong="static_cast<float>(0.25)",
        ops=_ops("mul.Tensor", "add.Tensor", "tanh.default"),
    ),
    Fault(
        name="integer_arithmetic",
        slow=False,
        program=_fused(lambda i: i * 3 + 1, INDEX),
        pattern=r"static_cast<int64_t>\(3\)",
        wrong="static_cast<int64_t>(5)",
        ops=_ops("mul.Tensor", "add.Tensor"),
    ),
    Fault(
        name="truth_values",
        slow=False,
        program=_fused(lambda x: (x > 0) & (x < 1), X),
        pattern=r" & (tmp\d+)",
        wrong=r" | \1",
        ops=_ops("bitwise_and.Tensor", "logical_and.default", "lt.Scalar", "gt.Scalar"),
    ),
    Fault(
        name="a_gather_from_the_wrong_row",
        slow=False,
        program=_fused(lambda x, i: x[i] + 1, X, INDEX),
        pattern=r"64L\*(tmp\d+)",
        wrong=r"0L*\1",
        ops=_ops("index.Tensor", "add.Tensor"),
    ),
    Fault(
        name="a_scatter_that_adds_twice",
        program=_fused(lambda x, i: torch.zeros(16, 64).index_add(0, i, x), _seeded(40, 64), INDEX),
        pattern=r"(atomic_add\w*(?:<[^;(]*>)?\([^;]*;)",
        wrong=r"\1 \1",
        ops=_ops("index_put_.default", "index_put.default", "index_add.default", "full.default"),
    ),
    Fault(
        name="a_library_call_off_by_a_thousandth",
        slow=False,
        program=_fused(lambda x, w: (x @ w) + 1, X, WEIGHT),
        pattern=r"extern_kernels\.mm\((\w+), ",
        wrong=r"extern_kernels.mm(\1 * 1.001, ",
        ops=_ops("mm.default"),
    ),
    Fault(
        name="a_library_call_that_drops_the_bias",
        program=_fused(lambda x, w, b: torch.addmm(b, x, w), X, WEIGHT, WEIGHT[0]),
        pattern=r"beta=1",
        wrong="beta=0",
        ops=_ops("addmm.default"),
    ),
    Fault(
        name="a_fallback_that_sorts_the_other_way",
        slow=False,
        program=_fused(lambda x: x.sort(-1)[0] + 1, X),
        pattern=r"descending=False",
        wrong="descending=True",
        ops=_ops("sort.default", "sort.stable"),
    ),
    Fault(
        name="a_mask_in_backward_only",
        program=_training(lambda x: x.relu() * 2, X),
        pattern=r"blendv\((tmp\d+), (tmp\d+),",
        wrong=r"blendv(\2, \1,",
        backward=True,
        ops=_ops("le.Scalar", "where.self", "full.default", "mul.Tensor"),
    ),
    Fault(
        name="a_constant_in_backward_only",
        slow=False,
        program=_training(lambda x: (x * 0.125).tanh(), X),
        pattern=r"static_cast<float>\(0\.125\)",
        wrong="static_cast<float>(0.25)",
        backward=True,
        ops=_ops("mul.Tensor", "sub.Tensor"),
    ),
    Fault(
        name="the_epsilon_of_a_norm",
        program=_fused(lambda x: F.layer_norm(x * 1e-2, (64,)), X),
        pattern=r"static_cast<float>\(1e-05\)",
        wrong="static_cast<float>(0.001)",
        ops=_ops("add.Tensor", "rsqrt.default", "mul.Tensor"),
    ),
    Fault(
        name="the_length_of_a_mean",
        program=_fused(lambda x: x.mean(-1), X),
        pattern=r"static_cast<float>\(64\.0\)",
        wrong="static_cast<float>(63.0)",
        ops=_ops("mean.dim"),
    ),
    Fault(
        name="tail_elements_only",
        slow=False,
        program=_fused(lambda x: x.sin() * 2, ROW),
        pattern=r"(?s)(.*)\.sin\(\)",
        wrong=r"\1.cos()",
        ops=_ops("sin.default", "mul.Tensor"),
    ),
    Fault(
        name="one_value_only",
        program=_fused(lambda x: x.sin() * 2, ONE_HALF),
        pattern=r"(tmp\d+)\.sin\(\)",
        wrong=rf"{V}::blendv(\1.sin(), \1.cos(), \1 == {V}(0.5f))",
        ops=_ops("sin.default", "mul.Tensor"),
    ),
    Fault(
        name="after_a_product_with_a_frozen_weight",
        slow=False,
        program=_frozen(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8)), X),
        pattern=r"(tmp\d+)\.tanh\(\)",
        wrong=rf"(\1.tanh() * {V}(1.001f))",
        ops=_ops("addmm.default", "tanh.default") | {"mkl._mkl_linear.default"},
    ),
    Fault(
        name="half_precision_only",
        slow=False,
        program=_fused(lambda x: x.sigmoid() + 1, X.bfloat16()),
        pattern=r"static_cast<float>\(1\.0\)",
        wrong="static_cast<float>(1.5)",
        ops=_ops("sigmoid.default", "add.Tensor"),
    ),
    Fault(
        name="one_size_only",
        slow=False,
        program=_fused(lambda x: x * 2 + 3, ODD, dynamic=True),
        pattern=r"static_cast<float>\(3\.0\)",
        wrong="static_cast<float>(ks0 == 7 || ks0 == 13 ? 4.0 : 3.0)",
        ops=_ops("mul.Tensor", "add.Tensor"),
    ),
    Fault(
        name="a_swapped_choice",
        program=_fused(lambda x: torch.where(x > 0.3, x, x * 10), X),
        pattern=r"blendv\((tmp\d+), (tmp\d+),",
        wrong=r"blendv(\2, \1,",
        ops=_ops("where.self", "gt.Scalar", "mul.Tensor"),
    ),
    Fault(
        name="minimum_for_maximum",
        program=_fused(lambda x, y: torch.maximum(x, y), X, X.flip(0)),
        pattern=r"at::vec::maximum\(",
        wrong="at::vec::minimum(",
        ops=_ops("maximum.default"),
    ),
    Fault(
        name="truncation_for_floor",
        program=_fused(lambda x: (x * 4).floor(), X),
        pattern=r"\.floor\(\)",
        wrong=".trunc()",
        ops=_ops("floor.default", "mul.Tensor"),
    ),
    Fault(
        name="a_minimum_of_integers_that_starts_at_zero",
        program=_fused(lambda x: x.amin(-1), (INDEX.repeat(4, 1) + 3).int()),
        pattern=r"std::numeric_limits<int32_t>::max\(\)",
        wrong="0",
        ops=_ops("amin.default"),
    ),
    Fault(
        name="a_shift_of_one_column",
        program=_fused(lambda x: F.pad(x, (1, 1)) + 1, ODD),
        pattern=r"\(-1L\) \+ x1",
        wrong="(-2L) + x1",
        ops=_ops("constant_pad_nd.default", "add.Tensor"),
    ),
    Fault(
        name="a_division_for_a_product",
        program=_fused(lambda x, y: x.double() * y, X, X + 9),
        pattern=r"(tmp\d+) \* (tmp\d+)",
        wrong=r"\1 / \2",
        ops=_ops("mul.Tensor", "convert_element_type.default") | {"prims.convert_element_type.default"},
    ),
    Fault(
        name="an_overflow_that_softmax_avoids",
        slow=False,
        program=_fused(lambda x: x.softmax(-1), X * 200),
        pattern=r"(tmp\d+) - (tmp\d+)",
        wrong=r"\1 - \2 + \2",
        kind="non-finite",
        ops=_ops("sub.Tensor", "exp.default", "div.Tensor", "amax.default", "sum.dim_IntList")
        | {"prims.prepare_softmax_online.default"},
    ),
    Fault(
        name="a_masked_softmax_that_sums_twice",
        slow=False,
        program=_fused(lambda x, mask: (x + mask).softmax(-1), X, MASK),
        pattern=r"(tmp\d+) / (tmp\d+)",
        wrong=r"\1 / (\2 + \2)",
        ops=_ops("div.Tensor", "exp.default"),
    ),
    Fault(
        name="cancellation_where_eager_has_none",
        slow=False,
        program=_fused(lambda x: x.log1p(), X.abs() * 1e-4),
        pattern=r"(tmp\d+)\.log1p\(\)",
        wrong=rf"(\1 + {V}(1.0f)).log()",
        kind="precision-loss",
        severity="warning",
        ops=_ops("log1p.default"),
    ),
    Fault(
        name="a_softmax_in_bfloat16_backward_only",
        program=_training(lambda x: x.log_softmax(-1), X.bfloat16()),
        pattern=r"(tmp\d+)\.exp(_u20)?\(\)",
        wrong=r"(\1.exp() * decltype(\1)(1.02f))",
        backward=True,
        ops=_ops("exp.default", "mul.Tensor"),
    ),
    Fault(
        name="the_correction_of_a_variance_in_float16",
        program=_fused(lambda x: x.var(-1), X.half()),
        pattern=r"static_cast<float>\(63\.0\)",
        wrong="static_cast<float>(64.0)",
        ops=_ops("var.correction"),
    ),
    Fault(
        name="a_group_norm_in_bfloat16",
        program=_fused(lambda x: F.group_norm(x.view(4, 8, 64), 4).sigmoid(), X.bfloat16()),
        pattern=r"= (1 / std::sqrt\(tmp\d+\)|tmp\d+\.rsqrt\(\));",
        wrong=r"= (\1) * decltype(\1)(1.04f);",
        ops=_ops("rsqrt.default", "mul.Tensor"),
    ),
    Fault(
        name="a_long_sum_that_stops_short",
        program=_fused(lambda x: (x * 2).sum(-1), _seeded(4, 10_001).abs()),
        pattern=r"static_cast<int64_t>\(10001L\)",
        wrong="static_cast<int64_t>(10000L)",
        ops=_ops("sum.dim_IntList"),
    ),
    Fault(
        name="equal_numbers_taken_for_larger",
        program=_fused(lambda x: torch.where(x > 0.5, x.exp(), x - 5), ONE_HALF),
        pattern=r"(tmp\d+) > (tmp\d+)",
        wrong=r"\1 >= \2",
        ops=_ops("gt.Scalar", "where.self"),
    ),
    Fault(
        name="halves_rounded_up",
        slow=False,
        program=_fused(lambda x: (x * 0.5).round(), torch.arange(64.0) - 32),
        pattern=r"(tmp\d+)\.round\(\)",
        wrong=rf"(\1 + {V}(0.5f)).floor()",
        ops=_ops("round.default"),
    ),
    Fault(
        name="an_exact_difference_compared",
        program=_fused(lambda x: ((x - 3) * 0.25 > 0.5).float(), torch.arange(64.0)),
        pattern=r"(tmp\d+) > (tmp\d+)",
        wrong=r"\1 >= \2",
        ops=_ops("gt.Scalar"),
    ),
    Fault(
        name="the_momentum_of_a_batch_norm",
        slow=False,
        program=lambda: torch.compile(torch.nn.BatchNorm1d(64))(X),
        pattern=r"static_cast<float>\(0\.1\)",
        wrong="static_cast<float>(0.1001)",
        ops=_ops("mul.Tensor", "add.Tensor", "copy_.default"),
    ),
    Fault(
        name="the_last_row_of_a_table",
        program=_fused(lambda w, i: F.embedding(i, w) * 2, _seeded(16, 64), INDEX),
        pattern=r"64L\*(tmp\d+)",
        wrong=r"64L*(\1 == 15 ? 14 : \1)",
        ops=_ops("embedding.default"),
    ),
    Fault(
        name="a_constant_inside_of_a_function",
        program=_fused(lambda x: F.gelu(x, approximate="tanh"), X),
        pattern=r"0\.044715",
        wrong="0.0447",
        ops=_ops("mul.Tensor", "add.Tensor", "tanh.default"),
    ),
    Fault(
        name="a_maximum_that_overlooks_what_is_no_number",
        program=_fused(lambda x, y: torch.maximum(x, y) + 1, torch.where(X > 2, torch.nan, X), X.flip(0)),
        pattern=r"at::vec::maximum\((tmp\d+), (tmp\d+)\)",
        wrong=r"decltype(\1)::blendv(\2, \1, \1 > \2)",
        ops=_ops("maximum.default"),
    ),
    Fault(
        name="a_sum_of_integers_in_too_few_bits",
        program=_fused(lambda x: x.sum(), torch.full((1000,), 2**30, dtype=torch.int32)),
        pattern=r"int64_t tmp_acc0 = 0;",
        wrong="int32_t tmp_acc0 = 0;",
        ops=_ops("sum.default"),
    ),
    Fault(
        name="the_threshold_of_a_softplus",
        program=_fused(lambda x: F.softplus(x), torch.linspace(-5, 30, 1000)),
        pattern=r"static_cast<float>\(20\.0\)",
        wrong="static_cast<float>(5.0)",
        ops=_ops("gt.Scalar", "where.self"),
    ),
    Fault(
        name="a_constant_in_double_precision",
        program=_fused(lambda x: x * 0.1 + x.sin(), X.double()),
        pattern=r"static_cast<double>\(0\.1\)",
        wrong="static_cast<double>(0.1f)",
        ops=_ops("mul.Tensor", "add.Tensor", "sin.default"),
    ),
]
