"""`torch.compile(model, backend="torchsan")`: Inductor, with what it makes checked and nothing else watched."""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from torchsan.checks.stages.check import StagesCheck
from torchsan.errors import FindingsError, TorchsanWarning, UsageError
from torchsan.options import NEVER, OF_A_SESSION, Options, parse_options
from torchsan.records import Finding, Severity
from torchsan.report.findings import findings_text
from torchsan.session import Scope, Session, active
from torchsan.torch_internals.inductor import compile_with_inductor, inductor_config
from torchsan.watch.observer import CallWatch, CompiledProgram, Observer

if TYPE_CHECKING:
    import torch.fx

_ON_FINDING = ("warn", "raise")
_sanitizers: dict[str, _Sanitizer] = {}
_lock = threading.Lock()


def torchsan_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile Dynamo's graph with Inductor, and check the compile and the calls.

    `options` are those of `torchsan.session()`, `on_finding`, which is `warn` (a TorchsanWarning) or `raise` (a
    FindingsError), and those of Inductor. Inside a session this is Inductor alone: the session checks.
    """
    given = dict(options or {})
    ours = {name: given.pop(name) for name in (*OF_A_SESSION, "on_finding") if name in given}
    config = inductor_config(mode, given)
    if active() is not None:
        return compile_with_inductor(gm, example_inputs, config, nullcontext)
    return _sanitizer(ours).compile(gm, example_inputs, config)


def _sanitizer(given: dict[str, Any]) -> _Sanitizer:
    """One for each set of options, so that all graphs of a model are in one recording."""
    on_finding = given.pop("on_finding", "warn")
    if on_finding not in _ON_FINDING:
        raise UsageError(f"on_finding is {on_finding!r}; allowed: {', '.join(_ON_FINDING)}", slug="bad-option")
    options = Options(**parse_options('the options of backend="torchsan"', given))
    key = repr((options, on_finding))
    with _lock:
        if key not in _sanitizers:
            _sanitizers[key] = _Sanitizer(options, raising=on_finding == "raise")
        return _sanitizers[key]


class _Sanitizer(Observer):
    """A session from the first compile with its options to the end of the process.

    It watches what is compiled for it: eager code runs as it is, and so does what others compile. As the last observer
    of each call it says what the checks found, where the program can hear it.
    """

    name = "backend"
    by_sizes = False

    def __init__(self, options: Options, *, raising: bool) -> None:
        self._raising = raising
        self._new: list[Finding] = []
        self._session = Session(options, scope=Scope.COMPILES, last=(self,), on_finding=self._new.append)
        self._session.open()
        atexit.register(self.end)

    def compile(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], config: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """Compile one graph of Dynamo's, and return what checks its calls."""
        compile_ = partial(compile_with_inductor, gm, example_inputs, config, self._session.compiling)
        for observer in self._session.observers:
            if isinstance(observer, StagesCheck):  # Dynamo had begun before it was attached.
                compile_ = partial(observer.compile, "torchsan", gm, compile_)
        with self._session.compiling():
            compiled = compile_()

        def call(*args: Any) -> Any:
            result = compiled(*args)
            self.tell()
            return result

        return call

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        return _End(self)

    def quiet(self, program: CompiledProgram, call: int) -> int:
        return NEVER  # A call that no check looks at has nothing to tell.

    def tell(self, *, raising: bool | None = None) -> None:
        """Warn of what is new, or raise it if there is an error and that is asked for."""
        found, self._new[:] = list(self._new), []
        if not found:
            return
        where = f"\n\nrecording: {self._session.path}" if self._session.path is not None else ""
        text = f"{findings_text(found, 'finding', 'in compiled code')}{where}\n"
        error = any(f.severity is Severity.ERROR for f in found)
        if error and (self._raising if raising is None else raising):
            raise FindingsError(text, slug="findings")
        try:
            warnings.warn(text, TorchsanWarning, stacklevel=2)
        except TorchsanWarning as e:  # Warnings are errors here; only FindingsError passes from the middle of a call.
            raise FindingsError(text, slug="findings") from e

    def end(self) -> None:
        """Detach from everything that was compiled, end the recording, and say what only showed then."""
        atexit.unregister(self.end)
        self._session.close()
        self.tell(raising=False)


class _End(CallWatch):
    def __init__(self, sanitizer: _Sanitizer) -> None:
        self._sanitizer = sanitizer

    def close(self, error: BaseException | None) -> None:
        # A call that failed says so itself, and must go on saying it.
        self._sanitizer.tell(raising=False if error is not None else None)
