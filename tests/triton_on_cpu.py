"""Inductor's Triton kernels on CPU tensors, by Triton's own interpreter: no GPU is needed.

    with triton_on_cpu.enabled():
        torch.compile(f)(torch.ones(8))  # generates Triton, and interprets it

Inductor asks a driver for a target and never gets to launch anything with it; `@triton.jit` functions stay what they
are, because Dynamo captures only those, but are interpreted when they run, by Triton's interpreter as
`torchsan.torch_internals.triton_interpreter` mends it. Mended here is Inductor's way to interpret: it forgets the
constants of user-written kernels (`_run`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.utils._triton
import triton
import triton.backends
from triton.backends.nvidia.compiler import CUDABackend

from torchsan.torch_internals.triton_interpreter import Driver, interpreting


@contextmanager
def enabled(cpu_backend: str = "triton") -> Iterator[None]:
    """Compile for the CPU to Triton, and interpret it; everything is as before afterwards.

    With another `cpu_backend`, only what asks for Triton itself is compiled to it.
    """
    import torch._inductor.config as config
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    with ExitStack() as stack:
        enter = stack.enter_context
        enter(patch.dict(os.environ))
        enter(patch.dict(triton.backends.backends, {"cpu": triton.backends.Backend(_Backend, Driver)}))
        enter(triton.knobs.runtime.scope())
        stack.callback(torch.utils._triton.has_triton.cache_clear)
        enter(interpreting())
        torch.utils._triton.has_triton.cache_clear()
        triton.knobs.runtime.interpret = False  # What `@triton.jit` reads; setting it sets the variable as well.
        os.environ["TRITON_INTERPRET"] = "1"  # What Inductor reads.
        enter(patch.object(CachingAutotuner, "run", _run))
        options = getattr(triton_helpers, "get_backend_options_for_target", None)
        if options is not None:  # Since 2.15 Inductor asks for those of its own device, which Triton does not know.
            gpu = Driver().get_current_target()
            enter(patch.object(triton_helpers, "get_backend_options_for_target", lambda target: options(gpu)))
        # In this process and not from a cache: neither a worker nor an artifact knows of the above.
        enter(config.patch(cpu_backend=cpu_backend, compile_threads=1, fx_graph_cache=False))
        yield


@contextmanager
def templates() -> Iterator[None]:
    """Compile matrix products to Inductor's Triton templates: the first that fits, because nothing can be timed."""
    import torch._inductor.config as config
    from torch._inductor.select_algorithm import AlgorithmSelectorCache, TritonTemplateCaller

    def times(choices: Any) -> dict[Any, float]:
        return {c: i + (1.0 if isinstance(c, TritonTemplateCaller) else 1e6) for i, c in enumerate(choices)}

    changes: dict[str, Any] = {
        "benchmark_choices": classmethod(lambda cls, choices, *a, **k: times(choices)),
        "make_benchmark_fn": classmethod(lambda cls, choices, *a, **k: lambda *_, **__: times(choices)),
        "make_precompile_fn": lambda self, *a, **k: lambda: None,
    }
    names = ("benchmark_template_fusion", "benchmark_epilogue_fusion")  # Now, and before 2.15.
    timing = next(name for name in names if hasattr(config, name))
    settings = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON,ATEN", timing: False}
    with ExitStack() as stack:
        for name, function in changes.items():
            stack.enter_context(patch.object(AlgorithmSelectorCache, name, function))
        stack.enter_context(config.patch(settings))
        yield


class _Backend(CUDABackend):
    @staticmethod
    def supports_target(target: Any) -> bool:
        return False


def _run(self: Any, *args: Any, stream: Any = None, benchmark_run: bool = False, **kwargs: Any) -> Any:
    """`CachingAutotuner.run`, with the arguments by name, and those that are constants."""
    config = self.configs[0]
    args, grid = self._interpret_args_grid(args, config)
    constants = {name: v for name, v in self.triton_meta["constants"].items() if isinstance(name, str)}
    compile_time = {p.name for p in self.fn.params if p.is_constexpr}
    names = [name for name in self.triton_meta["signature"] if name not in compile_time]
    return self.fn[grid](**{**constants, **dict(zip(names, args, strict=True)), **config.kwargs, **kwargs})
