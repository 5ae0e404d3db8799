"""The process that judges: it makes inputs, asks the reference, has the kernel run in another process, and compares."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from torchsan.errors import UsageError
from torchsan.kernels.contain import Channel, Child, Conduct, Gone
from torchsan.kernels.inputs import Example, Leaves, Trial, plan, untied
from torchsan.kernels.judging import Nothing, Reference, Unreferenced
from torchsan.kernels.observe import Case, Observation, Said, apart, observe, unwritten
from torchsan.kernels.patched import Names
from torchsan.kernels.values import ORDINARY
from torchsan.kernels.wire import Wire, pack
from torchsan.kernels.worker import Worker
from torchsan.records import Kind, SourceLine
from torchsan.reference.aside import in_own_process

_DEATHS = 4
"""After so many processes that the kernel took down, no more are started."""
_DEAR = 0.6
"""Seconds of a call that are too many, if the example takes less."""
BRISK = 0.15
"""Seconds of a call that many can be made of."""
_LEAST = 24
"""How many inputs come before everything else that takes time."""
_MOST_EXOTIC = 12
"""How many more may go beyond the example."""
_ENOUGH = 12
"""A kernel that is wrong on so many inputs is wrong; more would only take time."""
_MOST_PAIRS = 16
"""How many trials are run again with other memory and another order."""
_VALUES = (Kind.WRONG_VALUES, Kind.PRECISION_LOSS)
_FACTORIES = tuple(
    "empty zeros ones full view reshape detach as_strided t. transpose permute clone _to_copy copy_".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is to be refereed. The three functions are called in the processes that need what they give.

    `inputs` gives the example, and a function from a seed to other inputs if the user has one.
    """

    kernel: Callable[[], Callable[..., Any]]
    reference: Callable[[tuple[Any, ...]], Callable[..., Any] | Nothing]
    inputs: Callable[[], tuple[tuple[Any, ...], Callable[[int], tuple[Any, ...]] | None]]
    seeds: int = 32
    seed: int = 0
    seconds: float = 60.0
    call_seconds: float = 15.0
    memory: int = 8 << 30
    mutates: frozenset[int] = frozenset()
    tentative: Nothing | None = None
    """In the place of the reference, if the kernel differs from that on the example: then it was a bad guess."""


@dataclass(slots=True)
class Tried:
    """What was tried, for the report."""

    trials: list[dict[str, Any]] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)
    launches: dict[str, int] = field(default_factory=dict)
    operators: dict[str, int] = field(default_factory=dict)


class Ended(Exception):
    """The kernel takes its process down too often to go on."""


class Referee:
    """Referees one kernel."""

    def __init__(self, task: Task) -> None:
        """Load the reference and the inputs. Raise UsageError if they cannot be used."""
        torch.set_num_threads(1)
        in_own_process()
        self._task = task
        names, conduct = Names(), Conduct(Path(os.environ["TMPDIR"]))
        # They may stand in the kernel's file, which is imported here then.
        with conduct.watched():
            args, self._make = task.inputs()
            if not isinstance(args, tuple):
                raise UsageError("inputs are a tuple of arguments, or a function from a seed to one", slug="bad-inputs")
            right = task.reference(args)
        self.deeds = conduct.deeds
        self.referenced = not isinstance(right, Nothing)
        # Which other sizes are valid, only a reference can say.
        self.example = Example.of(args, fixed=self._make is not None or not self.referenced)
        self._args = args
        rebuild = self.example.rebuild
        self.reference = Unreferenced(right, rebuild) if isinstance(right, Nothing) else Reference(right, rebuild)
        self.patched = names.patched()
        self.tried = Tried()
        if not self.referenced:
            self.tried.unchecked = ["values"]
            self.tried.skipped["values"] = "nothing says what the kernel should compute"
        self.about: dict[str, Any] = {}
        self._child: Child | None = None
        self._deaths = 0
        self._seconds = 0.0
        self.seen: list[Observation] = []
        self._began = time.monotonic()

    # Time, and the kernel's process

    def left(self) -> float:
        """How many seconds there still are."""
        return self._task.seconds - (time.monotonic() - self._began)

    def start(self) -> None:
        """Start a process for the kernel, in which nothing was called before. Raise Gone or Ended."""
        self.stop()
        if self._deaths > _DEATHS:
            raise Ended
        task, args = self._task, self._args

        def work(channel: Channel) -> None:
            try:
                worker = Worker(task.kernel, args, Path(os.environ["TMPDIR"]))
            except Exception as e:  # the user's file
                said = (
                    str(e).rpartition(" [")[0] if isinstance(e, UsageError) else f"{type(e).__name__}: {str(e)[:500]}"
                )
                channel.send({"failed": said})
                raise
            worker.serve(channel)

        began = time.monotonic()
        self._child = Child(work, memory=task.memory)
        about, _ = self._child.answer(seconds=max(60.0, task.call_seconds))
        if not self.about:
            self._began += time.monotonic() - began  # It may have been compiled.
        if "failed" in about:
            raise UsageError(f"the kernel cannot be loaded: {about['failed']}", slug="bad-kernel")
        self.about = about
        if about["fixed"]:
            self.example = replace(self.example, fixed=True)

    def stop(self) -> None:
        """End the kernel's process."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def call(
        self,
        case: Case,
        *,
        empty: str = "nan",
        guards: str = "nan",
        order: str = "forward",
        fence: bool = False,
        reuse: bool = False,
    ) -> Said:
        """Have the kernel called. Raise Gone if that ends or hangs its process; a new one is there afterwards."""
        blobs: list[bytes] = []
        leaves = [asdict(w) if (w := wire) is not None else None for wire in self._wires(case.leaves, blobs)]
        request = {
            "leaves": leaves,
            "empty": empty,
            "guards": guards,
            "order": order,
            "fence": fence,
            "reuse": reuse,
            "seed": case.trial.seed,
        }
        if self._child is None:
            self.start()
        assert self._child is not None
        try:
            # One call may not take all the time there is, nor so little that a slow machine looks like a hang.
            return Said.of(*self._child.ask(request, blobs, seconds=self._task.call_seconds))
        except Gone as gone:
            self._deaths += 3 if gone.hung else 1  # Waiting for it takes long.
            self.stop()
            raise
        except (KeyError, ValueError, TypeError, StopIteration, AttributeError) as e:
            self._deaths += 1
            self.stop()
            raise Gone("what its process says makes no sense") from e

    def _wires(self, leaves: Leaves, blobs: list[bytes]) -> Iterator[Wire | None]:
        first: dict[int, int] = {}
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                if id(leaf) in first:
                    yield Wire([], [], 0, "", same=first[id(leaf)])
                else:
                    first[id(leaf)] = i
                    yield replace(pack(leaf, blobs), grad=leaf.requires_grad)
            elif leaf is not self.example.leaves[i] and isinstance(leaf, bool | int | float | str):
                yield Wire([], [], 0, "", number=[leaf])
            else:
                yield None

    # Trials

    def case(self, trial: Trial) -> Case | None:
        """The inputs of a trial and the reference's answer; None if the reference does not take them."""
        try:
            if trial.given and self._make is not None:
                made = self._make(trial.seed)
                leaves = Example.of(made).leaves
                if len(leaves) != len(self.example.leaves):
                    return None
            elif trial.given:
                own = self.example.leaves
                leaves = [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in own]
                leaves = [leaves[self.example.same.get(i, i)] for i in range(len(leaves))]
            else:
                leaves = self.example.make(trial)
            return Case(trial, leaves, self.reference.asked(leaves, trial.seed))
        except Exception as e:
            if trial.given and not self.tried.trials:
                raise UsageError(
                    f"the reference raises {type(e).__name__} on the example: {str(e)[:300]}", slug="bad-inputs"
                ) from e
            return None

    def borne_out(self) -> bool:
        """Whether the kernel gives on the example what the reference gives. Raise Gone or Ended."""
        try:
            case = self.case(Trial(seed=self._task.seed, given=True))
        except UsageError:
            return False
        assert case is not None
        self.start()
        wrong = {Kind.WRONG_VALUES, Kind.METADATA_MISMATCH}
        return not any(o.kind in wrong for o in observe(case, self.call(case), self.about, self._task.mutates))

    def look(self, case: Case) -> tuple[Said | None, list[Observation]]:
        """Call the kernel for a case and compare; a process that it ends is an observation."""
        try:
            said = self.call(case)
        except Gone as gone:
            if gone.hung and self._seconds and self._larger(case.trial):
                self.tried.skipped[case.text()] = "it takes too long here"
                return None, []
            return None, [_gone(case, gone)]
        found = list(observe(case, said, self.about, self._task.mutates))
        if self.reference.random:
            self.tried.unchecked = ["values"]
            self.tried.skipped["values"] = "the reference draws random numbers: called twice, it differs from itself"
            found = [o for o in found if o.kind not in _VALUES]
        return said, found

    def _why_enough(self, made: int, *, late: bool) -> str | None:
        """Why no further inputs are tried; None if they are."""
        if sum("wrong-values" in t["outcome"] for t in self.tried.trials) >= _ENOUGH:
            return f"it was wrong on {_ENOUGH} already"
        short = self.left() < self._task.seconds * (0.35 if made >= _LEAST else 0.15)
        return "the time was up" if late or (short and made) else None

    def _untied(self, trial: Trial, case: Case) -> tuple[Case, Said, list[Observation]] | None:
        """The trial with sizes that need not be equal, if the kernel takes those; None if not."""
        again = self.case(untied(trial))
        if again is None or all(a is b for a, b in zip(again.leaves, case.leaves, strict=True)):
            return None
        said, found = self.look(again)
        return (again, said, found) if said is not None and "raised" not in said.values else None

    def trials(self) -> Iterator[tuple[Case, Said, list[Observation]]]:
        """Make the trials of the plan, as many as there is time for, and yield what each showed."""
        wanted = max(_LEAST, self._task.seeds)
        made = attempts = exotic = 0
        for trial in plan(self.example, self._task.seed, seeds=self._task.seeds, function=self._make is not None):
            attempts += 1
            exotic += trial.exotic
            if made >= wanted and not (trial.exotic and made < wanted + _MOST_EXOTIC):
                if exotic:
                    break
                continue  # Those that go beyond the example come after all others.
            reason = self._why_enough(made, late=attempts > 4 * wanted + 40)
            if reason is not None:
                self.tried.skipped["more inputs"] = reason
                break
            case = None if self._dear(trial) else self._cheaper(trial) or self.case(trial)
            if case is None:
                continue
            trial = case.trial
            said, found = self.look(case)
            if said is not None and trial.sizes is None:
                self._seconds = min(self._seconds or 60.0, said.values["seconds"])
            if said is not None and "raised" in said.values and trial.sizes is not None and trial.tied:
                case, said, found = self._untied(trial, case) or (case, said, found)
            self._note(case, said, found)
            self.seen += found
            if said is not None and "raised" not in said.values:
                made += 1
                yield case, said, found

    def _larger(self, trial: Trial) -> bool:
        return trial.sizes is not None and any(
            s > old for s, old in zip(trial.sizes, self.example.symbols, strict=True)
        )

    def _cheaper(self, trial: Trial) -> Case | None:
        """The trial with fewer rows, where numbers or a layout are tried and a call takes long; None if that is bad."""
        ordinary = trial.values == ORDINARY and trial.layout == "as given" and trial.dtype is None
        if self._seconds < BRISK or ordinary or trial.given or trial.sizes is not None or self.example.fixed:
            return None
        first, *rest = self.example.symbols or (0,)
        fewer = max(3, int(first * BRISK / self._seconds / 2))
        return self.case(replace(trial, sizes=(fewer, *rest))) if fewer < first else None

    def _dear(self, trial: Trial) -> bool:
        """Whether a call with these sizes would take too long, judged by the example's: an interpreter is slow."""
        if trial.sizes is None or not self._seconds:
            return False
        times = math.prod(max(1.0, s / old) for s, old in zip(trial.sizes, self.example.symbols, strict=True))
        return self._seconds * times**1.5 > max(_DEAR, self._task.seconds / 60)

    def _note(self, case: Case, said: Said | None, found: list[Observation]) -> None:
        outcome = "right"
        if said is None:
            outcome = "no result"
        elif "raised" in said.values:
            outcome = "refused" if found[0].note else "raised"
            self.tried.rejected.setdefault(str(found[0].evidence["raised"]), case.text())
        elif any(not o.note for o in found):
            outcome = ", ".join(sorted({str(o.kind) for o in found if not o.note}))
        self.tried.trials.append({**asdict(case.trial), "inputs": case.text(), "outcome": outcome})
        if said is not None:
            for launch in said.values.get("launches", []):
                name = launch.partition("[")[0]
                self.tried.launches[name] = self.tried.launches.get(name, 0) + 1
            for name, n in said.values.get("operators", {}).items():
                self.tried.operators[name] = self.tried.operators.get(name, 0) + n

    # The same inputs again, with other memory and in another order

    def repeat(self, case: Case, said: Said) -> Iterator[Observation]:
        """Call the kernel with other contents of empty memory and of guards, and its programs in another order."""
        orders = bool(said.values.get("launches")) and not said.values.get("synchronises")
        try:
            other = self.call(case, empty="number", guards="number", order="backward" if orders else "forward")
            yield from self._races(case, other)
            if "raised" not in other.values and other.digests != said.digests:
                yield from self._why(case, said, orders)
            if orders and said.values["seconds"] < BRISK:
                third = self.call(case, order="shuffled")
                yield from self._races(case, third)
                if "raised" not in third.values and third.digests != said.digests:
                    yield from self._depends(case, said, third, "the order in which its programs run", Kind.RACE)
        except Gone as gone:
            yield _gone(case, gone)

    def _races(self, case: Case, said: Said) -> Iterator[Observation]:
        found = observe(case, said, self.about, self._task.mutates) if "raised" not in said.values else ()
        yield from (o for o in found if o.kind in (Kind.RACE, Kind.OUT_OF_BOUNDS_READ, Kind.OUT_OF_BOUNDS_WRITE))

    def _why(self, case: Case, said: Said, orders: bool) -> Iterator[Observation]:
        """Find out what a result depends on."""
        same = self.call(case)
        if same.digests != said.digests:
            yield from self._depends(
                case, said, same, "when it is called: two calls with the same inputs differ", Kind.NONDETERMINISTIC
            )
            return
        empties = self.call(case, empty="number")
        if empties.digests != said.digests:
            yield from self._uninitialised(case, said, empties)
        guards = self.call(case, guards="number")
        if guards.digests != said.digests:
            message = "its result depends on memory outside of its tensors: it reads out of bounds"
            yield Observation(
                kind=Kind.OUT_OF_BOUNDS_READ,
                message=message,
                trial=case.trial,
                evidence={"found by": "comparing"},
                exotic=case.trial.exotic,
            )
        if orders:
            backward = self.call(case, order="backward")
            if backward.digests != said.digests:
                yield from self._depends(case, said, backward, "the order in which its programs run", Kind.RACE)

    def _uninitialised(self, case: Case, said: Said, empties: Said) -> Iterator[Observation]:
        exotic = case.trial.exotic
        events = [e for e in empties.values.get("events", []) if e["kind"] == "uninitialized-read"]
        never = list(unwritten(said, empties))
        for n, count, of in never:
            message = f"it never writes {count} of the {of} elements of its result {n}, which hold whatever was there"
            yield Observation(
                kind=Kind.UNINITIALIZED_READ, message=message, trial=case.trial, buffer=f"output {n}", exotic=exotic
            )
        if events or not never:
            what = f"{events[0]['kernel']}: {events[0]['text']}" if events else "it reads memory that nobody wrote"
            source = _source(events[0]) if events else ()
            buffer = events[0]["tensor"] if events else None
            message = f"{what}, and its result depends on that"
            yield Observation(
                kind=Kind.UNINITIALIZED_READ,
                message=message,
                trial=case.trial,
                buffer=buffer,
                source=source,
                evidence={} if events else {"found by": "comparing"},
                exotic=exotic,
            )

    def _depends(self, case: Case, said: Said, other: Said, on: str, kind: Kind) -> Iterator[Observation]:
        """The result depends on something: an error if one of the results is wrong, and rounding if both are right.

        Where nothing says what is right, it is an error if they are far apart.
        """
        wrong = [o for o in observe(case, other, self.about, self._task.mutates) if o.kind in _VALUES]
        before = any(o.trial == case.trial and o.kind in _VALUES for o in self.seen)
        exact = not any(t.is_floating_point() for t in other.tensors) or (not self.referenced and apart(said, other))
        yield Observation(
            kind=kind,
            message=f"its result depends on {on}" + ("" if wrong or before or exact else ", by no more than rounding"),
            trial=case.trial,
            evidence={"one of them": wrong[0].message} if wrong else {},
            exotic=case.trial.exotic,
            note=not (wrong or before or exact),
        )

    def fenced(self, case: Case) -> Iterator[Observation]:
        """Call the kernel with memory around its tensors that cannot be touched; for native code."""
        try:
            self.call(case, fence=True)
        except Gone as gone:
            if gone.signal:
                yield Observation(
                    kind=Kind.OUT_OF_BOUNDS_READ,
                    message="it touches memory outside of its tensors: with pages there that cannot be used, "
                    + str(gone),
                    trial=case.trial,
                    exotic=case.trial.exotic,
                )

    @property
    def native(self) -> bool:
        """Whether the kernel computes with code that is neither PyTorch's own operators nor Triton's."""
        if self.tried.launches:
            return False
        computing = [o for o in self.tried.operators if not any(f".{w}" in o for w in _FACTORIES)]
        return not computing or any(not o.startswith(("aten.", "prims.")) for o in computing)

    def run(self) -> list[Observation]:
        """Make all trials and repetitions; return what was seen."""
        pairs: list[tuple[Case, Said]] = []
        for case, said, _ in self.trials():
            if len(pairs) < _MOST_PAIRS and not (
                case.trial.values != ORDINARY and case.trial.sizes is None and len(pairs) > 2
            ):
                pairs.append((case, said))
                if len(pairs) == 1:
                    self.seen += self.repeat(case, said)
        quick = [pair for pair in pairs[1:] if pair[1].values["seconds"] < BRISK]
        for case, said in quick or pairs[1:3]:
            if self.left() > self._task.seconds * 0.3:
                self.seen += self.repeat(case, said)
        for case, _ in pairs[:6] if self.native else ():
            if self.left() > self._task.seconds * 0.25:
                self.seen += self.fenced(case)
        if any(o.kind is Kind.NONDETERMINISTIC and not o.note for o in self.seen):
            # Two results that differ anyway say nothing about what else differed.
            self.seen = [o for o in self.seen if "found by" not in o.evidence]
        return self.seen


def _source(event: dict[str, Any]) -> Any:
    return (SourceLine(file=event["file"], line=event["line"], code=event["code"]),) if event["file"] else ()


def _gone(case: Case, gone: Gone) -> Observation:
    """A call that gave no result, because its process is gone."""
    said = gone.said.strip().splitlines()[-1:]
    evidence: dict[str, Any] = {"said": said[0][:300]} if said else {}
    kind = Kind.WRONG_VALUES
    if gone.signal in (signal.SIGSEGV, signal.SIGBUS):
        kind = Kind.OUT_OF_BOUNDS_READ
    elif gone.signal == signal.SIGABRT:
        kind = Kind.OUT_OF_BOUNDS_WRITE if any(w in gone.said for w in ("free", "corrupt", "malloc")) else kind
    elif not gone.hung:
        kind = Kind.CHEAT if gone.status is not None or gone.signal == signal.SIGKILL else kind
    return Observation(
        kind=kind,
        message=f"it gives no result: {gone}",
        trial=case.trial,
        evidence=evidence,
        exotic=case.trial.exotic,
    )
