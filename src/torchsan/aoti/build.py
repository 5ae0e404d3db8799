"""`torchsan.aot_compile`: an AOTInductor package that records its launches by itself, without Python."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsan._version import __version__
from torchsan.aoti.launches import INPUT, OUTPUT
from torchsan.errors import InternalError, UsageError
from torchsan.graphs.printed import print_graph
from torchsan.options import Options, Watch, When
from torchsan.records import Direction, GraphId, GraphRecord, encode
from torchsan.torch_internals.wrapper.cpp import Wrapper, read_wrapper
from torchsan.torch_internals.wrapper.model import Launch, Program
from torchsan.watch.compiled import kernel_record, live_buffers
from torchsan.watch.provenance import buffers_of_launches, settled_nodes

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from torchsan.torch_internals.compiles import LoweredGraph

log = logging.getLogger(__name__)

SCHEMA = 1
"""The version of what a package writes."""
_NAMESPACE = "torchsan_recorder"
_ABOUT = "torchsan/about.json"
_PROGRAM = "torchsan/program.pt2"
_MOST_ABOUT = 1 << 20

About = Mapping[str, Any]


def add_files(package: Path, about: About, program: bytes | None) -> None:
    """Put into a package what `torchsan check-package` needs."""
    with zipfile.ZipFile(package, "a", zipfile.ZIP_STORED) as archive:
        root = archive.namelist()[0].split("/")[0]
        archive.writestr(f"{root}/{_ABOUT}", json.dumps(about))
        if program is not None:
            archive.writestr(f"{root}/{_PROGRAM}", program)


def read_about(package: Path) -> About | None:
    """Who built the package, and what it records; None if it was not built by torchsan."""
    text = _read(package, _ABOUT, _MOST_ABOUT)
    if text is None:
        return None
    try:
        about = json.loads(text)
    except ValueError:
        about = None
    if not isinstance(about, dict):
        raise UsageError(f"{package} is damaged: {_ABOUT} cannot be read", slug="bad-package")
    return about


def read_program(package: Path) -> bytes | None:
    """The exported program that the package was built from, if it is there."""
    return _read(package, _PROGRAM, None)


def _read(package: Path, name: str, most: int | None) -> bytes | None:
    try:
        with zipfile.ZipFile(package) as archive:
            found = [i for i in archive.infolist() if i.filename.partition("/")[2] == name]
            if not found or (most is not None and found[-1].file_size > most):
                return None
            return archive.read(found[-1])
    except FileNotFoundError as e:
        raise UsageError(f"no such package: {package}", slug="bad-package") from e
    except (zipfile.BadZipFile, OSError) as e:
        raise UsageError(f"{package} is no AOTInductor package: {e}", slug="bad-package") from e


def instrumented(
    text: str, wrapper: Wrapper, description: object, watch: Watch, when: When, selects: Callable[[str], bool]
) -> str:
    """Return the wrapper with the recorder in it; `selects` tells which kernels are recorded."""
    before: dict[int, list[str]] = {}
    after: dict[int, list[str]] = {wrapper.entered: [f"{_NAMESPACE}::Call torchsan_call(torchsan_program);"]}
    values = watch is not Watch.NAMES
    if values and when is not When.AFTER and selects("(inputs)"):
        after[wrapper.entered].append(_guarded(_tensors(INPUT, "BEFORE", watch, wrapper.inputs)))
    for site in wrapper.sites:
        if selects(site.launch.kernel):
            if when is not When.AFTER:
                before.setdefault(site.begins, []).append(_guarded(_before(site.launch, watch)))
            if when is not When.BEFORE and (values or when is When.AFTER):
                after.setdefault(site.ends, []).append(_guarded(_after(site.launch, watch)))
    if values and when is not When.BEFORE and selects("(outputs)"):
        for line, number, name in wrapper.outputs:
            before.setdefault(line, []).append(_guarded(_tensors(OUTPUT, "AFTER", watch, [name], f"output{number}")))
    body: list[str] = []
    for i, written in enumerate(text.split("\n")):
        body += [*(f"    {c}" for c in before.get(i, ())), written, *(f"    {c}" for c in after.get(i, ()))]
    opened = _file_scope(body)
    return "\n".join([*body[:opened], _recorder(), _program_description(description), *body[opened:]])


def _recorder() -> str:
    """The source of the recorder and of the statistics that it takes."""
    from torchsan.tensors.native import SOURCE

    statistics, recorder = (p.read_text(encoding="utf-8") for p in (SOURCE, Path(__file__).with_name("recorder.h")))
    # AOTInductor compiles wrappers with little optimization.
    lines = ["#pragma GCC push_options", '#pragma GCC optimize("O3")', "#pragma GCC pop_options"]
    return "\n".join(["#define TORCHSAN_RECORDER", *lines[:2], statistics, recorder, lines[2]])


def _file_scope(body: list[str]) -> int:
    """The line before which the headers of AOTInductor's C interface are known and no namespace is open."""
    first = next(i for i, line in enumerate(body) if line.startswith("void AOTInductorModel::run_impl("))
    return next(i for i in range(first, -1, -1) if body[i].startswith("namespace torch::aot_inductor"))


def _guarded(calls: list[str] | Iterator[str]) -> str:
    return f"if (torchsan_call.log != nullptr) {{ {' '.join(calls)} }}"


def _before(launch: Launch, watch: Watch) -> list[str]:
    calls = [_launch(launch, "BEFORE")]
    if watch is not Watch.NAMES:
        calls += [*_numbers(launch), *_tensors(launch.nth, "BEFORE", watch, launch.reads)]
    return calls


def _after(launch: Launch, watch: Watch) -> list[str]:
    values = () if watch is Watch.NAMES else _tensors(launch.nth, "AFTER", watch, launch.writes)
    return [_launch(launch, "AFTER"), *values]


def _launch(launch: Launch, phase: str) -> str:
    return f'torchsan_call.launch({launch.nth}, {_NAMESPACE}::{phase}, "{launch.kernel}");'


def _tensors(site: int, phase: str, watch: Watch, names: Sequence[str], shown: str | None = None) -> list[str]:
    start = f"torchsan_call.tensor({site}, {_NAMESPACE}::{phase}, {_NAMESPACE}::{watch.name}"
    return [f'{start}, "{shown or name}", {name});' for name in names]


def _numbers(launch: Launch) -> Iterator[str]:
    for argument in launch.arguments:
        if argument.base is None and argument.text.isidentifier():
            name = argument.text
            yield f'torchsan_call.number({launch.nth}, "{name}", static_cast<double>({name}));'


def _program_description(description: object) -> str:
    text = json.dumps(description)
    mark = f"torchsan{hashlib.sha256(text.encode()).hexdigest()[:7]}"
    # Compilers limit the length of one literal; neighbours are one text.
    pieces = [text[i : i + 8000] for i in range(0, len(text), 8000)]
    literals = "\n".join(f'    R"{mark}({piece}){mark}"' for piece in pieces)
    return f"static const char* const torchsan_program =\n{literals};\n"


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

    >>> exported = torch.export.export(torch.nn.Linear(4, 4), (torch.ones(2, 4),))
    >>> package = torchsan.aot_compile(exported, "model.pt2", watch="save")
    """
    import torch
    from torch.export import ExportedProgram

    from torchsan.torch_internals.inductor import build_package

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
    """Return what a reader of the launches needs to know of the program, as JSON values."""
    import torch

    function = wrapper.function()
    computes = {nth: tuple(found) for nth, found in buffers_of_launches(graph.buffers, function).items()}
    by_name = {node.name: node for node in graph.module.graph.nodes}
    record = GraphRecord(
        id=GraphId(0),
        direction=Direction.INFERENCE,
        kernels=tuple(kernel_record(launch, by_name, computes.get(launch.nth, ())) for launch in function.launches()),
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
        "text": print_graph(graph.module),
        "skipped": wrapper.unread,
        "replay": _replay(wrapper, graph),
    }


def _replay(wrapper: Wrapper, graph: LoweredGraph) -> dict[str, Any]:
    """Return what a replay of each launch needs, or the reason why there can be none."""
    from torchsan.graphs.data import Unrepresentable
    from torchsan.graphs.encode import describe_graph

    try:
        described = describe_graph(graph.module.graph)
    except Unrepresentable as e:
        return {"reason": str(e)}
    buffers = [encode(buffer) for buffer in graph.buffers]
    return {"wrapper": wrapper.text, "inputs": list(graph.inputs), "buffers": buffers, "graph": encode(described)}
