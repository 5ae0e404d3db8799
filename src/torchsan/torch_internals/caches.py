"""What a compile cache gives the program, beside what a fresh compile gives: both are there, and the first one runs.

The FX graph cache and the AOTAutograd cache are read as the program reads them, and written as usual: no generated
source holds anything of torchsan's.
"""

from __future__ import annotations

import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchsan.records import Direction, Stage
from torchsan.torch_internals.patches import Patches, missing
from torchsan.torch_internals.snapshots import Snapshot, copy_graph

Boxed = Callable[[list[Any]], Any]


@dataclass(slots=True, kw_only=True, eq=False)
class CachedCode:
    """One compiled graph that a cache gave, and the fresh compile of the same graph."""

    cache: str
    key: str
    folder: Path
    """Where the artifact lies."""
    direction: Direction
    code: str = field(repr=False)
    fresh_code: str = field(repr=False)
    graph: Snapshot = field(repr=False)
    cached: Boxed = field(repr=False)
    fresh: Boxed = field(repr=False)
    namespace: dict[str, Any] = field(repr=False)
    """Of the module that holds the cached code."""
    watch: Boxed | None = field(default=None, repr=False)
    """Makes a call of the program; None to run what is cached at full speed."""
    alone: int = field(default=0, repr=False)
    """How many calls ran what is cached, and not the fresh code beside it."""

    @property
    def same(self) -> bool:
        """Whether both are the same code for a program that runs it."""
        return same_code(self.code, self.fresh_code)

    def painted(self, args: list[Any]) -> Any:
        """Call the cached code with memory that holds no result of an earlier call: what it leaves unwritten shows."""
        allocate = self.namespace.get(_ALLOCATE)
        if allocate is None:
            return self.cached(args)
        self.namespace[_ALLOCATE] = lambda *size: _paint(allocate(*size))
        try:
            return self.cached(args)
        finally:
            self.namespace[_ALLOCATE] = allocate

    def __call__(self, args: list[Any]) -> Any:
        """What the program calls."""
        watch = self.watch
        return self.run_alone(args) if watch is None else watch(args)

    def run_alone(self, args: list[Any]) -> Any:
        """Call the cached code only."""
        self.alone += 1
        return self.cached(args)


_ALLOCATE = "empty_strided_cpu"
"""What generated code allocates with."""


def _paint(t: Any) -> Any:
    if t.dtype.is_floating_point or t.dtype.is_complex:
        return t.fill_(float("nan"))
    return t.fill_(1 if t.element_size() == 1 else 0x55AA)


def same_code(code: str, other: str, *, named: bool = True) -> bool:
    """Whether two generated programs are the same but for comments and what they have for people who time them.

    The latter holds the sizes for which a graph with dynamic shapes was compiled, which are other ones in the next run.
    If not `named`, kernels may have other names: they are called after operators that only the program knows.
    """
    return _essence(code) == _essence(other) if named else _anonymous(code) == _anonymous(other)


_KERNEL = re.compile(r"\bcpp_fused_\w+")
_BENCHMARK = re.compile(r"^def (?:get_args|benchmark_compiled_module)\(", re.MULTILINE)
"""What a generated program ends with, for people who want to time it."""


def _anonymous(code: str) -> list[str]:
    numbers: dict[str, str] = {}
    return [_KERNEL.sub(lambda m: numbers.setdefault(m[0], f"kernel_{len(numbers)}"), line) for line in _essence(code)]


def running(code: str) -> list[str]:
    """Return the lines of a generated program that run in a call, without those for people who time it."""
    return _BENCHMARK.split(code)[0].splitlines()


def _essence(code: str) -> list[str]:
    lines = (re.sub(r"\s+# .*", "", line) for line in running(code) if not re.match(r"\s*(# |#$|//)", line))
    return [line for line in lines if line.strip()]


class CachedCompiles:
    """Compiles graphs as the program does, caches and all, and anew where a cache has an answer."""

    def __init__(
        self,
        found: Callable[[CachedCode], None],
        failed: Callable[[Exception], None],
        from_cache: Callable[[], None],
        saved: Callable[[str, Path], None],
    ) -> None:
        """`found` is told of what a cache has; `from_cache` if cached code is loaded in any other way.

        `saved` is told of the key and the folder under which the FX graph cache has what was compiled just now.
        """
        self._found = found
        self._saved = saved
        self._failed = failed
        self._from_cache = from_cache
        self._thread = threading.local()
        self._namespaces: dict[int, dict[str, Any]] = {}
        """Of the modules that hold what was loaded, before anything is put around it."""
        self._whole: weakref.WeakKeyDictionary[Any, tuple[str, Path, dict[bool, Any]]] = weakref.WeakKeyDictionary()
        """What the AOTAutograd cache has for a compile: key, folder, and graphs, the backward under True."""

    def attach(self, patches: Patches) -> None:
        """See what the caches load until the patches are restored."""
        patches.wrap("torch._inductor.output_code", "CompiledFxGraph.after_deserialization", self._loading)
        patches.wrap("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache.try_load", self._try_load)
        patches.wrap("torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key", self._note_key)

    def _loading(self, original: Callable[..., Any], graph: Any, constants: Any) -> Any:
        looking: list[Any] | None = getattr(self._thread, "looking", None)
        if looking is None:
            self._from_cache()
        loaded = original(graph, constants)
        if looking is not None:
            looking.append(graph)
            call = graph.current_callable
            self._namespaces[id(graph)] = getattr(getattr(call, "__func__", call), "__globals__", {})
        return loaded

    @contextmanager
    def _looking(self) -> Iterator[list[Any]]:
        """Collect the graphs that this thread loads from a cache inside."""
        loaded: list[Any] = []
        before, self._thread.looking = getattr(self._thread, "looking", None), loaded
        try:
            yield loaded
        finally:
            self._thread.looking = before

    def _note_key(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        self._thread.key = made[0]
        return made

    def _try_load(self, original: Any, mod: Any, args: Any, config: Any, extra: Any, *rest: Any, **named: Any) -> Any:
        """Look what is there, remember it, and say that there is nothing: the graph is compiled anew, too.

        If there is nothing, what is compiled is saved as usual: the next compile of this very process may find it.
        """
        with self._looking() as graphs:
            answer = original(mod, args, config, extra, *rest, **named)
        has_config = isinstance(answer, tuple)  # Since 2.13: what it takes to save comes in a copy of the config.
        compiled = answer[0] if has_config else answer
        if compiled is None:
            return answer
        context = _tracing_context()
        if context is not None:
            try:
                from torch._functorch._aot_autograd import autograd_cache

                key = self._thread.key
                folder = Path(autograd_cache.AOTAutogradCache._get_tmp_dir_for_key(key))
                self._whole[context] = (key, folder, {_is_backward(g): g for g in graphs})
            except Exception as e:  # noqa: BLE001  # the user's compile must not fail because of torchsan
                self._failed(e)
        # Without what it takes to save the result: what is there stays.
        if has_config:
            return None, config
        config.cache_info = None
        return None

    def compile(
        self,
        original: Callable[..., Any],
        uncached: Callable[[], AbstractContextManager[Any]],
        gm: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Compile with Inductor. What is returned runs what the program would have run."""
        backward = bool(kwargs.get("is_backward"))
        context = _tracing_context()
        key, folder, graphs = self._whole.get(context, ("", Path(), {})) if context is not None else ("", Path(), {})
        cached = graphs.get(backward)
        graph, attributes = copy_graph(gm)
        strides = getattr(context, "output_strides", None)
        cache = "AOTAutograd cache"
        if cached is None:
            with self._looking() as loaded:
                given = original(gm, *args, **dict(kwargs))
            if not any(given is graph for graph in loaded):
                self._tell_saved(given)
                return given  # It was compiled just now.
            cached, cache, key = given, "FX graph cache", str(getattr(given, "_fx_graph_cache_key", "") or "")
            folder = _fx_folder(key)
        before = list(strides) if strides is not None else []
        if strides is not None:
            strides.clear()
        with uncached():
            fresh = original(gm, *args, **dict(kwargs))
        try:
            found = CachedCode(
                cache=cache,
                key=key,
                folder=folder,
                direction=_direction(kwargs),
                code=str(cached.source_code),
                fresh_code=str(fresh.source_code),
                graph=Snapshot(stage=Stage.CACHE, graph=graph, attributes=attributes),
                cached=cached.current_callable,
                namespace=self._namespaces.pop(id(cached), {}),
                fresh=fresh.current_callable,
            )
            self._found(found)
        except Exception as e:  # noqa: BLE001  # as above
            self._failed(e)
            return fresh
        if found.same:
            return fresh  # The same program, with probes in it.
        if len(cached.output_strides or ()) != len(fresh.output_strides or ()):
            self._failed(RuntimeError(f"the {cache} holds a graph with other outputs, which could not be run"))
            graphs.clear()  # Its backward takes what this forward would have saved.
            return fresh
        if strides is not None and before:
            strides[:] = before
        cached.current_callable = found
        return cached

    def _tell_saved(self, compiled: Any) -> None:
        key = getattr(compiled, "_fx_graph_cache_key", None)
        if key:
            try:
                self._saved(str(key), _fx_folder(str(key)))
            except Exception as e:  # noqa: BLE001  # as above
                self._failed(e)


def _tracing_context() -> Any:
    from torch._guards import TracingContext

    return TracingContext.try_get()


def _is_backward(graph: Any) -> bool:
    return bool(graph.fx_kwargs.get("is_backward"))


def _direction(kwargs: dict[str, Any]) -> Direction:
    if kwargs.get("is_backward"):
        return Direction.BACKWARD
    return Direction.INFERENCE if kwargs.get("is_inference") else Direction.FORWARD


def _fx_folder(key: str) -> Path:
    codecache: Any = sys.modules["torch._inductor.codecache"]
    return Path(codecache.FxGraphCache._get_tmp_dir_for_key(key))


def environment() -> dict[str, str]:
    """What cached code depends on and its key may not know: versions, instruction sets, settings from outside."""
    import os

    import torch

    known = {"torch": torch.__version__, "git": str(torch.version.git_version), "python": sys.version.split()[0]}
    if not missing("cache"):
        from torch._inductor import cpu_vec_isa

        known["instruction set"] = str(cpu_vec_isa.pick_vec_isa())
    known["capability"] = torch.backends.cpu.get_cpu_capability()
    prefixes = ("ATEN_", "TORCHINDUCTOR_", "TORCH_COMPILE", "OMP_", "MKL_", "ONEDNN_", "CXX")
    return known | {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}


_LOADS = re.compile(r"Vectorized<([\w:]+)>::loadu\([^;]*?static_cast<int64_t>\((\d+)\)\);")


def vector_widths(code: str) -> dict[str, int]:
    """The widest vector of each C++ type that generated code loads, in elements."""
    widths: dict[str, int] = {}
    for dtype, n in _LOADS.findall(code):
        widths[dtype] = max(widths.get(dtype, 0), int(n))
    return widths


def vector_elements(dtype: str) -> int | None:
    """How many elements of a C++ type a vector holds in the code that Inductor generates here; None if unknown."""
    import torch
    from torch._inductor import cpu_vec_isa

    known = {"float": torch.float32, "double": torch.float64, "BFloat16": torch.bfloat16, "Half": torch.float16}
    found = known.get(dtype.rpartition("::")[2])
    isa = cpu_vec_isa.pick_vec_isa()
    return int(isa.nelements(dtype=found)) if found is not None and isa else None
