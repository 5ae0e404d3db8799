"""The metadata check in eager code: each new kind of call is run for real and without data, and the two compared."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from torchsan.checks.metadata.compare import ALL_FIELDS, Difference, compare_results
from torchsan.checks.metadata.exhibit import exhibit_of_call, render_call
from torchsan.checks.metadata.findings import OperatorFindings, Report
from torchsan.checks.metadata.judge import (
    Memory,
    Mutation,
    alias_differences,
    aliases,
    bits,
    inputs,
    mutations,
    photograph,
)
from torchsan.checks.metadata.reports import (
    alias_report,
    looked_at,
    mismatch_report,
    mutation_report,
    unused_declaration_report,
)
from torchsan.recording import Recorder
from torchsan.records import GraphRef, SourceLine, Stage
from torchsan.torch_internals.fakes import CannotFakeError, FakeRun, run_fake, run_meta
from torchsan.torch_internals.operators import is_own, map_tensors, undisturbed
from torchsan.watch.operators import OperatorCall
from torchsan.watch.provenance import caller

log = logging.getLogger(__name__)

_here = threading.local()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a finding says of the place."""

    stage: Stage = Stage.EAGER
    graph: GraphRef | None = None
    kernel: str | None = None
    buffer: str | None = None
    nodes: tuple[str, ...] = ()
    source: tuple[SourceLine, ...] = field(default_factory=caller)

    def where(self) -> dict[str, Any]:
        """The place as the fields of a report, without its stage."""
        return {
            "graph": self.graph,
            "kernel": self.kernel,
            "buffer": self.buffer,
            "nodes": self.nodes,
            "source": self.source,
        }


def place() -> Place:
    """The launch that is running on this thread, or eager code."""
    return getattr(_here, "place", None) or Place()


def enter_place(new: Place) -> None:
    """From now on calls on this thread happen there."""
    _here.place = new


def leave_place() -> None:
    """Calls on this thread happen in eager code again."""
    _here.place = None


def confirmed(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Run the operator once more, on copies that only it can reach; True if it writes to those as well.

    True without another run where no other thread runs, and where another run fails.
    """
    if threading.active_count() == 1:
        return True
    if not all(i.tensor.is_floating_point() for i in inputs(overload, args, kwargs) if not i.written):
        return True  # Other integers may be no valid input.
    return any(_writes(overload, args, kwargs, copy) for copy in (_copy, _other))


def _writes(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], copy: Any) -> bool:
    with undisturbed(), torch.random.fork_rng(devices=[]):
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
    accounts: dict[str, FakeRun]


class EagerJudge:
    """Judges calls that the operator instrument shows it. Thread-safe."""

    def __init__(self, ledger: OperatorFindings, notes: Recorder) -> None:
        self._ledger = ledger
        self._notes = notes
        self._declared: dict[tuple[Any, str], int] = {}
        self._samples: dict[Any, str] = {}
        self._written: set[tuple[Any, str]] = set()
        self._lock = threading.Lock()

    def wants(self, overload: Any) -> bool:
        return looked_at(overload)

    def before(self, call: OperatorCall) -> _Before | None:
        memory = photograph(call.overload, call.args, call.kwargs)
        if any(i.tensor.device.type == "meta" for i in memory.inputs):
            return None  # The user runs without data; there is nothing real to compare with.
        text = render_call(call.overload, call.args, call.kwargs)
        return _Before(memory=memory, call=text, accounts=self._accounts(call))

    def _accounts(self, call: OperatorCall) -> dict[str, FakeRun]:
        """What is believed of the call. PyTorch's own operators are run fake; others with symbols and as meta too."""
        runs: dict[str, Callable[[], FakeRun]] = {
            "fake": lambda: run_fake(call.overload, call.args, call.kwargs),
        }
        if not is_own(call.overload) and not call.functionalized:
            runs["symbolic"] = lambda: run_fake(call.overload, call.args, call.kwargs, symbolic=True)
            runs["meta"] = lambda: run_meta(call.overload, call.args, call.kwargs)
        accounts: dict[str, FakeRun] = {}
        for against, run in runs.items():
            try:
                accounts[against] = run()
            except CannotFakeError as e:
                if against != "meta":
                    self._notes.skipped(f"{call.overload} ({against})", f"cannot be run without data: {e}")
                if against == "fake":
                    break  # Without a fake kernel there is no other either.
        return accounts

    def after(self, call: OperatorCall, before: _Before | None, result: Any) -> bool | Callable[[], None]:
        if before is None or _has_no_data(result):
            return True
        if call.functionalized:
            reports = self._functionalized(call, before, result)
        else:
            reports = [*self._memory(call, before, result), *self._mismatch(call, before, result)]
        self._notes.ops_checked([str(call.overload)])
        for report in reports:
            exhibit = partial(exhibit_of_call, call.overload, call.args, call.kwargs)
            self._ledger.report(dataclasses.replace(report, exhibit=exhibit))
        if reports:
            return lambda: self._again(reports)
        return self._settled(call, before)

    def _again(self, reports: list[Report]) -> None:
        for report in reports:
            self._ledger.count(report, place().stage)

    def _mismatch(self, call: OperatorCall, before: _Before, result: Any) -> list[Report]:
        for against, run in before.accounts.items():
            fields = ALL_FIELDS - {"device", "requires_grad"} if against == "meta" else ALL_FIELDS
            found = compare_results(result, run.result, fields=fields)
            if not any(d.field == "structure" for d in found):
                found += alias_differences(call.overload, before.memory, result, run.inputs, run.result)
            if found:  # The accounts of one kernel are wrong together; the first says it best.
                return [self._report_mismatch(call, before, against, found)]
        return []

    def _report_mismatch(self, call: OperatorCall, before: _Before, against: str, found: list[Difference]) -> Report:
        here = place()
        stage = Stage.AOT if call.functionalized else here.stage
        return mismatch_report(call.overload, stage, against, found, before.call, **here.where())

    def _functionalized(self, call: OperatorCall, before: _Before, result: Any) -> list[Report]:
        run = before.accounts.get("fake")
        if run is None:
            return []
        found = compare_results(result, run.result, fields=frozenset({"size", "dtype", "stride"}))
        return [self._report_mismatch(call, before, "functionalize", found)] if found else []

    def _memory(self, call: OperatorCall, before: _Before, result: Any) -> list[Report]:
        changed = mutations(before.memory)
        self._note_declared(call, before, changed)
        here = place()
        found: list[Report | None] = []
        if any(not m.declared for m in changed) and confirmed(call.overload, call.args, call.kwargs):
            found.append(mutation_report(call.overload, here.stage, changed, before.call, **here.where()))
        shared = aliases(call.overload, before.memory, result)
        if any(not a.declared for a in shared):
            found.append(alias_report(call.overload, here.stage, shared, before.call, **here.where()))
        return [report for report in found if report is not None]

    def _note_declared(self, call: OperatorCall, before: _Before, changed: list[Mutation]) -> None:
        if is_own(call.overload):
            return  # `zero_` of zeros is no news.
        idle = {m.argument for m in changed if m.declared}
        with self._lock:
            self._samples.setdefault(call.overload, before.call)
            for argument in before.memory.inputs:
                if argument.written and argument.tensor.numel():
                    key = (call.overload, argument.name)
                    self._declared[key] = self._declared.get(key, 0) + 1
                    if argument.name not in idle:
                        self._written.add(key)

    def _settled(self, call: OperatorCall, before: _Before) -> bool:
        """Whether nothing more can be learnt from calls of this kind."""
        with self._lock:
            keys = [(call.overload, i.name) for i in before.memory.inputs]
            return all(k in self._written or self._declared.get(k, _LOOKS) >= _LOOKS for k in keys)

    def close(self) -> None:
        """Say what was declared and never happened."""
        for (overload, argument), calls in self._declared.items():
            if (overload, argument) not in self._written:
                sample = self._samples[overload]
                self._ledger.report(unused_declaration_report(overload, Stage.EAGER, argument, calls, sample))


def _has_no_data(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.device.type == "meta"
