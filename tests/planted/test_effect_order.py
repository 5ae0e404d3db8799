"""Reads and writes that a step of the compiler lets change places: the step and both statements are named, and nothing
is said of the same programs compiled as they are."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config

import torchsan
from tests.planted.plant import Edit, planted
from torchsan.records import Finding, Kind, Severity, Stage

aten = torch.ops.aten
Program = Callable[..., Any]

pytestmark = pytest.mark.filterwarnings("ignore")

POST = "post_grad_custom_post_pass"
JOINT = "joint_custom_post_pass"


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@torch.library.custom_op("effect_order::accumulate_", mutates_args={"state"})
def accumulate_(state: torch.Tensor, x: torch.Tensor) -> None:
    state.add_(x)


def kept_copy(x: torch.Tensor) -> torch.Tensor:
    before = x.clone()
    x.add_(1)
    return before


def read_then_write(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    x.add_(1)
    return y


def put(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.index_put((i,), v)
    return y, x * 3


def scatter_on_live(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = x.sin()
    y = z.scatter(0, i, v)
    return y, z * 3


def other_dtype(x: torch.Tensor) -> torch.Tensor:
    y = x.view(torch.int32) + 7
    x.add_(1)
    return y


def custom_then_read(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    accumulate_(state, x)
    return state * 3


def custom_on_copy(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    accumulate_(y, x)
    return x + y * 3


def saved(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    h = x.exp()
    k = h.sum()
    return k + h.index_put((i,), v).sum()


def sum_then_write(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y = cache.sum(0)
    cache[2:4] = x
    return y


def product_then_write(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    x.add_(1)
    return y


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.sin() @ w).relu()


def kept_product(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = x @ w
    b = a.sin()
    return b @ w, a


def first(graph: torch.fx.Graph, target: Any) -> torch.fx.Node:
    found: torch.fx.Node = next(n for n in graph.nodes if n.target == target)
    return found


def bypass(target: Any) -> Callable[[torch.fx.Graph], None]:
    """Take out a copy: whoever reads it reads what it was a copy of."""

    def change(graph: torch.fx.Graph) -> None:
        for node in [n for n in graph.nodes if n.target == target][:1]:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)

    return change


def move_behind(reader: Any, writer: Any) -> Callable[[torch.fx.Graph], None]:
    """Move the read, and all that comes of it, behind the last write."""

    def change(graph: torch.fx.Graph) -> None:
        write = [n for n in graph.nodes if n.target == writer][-1]
        moved = {first(graph, reader)}
        for node in list(graph.nodes):
            if any(p in moved for p in node.all_input_nodes) and node.op != "output":
                moved.add(node)
        for node in [n for n in graph.nodes if n in moved]:
            write.append(node)
            write = node

    return change


def move_up(writer: Any, reader: Any) -> Callable[[torch.fx.Graph], None]:
    """Move a write, and what it needs, before the read."""

    def change(graph: torch.fx.Graph) -> None:
        read, write = first(graph, reader), first(graph, writer)
        needed = {write}
        for node in reversed(list(graph.nodes)):
            if node in needed:
                needed.update(p for p in node.all_input_nodes if p.op != "placeholder")
        for node in [n for n in graph.nodes if n in needed]:
            read.prepend(node)

    return change


def drop(target: Any) -> Callable[[torch.fx.Graph], None]:
    def change(graph: torch.fx.Graph) -> None:
        for node in [n for n in graph.nodes if n.target == target][:1]:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)

    return change


def in_place(functional: Any, variant: Any) -> Callable[[torch.fx.Graph], None]:
    """Reinplace without asking who else reads the memory."""

    def change(graph: torch.fx.Graph) -> None:
        for node in [n for n in graph.nodes if n.target == functional][:1]:
            node.target = variant

    return change


def reads_input(reader: Any) -> Callable[[torch.fx.Graph], None]:
    """Let the node read the first input as it was given."""

    def change(graph: torch.fx.Graph) -> None:
        node = first(graph, reader)
        node.args = (next(iter(graph.nodes)), *node.args[1:])

    return change


def without_clones(graph: torch.fx.Graph) -> None:
    """Tell the pass that puts operators back which write that they may write the original."""
    for node in graph.nodes:
        if "auto_functionalized" in str(node.target):
            node.meta["only_clone_these_tensors"] = []


def forward_only(change: Callable[[torch.fx.Graph], None]) -> Callable[[torch.fx.Graph], None]:
    return lambda graph: None if any("tangents" in n.name for n in graph.nodes) else change(graph)


def moved(one: str, behind: str) -> Edit:
    """Move a launch of the wrapper behind another, each the first line that begins so; nothing is freed."""

    def edit(source: str) -> str:
        head, call, body = source.partition("def call(")
        body = re.sub(r"^ *del \w+\n", "", body, flags=re.MULTILINE)
        line = re.search(rf"^ *{re.escape(one)}.*\n", body, re.MULTILINE)
        if line is None:
            return source
        body = body.replace(line[0], "", 1)
        return (
            head + call + re.sub(rf"(^ *{re.escape(behind)}.*\n)", rf"\1{line[0]}", body, count=1, flags=re.MULTILINE)
        )

    return edit


def reused_too_early(source: str) -> str:
    """Hand the memory of the first product on to its sine, and go on reading it under the name of an alias."""
    source = re.sub(
        r"buf1 = empty_strided_cpu\(.*\)\n", "held = buf0\n        buf1 = buf0; del buf0  # reuse\n", source
    )
    source = re.sub(r"(cpp_fused_sin_0)\(buf0, buf1\)", r"\1(held, buf1)", source)
    return source.replace("return (buf2, buf0, )", "return (buf2, held, )")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`codes` are pieces of the two lines that must be named."""

    name: str
    program: Program
    args: Callable[[], tuple[Any, ...]]
    config: dict[str, Any] = field(default_factory=dict)
    edit: Edit | None = None
    after_reinplacing: Callable[[torch.fx.Graph], None] | None = None
    stage: Stage = Stage.POST_GRAD_PASSES
    pass_: str | None = POST
    ops: set[str] = field(default_factory=set)
    codes: set[str] = field(default_factory=set)
    training: bool = False
    daily: bool = False


def square() -> tuple[torch.Tensor, ...]:
    return (torch.randn(8, 8),)


def squares() -> tuple[torch.Tensor, ...]:
    return torch.randn(8, 8), torch.randn(8, 8)


def indexed() -> tuple[torch.Tensor, ...]:
    return torch.randn(8), torch.tensor([1, 4]), torch.tensor([9.0, 8.0])


def clone_method(graph: torch.fx.Graph) -> None:
    bypass("clone")(graph)


FAULTS = [
    Fault(
        name="a joint pass drops a copy that is returned",
        program=kept_copy,
        args=square,
        config={JOINT: bypass(aten.clone.default)},
        stage=Stage.JOINT_PASSES,
        pass_=JOINT,
        ops={"aten.clone.default", "aten.copy_.default"},
        codes={"before = x.clone()", "x.add_(1)"},
        daily=True,
    ),
    Fault(
        name="a pass before autograd drops a copy",
        program=kept_copy,
        args=square,
        config={"pre_grad_custom_pass": clone_method},
        stage=Stage.AOT,
        pass_="pre_grad_custom_pass",
        codes={"before = x.clone()", "x.add_(1)"},
    ),
    Fault(
        name="a read is moved behind the write",
        program=read_then_write,
        args=square,
        config={POST: move_behind(aten.mul.Tensor, aten.copy_.default)},
        ops={"aten.mul.Tensor", "aten.copy_.default"},
        codes={"y = x * 3", "x.add_(1)"},
    ),
    Fault(
        name="a write is moved before the read",
        program=read_then_write,
        args=square,
        config={POST: move_up(aten.copy_.default, aten.mul.Tensor)},
        ops={"aten.mul.Tensor", "aten.copy_.default"},
        codes={"y = x * 3", "x.add_(1)"},
    ),
    Fault(
        name="the epilogue that writes an input is dropped",
        program=read_then_write,
        args=square,
        config={POST: drop(aten.copy_.default)},
        ops={"aten.copy_.default"},
        codes={"x.add_(1)"},
    ),
    Fault(
        name="index_put is made to write an input",
        program=put,
        args=indexed,
        config={POST: in_place(aten.index_put.default, aten.index_put_.default)},
        ops={"aten.mul.Tensor", "aten.index_put_.default"},
        codes={"return y, x * 3", "y = x.index_put((i,), v)"},
    ),
    Fault(
        name="scatter is made to write what is still read",
        program=scatter_on_live,
        args=indexed,
        config={POST: in_place(aten.scatter.src, aten.scatter_.src)},
        ops={"aten.mul.Tensor", "aten.scatter_.src"},
        codes={"return y, z * 3", "y = z.scatter(0, i, v)"},
        daily=True,
    ),
    Fault(
        name="a read of a view with another dtype is moved behind the write",
        program=other_dtype,
        args=lambda: (torch.arange(16),),
        config={POST: move_behind(aten.add.Tensor, aten.copy_.default)},
        ops={"aten.add.Tensor", "aten.copy_.default"},
        codes={"y = x.view(torch.int32) + 7", "x.add_(1)"},
    ),
    Fault(
        name="a read is moved before the custom operator that writes",
        program=custom_then_read,
        args=squares,
        config={POST: reads_input(aten.mul.Tensor)},
        ops={"aten.mul.Tensor", "aten.copy_.default"},
        codes={"return state * 3", "accumulate_(state, x)"},
    ),
    Fault(
        name="a custom operator writes the original in the place of the copy",
        program=custom_on_copy,
        args=square,
        after_reinplacing=without_clones,
        pass_="decompose_auto_functionalized: _",
        ops={"aten.add.Tensor", "effect_order.accumulate_.default"},
        codes={"return x + y * 3", "accumulate_(y, x)"},
    ),
    Fault(
        name="what is saved for backward is overwritten",
        program=saved,
        args=indexed,
        config={POST: forward_only(in_place(aten.index_put.default, aten.index_put_.default))},
        ops={"aten.exp.default", "aten.index_put_.default"},
        codes={"h = x.exp()", "return k + h.index_put((i,), v).sum()"},
        training=True,
    ),
    Fault(
        name="a read of a cache is moved behind a write to a part of it",
        program=sum_then_write,
        args=lambda: (torch.randn(6, 4), torch.randn(2, 4)),
        config={POST: move_behind(aten.sum.dim_IntList, aten.copy_.default)},
        ops={"aten.sum.dim_IntList", "aten.copy_.default"},
        codes={"y = cache.sum(0)", "cache[2:4] = x"},
    ),
    Fault(
        name="a launch that writes an input comes before the one that reads it",
        program=product_then_write,
        args=squares,
        edit=moved("extern_kernels.mm(", "cpp_fused_add_copy__0(arg"),
        stage=Stage.KERNEL,
        pass_=None,
        ops={"aten.mm.default", "aten.copy_.default"},
        codes={"y = x @ w", "x.add_(1)"},
        daily=True,
    ),
    Fault(
        name="a launch comes before the one that computes what it reads",
        program=chain,
        args=squares,
        edit=moved("cpp_fused_sin_0(arg", "extern_kernels.mm("),
        stage=Stage.KERNEL,
        pass_=None,
        ops={"aten.mm.default", "aten.sin.default"},
        codes={"return (x.sin() @ w).relu()"},
    ),
    Fault(
        name="memory is handed on while it is still read",
        program=kept_product,
        args=squares,
        edit=reused_too_early,
        stage=Stage.KERNEL,
        pass_=None,
        ops={"aten.mm.default", "aten.sin.default"},
        codes={"a = x @ w", "b = a.sin()"},
    ),
]


@contextmanager
def reinplacing(change: Callable[[torch.fx.Graph], None] | None) -> Iterator[None]:
    """Make a change a part of Inductor's pass that makes operators work in place."""
    post_grad: Any = importlib.import_module("torch._inductor.fx_passes.post_grad")

    def changed(original: Any, updater: Any, graph: torch.fx.Graph) -> None:
        original(updater, graph)
        if change is not None:
            change(graph)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(post_grad, "reinplace_inplaceable_ops", partial(changed, post_grad.reinplace_inplaceable_ops))
        yield


def run(fault: Fault, *, wrong: bool) -> list[Finding]:
    torch.manual_seed(1)
    args = fault.args()
    if fault.training:
        args = (args[0].requires_grad_(), *args[1:])
    config = fault.config if wrong else {}
    with (
        torchsan.session(check="stages") as session,
        inductor_config.patch(force_disable_caches=True, **config),
        reinplacing(fault.after_reinplacing if wrong else None),
    ):
        if fault.edit is not None and wrong:
            with planted(fault.edit) as changed:
                torch.compile(fault.program)(*args)
            assert changed
        else:
            result = torch.compile(fault.program)(*args)
            if fault.training:
                result.backward()
    assert not [s for s in session.coverage.skipped if "torchsan failed" in s.reason]
    return list(session.findings)


CASES = [pytest.param(f, id=f.name, marks=[] if f.daily else [pytest.mark.slow]) for f in FAULTS]


@pytest.mark.parametrize("fault", CASES)
def test_the_step_and_both_statements_are_named(fault: Fault) -> None:
    (finding,) = run(fault, wrong=True)
    assert (finding.kind, finding.severity) == (Kind.REORDERED_EFFECT, Severity.ERROR)
    assert (finding.stage, finding.pass_) == (fault.stage, fault.pass_)
    assert fault.ops <= set(finding.ops)
    codes = " | ".join(line.code for line in finding.source)
    assert all(code in codes for code in fault.codes), codes
    assert finding.evidence["order"]


@pytest.mark.parametrize("fault", CASES)
def test_nothing_is_said_of_the_program_as_it_is_compiled(fault: Fault) -> None:
    torch._dynamo.reset()
    assert run(fault, wrong=False) == []
