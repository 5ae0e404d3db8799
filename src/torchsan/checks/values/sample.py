"""What is looked at of a call under a budget, which other launches that needs to see, and how much memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from torchsan.checks.values.plan import LaunchPlan
from torchsan.watch.observer import CompiledProgram, Values
from torchsan.watch.sampling import Look


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What to look at, and whom to tell which launches it was: `looked` gets those that ran, and how long it took."""

    look: Look
    looked: Callable[[Collection[int], float], None]


def with_sources(only: frozenset[int], plans: Mapping[int, LaunchPlan]) -> frozenset[int]:
    """The launches, and those that leave variables without a node for them."""
    if not any(plans[nth].inner for nth in only):
        return only
    keepers = {name: nth for nth, plan in plans.items() for name in plan.keep}
    found, stack = set(only), list(only)
    while stack:
        for name in plans[stack.pop()].inner:
            source = keepers.get(name)
            if source is not None and source not in found:
                found.add(source)
                stack.append(source)
    return frozenset(found)


def renamed(wanted: frozenset[int], plans: Mapping[int, LaunchPlan]) -> frozenset[str]:
    """The variables that these launches read under another name: their layouts are needed."""
    return frozenset(h.variable for nth in wanted for name, h in plans[nth].known.items() if name != h.variable)


def writers(names: Collection[str], program: CompiledProgram) -> frozenset[int]:
    """The launches that write variables of these names."""
    if not names:
        return frozenset()
    launches = (launch for function in program.model.functions.values() for launch in function.launches())
    return frozenset(launch.nth for launch in launches if not set(names).isdisjoint(launch.writes))


_COPIES = 4
"""What a check takes beside the values themselves: copies, eager's results, and the same in float64."""


def memory_needed(values: Values) -> int:
    """The bytes that the check of a launch with these values takes."""
    return _COPIES * sum(v.numel() * v.element_size() for v in values.values() if isinstance(v, torch.Tensor))
