"""What a reproducer of a wrong kernel needs: the nodes between the launch's operands and its wrong result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.fx

from torchsan.graphs.data import Keep
from torchsan.graphs.encode import GraphCut
from torchsan.records import Exhibit, Finding
from torchsan.reference.arithmetic import Arithmetic
from torchsan.reference.replay import Replayer


def exhibit_of(
    replayer: Replayer, target: torch.fx.Node, finding: Finding, keep: Keep, config: Mapping[str, Any]
) -> Exhibit:
    """Return the part of the graph that computes `target` from what the launch was given."""
    values = dict(replayer.known)
    # Inductor's own random numbers: no other program can draw them, so they are inputs.
    for node in replayer.needed(target, values):
        if getattr(node.target, "namespace", "") == "prims" and node.name.startswith("inductor_"):
            values[node] = replayer.run(node, Arithmetic.EAGER)
    cut = GraphCut(keep, values, replayer.number, replayer.attribute)
    cut.add(replayer.needed(target, values))
    output = cut.reference(target)
    return Exhibit(
        finding=finding.id,
        check=finding.check,
        nodes=tuple(cut.nodes),
        inputs=tuple(cut.inputs),
        outputs=(output,),
        suspects=finding.nodes,
        config=dict(config),
        notes=tuple(f"the values of {g.name} were too large to keep" for g in cut.inputs if g.stored is None),
        dynamic=any(not isinstance(n, int) for node in values for n in getattr(node.meta.get("val"), "shape", ())),
    )
