"""Every Inductor compile, seen as it happens: the graph it was given and the module it generated.

Nothing in the generated source is changed, so that no cache on disk ever holds anything of torchsan's.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from torchsan.recording.spent import COMPILE, spent
from torchsan.records import Direction
from torchsan.torch_internals.caches import CachedCode, CachedCompiles
from torchsan.torch_internals.input_names import InputNames
from torchsan.torch_internals.operators import overload_of
from torchsan.torch_internals.patches import Patches, missing

if TYPE_CHECKING:
    import torch.fx
    from torch._inductor.graph import GraphLowering

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One buffer of Inductor's, in the order in which the program computes them.

    `storage` is the buffer or graph input that holds it: itself, or what it mutates. `node` is the FX node whose value
    it holds, if there is one; `origins` all the nodes it came from. `removed` buffers live inside a kernel only.
    `extern` ones are computed by a library or an operator, not by a kernel of Inductor's own.
    """

    name: str
    storage: str
    node: str | None
    origins: tuple[str, ...]
    removed: bool
    extern: bool = False
    group: int = 0
    """Those of one group are computed by one launch, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredGraph:
    """One FX graph as Inductor lowered it: the whole, or a subgraph of a higher-order operator.

    `function` is its function in the generated module. `constants` are the tensors that the module holds.
    """

    function: str
    module: torch.fx.GraphModule = field(repr=False)
    inputs: tuple[str, ...]
    buffers: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """One compile. The forward and the backward of one graph have the same `key`; None if Inductor was called alone."""

    key: str | None
    direction: Direction
    graphs: tuple[LoweredGraph, ...]
    """The whole graph first, then its subgraphs."""
    generated: ModuleType = field(repr=False)
    source: str = field(repr=False)
    seconds: float
    results: int | None = None
    """How many of a forward's outputs the user gets; the others are saved for backward. None if that is not known."""
    called: Mapping[str, str] = field(default_factory=dict)
    """The inputs that the user has another name for, with that."""


@contextmanager
def observe_compiles(
    seen: Callable[[Compile], None],
    failed: Callable[[Exception], None],
    python_instead: Callable[[], None],
    from_cache: Callable[[], None],
    *,
    cached: Callable[[CachedCode], None] | None = None,
    saved: Callable[[str, Path], None] | None = None,
    forget: bool = True,
) -> Iterator[None]:
    """Call `seen` with each compile while the context lasts; `failed` if looking at one went wrong.

    `from_cache` is called if code is loaded that was compiled earlier, in spite of what follows: nobody has seen it.
    A program that asks for a C++ wrapper gets the Python wrapper of the same kernels, and `python_instead` is called.

    With `forget`, functions compiled before are compiled anew inside, and again after it. A graph that is in a cache is
    compiled anew as well; `cached` is told of it, and what the cache has is what runs; `saved` is told of the key and
    the folder of what is in the cache from now on. May be entered before torch is imported, and does not import it.
    """
    nobody: Callable[..., None] = lambda *_: None  # noqa: E731  # shorter than a function
    caches = CachedCompiles(cached or nobody, failed, from_cache, saved or nobody)
    names = InputNames()

    def compile_(original: Callable[..., Any], gm: Any, *args: Any, **kwargs: Any) -> Any:
        compile_fx: Any = sys.modules["torch._inductor.compile_fx"]
        changes = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
        if kwargs.get("cpp_wrapper") and not compile_fx.V.aot_compilation:
            python_instead()
            kwargs["cpp_wrapper"] = False
            changes |= {"cpp_wrapper": False, "triton.store_cubin": False}
        elif not compile_fx.V.aot_compilation and not missing("cache"):
            return caches.compile(original, lambda: compile_fx.config.patch(changes), gm, args, kwargs)
        # Configuration is per thread, so it has to be set on the thread that compiles.
        with compile_fx.config.patch(changes):
            return original(gm, *args, **kwargs)

    def compile_to_module(original: Callable[[GraphLowering], ModuleType], graph: GraphLowering) -> ModuleType:
        start = time.perf_counter()
        generated = original(graph)
        try:
            # A graph with a name is no program of the user's but a candidate that autotuning times.
            name: str | None = graph.name
            if name is None:
                seen(_describe(graph, generated, time.perf_counter() - start, names))
        except Exception as e:  # the user's compile must not fail because of torchsan
            log.debug("could not look at a compile", exc_info=True)
            failed(e)
        return generated

    def after_deserialization(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        from_cache()
        return original(*args, **kwargs)

    @contextmanager
    def compiling(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        with spent(COMPILE), original(*args, **kwargs) as given:
            yield given

    patches = Patches(failed)
    if forget:
        _forget_compiled()
        patches.on_restore(_forget_compiled)
    try:
        names.attach(patches)
        patches.wrap("torch._dynamo.callback", "CompilationCallbackHandler.install_callbacks", compiling)
        patches.wrap("torch._inductor.compile_fx", "_compile_fx_inner", compile_)
        patches.wrap("torch._inductor.graph", "GraphLowering._compile_to_module", compile_to_module)
        if missing("cache"):
            patches.wrap("torch._inductor.output_code", "CompiledFxGraph.after_deserialization", after_deserialization)
            for module, kind in _AUTOGRAD_CACHES:
                patches.replace(module, f"should_use_{kind}_autograd_cache", lambda _original: lambda: False)
        else:
            caches.attach(patches)
        yield
    finally:
        patches.restore()


_AUTOGRAD_CACHES = (
    ("torch._functorch.aot_autograd", "local"),
    ("torch._functorch.aot_autograd", "remote"),
    ("torch._functorch._aot_autograd.graph_compile", "remote"),
)


_ending = False


def process_ends() -> None:
    """From now on keep what is compiled: nobody asks for it again, and forgetting waits for a thread that compiles."""
    global _ending
    _ending = True


def _forget_compiled() -> None:
    """Drop what Dynamo has compiled in this process, if it has been used at all."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and not _ending:
        dynamo.reset()


def _describe(graph: GraphLowering, generated: ModuleType, seconds: float, names: InputNames) -> Compile:
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    aot_name = context.aot_graph_name if context is not None else None
    forward = not (graph.is_backward or graph.is_inference)
    other = Direction.BACKWARD if graph.is_backward else Direction.INFERENCE
    return Compile(
        key=str(aot_name[0]).split("_")[0] if aot_name else None,
        direction=Direction.FORWARD if forward else other,
        graphs=tuple(lowered_graphs("call", graph)),
        generated=generated,
        source=Path(generated.__file__ or "").read_text(encoding="utf-8"),
        seconds=seconds,
        results=getattr(getattr(context, "fw_metadata", None), "num_forward", None) if forward else None,
        called=names.of(context, cast("torch.fx.GraphModule", graph.module)),
    )


def lowered_graphs(function: str, graph: GraphLowering) -> Iterator[LoweredGraph]:
    """A graph that Inductor has scheduled, and its subgraphs."""
    module = cast("torch.fx.GraphModule", graph.module)
    for node in module.graph.nodes:
        node.target = overload_of(node.target)
    yield LoweredGraph(
        function=function,
        module=module,
        inputs=tuple(graph.graph_inputs),
        buffers=tuple(_buffers(graph)),
    )
    for operation in graph.operations:
        for value in vars(operation).values():
            for subgraph in value if isinstance(value, list | tuple) else (value,):
                lowered = getattr(subgraph, "graph", None)
                if type(subgraph).__name__ == "Subgraph" and lowered is not None and lowered.scheduler is not None:
                    yield from lowered_graphs(subgraph.name, lowered)


def _buffers(graph: GraphLowering) -> Iterator[Buffer]:
    scheduler = graph.scheduler
    removed = graph.removed_buffers | graph.inplaced_to_remove
    nodes = {n.name for n in cast("torch.fx.GraphModule", graph.module).graph.nodes}
    for number, group in enumerate(scheduler.nodes):
        for operation in group.get_nodes():
            ir = operation.node
            if ir is None:
                continue
            origins = tuple(dict.fromkeys(o.name for o in ir.get_origins() if o.name in nodes))
            for output in operation.get_outputs():
                name = output.get_name()
                buffer = output.node
                origin = buffer.get_origin_node() if buffer is not None else None
                storage = name
                while storage in scheduler.mutation_real_name:
                    storage = scheduler.mutation_real_name[storage]
                yield Buffer(
                    name=name,
                    storage=storage,
                    node=origin.name if origin is not None and origin.name in nodes else None,
                    origins=origins,
                    removed=name in removed,
                    extern=operation.is_extern(),
                    group=number,
                )
