"""What a launch makes of the same operands when it runs again: the same, another result each time, or once another.

A result that came out otherwise once, and the same every other time, where eager repeats itself, is what a processor
that computes wrong now and then leaves behind. So it is told on which machine, processor and core that was.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from torchsan.checks.values.findings import Unsteady
from torchsan.checks.values.other_inputs import Repetition, bits, other_bits
from torchsan.checks.values.plan import LaunchPlan, Target
from torchsan.records import KernelKind
from torchsan.reference.arithmetic import Arithmetic, Unavailable
from torchsan.reference.aside import aside
from torchsan.reference.judge import Outcome, is_noise
from torchsan.reference.replay import Replayer
from torchsan.reference.users_kernels import copied
from torchsan.torch_internals.operators import is_own
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import Values

log = logging.getLogger(__name__)

_MORE = 3
"""How many more times a launch runs that came out otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A launch that has run: its plan, its operands and results now, what judges them, and the core it began on."""

    launch: Launch
    plan: LaunchPlan
    values: Values
    replayer: Replayer
    core: int | None = None
    atomic: bool = False
    """Whether it adds atomically, so that rounding may differ from launch to launch."""


def unsteady(
    ran: Ran, others: Mapping[str, torch.Tensor], repetition: Repetition, again: Callable[..., Any]
) -> Iterator[Unsteady]:
    """What the launch made of the same operands when it ran again, where that was something else."""
    if not others or not ran.plan.nodes:
        return
    more = [repetition.once_more(ran.values, again) for _ in range(_MORE)]
    for name, other in others.items():
        first = ran.values[name]
        target = next((t for t in ran.plan.targets if t.variable == name), None)
        steady = rounding = None
        if target is not None:
            try:
                both = [ran.replayer.judge(target.node, actual) for actual in (first, other)]
                steady = not bool(other_bits(both[0].eager, both[1].eager).any())
                rounding = all(is_noise(judgement, first, other) for judgement in both)
            except (Unavailable, RuntimeError) as e:
                log.debug("cannot say what eager makes of %s: %s", name, e)
        ordered = ran.atomic and rounding is True
        once = steady is True and not ordered and _is_once([first, other, *(m[name] for m in more)])
        hardware = hardware_evidence(ran.core, first.device, 2 + _MORE) if once else None
        yield Unsteady(
            name=name,
            target=target,
            first=first,
            second=other,
            eager=steady,
            rounding=rounding,
            hardware=hardware,
            ordered=ordered,
        )


def wrong_only_once(
    ran: Ran, target: Target, actual: torch.Tensor, before: Values, again: Callable[..., Any]
) -> Unsteady | None:
    """A wrong result of a library's kernel, if the kernel is right every time that it runs again on equal operands.

    `before` are the operands that it has overwritten, as they were. None if it is wrong again, or cannot run again.
    """
    launch = ran.launch
    if launch.kind is not KernelKind.LIBRARY or ran.plan.inner or ran.plan.effects or launch.users_own:
        return None
    results = []
    for _ in range(1 + _MORE):
        operands = {n: copied(t) for n, v in ran.values.items() if isinstance(t := before.get(n, v), torch.Tensor)}
        returned = again(**{n: t for n, t in operands.items() if n in launch.operands})
        result = returned if target.variable == launch.result else operands.get(target.variable)
        if not isinstance(result, torch.Tensor) or result.shape != actual.shape:
            return None
        results.append(result)
    if not _is_once([actual, *results]) or torch.equal(bits(actual), bits(results[0])):
        return None
    if ran.replayer.judge(target.node, results[0]).outcome is not Outcome.RIGHT:
        return None
    hardware = hardware_evidence(ran.core, actual.device, 1 + len(results))
    return Unsteady(
        name=target.variable,
        target=target,
        first=actual,
        second=results[0],
        eager=True,
        rounding=False,
        hardware=hardware,
    )


def comes_out_otherwise(plan: LaunchPlan, replayer: Replayer, target: Target) -> bool:
    """Whether an operator that is not PyTorch's own is among what was computed again, and does not repeat itself."""
    if all(is_own(n.target) for n in plan.nodes if hasattr(n.target, "namespace")):
        return False

    def twice() -> bool:
        # In one process: what it counts, or draws from a generator of its own, goes on there.
        one, other = (replayer.run(target.node, Arithmetic.EAGER) for _ in range(2))
        return one.shape != other.shape or one.dtype != other.dtype or bool(other_bits(one, other).any())

    return aside(twice)


def _is_once(results: Sequence[torch.Tensor]) -> bool:
    """Whether all but one of several results are the same, bit for bit."""
    seen: list[tuple[torch.Tensor, int]] = []
    for result in map(bits, results):
        for n, (known, times) in enumerate(seen):
            if torch.equal(known, result):
                seen[n] = (known, times + 1)
                break
        else:
            seen.append((result, 1))
    return len(seen) == 2 and min(times for _, times in seen) == 1


def hardware_evidence(core: int | None, device: torch.device, launches: int) -> dict[str, Any]:
    """Where something was computed that came out otherwise once in so many launches."""
    found: dict[str, Any] = {"host": platform.node(), "cpu": _processor(), "core": core, "launches": launches}
    if hasattr(os, "sched_getaffinity"):
        found["cores"] = sorted(os.sched_getaffinity(0))
    if device.type != "cpu":
        found["device"] = str(device)
        if device.type == "cuda":
            properties: Any = torch.cuda.get_device_properties(device)
            found["device_id"] = str(getattr(properties, "uuid", properties.name))
    return found


def current_core() -> int | None:
    """The core that this thread runs on; None where the system does not say."""
    function = _sched_getcpu()
    number = -1 if function is None else int(function())
    return number if number >= 0 else None


@cache
def _sched_getcpu() -> Callable[[], int] | None:
    try:
        function: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    except (OSError, TypeError):
        return None
    return function


@cache
def _processor() -> str:
    """The processor by its name, and its microcode, which decides which faults it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    microcode = f", microcode {found['microcode']}" if "microcode" in found else ""
    return found.get("model name", platform.machine()) + microcode
