"""`torchsan.aot_compile`: an AOTInductor package that records its launches by itself, without Python."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsan._version import __version__
from torchsan.errors import InternalError, UsageError
from torchsan.instruments.compiled import kernel_record, live_buffers
from torchsan.instruments.program.model import Program
from torchsan.instruments.provenance import buffers_of_launches, settled_nodes
from torchsan.options import Options, Watch, When
from torchsan.packages.archive import add_files
from torchsan.packages.instrument import instrumented
from torchsan.packages.wrapper import Wrapper, read_wrapper
from torchsan.records import Direction, GraphId, GraphRecord, encode

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from torchsan.torch_internals.compiles import LoweredGraph

__all__ = ["SCHEMA", "aot_compile"]

log = logging.getLogger(__name__)

SCHEMA = 1
"""The version of what a package writes."""


def aot_compile(
    exported_program: ExportedProgram,
    path: str | os.PathLike[str],
    *,
    watch: str = "save",
    kernels: str | Iterable[str] = (),
    when: str = "both",
    inductor_configs: Mapping[str, Any] | None = None,
) -> str:
    """Build the package `path` as `torch._inductor.aoti_compile_and_package` does, and return its path.

    Its C++ code emits what `--watch` shows, at the level, for the kernels and on the side of a launch that are asked
    for, into the folder that the variable TORCHSAN_OUT names when the package runs; without it nothing is recorded.
    `torchsan values FOLDER` and the other commands read that folder. Raise UsageError for what is no exported program,
    an unknown level or a path that does not end in `.pt2`.
    """
    import torch
    from torch.export import ExportedProgram

    from torchsan.torch_internals.aoti import build_package

    options = _options(watch, kernels, when)
    given: object = exported_program
    if not isinstance(given, ExportedProgram):
        kind = type(given).__name__
        raise UsageError(f"aot_compile takes what torch.export.export returns, not a {kind}", slug="usage")
    if Path(path).suffix != ".pt2":
        raise UsageError(f"{os.fspath(path)}: the name of a package ends in .pt2", slug="usage")
    rewritten: list[str] = []

    def rewrite(text: str, graphs: tuple[LoweredGraph, ...]) -> str:
        wrapper = read_wrapper(text)
        if wrapper is None:
            return text
        rewritten.append(text)
        described = _description(wrapper, graphs[0], options)
        return instrumented(text, wrapper, described, options.watch, options.when, options.selects)

    saved = _saved(exported_program)
    made = build_package(exported_program, os.fspath(path), rewrite, inductor_configs or {})
    if not rewritten:
        raise InternalError(
            "the wrapper of this PyTorch was not understood, and the package records nothing", slug="internal-error"
        )
    about = {"schema": SCHEMA, "torchsan": __version__, "torch": torch.__version__, "watch": str(options.watch)}
    add_files(Path(made), about | {"when": str(options.when), "kernels": list(options.kernels)}, saved)
    return made


def _saved(program: ExportedProgram) -> bytes | None:
    """The exported program as bytes; None if it cannot be saved, as with operators that have no serialization."""
    import torch

    stream = io.BytesIO()
    try:
        torch.export.save(program, stream)
    except Exception:  # the package is built all the same
        log.debug("cannot save the exported program", exc_info=True)
        return None
    return stream.getvalue()


def _options(watch: str, kernels: str | Iterable[str], when: str) -> Options:
    globs = kernels.split(",") if isinstance(kernels, str) else kernels
    try:
        options = Options(watch=Watch(watch), when=When(when), kernels=tuple(g for g in globs if g))
    except ValueError as e:
        raise UsageError(f"{e}; watch is one of names, print, save, and when before, after, both", slug="usage") from e
    if options.watch is Watch.OFF:
        raise UsageError("a package that watches nothing is built by torch._inductor itself", slug="usage")
    return options


def _description(wrapper: Wrapper, graph: LoweredGraph, options: Options) -> dict[str, Any]:
    """What whoever reads the launches has to know of the program: data only."""
    import torch

    function = wrapper.function()
    computes = {nth: tuple(found) for nth, found in buffers_of_launches(graph.buffers, function).items()}
    record = GraphRecord(
        id=GraphId(0),
        direction=Direction.INFERENCE,
        kernels=tuple(kernel_record(launch, graph, computes.get(launch.nth, ())) for launch in function.launches()),
        buffers=tuple(live_buffers(Program(kernels={}, functions={"call": function}))),
        inputs=tuple(wrapper.inputs),
        artifacts={},
    )
    return {
        "schema": SCHEMA,
        "torchsan": __version__,
        "torch": torch.__version__,
        "watch": str(options.watch),
        "graph": encode(record),
        "nodes": {str(nth): nodes for nth, nodes in settled_nodes(function, computes).items()},
        "text": graph.module.print_readable(print_output=False),
        "skipped": wrapper.unread,
        "replay": _replay(wrapper, graph),
    }


def _replay(wrapper: Wrapper, graph: LoweredGraph) -> dict[str, Any]:
    """What it takes to compute again what each launch computes, or why that cannot be."""
    from torchsan.checks.exhibit_graph import Unrepresentable
    from torchsan.packages.graphs import describe_graph

    try:
        described = describe_graph(graph.module.graph)
    except Unrepresentable as e:
        return {"reason": str(e)}
    buffers = [encode(buffer) for buffer in graph.buffers]
    return {"wrapper": wrapper.text, "inputs": list(graph.inputs), "buffers": buffers, "graph": encode(described)}
