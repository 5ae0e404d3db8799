"""What `--budget 1%` costs, and how soon it finds what goes wrong late.

A language model of 24.9 million parameters, and a model whose steps take about 5 ms, are trained in a session with a
budget, and with the compiled code called directly, in turns in one process. The mean is that of all steps, sampled ones
included; in the median step nothing is sampled. For the last figure a model of about forty kernels goes wrong in one of
them from step 200 on, for twenty seeds, each with another kernel. There, steps of which nothing is looked at are not
run but counted, on a clock that takes processor time: they run what the compiler made, and find nothing.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import torchsan
from benchmarks.beside import Step, Worker
from benchmarks.models import LanguageModel
from benchmarks.row import Kind, Record, Row
from torchsan.records import Severity
from torchsan.session import Session
from torchsan.watch.calls import ProbedCall, ProbedProgram
from torchsan.watch.sampling import Look, Sampler

__all__ = ["REPETITIONS", "measure"]

REPETITIONS = 1
_BUDGET = "1%"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workload:
    what: str
    make: Callable[[], Step]
    steps: int
    block: int
    goal: float


def measure(quick: bool) -> Iterator[Record]:
    """Measure each workload plainly and with a budget, in turns; then how soon errors are found."""
    for workload in WORKLOADS:
        yield from _cost(workload, 0.1 if quick else 1.0)
    yield from _detection(4 if quick else 20)


def _cost(workload: _Workload, part: float) -> Iterator[Record]:
    steps = max(2 * workload.block, round(workload.steps * part))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        ours, theirs = pool.submit(_in_turns, workload.make, steps, workload.block).result()
    for what, of in (
        (f"{workload.what}, mean of {steps}", lambda times: sum(times) / len(times)),
        (f"{workload.what}, median of {steps}", median),
    ):
        yield Row(
            what=f"{what}, processor time",
            kind=Kind.COST,
            unit="ms",
            ours=1000 * of(ours),
            peer="the same steps with the compiled code called directly",
            theirs=1000 * of(theirs),
            goal=workload.goal,
        )
    options = {"check": "values", "budget": _BUDGET}
    with Worker(workload.make, 4, None) as plain, Worker(workload.make, 4, options) as sampled:
        first, other = (w.block(max(20, steps // 20)) for w in (sampled, plain))
        last = sampled.block(max(20, steps // 10))
    yield Row(
        what=f"{workload.what}, peak memory",
        kind=Kind.COST,
        unit="MB",
        ours=last.megabytes,
        peer="the same without torchsan",
        theirs=other.megabytes,
        goal=1.1,
    )
    growth = (last.recorded - first.recorded) / len(last.wall)
    yield Row(
        what=f"{workload.what}, a recording of 10 000 of them",
        kind=Kind.LESS,
        unit="MB",
        ours=(first.recorded + 10_000 * growth) / 1e6,
        goal=20.0,
    )


def _in_turns(make: Callable[[], Step], steps: int, block: int) -> tuple[list[float], list[float]]:
    """What each step takes with a budget, and with the compiled code called directly, in turns in one process.

    Two processes differ by more than what is measured. The budget's clock stands still in the turns of the others.
    """
    torch.set_num_threads(1)
    away = 0.0
    times: tuple[list[float], list[float]] = ([], [])
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(_processor_clock())
        run = stack.enter_context(torchsan.session(check="values", budget=_BUDGET, out=f"{folder}/run"))
        step = make()
        for _ in range(4):
            step()
        observers: list[Any] = [*run.observers]
        sampler = next(s for o in observers if (s := getattr(o, "sampler", None)) is not None)
        sampler._clock = lambda: time.process_time() - away
        sampler._next = sampler._due = sampler._began = sampler._clock()
        for _ in range(steps // block):
            times[0].extend(_processor(step) for _ in range(block))
            with patch.object(ProbedProgram, "__call__", lambda self, args: self._original(args)):
                taken = [_processor(step) for _ in range(block)]
            away += sum(taken)
            times[1].extend(taken)
    return times


def _language_model() -> Step:
    torch.manual_seed(0)
    return _training(LanguageModel(), torch.randint(0, 8192, (1, 64)), lambda loss: loss)


def _small() -> Step:
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)]
    return _training(nn.Sequential(*layers), torch.randn(8, 32, 64), lambda y: y.square().mean())


def _training(model: nn.Module, given: torch.Tensor, loss: Callable[[Any], torch.Tensor]) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model)

    def step() -> None:
        optimizer.zero_grad()
        loss(compiled(given)).backward()  # type: ignore[no-untyped-call]  # has no types
        optimizer.step()

    return step


_HEALTHY, _WITHIN = 200, 400


def _detection(seeds: int) -> Iterator[Record]:
    """For each seed, a kernel that goes wrong, and whether it is named in time."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(192, 4, 512, dropout=0.0, batch_first=True) for _ in range(2)]
    step = _training(nn.Sequential(*layers), torch.randn(16, 64, 192), lambda y: y.square().mean())
    after: list[int] = []
    with _processor_clock(), torchsan.session(check="values", budget=_BUDGET) as run:
        for _ in range(2):
            step()
        seconds = min(_processor(step) for _ in range(12))
        trial = _Trial(run, step, seconds)
        for seed in range(seeds):
            found = trial.steps_until_named(seed)
            if found is not None:
                after.append(found)
    note = f"{trial.kernels} kernels, steps of {1000 * seconds:.0f} ms; steps until it was named: {sorted(after)}"
    yield Row(
        what=f"a wrong kernel named within {_WITHIN} steps, of {seeds} seeds",
        kind=Kind.MORE,
        unit="seeds",
        ours=len(after),
        goal=round(0.95 * seeds),
        note=note,
    )


class _Trial:
    """A compiled training step in a session with a budget, in which a launch can be made wrong."""

    def __init__(self, run: Session, step: Step, seconds: float) -> None:
        self._step = step
        self._seconds = seconds
        observers: list[Any] = [*run.observers]
        self._check = next(o for o in observers if getattr(o, "sampler", None) is not None)
        self._programs = {key: (p.label, list(p.looks)) for key, p in self._check.sampler._programs.items()}
        self._launches = [(key, nth) for key, (_, launches) in self._programs.items() for nth in launches]
        self.kernels = len(self._launches)

    def steps_until_named(self, seed: int) -> int | None:
        """After how many steps from the first wrong one a finding names the launch; None if it is too late."""
        now = 0.0
        sampler = self._check.sampler = Sampler(0.01, seed, clock=lambda: now)
        self._check._times.clear()
        for key, (label, launches) in self._programs.items():
            sampler.add(key, label, launches)
            first = Look(launches=frozenset(launches), closely=True, charged=False)
            sampler.looked(key, first, launches, 0.0)  # That was done in the first call.
        wrong = random.Random(seed).choice(self._launches)
        with _going_wrong(*wrong) as fault:
            for n in range(_HEALTHY + _WITHIN):
                fault.active = n >= _HEALTHY
                if any(sampler.quiet(key) == 0 for key in self._programs):
                    before = sampler.spent + sampler.extra
                    self._step()
                    now += sampler.spent + sampler.extra - before
                now += self._seconds
                errors = [key for key in self._check._times if key[-1] is Severity.ERROR]
                if errors:
                    named = [key for key in errors if key[1] == fault.kernel]
                    return n - _HEALTHY if named else None
        return None


@dataclass(slots=True)
class _Fault:
    active: bool = False
    kernel: str = ""


@contextmanager
def _going_wrong(key: int, nth: int) -> Iterator[_Fault]:
    """Make everything that a launch writes 1 % too large while the fault is active, when it is repeated as well."""
    fault = _Fault()
    after = ProbedCall.after

    def spoil(tensors: Iterable[Any]) -> None:
        for t in tensors:
            if isinstance(t, torch.Tensor) and t.is_floating_point():
                t.mul_(1.01)

    def wrongly(self: Any, number: int, values: tuple[Any, ...], again: Callable[..., Any]) -> None:
        launch = self._launches[number]
        if id(self._program) != key or number != nth or not fault.active:
            after(self, number, values, again)
            return
        fault.kernel = launch.kernel
        named = dict(zip(dict.fromkeys([*launch.operands, *launch.writes]), values, strict=True))

        def repeated(**others: Any) -> Any:
            result = again(**others)
            spoil({**named, **others}[name] for name in launch.writes if name != launch.result)
            spoil([result] if launch.result is not None else [])
            return result

        with torch.no_grad():
            spoil(named[name] for name in launch.writes)
        after(self, number, values, repeated)

    with patch.object(ProbedCall, "after", wrongly):
        yield fault


def _processor(step: Step) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


@contextmanager
def _processor_clock() -> Iterator[None]:
    """Let checks measure what they cost in processor time: others use the machine, too."""
    with patch("torchsan.checks.values.watch.time.perf_counter", time.process_time):
        yield


WORKLOADS = (
    _Workload(
        what="a step of a small model",
        make=_small,
        steps=3000,
        block=100,
        goal=1.03,
    ),
    _Workload(
        what="a step of 25 million parameters",
        make=_language_model,
        steps=300,
        block=10,
        goal=1.015,
    ),
)
