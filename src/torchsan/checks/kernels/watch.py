"""Referees the kernels of a program as they are met: once for each kind of arguments, in a process of their own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from torchsan.checks.collector import Collector
from torchsan.checks.kernels.exhibit import no_exhibit
from torchsan.checks.kernels.findings import Place, placed
from torchsan.errors import TorchsanError
from torchsan.kernels.check import Refereed, run
from torchsan.kernels.inputs import flatten
from torchsan.kernels.judging import Nothing
from torchsan.kernels.operators import SEEDS, operator_task, positional
from torchsan.kernels.referee import Task
from torchsan.records import Severity
from torchsan.torch_internals.operators import undisturbed
from torchsan.torch_internals.wrapper import Launch
from torchsan.watch.observer import CallWatch, CompiledProgram, Values, not_checked
from torchsan.watch.operators import OperatorCall

_SECONDS = 20.0
"""For one kernel with one kind of arguments."""
_KINDS = 3
"""With how many kinds of arguments one kernel is refereed."""


class Bench:
    """Where kernels are refereed; one for a session, used from any thread."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._recorder = collector.recorder
        self._seen: set[Any] = set()
        self._kinds: Counter[str] = Counter()
        self._here = threading.local()
        self.refereed = 0

    # Where this thread is

    def enter(self, place: Place | None) -> None:
        """From now on this thread is in a launch of a compiled program; with None, no longer."""
        self._here.place = place

    @property
    def _place(self) -> Place:
        return getattr(self._here, "place", None) or Place()

    def _inside(self) -> bool:
        """Whether the kernel that runs belongs to an operator that was refereed as a whole."""
        return bool(getattr(self._here, "operator", False))

    # What is met

    def operator(self, call: OperatorCall) -> bool:
        """An operator is about to be called. True if that is the outermost one, which `over` is told of."""
        if self._inside() or call.functionalized:
            return False
        self._here.operator = True
        overload = call.overload
        arguments = positional(overload, call.args, call.kwargs)
        name = str(overload.name())
        if arguments is None:
            self._recorder.skipped(name, "it has arguments that can only be named")
        elif self._is_new(name, arguments) and self._possible(name, arguments):
            self._referee(operator_task(overload, arguments, seconds=_SECONDS), name, (str(overload),))
        return True

    def over(self, outermost: bool) -> None:
        """What `operator` was told of has run."""
        if outermost:
            self._here.operator = False

    def launch(self, function: Any, launch: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A Triton kernel is about to be launched."""
        if self._inside() or self._place.generated:
            return
        arguments = (*args, kwargs)
        code = getattr(function, "__code__", None)
        name = getattr(function, "__name__", "a Triton kernel")
        known = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else name
        if not self._is_new(known, arguments) or not self._possible(name, arguments):
            return

        def kernel(*given: Any) -> None:
            launch(*given[:-1], **given[-1])

        kernel.__name__ = name
        task = Task(
            kernel=lambda: kernel,
            reference=lambda args: Nothing(),
            inputs=lambda: (arguments, None),
            # Which of its arguments it may write, nothing says.
            mutates=frozenset(range(len(flatten(arguments)[0]))),
            seeds=SEEDS,
            seconds=_SECONDS,
        )
        self._referee(task, name, ())

    def _is_new(self, name: str, arguments: Any) -> bool:
        leaves, _ = flatten(arguments)
        kinds = tuple((t.dtype, t.dim(), t.is_contiguous()) for t in leaves if isinstance(t, torch.Tensor))
        if (name, kinds) in self._seen or self._kinds[name] >= _KINDS:
            return False
        self._seen.add((name, kinds))
        self._kinds[name] += 1
        return True

    def _possible(self, name: str, arguments: Any) -> bool:
        tensors = [t for t in flatten(arguments)[0] if isinstance(t, torch.Tensor)]
        reason = None
        if any(t.device.type != "cpu" for t in tensors):
            reason = "only kernels on the CPU are refereed, and those of Triton by its interpreter"
        elif any(type(t) not in (torch.Tensor, torch.nn.Parameter) or t.layout is not torch.strided for t in tensors):
            reason = "it is given tensors that are not plain ones"
        if reason is not None:
            not_checked(self._recorder, name, reason)
        return reason is None

    def _referee(self, task: Task, name: str, ops: tuple[str, ...]) -> None:
        place = self._place
        try:
            with undisturbed():
                report = run(task, name=name, reference="")
        except TorchsanError as e:
            not_checked(self._recorder, name, str(e)[:300])
            return
        self.refereed += 1
        self._note(report, place, ops)
        for finding in report.findings:
            if finding.severity is Severity.NOTE:
                continue
            key = (name, finding.kind, finding.buffer, finding.source)
            self._collector.add(key, placed(finding, place, name, ops), no_exhibit)

    def _note(self, report: Refereed, place: Place, ops: tuple[str, ...]) -> None:
        if ops:
            self._recorder.ops_checked(list(ops))
        if place.graph is not None:
            self._recorder.checked(place.graph.id, place.graph.direction, list(place.buffers))
        for skipped in report.coverage.skipped:
            self._recorder.skipped(f"{report.kernel}: {skipped.what}"[:200], skipped.reason[:300])


class KernelsWatch(CallWatch):
    """Says which launch of a compiled program is running."""

    def __init__(self, bench: Bench, program: CompiledProgram) -> None:
        self._bench = bench
        self._program = program

    def before(self, function: str, launch: Launch, values: Values) -> None:
        self._bench.enter(Place.of(self._program, function, launch))

    def after(self, function: str, launch: Launch, values: Values) -> None:
        self._bench.enter(None)

    def close(self, error: BaseException | None) -> None:
        self._bench.enter(None)
