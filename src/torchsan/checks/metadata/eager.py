"""The metadata check in eager code: each new kind of call is run for real and without data, and the two compared."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torchsan.checks.metadata.compare import ALL_FIELDS, Difference, compare_results
from torchsan.checks.metadata.confirm import confirmed
from torchsan.checks.metadata.exhibit import exhibit_of_call
from torchsan.checks.metadata.judge import Memory, Mutation, alias_differences, aliases, mutations, photograph
from torchsan.checks.metadata.ledger import Ledger, Report
from torchsan.checks.metadata.place import place
from torchsan.checks.metadata.policy import looked_at
from torchsan.checks.metadata.render import render_call
from torchsan.checks.metadata.reports import (
    alias_report,
    mismatch_report,
    mutation_report,
    unused_declaration_report,
)
from torchsan.instruments.operators import OperatorCall
from torchsan.recording import Sink
from torchsan.records import Stage
from torchsan.torch_internals.fakes import CannotFakeError, FakeRun, run_fake, run_meta
from torchsan.torch_internals.operators import is_own

__all__ = ["EagerJudge"]

log = logging.getLogger(__name__)

_LOOKS = 8
"""How many calls of an operator are looked at before a mutation that it declares is said never to happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    memory: Memory
    call: str
    accounts: dict[str, FakeRun]


class EagerJudge:
    """Judges calls that the operator instrument shows it. Thread-safe."""

    def __init__(self, ledger: Ledger, notes: Sink) -> None:
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
