"""Launches and the graph they were made from: versions, memory that is handed on, and what is not yet computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchsan.checks.stages.launch_order import launch_order
from torchsan.checks.stages.storages import Reordered
from torchsan.torch_internals import Buffer, LoweredGraph
from torchsan.torch_internals.wrapper import parse

_KERNELS = """
cpp_fused_sin_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
extern "C"  void  kernel(const float* in_ptr0, float* out_ptr0) {}
''')
cpp_fused_add_1 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
extern "C"  void  kernel(const float* in_ptr0, float* out_ptr1) {}
''')

class Runner:
    def call(self, args):
        x_1, w_1 = args
        args.clear()
"""

SIN = "buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)\ncpp_fused_sin_0(x_1, buf0)"
ADD = "cpp_fused_add_1(x_1, x_1)"
PRODUCT = "buf2 = empty_strided_cpu((4, 4), (4, 1), torch.float32)\nextern_kernels.mm(buf0, w_1, out=buf2)"


def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    sine = x.sin()
    x.copy_(x + 1)
    return sine @ w


def buffer(name: str, storage: str, node: str | None, *origins: str, group: int) -> Buffer:
    return Buffer(name=name, storage=storage, node=node, origins=origins, removed=False, group=group)


BUFFERS = (
    buffer("buf0", "buf0", "sin", "sin", group=0),
    buffer("buf1", "x_1", None, "add", "copy_", group=1),
    buffer("buf2", "buf2", "mm", "mm", group=2),
)


def order(*statements: str, returned: str = "buf2") -> tuple[Reordered, ...]:
    module = make_fx(step, tracing_mode="fake")(torch.ones(4, 4), torch.ones(4, 4))
    body = "\n".join(statements).replace("\n", "\n        ")
    program = parse(_KERNELS + "        " + body + f"\n        return ({returned}, )\n")
    assert not program.opaque()
    graph = LoweredGraph(function="call", module=module, inputs=("x_1", "w_1"), buffers=BUFFERS)
    return launch_order(cast("Any", SimpleNamespace(graphs={"call": graph}, model=program)))


@pytest.mark.parametrize("statements", [(SIN, ADD, PRODUCT), (SIN, PRODUCT, ADD)])
def test_launches_in_an_order_that_the_graph_allows_are_right(statements: tuple[str, ...]) -> None:
    assert order(*statements) == ()


def test_a_launch_that_reads_an_input_after_it_was_written_is_late() -> None:
    (found,) = order(ADD, SIN, PRODUCT)
    assert (found.statement.name, found.write.name, found.late) == ("sin", "copy_", True)
    assert found.kernels == ("cpp_fused_sin_0", "cpp_fused_add_1")
    assert (found.storage, found.buffer) == ("input x_1", "buf0")


def test_a_launch_that_reads_what_is_not_yet_computed_is_early() -> None:
    allocate, launch = SIN.split("\n")
    (found,) = order(allocate, PRODUCT, launch, ADD)
    assert (found.statement.name, found.write.name, found.late) == ("mm", "sin", False)


def test_memory_that_was_handed_on_is_not_read_under_its_old_name() -> None:
    handed = "held = buf0\nbuf2 = buf0; del buf0  # reuse\nextern_kernels.mm(w_1, w_1, out=buf2)"
    (found,) = order(SIN, ADD, handed, returned="buf2, held")
    assert (found.write.name, found.late, found.buffer) == ("mm", True, "held")
    assert found.kernels == ("return", "extern_kernels.mm")
    in_place = "buf2 = buf0; del buf0  # reuse\ncpp_fused_add_1(buf2, buf2)"
    assert order(SIN, ADD, in_place) == ()


RESULTS = "buf3 = torch.ops.aten.max.dim(x_1, 0)\nbuf0 = buf3[0]\nbuf1 = buf3[1]\ndel buf3"


def test_one_of_several_results_may_be_written_before_another_is_read() -> None:
    handed = "held = buf0\nbuf2 = buf0; del buf0  # reuse\nextern_kernels.mm(w_1, w_1, out=buf2)"
    assert order(RESULTS, handed, returned="buf2, buf1") == ()
    (found,) = order(RESULTS, handed, returned="buf2, buf1, held")
    assert (found.write.name, found.late, found.buffer) == ("mm", True, "held")
