"""Inductor called by itself, as the backend that it is."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.fx

__all__ = ["compile_with_inductor", "inductor_config"]


def inductor_config(mode: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `torch.compile(mode=…, options=…)` means for Inductor. Raise RuntimeError for an unknown name."""
    import torch

    # torch checks names and types itself, and knows which mode sets what.
    wrapper = torch._TorchCompileInductorWrapper(mode, dict(options), None)  # type: ignore[no-untyped-call]  # as is
    return dict(wrapper.config)


def compile_with_inductor(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    config: Mapping[str, Any],
    around: Callable[[], AbstractContextManager[None]],
) -> Callable[..., Any]:
    """Compile `gm`, with `around` around the compile of each graph: also of a backward, which comes later."""
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    @functools.wraps(compile_fx_inner)
    def inner_compile(*args: Any, **kwargs: Any) -> Any:
        with around():
            return compile_fx_inner(*args, **kwargs)

    compiled: Any = compile_fx(
        gm, list(example_inputs), inner_compile=inner_compile, config_patches=dict(config) or None
    )
    call: Callable[..., Any] = compiled
    return call
