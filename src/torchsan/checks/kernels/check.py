"""The kernels check: kernels that the user wrote, operators and Triton, are refereed when a program first uses them.

Importing it imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torchsan.errors import FindingsError
from torchsan.options import Calls, selects_call
from torchsan.torch_internals.patches import Patches
from torchsan.torch_internals.triton_launches import see_launches
from torchsan.watch.observer import CallWatch, CompiledProgram, Observer, not_checked
from torchsan.watch.operators import OperatorCall, OperatorObserver, Remember

if TYPE_CHECKING:
    from torchsan.checks.collector import Collector
    from torchsan.checks.kernels.watch import Bench

_NOTHING = "the program calls no operator of a library and launches no Triton kernel of its own: nothing was refereed"


class KernelsCheck(Observer, OperatorObserver):
    """Referees each operator that is not PyTorch's own, and each Triton kernel, with what the program gives it."""

    name = "kernels check"

    def __init__(self, collector: Collector, calls: Calls, *, alone: bool) -> None:
        """`calls` is how many calls of each compiled program are looked at; None for all. `alone`: no other check is
        there, so that a run in which nothing was refereed has shown nothing.
        """
        self._collector = collector
        self._recorder = collector.recorder
        self._calls = calls
        self._alone = alone
        self._pid = os.getpid()
        self._bench: Bench | None = None

    @property
    def bench(self) -> Bench:
        """Where kernels are refereed."""
        if self._bench is None:
            from torchsan.checks.kernels.watch import Bench

            self._bench = Bench(self._collector)
        return self._bench

    @contextmanager
    def attached(self) -> Iterator[None]:
        patches = Patches(lambda e: not_checked(self._recorder, "Triton kernels", f"torchsan failed: {e}"[:300]))
        see_launches(patches, self._launched)
        patches.when_imported("torch", _hide_from_dynamo)
        try:
            yield
        finally:
            patches.restore()

    def _launched(self, function: Any, launch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            return  # A kernel's own process, in which it is refereed.
        try:
            self.bench.launch(function, launch, args, kwargs)
        except FindingsError:
            raise
        except Exception as e:  # noqa: BLE001  # a check that fails ends the check, never the user's job
            not_checked(self._recorder, getattr(function, "__name__", "a Triton kernel"), _failed(e))

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        from torchsan.checks.kernels.watch import KernelsWatch

        return KernelsWatch(self.bench, program) if selects_call(self._calls, call) else None

    def wants(self, overload: Any) -> bool:
        from torchsan.torch_internals.operators import is_own

        return not is_own(overload)

    def before(self, call: OperatorCall) -> Any:
        return self.bench.operator(call)

    def after(self, call: OperatorCall, before: Any, result: Any) -> Remember:
        self.bench.over(before)
        return True

    def failed(self, call: OperatorCall, error: Exception) -> None:
        not_checked(self._recorder, str(call.overload), _failed(error))

    def not_covered(self, what: str, reason: str) -> None:
        self._recorder.skipped(what, reason)

    def close(self) -> None:
        if self._alone and (self._bench is None or not self._bench.refereed):
            not_checked(self._recorder, "the kernels check", _NOTHING)


def _hide_from_dynamo(_: object) -> None:
    from torchsan.torch_internals.dispatch import hide_from_dynamo

    # A launch may be one that Dynamo looks at; what referees it is not the program's.
    hide_from_dynamo(KernelsCheck._launched)


def _failed(error: Exception) -> str:
    return f"torchsan failed: {type(error).__name__}: {error}"[:300]
