"""Inductor's graph passes: which one changed the graph, and which of its patterns matched."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchsan.records import Stage
from torchsan.torch_internals.seams import Patches

if TYPE_CHECKING:
    import torch.fx

    from torchsan.torch_internals.compile_stages import CompileStages
    from torchsan.torch_internals.snapshots import Trail

log = logging.getLogger(__name__)

_PHASES = {
    # Passes before AOTAutograd sees the graph belong to it: what it captured is not what Dynamo handed over.
    "_recursive_pre_grad_passes": Stage.AOT,
    "_recursive_joint_graph_passes": Stage.JOINT_PASSES,
    "_recursive_post_grad_passes": Stage.POST_GRAD_PASSES,
}
_ENTRIES = ("ReplacementPatternEntry", "GraphPatternEntry", "LoweringPatternEntry")


class Following(threading.local):
    """What is being compiled on this thread: the ladder, the trail that passes add to, and the pass that runs."""

    def __init__(self) -> None:
        self.ladder: CompileStages | None = None
        self._trail: Trail | None = None
        self._stage: Stage | None = None
        self._module: torch.fx.GraphModule | None = None
        self._depth = 0
        self.patterns: list[str] = []

    @contextmanager
    def compiling(self, ladder: CompileStages) -> Iterator[None]:
        """Let what is compiled belong to `ladder`; passes that run now are on Dynamo's graph."""
        before = self.ladder, self._trail
        self.ladder, self._trail = ladder, ladder.dynamo
        try:
            yield
        finally:
            self.ladder, self._trail = before

    @contextmanager
    def trail(self, trail: Trail) -> Iterator[None]:
        """Let passes add to `trail`."""
        before = self._trail, self._stage, self._module, self._depth
        self._trail, self._stage, self._module, self._depth = trail, None, None, 0
        try:
            yield
        finally:
            self._trail, self._stage, self._module, self._depth = before

    @contextmanager
    def phase(self, stage: Stage, module: torch.fx.GraphModule) -> Iterator[None]:
        """A group of passes on `module`, or on a function inside the module of the group around this one."""
        if self._trail is None or self._stage is not None:
            yield
            return
        self._stage, self._module = stage, module
        try:
            self._trail.see(module, stage)
            yield
            self._trail.see(module, stage)
        finally:
            self._stage = self._module = None

    @property
    def active(self) -> bool:
        """Whether anyone wants to know of passes now."""
        return self._stage is not None

    def enter(self) -> None:
        """A pass begins, maybe inside another."""
        if self._depth == 0:
            self.patterns.clear()
        self._depth += 1

    def leave(self, name: str) -> None:
        """The pass is over."""
        self._depth -= 1
        if self._depth == 0 and self._trail is not None and self._stage is not None and self._module is not None:
            patterns = tuple(dict.fromkeys(self.patterns))
            self.patterns.clear()
            self._trail.see(self._module, self._stage, name, patterns)


def watch_passes(patches: Patches, following: Following, failed: Callable[[Exception], None]) -> None:
    """Tell `following` of every pass, until the patches are restored."""
    patches.when_imported("torch._inductor.compile_fx", lambda m: _watch_phases(patches, m, following))
    patches.when_imported(
        "torch.fx.passes.graph_transform_observer", lambda m: _watch_observer(patches, m, following, failed)
    )
    patches.when_imported("torch._inductor.fx_passes.joint_graph", lambda m: _watch_random(patches, m, following))
    patches.when_imported("torch._inductor.pattern_matcher", lambda m: _watch_patterns(patches, m, following))


def _watch_phases(patches: Patches, module: Any, following: Following) -> None:
    for name, stage in _PHASES.items():

        def make(original: Callable[..., Any], stage: Stage = stage) -> Callable[..., Any]:
            @functools.wraps(original)
            def passes(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
                with following.phase(stage, gm):
                    return original(gm, *args, **kwargs)

            return passes

        patches.replace(module, name, make)


def _watch_observer(patches: Patches, module: Any, following: Following, failed: Callable[[Exception], None]) -> None:
    def make_enter(original: Callable[..., Any]) -> Callable[..., Any]:
        def enter(self: Any) -> Any:
            if following.active:
                following.enter()
            return original(self)

        return enter

    def make_exit(original: Callable[..., Any]) -> Callable[..., Any]:
        def leave(self: Any, *error: Any) -> Any:
            if following.active:
                try:
                    following.leave(self.passname)
                except Exception as e:  # the user's compile must not fail because of torchsan
                    log.debug("could not look at a pass", exc_info=True)
                    failed(e)
            return original(self, *error)

        return leave

    patches.replace(module.GraphTransformObserver, "__enter__", make_enter)
    patches.replace(module.GraphTransformObserver, "__exit__", make_exit)


def _watch_random(patches: Patches, module: Any, following: Following) -> None:
    """The passes that replace random operators are not announced as the others are."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def replace_random_passes(gm: torch.fx.GraphModule) -> Any:
            if not following.active:
                return original(gm)
            following.enter()
            try:
                return original(gm)
            finally:
                following.leave("replace_random_passes")

        return replace_random_passes

    patches.replace(module, "replace_random_passes", make)


def _watch_patterns(patches: Patches, module: Any, following: Following) -> None:
    for name in _ENTRIES:

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
                if following.active:
                    following.patterns.append(_pattern_name(self))
                return original(self, *args, **kwargs)

            return apply

        patches.replace(getattr(module, name), "apply", make)


def _pattern_name(entry: Any) -> str:
    """The pattern's own name, that of the function that handles it, or what it looks for."""
    named = getattr(entry, "pattern_name", None)
    if named:
        return str(named)
    handler = getattr(entry, "handler", None)
    handler = getattr(handler, "func", handler)
    if handler is None:  # A replacement without a name: the function that it was traced from has one.
        code, cells = entry.extra_check.__code__, entry.extra_check.__closure__ or ()
        handler = dict(zip(code.co_freevars, cells, strict=True)).get("search_fn")
        handler = handler.cell_contents if handler is not None else None
    if handler is not None:
        return str(getattr(handler, "__name__", handler))
    return "+".join(str(f) for f in getattr(entry.pattern, "fns", ())) or type(entry.pattern).__name__
