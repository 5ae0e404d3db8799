"""Counts the steps of optimizers, so that a finding can say in which one it was made."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchsan.torch_internals.patches import Patches

if TYPE_CHECKING:
    from torchsan.recording import Recorder

log = logging.getLogger(__name__)


@contextmanager
def observe_steps(recorder: Recorder) -> Iterator[None]:
    """Let the recorder know the step while the context lasts. Does not import torch."""
    steps = _Steps()
    patches = Patches(lambda error: log.debug("steps are not counted: %s", error))
    recorder.step = steps.current
    try:
        patches.when_imported("torch.optim.optimizer", lambda module: _hook(patches, module, steps))
        yield
    finally:
        patches.restore()
        recorder.step = lambda: None


def _hook(patches: Patches, module: Any, steps: _Steps) -> None:
    patches.on_restore(module.register_optimizer_step_post_hook(steps.stepped).remove)


class _Steps:
    def __init__(self) -> None:
        self._taken: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._most = 0

    def stepped(self, optimizer: Any, *_arguments: Any) -> None:
        """An optimizer has taken a step. A compiled step traces this, and must not find anything to do in it."""
        import torch

        if not torch.compiler.is_compiling():
            taken = self._taken[optimizer] = self._taken.get(optimizer, 0) + 1
            self._most = max(self._most, taken)

    def current(self) -> int | None:
        """How many steps that optimizer has taken which has taken most; None before the first, or if it is compiled."""
        return self._most or None
