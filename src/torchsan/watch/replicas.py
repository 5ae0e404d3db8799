"""In jobs of several ranks: what each optimizer step read and wrote, as digests.

Each rank records for itself; nothing is sent to another. Parameters and gradients that the ranks of a group hold copies
of (DistributedDataParallel, replicated DTensors) can so be compared afterwards, without their data.
"""

from __future__ import annotations

import gc
import itertools
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchsan.records import ReplicaRecord, StepRecord
from torchsan.torch_internals.operators import outside_modes
from torchsan.torch_internals.patches import Patches
from torchsan.watch.observer import not_checked

if TYPE_CHECKING:
    import torch

    from torchsan.recording import Recorder

log = logging.getLogger(__name__)


@contextmanager
def observe_replicas(writer: Recorder, every: int = 1) -> Iterator[None]:
    """Record each `every`-th optimizer step of this rank while the context lasts. Does not import torch."""
    steps = _Steps(writer, every)
    patches = Patches(steps.failed)
    try:
        patches.when_imported("torch.optim.optimizer", lambda module: _hook(patches, module, steps))
        yield
    finally:
        patches.restore()
        steps.close()


def _hook(patches: Patches, module: Any, steps: _Steps) -> None:
    before = module.register_optimizer_step_pre_hook(lambda optimizer, *_: steps.seen(optimizer, steps.before))
    patches.on_restore(before.remove)
    after = module.register_optimizer_step_post_hook(lambda optimizer, *_: steps.seen(optimizer, steps.after))
    patches.on_restore(after.remove)


class _Optimizer:
    """What is known of one optimizer: the tensors that are copies, and what they were after its last step."""

    def __init__(self, nth: int, tensors: list[torch.Tensor]) -> None:
        self.nth = nth
        self.tensors = tensors
        self.step = -1
        self.before: tuple[str, ...] = ()
        self.gradients: tuple[str, ...] = ()
        self.parameters: tuple[str, ...] = ("",) * len(tensors)


class _Steps:
    def __init__(self, writer: Recorder, every: int) -> None:
        self._writer = writer
        self._every = every
        self._optimizers: weakref.WeakKeyDictionary[Any, _Optimizer] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._compiled = False

    def seen(self, optimizer: Any, look: Callable[[_Optimizer], None]) -> None:
        """An optimizer is about to step, or has."""
        import torch

        if torch.compiler.is_compiling():  # The hook of a compiled step is traced: it must not become part of it.
            self._compiled = True
            return
        try:
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                with outside_modes(), torch.no_grad():
                    look(self._known(optimizer))
        except Exception as e:  # the user's step must not fail because of torchsan
            log.debug("could not look at an optimizer step", exc_info=True)
            self.failed(e)

    def failed(self, error: Exception) -> None:
        """Say that a step was not looked at."""
        not_checked(self._writer, "replicas", f"torchsan failed: {type(error).__name__}: {error}"[:300])

    def before(self, known: _Optimizer) -> None:
        """Gradients are reduced by now. A parameter that is not what the last step left was changed by someone else."""
        known.step += 1
        if known.step % self._every:
            return
        if self._every > 1:  # What the last step left was not looked at.
            known.parameters = ("",) * len(known.tensors)
        now = _digests(known.tensors)
        changed = tuple("" if d == last else d for d, last in zip(now, known.parameters, strict=True))
        known.before = changed if any(changed) else ()
        known.gradients = _digests([t.grad for t in known.tensors])

    def after(self, known: _Optimizer) -> None:
        """Record the step."""
        if known.step % self._every:
            return
        known.parameters = _digests(known.tensors)
        step = StepRecord(
            optimizer=known.nth,
            step=known.step,
            before=known.before,
            gradients=known.gradients,
            parameters=known.parameters,
        )
        self._writer.event("replica-step", {"step": step})

    def close(self) -> None:
        """Say what was not compared."""
        if self._compiled:
            self._writer.skipped("replicas", "a compiled optimizer step cannot be looked at from outside")

    def _known(self, optimizer: Any) -> _Optimizer:
        known = self._optimizers.get(optimizer)
        if known is None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            known = self._optimizers[optimizer] = self._meet(next(self._numbers), parameters)
        return known

    def _meet(self, nth: int, parameters: list[torch.Tensor]) -> _Optimizer:
        """Find the names of an optimizer's parameters, and which ranks hold copies of each; once."""
        names, groups = _modules()
        tensors = []
        replicas = []
        alone = 0
        for n, parameter in enumerate(parameters):
            ranks = _ranks_of_copies(parameter, groups)
            if ranks is None or len(ranks) < 2:
                alone += 1
                continue
            name = names.get(id(parameter), f"optimizer {nth} parameter {n}")
            tensors.append(parameter)
            replicas.append(ReplicaRecord(name=name, ranks=ranks))
        self._writer.event("replicas", {"optimizer": nth, "replicas": replicas})
        if alone:
            self._writer.skipped(
                f"{alone} of {len(parameters)} parameters of optimizer {nth}",
                "no other rank holds a copy, as far as DistributedDataParallel and DTensor say",
            )
        return _Optimizer(nth, tensors)


def _modules() -> tuple[dict[int, str], dict[int, tuple[int, ...]]]:
    """Return the names of all parameters of this process, and the ranks that DistributedDataParallel keeps equal."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    modules = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)]
    inner = {id(child) for m in modules for child in m._modules.values() if child is not None}
    names: dict[int, str] = {}
    groups: dict[int, tuple[int, ...]] = {}
    for module in modules:
        if isinstance(module, DistributedDataParallel):
            ranks = tuple(torch.distributed.get_process_group_ranks(module.process_group))
            for name, parameter in module.module.named_parameters():
                if name not in module.parameters_to_ignore:
                    groups[id(parameter)] = ranks
                    names[id(parameter)] = _plain(name)
    for module in modules:
        if id(module) not in inner:
            for name, parameter in module.named_parameters():
                names.setdefault(id(parameter), _plain(name))
    return names, groups


def _plain(name: str) -> str:
    """The name that the user's module gives it, without what wrappers put in front."""
    parts = [p for p in name.split(".") if p not in ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")]
    return ".".join(parts)


def _ranks_of_copies(parameter: torch.Tensor, groups: dict[int, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the ranks that hold the same part of the tensor as this one; None where nobody says."""
    from torch.distributed.tensor import DTensor

    if not isinstance(parameter, DTensor):
        return groups.get(id(parameter))
    mesh = parameter.device_mesh
    here = mesh.get_coordinate()
    if here is None:
        return None
    index: Any = tuple(slice(None) if p.is_replicate() else here[d] for d, p in enumerate(parameter.placements))
    return tuple(int(r) for r in mesh.mesh[index].flatten().tolist())


def _digests(tensors: Sequence[torch.Tensor | None]) -> tuple[str, ...]:
    """Of each tensor, or of the part of it that is here, 64 bits of its digest; empty for None."""
    from torch.distributed.tensor import DTensor

    from torchsan.tensors import digest

    local = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    return tuple("" if t is None else digest(t.detach())[:16] for t in local)
