"""AOTInductor: builds a package, and lets the C++ wrapper be rewritten before it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torchsan.torch_internals.compiles import LoweredGraph, lowered_graphs
from torchsan.torch_internals.seams import Patches

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Rewrite = Callable[[str, tuple[LoweredGraph, ...]], str]
"""From the text of a wrapper and the graphs that it computes to the text that is compiled instead."""


def build_package(program: ExportedProgram, path: str, rewrite: Rewrite, configs: Mapping[str, Any]) -> str:
    """Do what `torch._inductor.aoti_compile_and_package` does, with `rewrite` in between. Return the package's path."""
    import torch._inductor
    from torch._inductor import config, graph

    def make(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def codegen(lowering: Any) -> Any:
            wrapper, kernels = original(lowering)
            if lowering.aot_mode:
                text = rewrite(wrapper.value, tuple(lowered_graphs("call", lowering)))
                wrapper = type(wrapper)(text, wrapper.line_map)
            return wrapper, kernels

        return codegen

    patches = Patches()
    patches.replace(graph.GraphLowering, "codegen_with_cpp_wrapper", make)
    try:
        with config.patch(fx_graph_cache=False, fx_graph_remote_cache=False):
            return str(
                torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=dict(configs))
            )
    finally:
        patches.restore()


def load_package(path: str) -> Callable[..., Any]:
    """Load a package; what is returned is called as the model is."""
    import torch._inductor

    loaded: Callable[..., Any] = torch._inductor.aoti_load_package(path)
    return loaded
