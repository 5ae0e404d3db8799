"""What a reproducer of a wrong step needs: the whole of Dynamo's graph as operators, and the inputs of its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.fx

from torchsan.checks.stages.localise import Search
from torchsan.checks.stages.plan import first_stage_graph
from torchsan.graphs.data import Keep, Unrepresentable
from torchsan.graphs.encode import GraphCut, given_tensor
from torchsan.records import Exhibit, Finding, Given, OperatorCall
from torchsan.reference.aside import aside
from torchsan.reference.nudge import map_tensors
from torchsan.torch_internals.compile_stages import CompileStages
from torchsan.torch_internals.snapshots import trace_operators, uses_transforms

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def look_at(args: Sequence[Any]) -> tuple[Given, ...]:
    """What the tensors among the arguments look like, without their values: which share memory, too.

    Empty if there is one among them that is not plain memory.
    """
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if any(type(t) not in _PLAIN or t.layout is not torch.strided or t.device.type != "cpu" for t in tensors):
        return ()
    found = []
    shared = _shared(args)
    for i, arg in enumerate(args):
        if isinstance(arg, torch.Tensor):
            place = arg.untyped_storage().data_ptr()
            found.append(
                Given(
                    name=f"x{i}",
                    dtype=str(arg.dtype).removeprefix("torch."),
                    size=tuple(arg.shape),
                    stride=arg.stride(),
                    offset=int(arg.storage_offset()) if place in shared else 0,
                    requires_grad=arg.requires_grad and arg.is_leaf,
                    base=f"memory{shared[place]}" if place in shared else None,
                )
            )
    return tuple(found)


def _shared(args: Sequence[Any]) -> dict[int, int]:
    """The storages, by address, that several arguments lie in."""
    places = [a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor) and a.numel()]
    return {p: i for i, p in enumerate(dict.fromkeys(p for p in places if places.count(p) > 1))}


def exhibit_of_call(
    stages: CompileStages,
    search: Search,
    earlier: tuple[Given, ...] | None,
    finding: Finding,
    keep: Keep,
    config: Mapping[str, Any],
) -> Exhibit:
    """Return Dynamo's graph, as operators, with the inputs of the call; `earlier` are those of the first call."""
    if any(enabled for _, enabled, _ in search.call.circumstances.autocast):
        raise Unrepresentable("a call under autocast")
    with search.call.circumstances.restored(), torch.no_grad():
        given, leaves = search.call.inputs.copies(wide=False)
        inputs = _inputs(given, leaves, keep)
        traced = partial(_trace, stages, given, [g.name for g in inputs])
        cut = aside(traced) if search.call.users_code else traced()
    if isinstance(cut, Unrepresentable):
        raise cut
    constants = [replace(g, stored=keep(g.name, cut.tensors[g.name])) if g.stored else g for g in cut.constants]
    alike = earlier is not None and not constants and {g.name for g in earlier} == {g.name for g in inputs}
    return Exhibit(
        finding=finding.id,
        check=finding.check,
        nodes=cut.nodes,
        inputs=(*inputs, *constants),
        outputs=cut.outputs,
        earlier=(earlier,) if earlier is not None and alike else (),
        backend=stages.backend,
        backward=search.backward,
        grad=search.call.circumstances.grad,
        config=dict(config),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traced:
    """The calls of a graph as data, and the constants that they need beside its inputs, which nobody has kept yet."""

    nodes: tuple[OperatorCall, ...]
    outputs: tuple[str, ...]
    constants: tuple[Given, ...]
    tensors: dict[str, torch.Tensor]


def _trace(stages: CompileStages, given: list[Any], names: Sequence[str]) -> _Traced | Unrepresentable:
    """All that Dynamo's graph calls, by running it; `names` are those of the tensors among what is `given`."""
    tensors: dict[str, torch.Tensor] = {}
    with first_stage_graph(stages).opened() as run:
        transformed = uses_transforms(stages.dynamo.snapshots[0].graph)
        plain = map_tensors(torch.Tensor.detach, given)
        module = trace_operators(lambda *args: run(list(args)), plain, transformed=transformed)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    inputs = [p for p, value in zip(placeholders, given, strict=True) if isinstance(value, torch.Tensor)]
    known = dict(zip(inputs, names, strict=True))

    def keep(name: str, t: torch.Tensor) -> str:
        tensors[name] = t
        return name

    cut = GraphCut(keep, {}, lambda n: n, lambda name: getattr(module, name), known)
    try:
        cut.add([n for n in module.graph.nodes if n.op == "call_function"])
        outputs = next(n for n in module.graph.nodes if n.op == "output").all_input_nodes
        named = tuple(dict.fromkeys(cut.reference(n) for n in outputs))
    except Unrepresentable as e:
        return e
    return _Traced(nodes=tuple(cut.nodes), outputs=named, constants=tuple(cut.inputs), tensors=tensors)


def _inputs(args: Sequence[Any], leaves: Sequence[torch.Tensor | None], keep: Keep) -> list[Given]:
    found = []
    whole: dict[str, str | None] = {}
    for look, i in zip(look_at(args), [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)], strict=True):
        arg: torch.Tensor = args[i].detach()
        if look.base is None:
            stored = given_tensor(look.name, arg, keep).stored
        else:
            if look.base not in whole:
                memory = torch.empty(0, dtype=arg.dtype).set_(arg.untyped_storage())
                whole[look.base] = keep(look.base, memory.clone())
            stored = whole[look.base]
        found.append(replace(look, requires_grad=leaves[i] is not None, stored=stored))
    return found
