"""One operator checked by itself, in every way: eagerly, functionalised, compiled, and against its decomposition."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from torchsan.checks.metadata.compare import Difference, compare_results, leaves
from torchsan.checks.metadata.exhibit import render_call
from torchsan.checks.metadata.findings import Place, mismatch
from torchsan.checks.metadata.nodes import private_copy
from torchsan.errors import in_one_line
from torchsan.recording import Recorder
from torchsan.records import Coverage, Finding, Severity, Stage
from torchsan.reference.arithmetic import widened
from torchsan.torch_internals.fakes import CannotFakeError, run_fake
from torchsan.torch_internals.operators import decomposition, map_tensors, random_kept, tensors_in, undisturbed

Sample = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the named arguments of one call."""

_TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "a matrix": lambda: _filled(4, 6),
    "a square": lambda: _filled(4, 4),
    "transposed": lambda: _filled(6, 4).t(),
    "a slice, with an offset": lambda: _filled(6, 8)[1:5, 2:8],
    "a vector": lambda: _filled(5),
    "four dimensions": lambda: _filled(2, 3, 4, 4),
    "channels last": lambda: _filled(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "one element": lambda: _filled(1, 1),
    "no elements": lambda: _filled(0, 3),
    "a scalar": lambda: _filled().reshape(()),
    "with a gradient": lambda: _filled(4, 6).requires_grad_(),
    "bfloat16": lambda: _filled(4, 6).to(torch.bfloat16),
    "float64": lambda: _filled(4, 6).double(),
    "int64": lambda: torch.arange(24).reshape(4, 6) % 4,
    "bool": lambda: (torch.arange(24).reshape(4, 6) % 2).bool(),
    "complex64": lambda: torch.complex(_filled(4, 6), _filled(4, 6)),
}


def _filled(*size: int) -> torch.Tensor:
    count = max(1, int(torch.tensor(size).prod())) if 0 not in size else 0
    return (torch.arange(count, dtype=torch.float32) / 7 - 1.3).reshape(size)


def generated_samples(overload: Any) -> Iterator[tuple[str, Sample]]:
    """Name and arguments of calls to try; which of them the operator takes, it says itself.

    All tensors of a call are alike. What has a default keeps it. Nothing is yielded for an argument that cannot be
    made up, such as an object.
    """
    for name, make in _TENSORS.items():
        try:
            values = [(a, _value(a, make)) for a in overload._schema.arguments if not a.has_default_value()]
        except ValueError:
            return
        args = tuple(v for a, v in values if not a.kwarg_only)
        yield name, (args, {a.name: v for a, v in values if a.kwarg_only})
        if not any("Tensor" in str(a.type) for a, _ in values):
            return


def _value(argument: Any, make: Callable[[], torch.Tensor]) -> Any:
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
    simple: dict[str, Any] = {
        "int": 1,
        "SymInt": 1,
        "float": 0.5,
        "bool": True,
        "str": "",
        "number": 2,
        "Scalar": 2,
        "Device": torch.device("cpu"),
        "ScalarType": torch.float32,
        "Layout": torch.strided,
    }
    if kind == "Tensor":
        return make()
    if kind in simple:
        return simple[kind]
    if kind.startswith(("List[Tensor", "List[Optional[Tensor")):
        return [make(), make()]
    if kind.startswith("List["):
        return [simple[kind[5:].rstrip("]")]] * 2 if kind[5:].rstrip("]") in simple else []
    raise ValueError(f"no value for {argument.type}")


_FIELDS = frozenset({"size", "dtype", "stride", "layout"})


def check_decomposition(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Difference] | None:
    """Return where the decomposition differs; None if there is none, or it cannot be compared for these arguments."""
    function = decomposition(overload)
    if function is None or overload._schema.is_mutable:
        return None
    with undisturbed(), random_kept():
        try:
            expected = overload(*args, **kwargs)
            found = compare_results(expected, run_fake(overload, args, kwargs, instead=function).result, fields=_FIELDS)
            if found or _random(overload):
                return found
            return _values(overload, function, args, kwargs)
        except (CannotFakeError, RuntimeError, NotImplementedError, IndexError, ValueError, TypeError):
            return None


def _random(overload: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in overload.tags or "empty" in str(overload)


def _values(overload: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Difference]:
    exact_args, exact_kwargs = map_tensors(lambda t: widened(t.detach()), (args, kwargs))
    expected = overload(*exact_args, **exact_kwargs)
    actual = function(*exact_args, **exact_kwargs)
    if actual is NotImplemented:
        return []
    found = []
    for (path, a), (_, b) in zip(leaves(expected), leaves(actual), strict=True):
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            continue
        if a.shape == b.shape and not torch.allclose(_double(a), _double(b), rtol=1e-7, atol=1e-9, equal_nan=True):
            worst = int((_double(a) - _double(b)).abs().nan_to_num(torch.inf).argmax())
            sides = (str(t.flatten()[worst].item()) for t in (a, b))
            found.append(Difference(what=f"output{path}", field="value", real=next(sides), believed=next(sides)))
    return found


def _double(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.complex128 if t.is_complex() else torch.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was found out about an operator. `ways` maps a way of running it to `ok`, findings in short, or why not."""

    operator: str
    samples: int
    ways: dict[str, str]
    findings: tuple[Finding, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """`error`, `warning` or `note` if there is one, `ok` if not, `not checked` if no call worked."""
        for severity in (Severity.ERROR, Severity.WARNING, Severity.NOTE):
            if any(f.severity is severity for f in self.findings):
                return str(severity)
        return "ok" if self.samples else "not checked"


class Watched(Protocol):
    """What watching a call gives, as `torchsan.crossref()` does."""

    @property
    def findings(self) -> tuple[Finding, ...]: ...

    @property
    def coverage(self) -> Coverage: ...


Watch = Callable[[], AbstractContextManager[Watched]]
Referee = Callable[[list[Sample]], tuple[str, list[Finding], list[str]]]
"""From samples that an operator takes: the outcome in short, what was found, and what could not be said."""


def check_operator(
    overload: Any,
    given: Iterable[Sample] | None = None,
    *,
    watch: Watch,
    compiled: bool = True,
    referee: Referee | None = None,
) -> Result:
    """Check an operator on the samples given, or on generated ones that it takes; `watch` is `torchsan.crossref`.

    What `referee` finds is added, unless something of that kind was found before.
    """
    samples = list(given) if given is not None else [s for _, s in generated_samples(overload)]
    usable, why = _usable(overload, samples)
    if not usable:
        return Result(operator=str(overload), samples=0, ways={}, skipped=(why,))
    ways: dict[str, str] = {}
    findings: list[Finding] = []
    skipped: list[str] = []
    attempts: dict[str, Callable[[], None]] = {
        "eager": lambda: _each(usable, overload),
        "functionalized": lambda: _each(usable, _functionalized(overload)),
    }
    if compiled:
        attempts["compiled"] = lambda: _each(usable[:1], torch.compile(lambda *a, **k: overload(*a, **k)))
    for way, attempt in attempts.items():
        new, missed, failure = _watched(watch, overload, attempt)
        known = {(f.kind, str(f.evidence["differences"])) for f in findings}
        findings += [f for f in new if (f.kind, str(f.evidence["differences"])) not in known]
        skipped += missed
        ways[way] = ", ".join(sorted({str(f.kind) for f in new})) or (failure or "ok")
    ways["decomposition"] = _decomposition(overload, usable, findings)
    if referee is not None:
        ways["kernel"], new, missed = referee(usable)
        findings += [f for f in new if f.kind not in {known.kind for known in findings}]
        skipped += missed
    return Result(
        operator=str(overload),
        samples=len(usable),
        ways=ways,
        findings=tuple(findings),
        skipped=tuple(dict.fromkeys(skipped)),
    )


def _usable(overload: Any, samples: list[Sample]) -> tuple[list[Sample], str]:
    """The samples that the operator takes, and what it said to the others."""
    usable, why = [], "no sample could be made from its schema"
    for sample in samples:
        args, kwargs = private_copy(sample)  # One way of running must not disturb the next.
        try:
            overload(*args, **kwargs)
            usable.append(sample)
        except Exception as e:  # noqa: BLE001  # what an operator does not take, it may refuse as it likes
            why = f"it takes no sample that could be made; the last failed with {type(e).__name__}: {e}"[:200]
    return usable, why


def _watched(watch: Watch, overload: Any, attempt: Callable[[], None]) -> tuple[list[Finding], list[str], str]:
    failure = ""
    with watch() as run, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            attempt()
        except Exception as e:  # noqa: BLE001  # that a way fails is what is to be said of it
            failure = f"failed: {in_one_line(e)}"
    name = str(overload)
    missed = [f"{s.what}: {s.reason}" for s in run.coverage.skipped if name in s.what]
    return [f for f in run.findings if name in f.ops], missed, failure


def _each(samples: list[Sample], call: Callable[..., Any]) -> None:
    for sample in samples:
        args, kwargs = private_copy(sample)
        call(*args, **kwargs)


def _functionalized(overload: Any) -> Callable[..., Any]:
    def functionalized(*args: Any, **kwargs: Any) -> Any:
        tensors = list(tensors_in((args, kwargs)))

        def call(*inner: torch.Tensor) -> Any:
            rest = iter(inner)
            a, k = map_tensors(lambda _: next(rest), (args, kwargs))
            return overload(*a, **k)

        return torch.func.functionalize(call)(*tensors)

    return functionalized


def _decomposition(overload: Any, samples: list[Sample], findings: list[Finding]) -> str:
    outcome = "none"
    for sample in samples:
        args, kwargs = private_copy(sample)
        found = check_decomposition(overload, args, kwargs)
        if found is None:
            continue
        outcome = "ok" if outcome == "none" else outcome
        if found:
            call = render_call(overload, args, kwargs)
            finding = mismatch(overload, Place(stage=Stage.AOT), "decomposition", found, call)
            findings.append(Recorder().finding(finding))
            return str(finding.kind)
    return outcome
