"""Puts the recorder into a C++ wrapper: a call beside each launch, and the description of the program."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from torchsan.instruments.program.model import Launch
from torchsan.options import Watch, When
from torchsan.packages.wrapper import Wrapper

__all__ = ["instrumented"]

_LEVELS = {Watch.NAMES: "NAMES", Watch.PRINT: "PRINT", Watch.SAVE: "SAVE"}
_NAMESPACE = "torchsan_recorder"
INPUT, OUTPUT = -1, -2
"""The sites of what goes into the model and comes out."""


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
        launch = site.launch
        if not selects(launch.kernel):
            continue
        if when is not When.AFTER:
            calls = [_launch(launch, "BEFORE"), *(_numbers(launch) if values else ())]
            calls += _tensors(launch.nth, "BEFORE", watch, launch.reads) if values else ()
            before.setdefault(site.begins, []).append(_guarded(calls))
        if when is not When.BEFORE and (values or when is When.AFTER):
            calls = [_launch(launch, "AFTER"), *(_tensors(launch.nth, "AFTER", watch, launch.writes) if values else ())]
            after.setdefault(site.ends, []).append(_guarded(calls))
    if values and when is not When.BEFORE and selects("(outputs)"):
        for line, number, name in wrapper.outputs:
            before.setdefault(line, []).append(_guarded(_tensors(OUTPUT, "AFTER", watch, [name], f"output{number}")))
    lines = text.split("\n")
    body = [
        part
        for i, line in enumerate(lines)
        for part in (*(f"    {c}" for c in before.get(i, ())), line, *(f"    {c}" for c in after.get(i, ())))
    ]
    first = next(i for i, line in enumerate(body) if line.startswith("void AOTInductorModel::run_impl("))
    # At file scope, where the headers of AOTInductor's C interface are known and no namespace is open.
    opened = next(i for i in range(first, -1, -1) if body[i].startswith("namespace torch::aot_inductor"))
    recorder = Path(__file__).with_name("recorder.h").read_text(encoding="utf-8")
    return "\n".join([*body[:opened], recorder, _description(description), *body[opened:]])


def _guarded(calls: list[str] | Iterator[str]) -> str:
    return f"if (torchsan_call.log != nullptr) {{ {' '.join(calls)} }}"


def _launch(launch: Launch, phase: str) -> str:
    return f'torchsan_call.launch({launch.nth}, {_NAMESPACE}::{phase}, "{launch.kernel}");'


def _tensors(site: int, phase: str, watch: Watch, names: object, shown: str | None = None) -> list[str]:
    assert isinstance(names, list | tuple)
    start = f"torchsan_call.tensor({site}, {_NAMESPACE}::{phase}, {_NAMESPACE}::{_LEVELS[watch]}"
    return [f'{start}, "{shown or name}", {name});' for name in names]


def _numbers(launch: Launch) -> Iterator[str]:
    for argument in launch.arguments:
        if argument.base is None and argument.text.isidentifier():
            name = argument.text
            yield f'torchsan_call.number({launch.nth}, "{name}", static_cast<double>({name}));'


def _description(description: object) -> str:
    text = json.dumps(description)
    mark = f"torchsan{hashlib.sha256(text.encode()).hexdigest()[:7]}"
    # Compilers limit the length of one literal; neighbours are one text.
    pieces = [text[i : i + 8000] for i in range(0, len(text), 8000)]
    literals = "\n".join(f'    R"{mark}({piece}){mark}"' for piece in pieces)
    return f"static const char* const torchsan_program =\n{literals};\n"
