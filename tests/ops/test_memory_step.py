from __future__ import annotations

import logging
import threading

import pytest
import torch
import torch.fx
from torch import Tensor

from torchsan.errors import FindingsError, UsageError
from torchsan.ops import insert_memory_steps, memory_step, memory_steps

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit._script")


def chain(x: Tensor) -> Tensor:
    a = x.sin()
    b = a.cos()
    c = b.view(-1)
    return c.exp() + 1


def stepped() -> torch.fx.GraphModule:
    return insert_memory_steps(torch.fx.symbolic_trace(chain), torch.ones(4, 4))


def test_a_run_as_planned() -> None:
    x = torch.ones(4)
    a = x + 1
    memory_step({"a": a}, [])
    b = a * 2
    del a
    memory_step({"b": b}, ["a"], last=True)


def test_a_missing_death_is_raised_and_does_not_spoil_the_next_run() -> None:
    for _ in range(2):
        a = torch.ones(4)
        memory_step({"a": a}, [])
        with pytest.raises(FindingsError, match="a was to be freed and is still alive"):
            memory_step({}, ["a"])
    test_a_run_as_planned()


def test_an_early_death() -> None:
    a = torch.ones(4)
    memory_step({"a": a}, [])
    del a
    with pytest.raises(FindingsError, match="a died before it was to be freed"):
        memory_step({}, [])


def test_a_missing_allocation() -> None:
    with pytest.raises(FindingsError, match="b was to be freed and was never allocated"):
        memory_step({}, ["b"])


def test_a_run_that_failed_half_way_does_not_spoil_the_next() -> None:
    memory_step({"a": torch.ones(4)}, [])
    test_a_run_as_planned()


def test_names_of_one_storage_live_together() -> None:
    a = torch.ones(4)
    memory_step({"a": a}, [])
    view = a[:2]
    memory_step({"view": view}, [])
    del a
    memory_step({}, ["a"])
    del view
    memory_step({}, ["view"], last=True)


def test_what_dies_is_gone_by_the_next_step() -> None:
    a = torch.ones(4)
    memory_step({"a": a}, dying=["a"])
    del a
    memory_step({}, [])
    kept = torch.ones(4)
    memory_step({"kept": kept}, dying=["kept"])
    with pytest.raises(FindingsError, match="kept was to be freed and is still alive"):
        memory_step({}, [], last=True)


def test_logging_collects(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torchsan"), memory_steps("log") as steps:
        a = torch.ones(4)
        memory_step({"a": a}, [])
        memory_step({}, ["a"], last=True)
    assert steps.problems == ["step 1: a was to be freed and is still alive"]
    assert "still alive" in caplog.text


def test_off_does_nothing() -> None:
    with memory_steps("off") as steps:
        memory_step({}, ["nothing"])
    assert steps.problems == []


def test_threads_do_not_see_each_other() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                test_a_run_as_planned()
        except BaseException as e:  # noqa: BLE001  # whatever it is, the test must see it
            failures.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_inserted_steps_hold_in_the_module_and_in_the_interpreter() -> None:
    module, x = stepped(), torch.ones(4, 4)
    steps = [n for n in module.graph.nodes if n.target is torch.ops.torchsan.memory_step.default]
    assert len(steps) == 5
    assert torch.equal(module(x), chain(x))
    assert torch.equal(torch.fx.Interpreter(module).run(x), chain(x))


def test_steps_survive_the_removal_of_dead_code() -> None:
    module = stepped()
    module.graph.eliminate_dead_code()
    assert sum(n.target is torch.ops.torchsan.memory_step.default for n in module.graph.nodes) == 5


def test_a_value_that_is_kept_is_found_in_the_graph() -> None:
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x + 1

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.sin, (x,))
    b = graph.call_function(keep, (a,))
    graph.output(graph.call_function(torch.cos, (b,)))
    module = insert_memory_steps(torch.fx.GraphModule({}, graph), torch.ones(3))
    kept.clear()
    with pytest.raises(FindingsError, match="sin was to be freed and is still alive"):
        module(torch.ones(3))


def test_a_list_of_results_holds_its_parts() -> None:
    def top(x: Tensor) -> Tensor:
        values, indices = (x + 1).max(0)
        doubled = values * 2
        return doubled + indices

    module = insert_memory_steps(torch.fx.symbolic_trace(top), torch.ones(4, 4))
    assert torch.equal(module(torch.ones(4, 4)), top(torch.ones(4, 4)))


def test_a_graph_without_metadata_is_refused() -> None:
    with pytest.raises(UsageError, match="example inputs"):
        insert_memory_steps(torch.fx.symbolic_trace(chain))


def test_steps_keep_their_place_in_compiled_code() -> None:
    def program(x: Tensor) -> Tensor:
        a = x.sin()
        memory_step({"a": a}, [])
        b = (a @ a).cos()
        memory_step({"b": b}, [])
        return b @ a

    with memory_steps("log") as steps:
        x = torch.ones(4, 4)
        assert torch.allclose(torch.compile(program, fullgraph=True)(x), program(x))
    assert steps.problems == []
    order: list[list[str]] = []
    with pytest.MonkeyPatch.context() as patch:
        from torchsan.ops.memory_step import MemorySteps

        patch.setattr(MemorySteps, "step", lambda self, allocated, *rest: order.append(list(allocated)))
        torch.compile(program, fullgraph=True)(torch.ones(4, 4))
    assert order == [["a"], ["b"]]
