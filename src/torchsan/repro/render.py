"""A candidate as a script: plain PyTorch, nothing from torchsan unless its tensors stay in a store; and its README."""

from __future__ import annotations

import builtins
import keyword
import math
import re
from dataclasses import dataclass
from typing import Any

import torch

from torchsan._version import __version__
from torchsan.checks import REGISTRY, Reproduction
from torchsan.errors import RecordingError
from torchsan.graphs.rebuild import argument, dtype_named
from torchsan.recording import Manifest
from torchsan.records import Exhibit, Finding, Given
from torchsan.report.findings import clean, count, visible
from torchsan.report.markdown import as_code, as_text, fenced
from torchsan.repro.script_assertions import assertions, shows_by_itself
from torchsan.repro.trials import Verdict
from torchsan.repro.values import Tensors, contiguous_stride, default_fill, is_uniform, span

_MOST_INLINE = 32
_MOST_OUTPUT = 3000
_TAKEN = frozenset(["torch", "sys", "aten", "prims", "f", "inputs", "run", "data", "store", "load", *dir(builtins)])


_FROM_FILE = """\
blob = bytearray(pathlib.Path(__file__).with_name("data.safetensors").read_bytes())


def data(dtype, offset, size):  # safetensors: the length of a header, the header, the tensors
    start = 8 + int.from_bytes(blob[:8], "little") + offset
    values = torch.frombuffer(blob, dtype=dtype, count=math.prod(size), offset=start)
    return values.reshape(size).clone()
"""
_FROM_STORE = """\
store = torchsan.Store(pathlib.Path(__file__).with_name("tensors"))


def load(name, size, stride, dtype):
    with torchsan.loading_from(store):
        return torch.ops.torchsan.load_tensor(name, size, stride, dtype=dtype, device="cpu")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A text, and the one-dimensional tensors that it expects beside it: in a file, or in a store by their names."""

    text: str
    data: dict[str, torch.Tensor]


def render(
    exhibit: Exhibit, finding: Finding, tensors: Tensors, loads: tuple[str, ...] = (), *, store: bool = False
) -> Script:
    """Return the script that shows the finding and exits with 1 when it does. `loads` are modules to import first."""
    writer = _Writer(exhibit, tensors, store=store)
    body = [*writer.function(), "", "", *writer.inputs(exhibit.inputs, "inputs"), "", ""]
    for i, call in enumerate(exhibit.earlier):
        body += [*writer.inputs(call, f"earlier{i}" if len(exhibit.earlier) > 1 else "earlier"), "", ""]
    end, imports = assertions(exhibit, finding)
    libraries = sorted({n.op.split(".")[0] for n in exhibit.nodes} & {"aten", "prims"})
    names = [f"{name} = torch.ops.{name}" for name in libraries]
    if not exhibit.grad:
        names.append("torch.set_grad_enabled(False)")
    names += [f"torch._inductor.config.{k} = {v!r}" for k, v in sorted(exhibit.config.items())]
    if writer.data:
        names += (_FROM_STORE if store else _FROM_FILE).splitlines()
    lines = [*names, "", "", *body, *end]
    modules = [m for m in ("math", "pathlib", "sys") if any(f"{m}." in line for line in lines)]
    head = [f'"""{_docstring(title(finding, exhibit))}"""', *(f"import {m}" for m in modules)]
    head += ["import torch", *imports, *(["import torchsan"] if writer.data and store else [])]
    head += [f"import {m}  # registers the operators" for m in loads]
    if exhibit.config:
        head.append("import torch._inductor.config")
    return Script(text="\n".join([*head, "", *lines, ""]), data=writer.data)


def _docstring(text: str) -> str:
    """A text that cannot end the docstring it stands in, wherever it comes from."""
    return re.sub(r"[^\w .,:;()\[\]{}<>=+*/%\n`-]", " ", text)


class _Writer:
    """`data` are the tensors that are too large to stand in the text."""

    def __init__(self, exhibit: Exhibit, tensors: Tensors, *, store: bool) -> None:
        self.data: dict[str, torch.Tensor] = {}
        self._exhibit = exhibit
        self._tensors = tensors
        self._store = store
        self._names = _identifiers(exhibit)

    def function(self) -> list[str]:
        """The function that is compiled."""
        lines = [f"def f({', '.join(self._names[g.name] for g in self._exhibit.inputs)}):"]
        for node in self._exhibit.nodes:
            words = [_expression(argument(a, self._names)) for a in node.args]
            words += [f"{k}={_expression(argument(v, self._names))}" for k, v in node.kwargs.items()]
            name = self._names[node.name]
            if node.op == "getitem":
                lines.append(f"    {name} = {words[0]}[{words[1]}]")
                continue
            op = node.op if node.op.startswith(("aten.", "prims.")) else f"torch.ops.{node.op}"
            lines.append(f"    {name} = {op}({', '.join(words)})")
        outputs = [self._names[o] for o in self._exhibit.outputs]
        lines.append(f"    return {', '.join(outputs)}" if len(outputs) == 1 else f"    return [{', '.join(outputs)}]")
        return lines

    def inputs(self, given: tuple[Given, ...], name: str) -> list[str]:
        """A function of this name that makes the arguments anew."""
        lines = [f"def {name}():"]
        if any((g.fill or "").startswith("rand") for g in given):
            lines.append("    torch.manual_seed(0)")
        bases: dict[str, str] = {}
        for g in given:
            if g.base is not None and g.base not in bases:
                bases[g.base] = f"base{len(bases)}"
                whole = max(o.offset + span(o.size, o.stride) for o in given if o.base == g.base)
                memory = self._tensors.memory(g)
                whole = max(whole, memory.numel() if memory is not None else 0)
                lines.append(f"    {bases[g.base]} = {self._memory(g, f'{name}_{g.base}', memory, (whole,))}")
            expression = self._tensor(g, name, bases)
            lines.append(f"    {self._names[g.name]} = {expression}{'.requires_grad_()' if g.requires_grad else ''}")
        lines.append(f"    return [{', '.join(self._names[g.name] for g in given)}]")
        return lines

    def _tensor(self, g: Given, call: str, bases: dict[str, str]) -> str:
        if g.base is not None:
            offset = f", {g.offset}" if g.offset else ""
            return f"{bases[g.base]}.as_strided({_tuple(g.size)}, {_tuple(g.stride)}{offset})"
        memory = self._tensors.memory(g)
        name = g.name if call == "inputs" else f"{call}_{g.name}"
        if _plain_layout(g):
            return self._memory(g, name, memory, g.size)
        flat = self._memory(g, name, memory, (span(g.size, g.stride),))
        return f"{flat}.as_strided({_tuple(g.size)}, {_tuple(g.stride)})"

    def _memory(self, g: Given, name: str, memory: torch.Tensor | None, size: tuple[int, ...]) -> str:
        """An expression for all the elements, in the given size."""
        dtype = dtype_named(g.dtype)
        kind = "" if dtype is torch.float32 else f", dtype={dtype}"
        if memory is None:
            return _made_up(g, size, kind)
        if is_uniform(memory):
            first = memory[0].item() if memory.numel() else 0
            return f"torch.full({_tuple(size)}, {_number(first, dtype)}, dtype={dtype})"
        if memory.numel() <= _MOST_INLINE:
            values = _numbers(memory.reshape(size))
            return f"torch.tensor({values}{kind or f', dtype={dtype}'})"
        offset = sum(t.numel() * t.element_size() for t in self.data.values())
        self.data[name] = memory
        if not self._store:
            return f"data({memory.dtype}, {offset}, {_tuple(size)})"
        text = f"load({name!r}, [{memory.numel()}], [1], {memory.dtype})"
        return text if size == (memory.numel(),) else f"{text}.reshape({_tuple(size)})"


class _Name(str):
    """The name of a variable, among values."""


def _expression(value: Any) -> str:
    """An argument of an operator as Python."""
    match value:
        case _Name():
            return value
        case torch.device():
            return f"torch.device({str(value)!r})"
        case list():
            return f"[{', '.join(map(_expression, value))}]"
        case float() | complex():
            return _number(value)
        case None | bool() | int() | str() | torch.dtype() | torch.layout() | torch.memory_format():
            return repr(value)
    raise RecordingError(f"malformed exhibit: {value!r:.100} is no argument of an operator", slug="malformed-record")


def _identifiers(exhibit: Exhibit) -> dict[str, _Name]:
    """A Python name for each value: its own where that is one, and nobody else's."""
    names: dict[str, _Name] = {}
    for old in [*(g.name for g in exhibit.inputs), *(n.name for n in exhibit.nodes)]:
        new = old
        while keyword.iskeyword(new) or new in _TAKEN or new in names.values() or new.startswith(("base", "earlier")):
            new = f"{new}_" if not new.startswith(("base", "earlier")) else f"x_{new}"
        names[old] = _Name(new)
    return names


def _plain_layout(g: Given) -> bool:
    expected = contiguous_stride(g.size)
    return all(n == 1 or s == e for n, s, e in zip(g.size, g.stride, expected, strict=True))


def _made_up(g: Given, size: tuple[int, ...], kind: str) -> str:
    dtype = dtype_named(g.dtype)
    words = (g.fill or default_fill(dtype)).split()
    if words[0] == "full":
        return f"torch.full({_tuple(size)}, {_number(_parsed(words[1], dtype))}, dtype={dtype})"
    if words[0] == "randint":
        return f"torch.randint({int(words[1])}, {int(words[2])}, {_tuple(size)}, dtype={dtype})"
    if dtype.itemsize == 1:
        return f"torch.randn({_tuple(size)}).to({dtype})"
    return f"torch.randn({_tuple(size)}{kind})"


def _parsed(text: str, dtype: torch.dtype) -> bool | int | float:
    if dtype is torch.bool:
        return text == "True"
    return float(text) if dtype.is_floating_point or dtype.is_complex else int(text)


def _tuple(size: tuple[int, ...]) -> str:
    return f"({size[0]},)" if len(size) == 1 else f"({', '.join(map(str, size))})"


def _numbers(t: torch.Tensor) -> str:
    if t.dim() == 0:
        return _number(t.item(), t.dtype)
    return f"[{', '.join(_numbers(row) for row in t)}]"


def _number(value: Any, dtype: torch.dtype = torch.float64) -> str:
    if isinstance(value, complex):
        return f"complex({_number(value.real)}, {_number(value.imag)})"
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"float('{value}')"
        text = next((s for p in (6, 9, 17) if _same(s := f"{value:.{p}g}", value, dtype)), repr(value))
        return text if re.search(r"[.e]", text) else f"{text}.0"  # `-0` is no float.
    return repr(value)


def _same(text: str, value: float, dtype: torch.dtype) -> bool:
    narrow = dtype if dtype.is_floating_point else torch.float64
    return bool(torch.tensor(float(text), dtype=torch.float64).to(narrow).double() == value)


def title(finding: Finding, exhibit: Exhibit) -> str:
    """What is wrong, in a line: with those of the blamed operators that the script still has."""
    left = {n.op for n in exhibit.nodes}
    ops = [op for op in finding.ops if op in left] or finding.ops
    where = ", ".join(ops[:4]) or (finding.pass_ or str(finding.stage))
    return f"{finding.kind} ({finding.stage}): {where}"


def readme(
    exhibit: Exhibit, finding: Finding, manifest: Manifest, verdict: Verdict, script: str, loads: tuple[str, ...]
) -> str:
    """Return README.md of a reproducer. What the recording says is text in it, and no markup."""
    shown = verdict.same or finding
    evidence = shown.evidence
    message = "\n".join(as_text(line) for line in shown.message.splitlines())
    parts = [f"# {as_text(title(finding, exhibit))}", _verified(verdict), "## What is wrong", message]
    if {"compiled", "eager"} <= set(evidence):
        parts += [
            f"Expected (eager): {as_code(evidence['eager'])}",
            f"Actual (compiled): {as_code(evidence['compiled'])}",
        ]
    if isinstance(evidence.get("text"), list) and evidence["text"]:
        parts.append(fenced("text", "\n".join(map(clean, evidence["text"]))))
    how = "python repro.py          # fails" if verdict else "python repro.py"
    if not verdict and not loads:
        parts.append(LOAD_HINT)
    if verdict and REGISTRY[finding.check].reproduction is Reproduction.COMPILED:
        how += "\npython repro.py eager    # passes: nothing is compiled"
    if not shows_by_itself(finding):
        how = f"torchsan run --check {finding.check} repro.py"
        how += "    # PyTorch alone does not notice" if verdict else ""
    parts += ["## How to run", fenced("sh", how)]
    if loads:
        parts.append(f"It needs {', '.join(loads)}, beside it or installed: the module that registers the operators.")
    parts.append(fenced("python", script))
    if verdict.output:
        tail = verdict.output[-_MOST_OUTPUT:]
        if len(tail) < len(verdict.output):  # From the beginning of a line on.
            tail = f"…\n{tail.partition(chr(10))[2]}"
        parts += ["What it prints:", fenced("text", visible(tail))]
    places = {"kernel": finding.kernel, "graph pass": finding.pass_, "stage": finding.stage}
    calls = count(len(exhibit.nodes), "operator call")
    origin = [
        f"{calls}, cut out of {finding.id} of a run of {as_code(' '.join(manifest.command))}",
        ", ".join(f"{what} {as_code(name)}" for what, name in places.items() if name is not None),
        as_text(f"PyTorch {manifest.torch}, Python {manifest.python}, torchsan {__version__}, {manifest.platform}"),
        *map(as_text, exhibit.notes),
    ]
    parts += ["## Where it comes from", "\n".join(f"- {line}" for line in origin)]
    return "\n\n".join(parts) + "\n"


LOAD_HINT = (
    "If the program changes PyTorch itself, or registers operators, name the module that does: "
    "`torchsan repro --load MODULE RECORDING`."
)


def _verified(verdict: Verdict) -> str:
    facts = [
        (
            verdict.same is not None,
            "run in a fresh process, in another folder, torchsan makes the same finding",
            "run in a fresh process, torchsan does not make the same finding",
        ),
        (verdict.alone, "`python repro.py` fails", "`python repro.py` does not fail"),
        (verdict.eager, "it passes with eager", "it does not pass with eager either"),
    ]
    if verdict:
        return f"**Verified**: {'; '.join(yes for fact, yes, _ in facts if fact)}."
    why = "; ".join(no for fact, _, no in facts if fact is False)
    return f"**Not verified**: it does not reproduce by itself: {why}."
