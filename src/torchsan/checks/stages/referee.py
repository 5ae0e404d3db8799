"""The capture referee: what a compiled call did against what the user's own Python does from the same state."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch

from torchsan.checks.stages.capture import source_of
from torchsan.checks.stages.captured import CallUnderWay, Statements
from torchsan.checks.stages.findings import Difference, because_of, difference_finding
from torchsan.checks.stages.twin_findings import Answers, apart, unlike
from torchsan.errors import FindingsError, in_one_line
from torchsan.graphs.nodes import names_of
from torchsan.options import Calls
from torchsan.recording.spent import charged, spent
from torchsan.records import Finding, Severity, Stage
from torchsan.reference.arithmetic import Unavailable
from torchsan.reference.isolation import obstacle
from torchsan.reference.reachable import fingerprint, returned
from torchsan.reference.twin import After, Call, Twin, TwinFailed, TwinRaised
from torchsan.torch_internals.compile_stages import CompileStages, backward_is_traced
from torchsan.torch_internals.operators import outside_modes, start_autograd, undisturbed
from torchsan.watch.operators import between_calls
from torchsan.watch.pace import Attention, Pace

log = logging.getLogger(__name__)

_MOST_PENDING = 4
"""Calls that may wait for their backward at a time."""
_WHAT = "the compiled function does not do what its Python does"

Report = Callable[[Finding], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What other stages had found before a call, and the graphs that ran in it."""

    errors: int
    flip: Finding | None
    """The last note of a choice that rounding decides."""
    ran: tuple[CompileStages, ...] = ()


class CaptureReferee:
    """Makes a watch for each compiled function.

    `errors` tells how many other stages have by now, `blamed` whether some are about one of these graphs, and `flip`
    the last note of a choice that rounding decides.
    `call` is what those who watch single graphs tell.
    """

    def __init__(
        self,
        calls: Calls,
        pace: Pace,
        report: Report,
        skipped: Callable[[str, str], None],
        errors: Callable[[], int],
        blamed: Callable[[tuple[CompileStages, ...]], bool],
        flip: Callable[[], Finding | None],
        call: CallUnderWay,
    ) -> None:
        self.calls = calls
        self.pace = pace
        self.report = report
        self.skipped = skipped
        self._errors = errors
        self.blamed = blamed
        self._flip = flip
        self.call = call
        self._pending: list[weakref.ref[Twin]] = []

    def known(self) -> Known:
        """What is known by now."""
        return Known(errors=self._errors(), flip=self._flip())

    def watcher(self, fn: Callable[..., Any], compiled: Callable[..., Any]) -> FunctionWatch:
        """Look at the calls of one function."""
        start_autograd()  # After the compile of its first call, looked at or not, it would be too late.
        return FunctionWatch(self, fn, compiled)

    def pend(self, twin: Twin) -> None:
        """Let a twin wait for the backward of its call; the oldest waits no longer if there are too many."""
        self._pending = [ref for ref in self._pending if ref() is not None]
        while len(self._pending) >= _MOST_PENDING:
            oldest = self._pending.pop(0)()
            if oldest is not None:
                oldest.close()
        self._pending.append(weakref.ref(twin))


class FunctionWatch:
    """One compiled function: checks its first calls, each whose arguments or state look new, and now and then one."""

    def __init__(self, referee: CaptureReferee, fn: Callable[..., Any], compiled: Callable[..., Any]) -> None:
        self.attention = Attention(referee.calls, referee.pace, powers=True)
        self._referee = referee
        self._fn = fn
        self._compiled = compiled
        self._name = getattr(fn, "__qualname__", type(fn).__name__)
        self._done = False
        self._warned = False
        self._usual: dict[str, float] = {}
        """How far rounding has taken what the compiled function gives from what its Python does, by name."""

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the compiled function for the program, and check the call if it is one to check."""
        between_calls()
        if self._done:
            self.attention.rest()
            return self._compiled(*args, **kwargs)
        start = time.perf_counter()
        wanted = self.attention.wants(lambda: self._look(args, kwargs))
        looked = time.perf_counter()
        result = self._checked(args, kwargs) if wanted else self._compiled(*args, **kwargs)
        took = time.perf_counter() - looked
        if wanted:
            self.attention.checked(took)
        else:
            self.attention.unchecked(looked - start, took)
        return result

    def _look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        try:
            with outside_modes():
                return hash(fingerprint(self._fn, args, kwargs))
        except Exception:  # noqa: BLE001  # an argument may be anything; then it is like all others
            return 0

    def _skip(self, reason: str, *, done: bool = True) -> None:
        self._done = self._done or done
        self._referee.skipped(f"the Python of {self._name}", reason)

    def _checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        later = self.attention.later
        with spent("stages", later=later):
            begun = self._begin(args, kwargs)
        if begun is None:
            return self._compiled(*args, **kwargs)
        call, twin = begun
        known = self._referee.known()
        self._referee.call.refusals.forget()
        self._referee.call.captured.begin()
        try:
            result = self._compiled(*args, **kwargs)
        except BaseException:
            self._referee.call.captured.end()
            twin.close()
            raise
        try:
            with spent("stages", later=later):
                self._judge(call, twin, result, replace(known, ran=self._referee.call.captured.graphs()))
        except FindingsError:
            raise
        except TwinFailed as e:
            self._skip(f"it was not run beside the compiled call: {e}")
            twin.close()
        except Exception as e:  # a check that fails ends the check, never the user's job
            log.debug("capture referee failed", exc_info=True)
            self._skip(f"torchsan failed: {in_one_line(e)}")
            twin.close()
        finally:
            self._referee.call.captured.end()
        return result

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Twin] | None:
        try:
            reason = obstacle()
            if reason is not None:
                self._skip(f"it was not run beside the compiled call: {reason}")
                return None
            call = Call(self._fn, args, kwargs)
            return call, Twin(call)
        except Exception as e:  # as above
            log.debug("no twin", exc_info=True)
            self._skip(f"it was not run beside the compiled call: {in_one_line(e)}")
            return None

    def _judge(self, call: Call, twin: Twin, result: Any, known: Known) -> None:
        try:
            self._compare(call, twin, result, known)
        except TwinRaised as e:
            if not self._refused(e.error):
                raise
            twin.close()

    def _compare(self, call: Call, twin: Twin, result: Any, known: Known) -> None:
        with undisturbed():
            mine, tensors = call.after(result, lambda _name, _t: True)
            leaves = call.region.leaves if call.region is not None else {}
            statements = self._referee.call.captured.statements(tensors, leaves)
            theirs = twin.after()
            differences = unlike(mine, theirs)
            comparable = mine.random == theirs.random
            if comparable:
                answers = Answers(twin, None, theirs)
                told = {d.name for d in differences if d.severity is Severity.ERROR}
                explained = self._explained(known)
                differences += apart(_different(mine, theirs), answers, told, self._usual, explained=explained)
        if not comparable:
            self._skip("it draws random numbers, and compiled code draws others; only shapes were compared", done=False)
        if self._found(differences, known, statements) or not comparable or call.region is None:
            twin.close()
            return
        self._follow(call, twin, returned(result).tensors, known, statements)

    def _follow(
        self, call: Call, twin: Twin, outputs: Mapping[str, torch.Tensor], known: Known, statements: Statements
    ) -> None:
        assert call.region is not None
        if backward_is_traced():
            twin.close()
            return
        leaves = {name: weakref.ref(leaf) for name, leaf in call.region.leaves.items()}
        judge = partial(self._gradients, twin, known, statements, leaves)
        pending = charged("stages", judge, later=self.attention.later)
        self._referee.pend(twin)
        self._referee.call.eager_gradients.await_for(twin)
        reason = call.region.follow(outputs, pending)
        call.region.forget()
        if reason is not None:
            self._skip(f"its gradients were not compared: {reason}", done=False)

    def _gradients(
        self,
        twin: Twin,
        known: Known,
        statements: Statements,
        leaves: Mapping[str, weakref.ref[torch.Tensor]],
        cotangents: dict[str, torch.Tensor],
        gradients: dict[str, torch.Tensor],
        partial_: set[str],
    ) -> None:
        autocast = tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda"))
        try:
            with undisturbed():
                expected = twin.gradients(cotangents, autocast)
                pairs = {}
                for name in {**expected, **gradients}:
                    if name not in partial_:
                        e, g = expected.get(name), gradients.get(name)
                        zeros = torch.zeros_like(g if e is None else e)  # type: ignore[arg-type]  # one of them is there
                        pairs[name] = (zeros if g is None else g, zeros if e is None else e)
                answers = Answers(twin, (cotangents, autocast), None, partial(self._captured, leaves))
                explained = self._explained(known)
                differences = apart(pairs, answers, set(), self._usual, "gradient of ", explained=explained)
            self._found(differences, known, statements)
        except FindingsError:
            raise
        except TwinFailed as e:
            self._skip(f"its gradients were not compared: {e}", done=False)
        except Exception as e:  # as above
            log.debug("capture referee failed", exc_info=True)
            self._skip(f"torchsan failed: {in_one_line(e)}")
        finally:
            twin.close()
            self._referee.call.eager_gradients.forget(twin)

    def _captured(self, leaves: Mapping[str, weakref.ref[torch.Tensor]], name: str) -> torch.Tensor | None:
        """The gradient of a leaf as what Dynamo captured gives it."""
        return self._referee.call.eager_gradients.of(leaves[name]()) if name in leaves else None

    def _refused(self, error: str) -> bool:
        """Report that the program raises this and the compiled call did not, if a graph of it raises it, too."""
        self._done = self._done or self._referee.call.refusals.confirm(error)
        return self._done

    def _explained(self, known: Known) -> bool:
        """Whether a later stage has an error that was not known before the call, or that is about a graph of it."""
        return self._referee.known().errors != known.errors or self._referee.blamed(known.ran)

    def _found(self, differences: list[Difference], known: Known, statements: Statements) -> bool:
        """Report, once for a function, unless a later stage has an error that explains it."""
        differences = sorted(differences, key=lambda d: d.severity is not Severity.ERROR)
        if not differences or (self._warned and differences[0].severity is Severity.WARNING):
            return False
        severity, self._warned = differences[0].severity, True
        self._done = self._done or severity is Severity.ERROR
        if self._explained(known):
            return True
        flip = self._referee.known().flip
        about = statements.get(differences[0].name, [])
        names = names_of(about, decomposed=True)
        fields: dict[str, Any] = {"stage": Stage.CAPTURE, "source": (*names["source"], *source_of(self._fn))}
        what = f"{_WHAT}, in {self._name}"
        if flip is not None and flip is not known.flip:
            what, fields = because_of(flip, what)
        self._referee.report(difference_finding(what, differences, severity=severity, about=about, **fields))
        return self._done


def _different(mine: After, theirs: After) -> dict[str, tuple[Any, Any]]:
    """What both have and is not equal: tensors, of the other side None if it was not sent, and plain values."""
    pairs: dict[str, tuple[Any, Any]] = {
        name: (told.tensor, theirs.tensors[name].tensor)
        for name, told in mine.tensors.items()
        if name in theirs.tensors and told.digest != theirs.tensors[name].digest
    }
    for name, value in mine.values.items():
        if name in theirs.values and not _same(value, other := theirs.values[name]):
            pairs[name] = (value, other)
    return pairs


def _same(a: Any, b: Any) -> bool:
    """Whether two plain values are one; True is not 1, which a tensor of it would be of another dtype."""
    return (a != a and b != b) or (a == b and isinstance(a, bool) == isinstance(b, bool))


def no_exhibit(*_: Any) -> NoReturn:
    """Why a finding of the referee has none."""
    raise Unavailable("the finding is about the program's own Python, which a recording does not hold")
