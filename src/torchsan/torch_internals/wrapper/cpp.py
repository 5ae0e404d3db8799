"""An AOTInductor wrapper as data: what its C++ launches, and where each launch stands in the text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torchsan.records import KernelKind
from torchsan.torch_internals.wrapper.model import Alias, Allocate, Argument, Function, Launch, Step

_BEGIN = "void AOTInductorModel::run_impl("
_END = "} // AOTInductorModel::run_impl"
_DECLARED = re.compile(r'extern "C"\s+void\s+(\w+)\(([^)]*)\);')
_INPUT = re.compile(r"\s*auto (\w+) = std::move\(inputs\[\d+\]\);")
_CONSTANT = re.compile(r"\s*(?:\[\[maybe_unused\]\] )?auto& (\w+) = constants_->at\(\d+\);")
_OWNED = re.compile(r"\s*RAIIAtenTensorHandle (\w+)\((\w+)\);")
_REUSED = re.compile(r"\s*auto (\w+) = std::move\((\w+)\);")
_WRAPPED = re.compile(r"\s*(?:auto|RAIIAtenTensorHandle) (\w+) = wrap_with_raii_handle_if_needed\((.*)\);")
_OUTPUT = re.compile(r"\s*output_handles\[(\d+)\] = (\w+)\.release\(\);")
_FUSED = re.compile(r"\s*(?:kernels\.)?(\w+)\((.*)\);\s*$", re.DOTALL)
_SHIM = re.compile(
    r"\s*AOTI_TORCH_ERROR_CODE_CHECK\((aoti_torch_(?:(?:cpu|cuda|xpu|mps)_\w+|proxy_executor_call_function))\((.*)\)\);\s*$",
    re.DOTALL,
)
_NEW = re.compile(r"&(\w+)_handle\b")
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One launch: the line before which it begins, and the one after which its results have their names."""

    launch: Launch
    begins: int
    ends: int


@dataclass(slots=True)
class Wrapper:
    """`entered` is the line after which the inputs have their names; `outputs` are lines that give a variable away.

    `first` and `last` are the lines of the function that runs the model.
    """

    inputs: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[tuple[int, int, str]] = field(default_factory=list)
    """Line, number and variable."""
    entered: int = -1
    first: int = 0
    last: int = 0
    text: str = ""
    """All that this was read from: read again, it gives the same."""
    unread: list[str] = field(default_factory=list)
    """Statements that may launch something and were not understood."""

    def function(self) -> Function:
        """Return the function as the model of a Python wrapper has it, in lines that count from 1."""
        results = [name for _, _, name in sorted(self.outputs, key=lambda o: o[1])]
        reads = [
            ast.Expr(value=_names(step.operands if isinstance(step, Launch) else [step.source], step.line))
            for step in self.steps
            if isinstance(step, Launch | Alias)
        ]
        # The model asks a function's body only where names are read and which are returned.
        node = ast.FunctionDef(
            name="call",
            args=ast.arguments(posonlyargs=[], args=[ast.arg(arg="args")], kwonlyargs=[], kw_defaults=[], defaults=[]),
            body=[*reads, ast.Return(value=_names(results, self.last + 1))],
            decorator_list=[],
            lineno=self.first + 1,
        )
        inputs = (*self.inputs, *self.constants)
        return Function(name="call", method=False, inputs=inputs, steps=tuple(self.steps), node=node)


def _names(names: Iterable[str], line: int) -> ast.Tuple:
    elements: list[ast.expr] = [ast.Name(id=n, ctx=ast.Load(), lineno=line, col_offset=0) for n in names]
    return ast.Tuple(elts=elements, ctx=ast.Load(), lineno=line, col_offset=0)


def read_wrapper(text: str) -> Wrapper | None:
    """Return what the wrapper does; None if `text` is no wrapper of a model."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.startswith(_BEGIN)), None)
    end = next((i for i, line in enumerate(lines) if line.startswith(_END)), None)
    if start is None or end is None:
        return None
    declared = list(_DECLARED.finditer(text))
    reader = _Reader({match[1]: _parameters(match[2]) for match in declared})
    reader.wrapper.first, reader.wrapper.last = start, end
    reader.wrapper.text = "\n".join([*(match[0] for match in declared), *lines[start : end + 1]])
    for first, last, statement in _statements(lines, start, end):
        reader.read(first, last, statement)
    reader.wrapper.sites.sort(key=lambda site: site.begins)
    return reader.wrapper


def _statements(lines: list[str], start: int, end: int) -> Iterator[tuple[int, int, str]]:
    """Each statement with its first and last line; most are one line long."""
    first, depth, parts = start, 0, list[str]()
    for i in range(start, end):
        line = lines[i].split("//")[0] if '"' not in lines[i] else lines[i]
        if not parts:
            first = i
        parts.append(line)
        depth += line.count("(") - line.count(")")
        if depth <= 0:
            yield first, i, "\n".join(parts)
            parts, depth = [], 0


def _parameters(text: str) -> list[tuple[bool, bool] | None]:
    """For each parameter of a kernel whether it is read and whether it is written; None for a number."""
    found: list[tuple[bool, bool] | None] = []
    for parameter in text.split(","):
        name = parameter.split()[-1].lstrip("*") if parameter.split() else ""
        if "*" not in parameter:
            found.append(None)
        elif name.startswith("in_out"):
            found.append((True, True))
        else:
            found.append((False, True) if name.startswith("out") else (True, "const" not in parameter))
    return found


class _Reader:
    def __init__(self, declared: dict[str, list[tuple[bool, bool] | None]]) -> None:
        self.wrapper = Wrapper()
        self._declared = declared
        self._tensors: set[str] = set()
        self._waiting: list[tuple[Launch, int, set[str]]] = []

    def read(self, first: int, last: int, text: str) -> None:
        wrapper = self.wrapper
        if match := _INPUT.match(text):
            wrapper.inputs.append(match[1])
            self._tensors.add(match[1])
        elif match := _CONSTANT.match(text):
            wrapper.constants.append(match[1])
            self._tensors.add(match[1])
        elif text.strip() == "inputs.clear();":
            wrapper.entered = last
        elif match := _OWNED.match(text):
            self._tensors.add(match[1])
            self._owned(match[1], last)
        elif match := _REUSED.match(text):
            self._tensors.add(match[1])
            wrapper.steps.append(Alias(name=match[1], source=match[2], line=last + 1, reused=True))
        elif match := _WRAPPED.match(text):
            source = self._first_tensor(match[2])
            self._tensors.add(match[1])
            if source is not None:
                wrapper.steps.append(Alias(name=match[1], source=source, line=last + 1, reused=False))
        elif match := _OUTPUT.match(text):
            wrapper.outputs.append((first, int(match[1]), match[2]))
        elif match := _SHIM.match(text):
            self._shim(match[1], _split(match[2]), first, last)
        elif (match := _FUSED.match(text)) and match[1] in self._declared:
            self._fused(match[1], _split(match[2]), first, last)
        elif "launchKernel" in text or re.match(r"\s*(kernels\.|call_)\w+\(", text):
            wrapper.unread.append(text.strip()[:200])

    def _first_tensor(self, text: str) -> str | None:
        return next((word for word in _WORD.findall(text) if word in self._tensors), None)

    def _fused(self, kernel: str, arguments: list[str], first: int, last: int) -> None:
        found = []
        for text, use in zip(arguments, self._declared[kernel], strict=False):
            read, written = use or (False, False)
            base = self._first_tensor(text) if use is not None else None
            found.append(Argument(text=text, base=base, read=read, written=written))
        self._launched(kernel, KernelKind.FUSED, found, first, last, set())

    def _shim(self, shim: str, arguments: list[str], first: int, last: int) -> None:
        out, in_place = shim.endswith("_out"), shim.endswith("_")
        new = [name for text in arguments for name in _NEW.findall(text)]
        found = []
        for i, text in enumerate(arguments):
            for base in dict.fromkeys(word for word in _WORD.findall(text) if word in self._tensors):
                written = i == 0 and (out or in_place)
                found.append(Argument(text=text, base=base, read=not (written and out), written=written))
        found += [Argument(text=f"&{name}_handle", base=name, read=False, written=True) for name in new]
        kind = KernelKind.LIBRARY if out else KernelKind.FALLBACK
        self._launched(shim, kind, found, first, last, set(new))

    def _launched(
        self, kernel: str, kind: KernelKind, arguments: list[Argument], first: int, last: int, new: set[str]
    ) -> None:
        nth = len(self.wrapper.sites) + len(self._waiting)
        launch = Launch(nth=nth, kernel=kernel, kind=kind, arguments=tuple(arguments), result=None, line=first + 1)
        self.wrapper.steps.append(launch)
        if new:
            self._waiting.append((launch, first, new))
        else:
            self.wrapper.sites.append(Site(launch=launch, begins=first, ends=last))

    def _owned(self, name: str, line: int) -> None:
        """A handle has become a variable: the result of the launch before it, or new memory."""
        for entry in self._waiting:
            launch, first, new = entry
            if name in new:
                new.discard(name)
                if not new:
                    self._waiting.remove(entry)
                    self.wrapper.sites.append(Site(launch=launch, begins=first, ends=line))
                return
        self.wrapper.steps.append(Allocate(name=name, line=line + 1))


def _split(text: str) -> list[str]:
    """The arguments of a call, at the commas that stand in no bracket."""
    parts, depth, part = [], 0, ""
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return [*parts, part.strip()] if part.strip() or parts else []
