"""A candidate as a script: plain PyTorch, nothing from torchsan, unless its tensors stay in a store."""

from __future__ import annotations

import builtins
import keyword
import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsan.graphs.rebuild import dtype_named
from torchsan.records import Exhibit, Finding, Given
from torchsan.repro.script_assertions import ending
from torchsan.repro.values import Tensors, contiguous_stride, is_uniform, span

_MOST_INLINE = 32
_TAKEN = frozenset(["torch", "sys", "aten", "prims", "f", "inputs", "run", "data", "store", "load", *dir(builtins)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A text, and the one-dimensional tensors that it expects beside it: in a file, or in a store by their names."""

    text: str
    data: dict[str, torch.Tensor] = field(default_factory=dict)


def render(
    exhibit: Exhibit,
    finding: Finding,
    tensors: Tensors,
    title: str,
    loads: tuple[str, ...] = (),
    *,
    store: bool = False,
) -> Script:
    """Return the script that shows the finding and exits with 1 when it does. `loads` are modules to import first."""
    writer = _Writer(exhibit, tensors, store=store)
    end = ending(exhibit, finding)
    body = [*writer.function(), "", "", *writer.inputs(), "", ""]
    for i, call in enumerate(exhibit.earlier):
        body += [*writer.inputs(call, f"earlier{i}" if len(exhibit.earlier) > 1 else "earlier"), "", ""]
    modules = writer.imports | ({"sys"} if any("sys." in line for line in end.lines) else set())
    head = [f'"""{_docstring(title)}"""', *(f"import {m}" for m in sorted(modules))]
    head += ["import torch", *sorted(end.froms), *(f"import {m}" for m in writer.late_imports)]
    head += [f"import {m}  # registers the operators" for m in loads]
    settings = [f"torch._inductor.config.{k} = {v!r}" for k, v in sorted(exhibit.config.items())]
    if settings:
        head.append("import torch._inductor.config")
    if not exhibit.grad:
        settings.insert(0, "torch.set_grad_enabled(False)")
    libraries = sorted({n.op.split(".")[0] for n in exhibit.nodes} & {"aten", "prims"})
    names = [f"{name} = torch.ops.{name}" for name in libraries]
    lines = [*head, "", *names, *settings, *writer.preamble, "", "", *body, *end.lines]
    return Script(text="\n".join(lines) + "\n", data=writer.data)


def _docstring(text: str) -> str:
    """A text that cannot end the docstring it stands in, wherever it comes from."""
    return re.sub(r"[^\w .,:;()\[\]{}<>=+*/%\n`-]", " ", text)


class _Writer:
    def __init__(self, exhibit: Exhibit, tensors: Tensors, *, store: bool) -> None:
        self._exhibit = exhibit
        self._tensors = tensors
        self._store = store
        self._offset = 0
        self._names = _identifiers(exhibit)
        self.data: dict[str, torch.Tensor] = {}
        self.imports: set[str] = set()
        self.late_imports: list[str] = []
        self.preamble: list[str] = []

    def function(self) -> list[str]:
        """The function that is compiled."""
        lines = [f"def f({', '.join(self._names[g.name] for g in self._exhibit.inputs)}):"]
        for node in self._exhibit.nodes:
            words = [self._value(a) for a in node.args]
            words += [f"{k}={self._value(v)}" for k, v in node.kwargs.items()]
            name = self._names[node.name]
            if node.op == "getitem":
                lines.append(f"    {name} = {words[0]}[{words[1]}]")
                continue
            op = node.op if node.op.startswith(("aten.", "prims.")) else f"torch.ops.{node.op}"
            lines.append(f"    {name} = {op}({', '.join(words)})")
        outputs = [self._names[o] for o in self._exhibit.outputs]
        lines.append(f"    return {', '.join(outputs)}" if len(outputs) == 1 else f"    return [{', '.join(outputs)}]")
        return lines

    def inputs(self, call: tuple[Given, ...] | None = None, name: str = "inputs") -> list[str]:
        """A function that makes the arguments anew."""
        given = self._exhibit.inputs if call is None else call
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
        self.data[name] = memory
        if self._store:
            return self._loaded(name, memory, size)
        return self._from_file(memory, size)

    def _from_file(self, memory: torch.Tensor, size: tuple[int, ...]) -> str:
        if not self.preamble:
            self.imports |= {"math", "pathlib"}
            self.preamble = [
                'blob = bytearray(pathlib.Path(__file__).with_name("data.safetensors").read_bytes())',
                "",
                "",
                "def data(dtype, offset, size):  # safetensors: the length of a header, the header, the tensors",
                '    start = 8 + int.from_bytes(blob[:8], "little") + offset',
                "    values = torch.frombuffer(blob, dtype=dtype, count=math.prod(size), offset=start)",
                "    return values.reshape(size).clone()",
            ]
        expression = f"data({memory.dtype}, {self._offset}, {_tuple(size)})"
        self._offset += memory.numel() * memory.element_size()
        return expression

    def _loaded(self, name: str, memory: torch.Tensor, size: tuple[int, ...]) -> str:
        if not self.preamble:
            self.imports.add("pathlib")
            self.late_imports = ["torchsan"]
            self.preamble = [
                'store = torchsan.Store(pathlib.Path(__file__).with_name("tensors"))',
                "",
                "",
                "def load(name, size, stride, dtype):",
                "    with torchsan.loading_from(store):",
                '        return torch.ops.torchsan.load_tensor(name, size, stride, dtype=dtype, device="cpu")',
            ]
        text = f"load({name!r}, [{memory.numel()}], [1], {memory.dtype})"
        return text if size == (memory.numel(),) else f"{text}.reshape({_tuple(size)})"

    def _value(self, value: Any) -> str:
        match value:
            case {"node": str(name)}:
                return self._names[name]
            case {"dtype": str(name)}:
                return str(dtype_named(name))
            case {"device": str(name)}:
                return f"torch.device({name!r})"
            case {"layout": str()}:
                return "torch.strided"
            case {"memory_format": str(name)}:
                return str(getattr(torch, name)) if isinstance(getattr(torch, name, None), torch.memory_format) else ""
            case {"float": str(name)}:
                return f"float({name!r})"
            case {"complex": [real, imaginary]}:
                return f"complex({self._value(real)}, {self._value(imaginary)})"
            case list() | tuple():
                return f"[{', '.join(self._value(v) for v in value)}]"
            case _:
                return repr(value)


def _identifiers(exhibit: Exhibit) -> dict[str, str]:
    """A Python name for each value: its own where that is one, and nobody else's."""
    names: dict[str, str] = {}
    for old in [*(g.name for g in exhibit.inputs), *(n.name for n in exhibit.nodes)]:
        new = old
        while keyword.iskeyword(new) or new in _TAKEN or new in names.values() or new.startswith(("base", "earlier")):
            new = f"{new}_" if not new.startswith(("base", "earlier")) else f"x_{new}"
        names[old] = new
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


def default_fill(dtype: torch.dtype) -> str:
    """What stands in for values that nobody kept: an index is only safe when it is zero."""
    if dtype.is_floating_point or dtype.is_complex:
        return "randn 0"
    return "randint 0 2 0" if dtype is torch.bool else "full 0"


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
