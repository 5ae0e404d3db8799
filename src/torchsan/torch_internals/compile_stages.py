"""The steps of every compile, from Dynamo's graph to what the backend returned, kept so that each can be run.

Whatever AOTAutograd puts around a graph (views, mutations, autograd) stays around it: a stage is run by calling the
compiled function itself with one of its inner graphs in the place of the compiled code.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from torchsan.records import Direction, Stage
from torchsan.torch_internals.patches import Patches, missing
from torchsan.torch_internals.snapshots import Following, Trail, watch_passes

if TYPE_CHECKING:
    import torch.fx

log = logging.getLogger(__name__)

_following = Following()


class Override(Protocol):
    """Computes what a compiled graph would, from the same arguments."""

    def __call__(self, direction: Direction, args: list[Any]) -> Any:
        """Return the outputs of the graph of this direction."""


class Part:
    """One graph of AOTAutograd's: inference, or a joint graph that is partitioned into forward and backward."""

    def __init__(self, *, training: bool) -> None:
        self.training = training
        self.whole = Trail()
        """The inference graph to its end, or the joint graph up to the partition."""
        self.forward = Trail()
        self.backward = Trail()
        self.forward_outputs = 0
        """How many of the joint graph's outputs are those of the forward."""
        self.overrides: dict[int, Override] = {}
        """What runs in the place of the compiled graphs, by thread."""

    @contextmanager
    def overridden(self, by: Override) -> Iterator[None]:
        """On this thread, run `by` in the place of the compiled graphs."""
        thread = threading.get_ident()
        self.overrides[thread] = by
        try:
            yield
        finally:
            del self.overrides[thread]


class Idle(Protocol):
    """Lets calls pass."""

    idle: int
    """How many calls run unseen before the next that is shown."""


class StagesWatcher(Protocol):
    """Looks at the calls of one compiled graph of Dynamo's."""

    @property
    def attention(self) -> Idle:
        """Which calls it looks at."""

    def __call__(self, args: tuple[Any, ...]) -> Any:
        """Call the compiled function for the program, and return its result."""


class CompileStages:
    """One graph of Dynamo's, and what the compiler made of it."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.dynamo = Trail()
        """Dynamo's graph, and after each pass that Inductor ran on it before AOTAutograd."""
        self.parts: list[Part] = []
        self.compiled: Callable[..., Any] | None = None
        self.watch: StagesWatcher | None = None
        """Calls the compiled function with the arguments and looks on; None to run at full speed."""


def current_stages() -> CompileStages | None:
    """The stages of the compile that is under way on this thread."""
    return _following.stages


def backward_is_traced() -> bool:
    """Whether compiled autograd is on: it would compile whatever hangs on the autograd graph."""
    from torch._dynamo import compiled_autograd

    return bool(compiled_autograd.compiled_autograd_enabled)


@contextmanager
def observe_compile_stages(
    built: Callable[[CompileStages], None], failed: Callable[[Exception], None]
) -> Iterator[None]:
    """Call `built` with the stages of each compile while the context lasts; `failed` if looking at one went wrong.

    May be entered before torch is imported, and does not import it.
    """
    patches = Patches(failed)
    observed: list[CompileStages] = []

    def seen(stages: CompileStages) -> None:
        observed.append(stages)
        built(stages)

    def call_user_compiler(
        original: Callable[..., Any], graph: Any, gm: torch.fx.GraphModule, example_inputs: list[Any]
    ) -> Any:
        stages = CompileStages(_name_of(getattr(graph, "compiler_fn", None)))
        return compile_observed(stages, gm, lambda: original(graph, gm, example_inputs), seen, failed)

    def stage2_compile(
        original: Callable[..., Any],
        state: Any,
        capture: Any,
        partition: Any,
        forward: Any,
        backward: Any = None,
        inference: Any = None,
    ) -> Any:
        compilers = (partition, forward, backward, inference)
        if _following.stages is not None and not missing("stages"):
            try:
                compilers = _observed_compilers(_following.stages, state, capture, compilers)
            except Exception as e:  # noqa: BLE001  # the user's compile must not fail because of torchsan
                failed(e)
        return original(state, capture, *compilers)

    try:
        patches.wrap("torch._dynamo.output_graph", "OutputGraph._call_user_compiler", call_user_compiler)
        patches.wrap("torch._functorch.aot_autograd", "aot_stage2_compile", stage2_compile)
        watch_passes(patches, _following, failed)
        yield
    finally:
        patches.restore()
        for stages in observed:
            stages.watch = None


def compile_observed(
    stages: CompileStages,
    gm: torch.fx.GraphModule,
    compile_: Callable[[], Any],
    built: Callable[[CompileStages], None],
    failed: Callable[[Exception], None],
) -> Callable[..., Any]:
    """Compile Dynamo's graph `gm`, and keep in `stages` what the compiler does; return what Dynamo is to call."""
    try:
        stages.dynamo.see(gm, Stage.CAPTURE, first=True)
    except Exception as e:  # noqa: BLE001  # the user's compile must not fail because of torchsan
        failed(e)
        return compile_()  # type: ignore[no-any-return]  # Dynamo checks that it is callable
    with _following.compiling(stages):
        compiled = compile_()
    return _entry(stages, compiled, built, failed)


def _name_of(compiler: Any) -> str:
    named = getattr(compiler, "compiler_name", None) or getattr(compiler, "__name__", None)
    return str(named or type(compiler).__name__)


def _entry(
    stages: CompileStages, compiled: Any, built: Callable[[CompileStages], None], failed: Callable[[Exception], None]
) -> Callable[..., Any]:
    """Return what Dynamo calls in the place of `compiled`: one branch more, unless someone looks on."""
    if missing("stages"):  # Whoever watches the seams says so.
        return compiled  # type: ignore[no-any-return]  # Dynamo checks that it is callable
    from torch.fx._lazy_graph_module import _LazyGraphModule

    # As Dynamo does with what a backend returned, which it cannot see behind our function.
    lazy = compiled if isinstance(compiled, _LazyGraphModule) else getattr(compiled, "__self__", None)
    if isinstance(lazy, _LazyGraphModule):
        _LazyGraphModule.force_recompile(lazy)
        if compiled is not lazy and getattr(compiled, "__name__", "") == "_lazy_forward":
            compiled = lazy.forward
    stages.compiled = compiled
    try:
        built(stages)
    except Exception as e:
        log.debug("could not look at the stages of a compile", exc_info=True)
        failed(e)
        return compiled  # type: ignore[no-any-return]  # Dynamo checks that it is callable

    def observed(*args: Any) -> Any:
        watch = stages.watch
        if watch is None:
            return compiled(*args)
        if watch.attention.idle:
            watch.attention.idle -= 1
            return compiled(*args)
        return watch(args)

    return functools.wraps(compiled, assigned=())(observed) if hasattr(compiled, "__dict__") else observed


def _observed_compilers(stages: CompileStages, state: Any, capture: Any, compilers: tuple[Any, ...]) -> tuple[Any, ...]:
    partition, forward, backward, inference = compilers
    part = Part(training=bool(state.needs_autograd and not state.aot_config.pre_dispatch))
    part.whole.see(capture.graph_module, Stage.AOT, first=True)
    stages.parts.append(part)
    if part.training:
        return (
            _observed_partition(part, partition),
            _observed_compiler(stages, part, part.forward, Direction.FORWARD, forward),
            _observed_compiler(stages, part, part.backward, Direction.BACKWARD, backward or forward),
            None,
        )
    compiler = _observed_compiler(stages, part, part.whole, Direction.INFERENCE, inference or forward)
    return partition, forward, backward, compiler


def _observed_partition(part: Part, partition: Any) -> Any:
    def partition_joint(gm: torch.fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
        import torch

        if not part.whole.takes(gm):  # The function of a higher-order operator, partitioned on its own.
            return partition(gm, joint_inputs, **kwargs)
        custom = callable(getattr(torch._functorch.config, "joint_custom_pass", None))
        part.whole.see(gm, Stage.JOINT_PASSES if custom else Stage.AOT, "joint_custom_pass" if custom else None)
        part.forward_outputs = kwargs["num_fwd_outputs"]
        with _following.trail(part.whole):
            return partition(gm, joint_inputs, **kwargs)

    return partition_joint


def _observed_compiler(stages: CompileStages, part: Part, trail: Trail, direction: Direction, compiler: Any) -> Any:
    def compile_graph(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        if direction is Direction.INFERENCE:
            # What AOTAutograd did since it captured the graph; with other inputs, that graph cannot be run here.
            trail.see(gm, Stage.AOT, first=not trail.takes(gm))
        else:
            trail.see(gm, Stage.AOT, "partition", first=True)
        with _following.compiling(stages), _following.trail(trail):
            compiled = compiler(gm, example_inputs)
        return _Switch(part, direction, compiled)

    return compile_graph


class _Switch:
    """A compiled graph that can be overridden. Has every attribute of the compiled one."""

    def __init__(self, part: Part, direction: Direction, compiled: Any) -> None:
        self._boxed_call = True  # Its own, not its class's: what AOTAutograd caches is wrapped with its attributes.
        self._part = part
        self._direction = direction
        self._compiled = compiled
        self._boxed = bool(getattr(compiled, "_boxed_call", False))

    def __call__(self, args: list[Any]) -> Any:
        overrides = self._part.overrides
        override = overrides.get(threading.get_ident()) if overrides else None
        if override is not None:
            given = list(args)
            args.clear()
            return override(self._direction, given)
        return self._compiled(args) if self._boxed else self._compiled(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)
