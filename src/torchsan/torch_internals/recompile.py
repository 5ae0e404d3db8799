"""The code that Inductor generates here for a graph. Neither the graph nor the code is run, and nothing is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchsan.records import Direction
from torchsan.torch_internals.patches import Patches, missing

if TYPE_CHECKING:
    import torch
    import torch.fx


class _GeneratedError(Exception):
    """The code is there, and nobody wants it built."""


def differing_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings of Inductor that are others here. Raise ValueError for one that cannot be set from a text.

    Settings name compilers and programs, too; only truth values and numbers are taken from elsewhere.
    """
    from torch._inductor import config

    here = config.get_config_copy()
    differing = {name: value for name, value in settings.items() if here.get(name, value) != value}
    for name, value in differing.items():
        if not isinstance(value, bool | int | float):
            raise ValueError(f"it was compiled with {name} = {value!r:.60}")
    return differing


def generated_code(
    module: torch.fx.GraphModule,
    inputs: Sequence[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]],
    direction: Direction,
    settings: Mapping[str, Any],
    visible: int,
) -> str:
    """Return the source that Inductor generates for a graph whose inputs have these sizes, strides and dtypes.

    The strides of the first `visible` outputs are kept, because the program sees them. Raise ValueError if this PyTorch
    lacks what that needs.
    """
    import torch
    from torch._guards import TracingContext, tracing
    from torch._inductor import compile_fx, config
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    for reason in missing("caches"):
        raise ValueError(reason)
    mode = FakeTensorMode()
    with mode:
        fakes = [torch.empty_strided(size, stride, dtype=dtype) for size, stride, dtype in inputs]
    with torch.no_grad():
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*fakes)
    (outputs,) = module.graph.find_nodes(op="output")
    outputs.meta["user_visible_output_idxs"] = list(range(visible))
    changes = {"fx_graph_cache": False, "fx_graph_remote_cache": False, **settings}
    with tracing(TracingContext(mode)), config.patch(changes), _stopped() as found:
        try:
            compile_fx.compile_fx_inner(
                module,
                fakes,
                is_backward=direction is Direction.BACKWARD,
                is_inference=direction is Direction.INFERENCE,
            )
        except Exception:
            if not found:
                raise
    return found[0]


@contextmanager
def _stopped() -> Iterator[list[str]]:
    """Collect the source of each graph that is lowered inside, and stop before it is written anywhere."""
    found: list[str] = []

    def collect(_original: Any, graph: Any) -> Any:
        found.append(str(graph.codegen()[0].value))
        raise _GeneratedError

    def failed(error: Exception) -> None:
        raise error

    patches = Patches(failed)
    try:
        patches.wrap("torch._inductor.graph", "GraphLowering._compile_to_module", collect)
        yield found
    finally:
        patches.restore()
