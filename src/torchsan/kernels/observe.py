"""One call of the kernel beside the reference: everything that is wrong with it, as observations."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsan.kernels.arena import PATTERNS
from torchsan.kernels.inputs import Leaves, Trial
from torchsan.kernels.judging import Answer, Unjudged, Verdict
from torchsan.kernels.values import TIES
from torchsan.kernels.wire import Wire, unpack
from torchsan.records import Kind, SourceLine

_DELIBERATE = frozenset(
    "AssertionError ValueError NotImplementedError TypeError RuntimeError UnsupportedOperation".split()
)
"""What a kernel raises to say that it does not take these inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Something that is wrong. `exotic` if only for inputs that the example does not imply; `note` if no fault."""

    kind: Kind
    message: str
    trial: Trial
    buffer: str | None = None
    source: tuple[SourceLine, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    exotic: bool = False
    note: bool = False
    relative: float = float("inf")
    arithmetic: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A trial with its inputs and the reference's answer."""

    trial: Trial
    leaves: Leaves
    answer: Answer | Unjudged

    def text(self) -> str:
        """The inputs in words."""
        return "; ".join(_text(leaf) for leaf in self.leaves) + self._how()

    def _how(self) -> str:
        t = self.trial
        how = [] if t.given else [t.values] + ([t.layout] if t.layout != "as given" else [])
        return f" ({', '.join(how)}, seed {t.seed})" if how else f" (as given, seed {t.seed})"


def _text(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
    return repr(leaf)[:40]


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """What the kernel's process said of one call, with the tensors put together again."""

    values: dict[str, Any]
    outputs: list[Any]
    left: dict[int, torch.Tensor]

    @classmethod
    def of(cls, values: dict[str, Any], blobs: list[bytes]) -> Said:
        """Read a message. Raise ValueError if it makes no sense: the kernel may have written it."""
        rest = iter(blobs)
        outputs = [_read(o, rest) for o in values["outputs"]]
        left = {int(i): _read(o, rest) for i, o in values.get("left", {}).items()}
        return cls(values, outputs, left)

    @property
    def digests(self) -> list[Any]:
        """What its outputs were, in short."""
        return [o.get("digest", o.get("value")) for o in self.values["outputs"]] + [
            o.get("digest") for o in self.values.get("left", {}).values()
        ]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Its outputs, numbers as tensors; what it wrote if it returns nothing."""
        found = [o for o in self.outputs if isinstance(o, torch.Tensor)]
        return found or list(self.left.values())

    @property
    def returns_nothing(self) -> bool:
        """Whether its results are the arguments that it wrote."""
        return not any(isinstance(o, torch.Tensor) for o in self.outputs)


def _read(output: dict[str, Any], blobs: Iterator[bytes]) -> Any:
    if "wire" in output:
        return unpack(Wire(**output["wire"]), next(blobs))
    value = output.get("value")
    if output.get("type") == "float":
        return torch.tensor(float(str(value)), dtype=torch.float32)
    return torch.tensor(value) if isinstance(value, bool | int) else value


def observe(case: Case, said: Said, about: dict[str, Any], mutates: frozenset[int]) -> Iterator[Observation]:
    """Yield what one call shows: exceptions, memory, metadata, values."""
    trial = case.trial
    raised = said.values.get("raised")
    if raised is not None:
        yield _raised(case, raised, about)
        return
    yield from _memory(case, said)
    yield from _arguments(case, said, about, mutates)
    yield from _types(case, said)
    pairs, mismatch = _paired(case, said)
    if mismatch is not None:
        yield Observation(kind=Kind.METADATA_MISMATCH, message=mismatch, trial=trial, exotic=trial.exotic)
    for name, actual, buffer in pairs:
        yield from _compared(case, name, actual, buffer)


def _raised(case: Case, raised: dict[str, Any], about: dict[str, Any]) -> Observation:
    trial = case.trial
    plain = trial.given or (trial.sizes is None and trial.layout == "as given" and trial.values == "normal")
    plain = plain and not trial.scalars and trial.dtype is None
    line = SourceLine(file=raised["file"], line=raised["line"], code=_code(raised["file"], raised["line"]))
    said = f"{raised['type']}: {raised['text']}" if raised["text"] else raised["type"]
    return Observation(
        kind=Kind.WRONG_VALUES,
        message=f"it raises {said}, where the reference has a result",
        trial=trial,
        source=(line,) if raised["file"] else (),
        evidence={"raised": said},
        exotic=not plain,
        note=not plain and raised["type"] in _DELIBERATE,
    )


def _code(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()


def _memory(case: Case, said: Said) -> Iterator[Observation]:
    trial = case.trial
    for event in said.values.get("events", []):
        kind = Kind(event["kind"])
        if kind is Kind.UNINITIALIZED_READ:
            continue  # Whether it matters, runs with other patterns tell.
        yield Observation(
            kind=kind,
            message=f"{event['kernel']}: {event['text']}",
            trial=trial,
            buffer=event["tensor"],
            source=(SourceLine(file=event["file"], line=event["line"], code=event["code"]),) if event["file"] else (),
            exotic=trial.exotic,
            note=event["ordered"],
        )
    for name, itemsize, size, first, last in said.values["damages"]:
        side = "before" if last < 0 else "after"
        far = -first if last < 0 else last - size + 1
        message = f"it writes up to {-(-far // itemsize)} elements {side} {name}, which has {size // itemsize}"
        yield Observation(kind=Kind.OUT_OF_BOUNDS_WRITE, message=message, trial=trial, buffer=name, exotic=trial.exotic)


def _arguments(case: Case, said: Said, about: dict[str, Any], mutates: frozenset[int]) -> Iterator[Observation]:
    """Arguments that were changed, and results that are arguments or earlier results."""
    trial = case.trial
    inputs = _inputs(case)
    allowed = mutates | set(about["writes"]) | _outs(about)
    for n in said.values["written"]:
        i = inputs[n]
        if i in allowed or i in case.answer.written or said.returns_nothing:
            continue
        yield Observation(
            kind=Kind.UNDECLARED_MUTATION,
            message=f"it changes its argument {i}, which the reference leaves alone",
            trial=trial,
            buffer=f"input {i}",
            exotic=trial.exotic,
        )
    shared = {(o, i) for o, i in case.answer.results.aliases}
    for n, place in said.values["aliases"]:
        i = inputs[place]
        if (f"output {n}", f"input {i}") not in shared and i not in allowed and not about["shares"]:
            yield Observation(
                kind=Kind.UNDECLARED_ALIAS,
                message=f"its result {n} is memory of its argument {i}; the reference's is its own",
                trial=trial,
                buffer=f"output {n}",
                exotic=trial.exotic,
            )
    aliased = {n for n, _ in said.values["aliases"]}
    for n in said.values["again"]:
        if n not in aliased:
            yield Observation(
                kind=Kind.UNDECLARED_ALIAS,
                message=f"its result {n} is the memory of an earlier call's result, which is still in use",
                trial=trial,
                buffer=f"output {n}",
            )


def _inputs(case: Case) -> list[int]:
    """The leaves that are tensors, each tensor once: how the kernel's process counts them."""
    first: dict[int, int] = {}
    for i, leaf in enumerate(case.leaves):
        if isinstance(leaf, torch.Tensor):
            first.setdefault(id(leaf), i)
    return sorted(first.values())


def _outs(about: dict[str, Any]) -> set[int]:
    """Arguments that are there to be written, by PyTorch's convention."""
    return {i for i, name in enumerate(about["parameters"]) if name in ("out", "output", "outputs", "out_ptr")}


def _types(case: Case, said: Said) -> Iterator[Observation]:
    for n, output in enumerate(said.values["outputs"]):
        if "wire" in output and output["type"] != "tensor":
            yield Observation(
                kind=Kind.CHEAT,
                message=f"its result {n} is no plain tensor but a {output['type']}, which may compute later",
                trial=case.trial,
                buffer=f"output {n}",
            )
    for n in said.values.get("late", []):
        yield Observation(
            kind=Kind.CHEAT,
            message=f"its result {n} still changes after it has returned: another thread is at work",
            trial=case.trial,
            buffer=f"output {n}",
        )


def _paired(case: Case, said: Said) -> tuple[list[tuple[str, torch.Tensor, str]], str | None]:
    """Which tensor stands for which of the reference's; and what is wrong with their number, shapes and dtypes."""
    answer = case.answer
    pairs: list[tuple[str, torch.Tensor, str]] = []
    problem = None
    actual = said.tensors
    other = "its fake" if isinstance(answer, Unjudged) else "the reference"
    if answer.outputs and len(actual) != len(answer.outputs):
        return [], f"it returns {_count(len(actual))}, {other} {_count(len(answer.outputs))}"
    for n, (name, t) in enumerate(zip(answer.outputs, actual, strict=False)):
        own = answer.tensor(name)
        if t.shape != own.shape:
            problem = problem or f"its result {n} has the shape {list(t.shape)}, {other}'s {list(own.shape)}"
        elif t.dtype != own.dtype and not _precise_reference(t, own, case):
            problem = problem or f"its result {n} is {_dtype(t)}, {other}'s {_dtype(own)}"
        else:
            pairs.append((name, t, f"output {n}"))
    inputs = _inputs(case)
    for i, name in answer.written.items():
        left = said.left.get(inputs.index(i)) if i in inputs else None
        pairs.append((name, left if left is not None else case.leaves[i].detach(), f"input {i}"))
    return pairs, problem


def _precise_reference(actual: torch.Tensor, own: torch.Tensor, case: Case) -> bool:
    """Whether the dtypes differ because the reference computes in more precision than its inputs have.

    A Python number has no dtype at all.
    """
    given = {leaf.dtype for leaf in case.leaves if isinstance(leaf, torch.Tensor)}
    if actual.dim() == 0 and not (actual.dtype in given and own.dtype in given) and actual.numel() == 1:
        return actual.is_floating_point() == own.is_floating_point() and own.dtype not in (
            torch.float16,
            torch.bfloat16,
        )
    wider = own.is_floating_point() and actual.is_floating_point() and own.dtype.itemsize > actual.dtype.itemsize
    return wider and actual.dtype in given


def _compared(case: Case, name: str, actual: torch.Tensor, buffer: str) -> Iterator[Observation]:
    if not actual.numel():
        return
    verdict = case.answer.judged(name, actual)
    if verdict.right or verdict.bad is None:
        return
    trial = case.trial
    # Where the reference itself has no number, or equal elements leave a choice, nobody can say what is right.
    discrete = not actual.is_floating_point() and not actual.is_complex()
    exotic = (
        trial.exotic or not verdict.finite or (discrete and trial.values in TIES and actual.dtype is not torch.bool)
    )
    message, evidence = _difference(actual, verdict)
    yield Observation(
        kind=Kind.PRECISION_LOSS if verdict.arithmetic else Kind.WRONG_VALUES,
        message=f"{buffer} is wrong in {message}",
        trial=trial,
        buffer=buffer,
        evidence=evidence,
        exotic=exotic,
        relative=verdict.relative,
        arithmetic=verdict.arithmetic,
    )


def _difference(actual: torch.Tensor, verdict: Verdict) -> tuple[str, dict[str, Any]]:
    assert verdict.bad is not None
    assert verdict.expected is not None
    places = verdict.bad.nonzero()
    index = tuple(int(k) for k in places[0])
    got, expected = (t[index].item() for t in (actual, verdict.expected))
    count = int(verdict.bad.sum())
    evidence: dict[str, Any] = {
        "bad": count,
        "of": actual.numel(),
        "first": list(index),
        "value": got,
        "expected": expected,
        "relative error": verdict.relative,
    }
    if verdict.width is not None and verdict.width.shape == actual.shape:
        evidence["rounding explains"] = float(verdict.width[index].abs())
    where = f" at {list(index)}" if index else ""
    return f"{count} of {actual.numel()} elements{where}: {_number(got)} for {_number(expected)}", evidence


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def unwritten(said: Said, other: Said) -> Iterator[tuple[int, int, int]]:
    """Yield the outputs with elements that hold what empty memory held in both runs: number, elements, of how many."""
    for n, (a, b) in enumerate(zip(said.tensors, other.tensors, strict=False)):
        if a.shape != b.shape or a.dtype != b.dtype or not a.numel():
            continue
        size = a.element_size()
        one, two = (t.contiguous().reshape(-1).view(torch.uint8).reshape(-1, size) for t in (a, b))
        never = (one == PATTERNS["nan"]).all(1) & (two == PATTERNS["number"]).all(1)
        if bool(never.any()):
            yield n, int(never.sum()), a.numel()


_FAR = 1e-3


def apart(one: Said, two: Said) -> bool:
    """Whether results differ by more than any order of computing them explains."""
    pairs = list(zip(one.tensors, two.tensors, strict=False))
    return len(one.tensors) != len(two.tensors) or any(
        a.shape != b.shape
        or not torch.allclose(a.double(), b.double(), rtol=_FAR, atol=_FAR * _size(a), equal_nan=True)
        for a, b in pairs
        if not a.is_complex()
    )


def _size(t: torch.Tensor) -> float:
    finite = t[torch.isfinite(t)].abs()
    return float(finite.max()) if finite.numel() else 1.0


def _wide(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


def _count(n: int) -> str:
    return f"{n} tensor" if n == 1 else f"{n} tensors"


def _dtype(t: torch.Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")
