"""The metadata check in eager code: each new kind of call is run for real and without data, and the two compared."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torchsan.checks.metadata.compare import ALL_FIELDS, Difference, compare_results
from torchsan.checks.metadata.exhibit import exhibit_of_call, render_call
from torchsan.checks.metadata.findings import (
    OperatorFindings,
    Place,
    idle_declaration,
    mismatch,
    undeclared_alias,
    undeclared_mutation,
)
from torchsan.checks.metadata.judge import (
    Memory,
    alias_differences,
    arguments_again,
    arguments_before,
    bits,
    inputs,
    undeclared_aliases,
    writes,
)
from torchsan.checks.metadata.plan import looked_at
from torchsan.records import Finding, Stage
from torchsan.reference.aside import NoChild, Unavailable, aside
from torchsan.torch_internals.fakes import CannotFakeError, FakeRun, run_fake, run_meta
from torchsan.torch_internals.operators import is_own, map_tensors, random_kept, undisturbed
from torchsan.watch.operators import OperatorCall, Remember
from torchsan.watch.provenance import caller

_here = threading.local()


def place() -> Place:
    """The launch that is running on this thread, or eager code."""
    return getattr(_here, "place", None) or Place(source=caller())


def enter_place(new: Place) -> None:
    """From now on calls on this thread happen there."""
    _here.place = new


def leave_place() -> None:
    """Calls on this thread happen in eager code again."""
    _here.place = None


def _confirmed(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Run the operator once more, on copies that only it can reach; True if it writes to those as well.

    True without another run where no other thread runs, and where another run fails.
    """
    if threading.active_count() == 1:
        return True
    if not all(i.tensor.is_floating_point() for i in inputs(overload, args, kwargs) if not i.written):
        return True  # Other integers may be no valid input.
    try:
        return any(_writes(overload, args, kwargs, copy) for copy in (_copy, _other))
    except Unavailable:
        return True


def _writes(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], copy: Any) -> bool:
    run = partial(_run_on_copies, overload, args, kwargs, copy)
    return run() if is_own(overload) else aside(run)


def _run_on_copies(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], copy: Any) -> bool:
    with undisturbed(), random_kept():
        copies_args, copies_kwargs = map_tensors(copy, (args, kwargs))
        private = [i for i in inputs(overload, copies_args, copies_kwargs) if not i.written]
        before = [bits(i.tensor) for i in private]
        try:
            overload(*copies_args, **copies_kwargs)
        except Exception:  # noqa: BLE001  # an operator that fails on a copy is beyond judging; the first run stands
            return True
        return before != [bits(i.tensor) for i in private]


def _copy(t: torch.Tensor) -> torch.Tensor:
    return t.detach().clone(memory_format=torch.preserve_format)


def _other(t: torch.Tensor) -> torch.Tensor:
    """Other values: what was written once may not show when it is written again."""
    return _copy(t).nan_to_num_().add_(1) if t.is_floating_point() else _copy(t)


_LOOKS = 8
"""How many calls of an operator are looked at before a mutation that it declares is said never to happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    memory: Memory
    call: str
    accounts: _Accounts | None
    """Of an operator of PyTorch's own. The fake kernels of others may do anything, and are called later, in a child."""


@dataclass(slots=True)
class _Declared:
    """An argument that an operator declares to write."""

    sample: str
    calls: int = 0
    happened: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accounts:
    """What is believed of a call, by the way it was asked for, and why another way says nothing."""

    runs: dict[str, FakeRun]
    unsaid: dict[str, str]


def _accounts(call: OperatorCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Accounts:
    """Ask what is believed. PyTorch's own operators are run fake; others with symbols and as meta too."""
    runs: dict[str, Callable[[], FakeRun]] = {"fake": lambda: run_fake(call.overload, args, kwargs)}
    if not is_own(call.overload) and not call.functionalized:
        runs["symbolic"] = lambda: run_fake(call.overload, args, kwargs, symbolic=True)
        runs["meta"] = lambda: run_meta(call.overload, args, kwargs)
    accounts = _Accounts(runs={}, unsaid={})
    for against, run in runs.items():
        try:
            accounts.runs[against] = run()
        except CannotFakeError as e:
            if against != "meta":
                accounts.unsaid[against] = str(e)
            if against == "fake":
                break  # Without a fake kernel there is no other either.
    return accounts


@functools.cache
def _get_ready() -> None:
    """Have all that it takes imported, which may write files, and which each child would do anew."""
    double, x = torch.ops.aten.add.Tensor, torch.ones(2)
    with undisturbed():
        for symbolic in (False, True):
            run_fake(double, (x, x), {}, symbolic=symbolic)


def _first_difference(call: OperatorCall, before: _Before, result: Any) -> tuple[str, list[Difference], dict[str, str]]:
    """The first account that the result differs from, in what, and which accounts there are none of.

    The accounts of one kernel are wrong together; the first says it best.
    """
    accounts = before.accounts
    if accounts is None:
        args, kwargs = arguments_again(before.memory, call.args, call.kwargs)
        accounts = _accounts(call, args, kwargs)
    for against, run in accounts.runs.items():
        found = _differences(call, before, result, against, run)
        if found:
            return against, found, accounts.unsaid
    return "", [], accounts.unsaid


class EagerJudge:
    """Judges calls that the watch of operators shows it. Thread-safe."""

    def __init__(self, findings: OperatorFindings) -> None:
        self.findings = findings
        self._recorder = findings.recorder
        self._declared: dict[tuple[Any, str], _Declared] = {}
        self._lock = threading.Lock()

    def wants(self, overload: Any) -> bool:
        return looked_at(overload)

    def before(self, call: OperatorCall) -> _Before | None:
        memory = arguments_before(call.overload, call.args, call.kwargs)
        if any(i.tensor.device.type == "meta" for i in memory.inputs):
            return None  # The user runs without data; there is nothing real to compare with.
        text = render_call(call.overload, call.args, call.kwargs)
        accounts = _accounts(call, call.args, call.kwargs) if is_own(call.overload) else None
        return _Before(memory=memory, call=text, accounts=accounts)

    def after(self, call: OperatorCall, before: _Before | None, result: Any) -> Remember:
        if before is None or (isinstance(result, torch.Tensor) and result.device.type == "meta"):
            return True
        found = self._mismatch(call, before, result)
        if not call.functionalized:
            found = [*self._memory(call, before, result), *found]
        self._recorder.ops_checked([str(call.overload)])
        for finding in found:
            self.findings.report(finding, partial(exhibit_of_call, call.overload, call.args, call.kwargs))
        if found:
            return lambda: self._again(found)
        return self._settled(call, before)

    def _again(self, found: list[Finding]) -> None:
        for finding in found:
            self.findings.count(finding, place().stage)

    def _mismatch(self, call: OperatorCall, before: _Before, result: Any) -> list[Finding]:
        compare = partial(_first_difference, call, before, result)
        if before.accounts is None:
            _get_ready()
        try:
            against, found, unsaid = compare() if before.accounts is not None else aside(compare)
        except NoChild:  # Nothing is computed: the compiler calls fake kernels as often as it likes, too.
            against, found, unsaid = compare()
        except Unavailable as e:
            against, found, unsaid = "", [], {"fake": str(e)}
        for way, reason in unsaid.items():
            self._recorder.skipped(f"{call.overload} ({way})", f"cannot be run without data: {reason}")
        if not found:
            return []
        here = place()
        if call.functionalized:
            against, here = "functionalize", dataclasses.replace(here, stage=Stage.AOT)
        return [mismatch(call.overload, here, against, found, before.call)]

    def _memory(self, call: OperatorCall, before: _Before, result: Any) -> list[Finding]:
        written = writes(call.overload, before.memory)
        self._note_declared(call, before, written.idle)
        found: list[Finding] = []
        if written.undeclared and _confirmed(call.overload, call.args, call.kwargs):
            found.append(undeclared_mutation(call.overload, place(), written.undeclared, before.call))
        pairs = undeclared_aliases(call.overload, before.memory, result)
        if pairs:
            found.append(undeclared_alias(call.overload, place(), pairs, before.call))
        return found

    def _note_declared(self, call: OperatorCall, before: _Before, idle: frozenset[str]) -> None:
        if is_own(call.overload):
            return  # `zero_` of zeros is no news.
        with self._lock:
            for argument in before.memory.inputs:
                if argument.written and argument.tensor.numel():
                    known = self._declared.setdefault((call.overload, argument.name), _Declared(before.call))
                    known.calls += 1
                    known.happened = known.happened or argument.name not in idle

    def _settled(self, call: OperatorCall, before: _Before) -> bool:
        """Whether nothing more can be learnt from calls of this kind."""
        with self._lock:
            known = [self._declared.get((call.overload, i.name)) for i in before.memory.inputs]
            return all(d is None or d.happened or d.calls >= _LOOKS for d in known)

    def close(self) -> None:
        """Say what was declared and never happened."""
        for (overload, argument), known in self._declared.items():
            if not known.happened:
                self.findings.report(idle_declaration(overload, argument, known.calls, known.sample))


def _differences(call: OperatorCall, before: _Before, result: Any, against: str, run: FakeRun) -> list[Difference]:
    """Where the result is not what one account says."""
    if call.functionalized:
        return compare_results(result, run.result, fields=frozenset({"size", "dtype", "stride"}))
    fields = ALL_FIELDS - {"device", "requires_grad"} if against == "meta" else ALL_FIELDS
    found = compare_results(result, run.result, fields=fields)
    if not any(d.field == "structure" for d in found):
        found += alias_differences(call.overload, before.memory, result, run.inputs, run.result)
    return found
