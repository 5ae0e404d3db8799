"""What is kept of a graph on its way through a compile."""

from __future__ import annotations

import torch
import torch.fx

from torchsan.records import Stage
from torchsan.torch_internals.snapshots import Trail


def test_a_graph_that_a_pass_leaves_unsorted_is_left_out_until_it_is_sorted() -> None:
    module = torch.fx.symbolic_trace(lambda x: (x + 1).sin())
    trail = Trail()
    trail.see(module, Stage.AOT, first=True)
    add, sin = (n for n in module.graph.nodes if n.op.startswith("call_"))
    sin.append(add)
    trail.see(module, Stage.JOINT_PASSES, "one")
    assert len(trail.snapshots) == 1
    sin.prepend(add)
    add.args = (add.args[0], 2)
    trail.see(module, Stage.JOINT_PASSES, "two")
    assert [s.pass_ for s in trail.snapshots] == [None, "two"]
