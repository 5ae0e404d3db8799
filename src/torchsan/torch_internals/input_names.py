"""What the user calls the inputs of a compiled graph, which PyTorch calls `primals_1` or `arg0_1`."""

from __future__ import annotations

import logging
import re
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torchsan.torch_internals.patches import Patches, missing

if TYPE_CHECKING:
    import torch.fx

log = logging.getLogger(__name__)

_HELD = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
_BEGINNING = re.compile(r"^[LG]\['(\w+)'\]")
_MODELS = ("self", "fn", "model", "mod")


def readable(source: str) -> str:
    """`L['self']._modules['fc']._parameters['weight']` and `L['x']` as people know them: `fc.weight`, `x`."""
    held = _HELD.sub(r".\1", source)
    named = _BEGINNING.sub(r"\1", held)
    first, dot, rest = named.partition(".")
    return rest if dot and held != source and first in _MODELS else named


class InputNames:
    """Notes what the inputs of Dynamo's graphs are, for the graphs that are made of them."""

    def __init__(self) -> None:
        self._sources: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()

    def attach(self, patches: Patches) -> None:
        """Look at Dynamo's graphs until the patches are restored."""
        if not missing("names"):
            patches.wrap("torch._dynamo.output_graph", "OutputGraph._call_user_compiler", self._note)

    def _note(self, original: Callable[..., Any], graph: Any, gm: Any, example_inputs: Any) -> Any:
        try:
            context = sys.modules["torch._guards"].TracingContext.try_get()
            if context is not None:
                self._sources[context] = [_source(n) for n in gm.graph.nodes if n.op == "placeholder"]
        except Exception:  # a name less, and never the user's compile
            log.debug("the inputs of a graph have no names", exc_info=True)
        return original(graph, gm, example_inputs)

    def of(self, context: Any, module: torch.fx.GraphModule) -> Mapping[str, str]:
        """The inputs of a graph of AOTAutograd's that the user has a name for, with that name."""
        sources = self._sources.get(context, []) if context is not None else []
        inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        found = {n.name: _called(n.meta.get("desc"), sources) for n in inputs}
        return {name: called for name, called in found.items() if called}


def _source(node: Any) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)  # Up to 2.12 it is a method.


def _called(description: Any, sources: list[str]) -> str:
    """Of one input, as AOTAutograd describes it."""
    match type(description).__name__:
        case "PlainAOTInput" if description.idx < len(sources):
            return readable(sources[description.idx])
        case "ParamAOTInput" | "BufferAOTInput":
            return str(description.target)
        case "TangentAOTInput" if type(description.output).__name__ == "PlainAOTOutput":
            return f"gradient of output {description.output.idx}"
    return ""
