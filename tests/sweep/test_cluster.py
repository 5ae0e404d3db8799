"""A sweep on a Ray cluster of several node processes on this machine, one of which is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sweep.made_up import KEY
from torchsan.errors import UsageError
from torchsan.repro.exhibits import Loads
from torchsan.sweep.cluster import judge_task, run_on_ray
from torchsan.sweep.engine import Setting, run_locally
from torchsan.sweep.programs import Program
from torchsan.sweep.results import Result
from torchsan.sweep.triage import prints_of

_TEXT = "import time, torch\ntime.sleep(1)\nif {n} % 5 == 3: raise SystemExit(1)\ntorch.ones({n}).sum()\n"
_WRONG = """
import torch
torch.compile(lambda x: torch.relu(x) + 1, options={"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"})(torch.randn(8, 9))
"""
_SETTING = Setting(key=KEY, checks=("values",), seconds=120)


def programs() -> list[Program]:
    return [Program(name="wrong", text=_WRONG), *(Program(name=str(n), text=_TEXT.format(n=n)) for n in range(14))]


def said(results: list[Result]) -> dict[str, tuple[str, frozenset[str]]]:
    """What a result says of its program, without how long it took."""
    return {r.address: (str(r.outcome), frozenset(prints_of(r))) for r in results}


def test_without_ray_or_a_cluster_it_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError) as error:
        next(run_on_ray(iter(programs()), "auto", _SETTING, Loads()))
    assert error.value.slug == "no-module"


@pytest.fixture
def cluster() -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    yield cluster, node
    cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_node_that_dies_costs_no_result(cluster: Any) -> None:
    nodes, node = cluster
    doomed = [nodes.add_node(**node) for _ in range(2)][-1]
    alone = list(run_locally(iter(programs()), _SETTING, 2))
    seen: list[Result] = []
    killer = threading.Thread(target=nodes.remove_node, args=(doomed,), kwargs={"allow_graceful": False})
    for result in run_on_ray(iter(programs()), nodes.address, _SETTING, Loads()):
        seen.append(result)
        if len(seen) == 3:
            killer.start()
            time.sleep(1)
    killer.join()
    assert len(seen) == len(alone) == len(programs())
    assert said(seen) == said(alone)
    assert any(kinds for _, kinds in said(seen).values())


def test_a_task_speaks_json(monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    from tests.sweep.made_up import result
    from torchsan.records import decode, encode
    from torchsan.sweep import cluster

    monkeypatch.setitem(cluster._judges, "shared", lambda program: result(program.name))
    text = judge_task(json.dumps(encode(Program(name="a", text="x"))), "shared")
    assert decode(Result, json.loads(text)) == result("a")
