"""Sees the launches of Triton kernels that its interpreter runs. Importing it imports neither torch nor Triton."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchsan.torch_internals.patches import Patches

Seen = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], None]
"""Is given the Python function of a kernel, how to launch it, and the arguments, before each launch."""


def see_launches(patches: Patches, seen: Seen) -> None:
    """Show every launch to `seen`, from when the interpreter is imported on."""

    def act(interpreter: ModuleType) -> None:
        executor = interpreter.GridExecutor
        original = executor.__call__

        @functools.wraps(original)
        def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen(self.fn, functools.partial(original, self), args, kwargs)
            return original(self, *args, **kwargs)

        executor.__call__ = launch
        patches.on_restore(lambda: setattr(executor, "__call__", original))

    patches.when_imported("triton.runtime.interpreter", act)
