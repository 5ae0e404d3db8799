"""Launches a kernel on other data than the program's: what came out right may have done so by chance.

A minimum that starts from a wrong number is right as long as one element is smaller than that number. So kernels that
reduce whole numbers are run once with every element of an operand as large as its largest, and once as small as its
smallest. Only where nothing is a matter of rounding or of a choice between equals, and where no value can lead a
kernel astray: no division, no indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.fx

from torchsan.checks.values.plan import LaunchPlan
from torchsan.instruments.observer import Values
from torchsan.instruments.program import Launch
from torchsan.records import KernelKind

__all__ = ["other_data"]

_MOST = 1 << 20
"""The most memory, in bytes, that is copied for it. A kernel on more data is seldom right by chance."""

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
            others = {name: _twin(t) for name, t in tensors.items()}
            for name, value in filled.items():
                others[name].fill_(value)
            yield others, filled


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
    return known or _name(node) in _REDUCTIONS or _is_view(target)


def _is_inexact(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _is_view(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is not None and not schema.is_mutable and any(a.alias_info is not None for a in schema.arguments)


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "_opname", ""))


def _twin(t: torch.Tensor) -> torch.Tensor:
    """A tensor with memory of its own that looks the same, whichever part of its storage the kernel is given."""
    whole = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage()).clone()
    return whole.as_strided(t.shape, t.stride(), t.storage_offset())
