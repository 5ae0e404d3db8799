"""Whether a launch does the same twice from the same memory. Kernels that race, or count on what they find, do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from torchsan.checks.values.plan import Held, LaunchPlan
from torchsan.graphs.nodes import computed_by
from torchsan.records import KernelKind
from torchsan.reference.users_kernels import copied
from torchsan.torch_internals.operators import draws_random_numbers, has_storage, is_view
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import Values


class Repetition:
    """Runs launches again. Only kernels that Inductor generated: libraries and operators may draw or communicate."""

    def __init__(self) -> None:
        self._found: dict[str, torch.Tensor] = {}

    def before(self, launch: Launch, values: Values) -> None:
        """Keep what the launch is going to overwrite."""
        self._found = {}
        if launch.kind is KernelKind.FUSED and launch.result is None:
            tensors = {name: values.get(name) for name in launch.writes}
            self._found = {n: _flat(t).clone() for n, t in tensors.items() if isinstance(t, torch.Tensor) and t.numel()}

    def differences(self, values: Values, again: Callable[[], Any]) -> dict[str, torch.Tensor]:
        """Launch `again` from the same memory; return what came out otherwise, by variable. `values` stay the same."""
        return self._launch(values, again, lambda flat, first: not torch.equal(bits(flat), bits(first)))

    def once_more(self, values: Values, again: Callable[[], Any]) -> dict[str, torch.Tensor]:
        """Launch `again` from the same memory; return what came out, by variable. `values` stay the same."""
        return self._launch(values, again, lambda _flat, _first: True)

    def _launch(
        self, values: Values, again: Callable[[], Any], wanted: Callable[[torch.Tensor, torch.Tensor], bool]
    ) -> dict[str, torch.Tensor]:
        if not self._found:
            return {}
        memory = {name: _flat(values[name]) for name in self._found}
        first = {name: flat.clone() for name, flat in memory.items()}
        try:
            for name, flat in memory.items():
                flat.copy_(self._found[name])
            again()
            return {
                name: values[name].clone(memory_format=torch.preserve_format)
                for name, flat in memory.items()
                if wanted(flat, first[name])
            }
        finally:
            for name, flat in memory.items():
                flat.copy_(first[name])

    def forget(self) -> None:
        """Free what was kept of the last launch."""
        self._found = {}


def other_bits(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where two tensors of one shape and dtype differ, bit for bit: a NaN equals itself, and 0.0 is not -0.0."""
    width = one.element_size()
    rows = [t.contiguous().view(-1).view(torch.uint8).view(-1, width) for t in (one, other)]
    return (rows[0] != rows[1]).any(1).view(one.shape)


def bits(t: torch.Tensor) -> torch.Tensor:
    """The elements as whole numbers, which are equal where their bits are."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(t.element_size(), torch.uint8)
    return t.contiguous().flatten().view(kind)


def _flat(t: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element to its last, gaps included."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return t.detach().as_strided((span,), (1,), t.storage_offset())


_MOST = 1 << 20
"""The most memory, in bytes, that is copied for it. A kernel on more data is seldom right by chance."""

_MOST_SHAKEN = 1 << 26
_SHAKEN = 24
"""How many other data sets an error is looked for in, at most."""

_REDUCTIONS = frozenset("all amax amin any max min prod sum".split())
_DIVISIONS = frozenset("div divide floor_divide fmod pow remainder true_divide".split())


def other_data(launch: Launch, plan: LaunchPlan, values: Values) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The operands of a launch to try instead of its own, outputs too, and what each input was filled with.

    Nothing if the launch is not one that can be judged so. The tensors in `values` are left alone.
    """
    tensors = {name: t for name, t in values.items() if isinstance(t, torch.Tensor)}
    if not _suits(launch, plan, tensors):
        return
    inputs = [name for name in plan.known if name in tensors and tensors[name].numel()]
    seen: list[dict[str, Any]] = []
    for extreme in (torch.amax, torch.amin):
        filled = {name: extreme(tensors[name]).item() for name in inputs}
        if filled and filled not in seen:
            seen.append(filled)
            others = {name: copied(t) for name, t in tensors.items()}
            for name, value in filled.items():
                others[name].fill_(value)
            yield others, filled


def shaken_data(
    launch: Launch, plan: LaunchPlan, inputs: Mapping[str, Any], values: Values
) -> Iterator[dict[str, Any]] | None:
    """The operands of a launch with every real number of its inputs changed at random, to see an error again.

    `inputs` are what the launch read, `values` what its operands are now. None if the launch cannot be judged so: it
    draws or communicates, or reads what is no node's value (`with_copies` finds whose value it is a copy of).
    """
    tensors = {name: t for name, t in values.items() if isinstance(t, torch.Tensor) and name != launch.result}
    if plan.inner or plan.effects or (launch.kind is KernelKind.FALLBACK and not _is_a_function(plan)):
        return None
    if not all(map(has_storage, tensors.values())):
        return None
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()}
    if len(storages) != len(tensors) or sum(storages.values()) > _MOST_SHAKEN:
        return None
    return (_shaken(plan, inputs, tensors, seed) for seed in range(_SHAKEN))


def _is_a_function(plan: LaunchPlan) -> bool:
    """Whether all that is computed is given by operators of PyTorch's that neither draw nor communicate."""
    calls = [called for node in plan.nodes if (called := computed_by(node)).op == "call_function"]
    return all(
        getattr(call.target, "namespace", "") == "aten"
        and not draws_random_numbers(call.target, call.args, call.kwargs)
        for call in calls
    )


def with_copies(launch: Launch, plan: LaunchPlan, known: Mapping[torch.fx.Node, Any], values: Values) -> LaunchPlan:
    """The plan, with operands that no node stands for held to be the node whose value they are a copy of.

    Convolutions are given such copies, in memory laid out as they want it. The plan as it is if one of these operands
    is no copy, or of two nodes, or if the launch has the node's value as another operand, too.
    """
    copies: dict[str, Held] = {}
    if not set(plan.inner).isdisjoint(launch.writes):
        return plan
    for name in plan.inner:
        of: dict[int, list[torch.fx.Node]] = {}
        for node, value in known.items():
            if is_copy(values.get(name), value):
                of.setdefault(id(value), []).append(node)
        if len(of) != 1:
            return plan
        copies[name] = Held(nodes=tuple(*of.values()), variable=name)
    held = [node for each in (*plan.known.values(), *copies.values()) for node in each.nodes]
    return replace(plan, known={**plan.known, **copies}, inner=()) if len(held) == len(set(held)) else plan


def is_copy(one: Any, other: Any) -> bool:
    """Whether both are tensors with the same elements, bit for bit, wherever these lie in memory."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if any(not has_storage(t) or t.is_conj() or t.is_neg() for t in (one, other)):
        return False
    alike = (one.dtype, one.device, one.shape) == (other.dtype, other.device, other.shape)
    return alike and torch.equal(bits(one), bits(other))


def _shaken(
    plan: LaunchPlan, inputs: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], seed: int
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    others = {name: copied(t) for name, t in tensors.items()}
    for name in plan.known:
        given = inputs.get(name)
        if name in others and isinstance(given, torch.Tensor):
            other, given = _unexpanded(others[name]), _unexpanded(given)
            other.copy_(given)
            if given.is_floating_point():
                factors = 0.75 + 0.5 * torch.rand(given.shape, generator=generator).to(given.device)
                other.copy_((given.double() * factors).to(given.dtype))
    return others


def _unexpanded(t: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor that it has once in memory, and as often as it likes in its shape."""
    for dim, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
        t = t.narrow(dim, 0, 1) if size > 1 and stride == 0 else t
    return t


def _suits(launch: Launch, plan: LaunchPlan, tensors: Mapping[str, torch.Tensor]) -> bool:
    if launch.kind is not KernelKind.FUSED or launch.result is not None or plan.inner or plan.effects:
        return False
    if set(plan.known) & set(launch.writes) or not all(map(_is_exact, plan.nodes)):
        return False
    if not any(_name(node) in _REDUCTIONS for node in plan.nodes):
        return False
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()}
    return len(storages) == len(tensors) and sum(storages.values()) <= _MOST


def _is_exact(node: torch.fx.Node) -> bool:
    """Whether a node gives the one right answer in whole numbers, whatever numbers it is given."""
    value = node.meta.get("val")
    target: Any = node.target
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex():
        return False
    if any(_is_inexact(parent) for parent in node.all_input_nodes):
        return False
    known = torch.Tag.pointwise in getattr(target, "tags", ()) and _name(node) not in _DIVISIONS
    return known or _name(node) in _REDUCTIONS or is_view(node)


def _is_inexact(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "_opname", ""))
