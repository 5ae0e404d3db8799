"""Inductor from outside: its configuration, compiling with it, and building AOTInductor packages."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from torchsan.errors import UnsupportedTorchError
from torchsan.torch_internals.compiles import LoweredGraph, lowered_graphs
from torchsan.torch_internals.patches import Patches, missing

if TYPE_CHECKING:
    import torch.fx
    from torch.export import ExportedProgram

# What names files, programs, caches or services, or writes something: it would do more than compile differently.
_REFUSED = re.compile(
    r"(^|[._])(log|dir|path|file|save)|cache|remote|trace|debug|cxx|worker|thread|subprocess|package|autotun|profil|"
    r"dump|hook|minifier|repro|test_runner|standalone|store_cubin|history|objgraph|proton|autoheuristic|precompile|print"
)
_TEXTS = re.compile(r"cpp\.inject_\w+_bug_TESTING_ONLY")
_CHOICES = {
    "cpu_backend": ("cpp", "triton", "halide", "pallas"),
    "numerics": ("default", "strict_pointwise", "strict_reduction", "strict"),
}
"""Settings that are one of several words."""
_AUTOTUNING = re.compile(r"max_autotune(_gemm|_pointwise)?")
_BACKENDS = re.compile(r"(ATEN|TRITON|CPP)(,(ATEN|TRITON|CPP))*")
"""What has templates generated: only by those that need no other compiler."""


def changed_config() -> dict[str, Any]:
    """The settings that are not at their default, on this thread, by name: truth values, numbers and known texts."""
    module: Any = sys.modules.get("torch._inductor.config")
    if module is None:
        return {}
    found = {}
    for name in module._config:
        if not module._is_default(name):
            value: Any = module
            for part in name.split("."):
                value = getattr(value, part)
            if is_settable(name, value) and value != module._config[name].default:
                found[name] = value
    return found


def is_settable(name: str, value: Any) -> bool:
    """Whether setting this can only change what is generated, whoever says so."""
    if _AUTOTUNING.fullmatch(name):
        return isinstance(value, bool)
    if name == "max_autotune_gemm_backends":
        return isinstance(value, str) and bool(_BACKENDS.fullmatch(value))
    if not re.fullmatch(r"[a-z_]\w*(\.[a-z_]\w*)?", name) or _REFUSED.search(name):
        return False
    if isinstance(value, str):
        return value in _CHOICES.get(name, ()) or bool(_TEXTS.fullmatch(name))
    return isinstance(value, bool | int | float)


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


def configuration(kernel: Any) -> str | None:
    """How a Triton kernel of a generated program was run: `BLOCK=32, num_warps=4`; None if that is not known.

    The one that was the fastest, the only one, or the first, which Triton's interpreter takes.
    """
    launchers = [x for x in getattr(kernel, "launchers", None) or () if hasattr(x, "config")]
    known = [x.config for x in launchers] or list(getattr(kernel, "configs", None) or ())
    if not known or (len(known) > 1 and os.environ.get("TRITON_INTERPRET") != "1"):
        return None
    chosen = known[0]
    settings = {**chosen.kwargs, "num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
    return ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)


COMPILER_MODULES = ("torch", "torch._dynamo", "torch._inductor.compile_fx")
"""What takes longest to import before the first compile, for a process that must not import torchsan."""


def compile_in_process() -> None:
    """Compile in this process from now on: after a fork, the pool of compilers is another process's."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    config = sys.modules.get("torch._inductor.config")
    if config is not None:
        config.compile_threads = 1  # type: ignore[attr-defined]  # a setting


def warm_compiler() -> None:
    """Import Dynamo, AOTAutograd and Inductor, and compile a line, on this thread alone and leaving none behind.

    A forked child hangs in the first parallel loop if its parent has run one. What a child imports may change the table
    of decompositions, which Inductor merges once and then keeps.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            torch.compile(lambda x: (x + 1).sum())(torch.ones(8))
    except Exception:  # noqa: BLE001  # no compiler here, or one that fails: the trials will say so
        return
    finally:
        torch._dynamo.reset()
        _forget_decompositions()
        torch.set_num_threads(threads)


def _forget_decompositions() -> None:
    for kept in [*getattr(sys.modules.get("torch._inductor.decomposition"), "__dict__", {}).values()]:
        if isinstance(kept, type(functools.cache(len))):
            kept.cache_clear()


Rewrite = Callable[[str, tuple[LoweredGraph, ...]], str]
"""From the text of a wrapper and the graphs that it computes to the text that is compiled instead."""


def build_package(program: ExportedProgram, path: str, rewrite: Rewrite, configs: Mapping[str, Any]) -> str:
    """Do what `torch._inductor.aoti_compile_and_package` does, with `rewrite` in between. Return the package's path."""
    import torch._inductor
    import torch._inductor.graph
    from torch._inductor import config

    if reasons := missing("packages"):
        raise UnsupportedTorchError(f"packages cannot be watched: {reasons[0]}", slug="torch-too-new")

    def codegen(original: Callable[[Any], Any], lowering: Any) -> Any:
        wrapper, kernels = original(lowering)
        if lowering.aot_mode:
            text = rewrite(wrapper.value, tuple(lowered_graphs("call", lowering)))
            wrapper = type(wrapper)(text, wrapper.line_map)
        return wrapper, kernels

    patches = Patches(_raise)
    patches.wrap("torch._inductor.graph", "GraphLowering.codegen_with_cpp_wrapper", codegen)
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


@contextmanager
def changed_compiles(generated: Callable[[str], str], graph_pass: Callable[[torch.fx.Graph], None]) -> Iterator[None]:
    """Put `generated(source)` in the place of each program that is generated inside, and run a pass of one's own.

    For planted faults: what is compiled is wrong, and nothing else knows.
    """
    import torch._inductor.config as config
    from torch._inductor import graph as _graph  # noqa: F401  # The patch is applied at once.

    def changed(original: Callable[[Any], Any], lowering: Any) -> Any:
        result = original(lowering)
        result[0].value = generated(result[0].value)
        return result

    patches = Patches(_raise)
    try:
        patches.wrap("torch._inductor.graph", "GraphLowering.codegen", changed)
        with config.patch(post_grad_custom_pre_pass=graph_pass):
            yield
    finally:
        patches.restore()


def _raise(error: Exception) -> None:
    raise error
