"""`torch.compile(model, backend="torchsan")`: Inductor, with what it makes checked and nothing else watched."""

from __future__ import annotations

import atexit
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torchsan.checks import observers
from torchsan.checks.stages.check import StagesCheck
from torchsan.errors import FindingsError, TorchsanWarning, UsageError
from torchsan.options import Options, parse_options
from torchsan.recording import Writer, finalize
from torchsan.records import Finding, Severity
from torchsan.report import render_findings
from torchsan.report.tables import count
from torchsan.session import active
from torchsan.torch_internals import check_version
from torchsan.torch_internals.inductor import compile_with_inductor, inductor_config
from torchsan.watch import Programs, watching
from torchsan.watch.observer import CallWatch, CompiledProgram, Observer
from torchsan.watch.operators import OperatorObserver

if TYPE_CHECKING:
    import torch.fx

_OPTIONS = ("check", "watch", "kernels", "when", "out", "calls", "max_bytes", "no_guards")
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
    ours = {name: given.pop(name) for name in (*_OPTIONS, "on_finding") if name in given}
    config = inductor_config(mode, given)
    if active() is not None:
        return compile_with_inductor(gm, example_inputs, config, _nothing)
    return _sanitizer(ours).compile(gm, example_inputs, config)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


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


class _Sanitizer:
    """Checks what one set of options asks for, from the first compile to the end of the process.

    It is attached while something is compiled for it, and to what was compiled: eager code runs as it is, and so does
    what others compile.
    """

    def __init__(self, options: Options, *, raising: bool) -> None:
        caveat = check_version()
        self._stack = ExitStack()
        path = options.out or self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="torchsan-", ignore_cleanup_errors=True)
        )
        self._writer = Writer.create(path, command=getattr(sys, "argv", ()), options=options)
        self._stack.callback(finalize, self._writer.path, None)
        self._stack.callback(self._writer.close)
        if caveat is not None:
            self._writer.skipped("PyTorch", caveat)
        self._teller = _Teller(self._writer, raising, self._writer.path if options.out else None)
        watched = watching(self._writer, options, observers(options, self._writer))
        self._observers = (*self._stack.enter_context(watched), self._teller)
        self._programs = Programs(self._writer, self._observers)
        self._attached = threading.local()
        atexit.register(self.close)

    def compile(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], config: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """Compile one graph of Dynamo's, and return what checks its calls."""

        def compile_() -> Callable[..., Any]:
            return compile_with_inductor(gm, example_inputs, config, self._compiling)

        for observer in self._observers:
            if isinstance(observer, StagesCheck):
                compile_ = _through(observer, gm, compile_)
        with self._compiling():
            compiled = compile_()

        def call(*args: Any) -> Any:
            result = compiled(*args)
            self._teller.tell()
            return result

        return call

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """Look at what this thread compiles; inside another, at what that looks at."""
        if getattr(self._attached, "now", False):
            yield
            return
        self._attached.now = True
        try:
            with ExitStack() as stack:
                stack.enter_context(self._programs.compiles(forget=False))
                for observer in self._observers:
                    stack.enter_context(observer.attached())
                yield
        finally:
            self._attached.now = False

    def close(self) -> None:
        """Detach from everything that was compiled, and end the recording."""
        atexit.unregister(self.close)
        for observer in self._observers:
            if isinstance(observer, OperatorObserver):
                observer.closed()
        self._programs.detach()
        self._teller.tell(raising=False)
        self._stack.close()


def _through(
    check: StagesCheck, gm: torch.fx.GraphModule, compile_: Callable[[], Callable[..., Any]]
) -> Callable[[], Callable[..., Any]]:
    return lambda: check.compile("torchsan", gm, compile_)


class _Teller(Observer):
    """The last observer of each call: says what the others found, where the program can hear it."""

    name = "backend"

    def __init__(self, writer: Writer, raising: bool, path: object) -> None:
        self._raising = raising
        self._path = path
        self._new: list[Finding] = []
        writer.on_finding = self._new.append

    def watch(self, program: CompiledProgram, call: int) -> CallWatch | None:
        return _End(self)

    def tell(self, *, raising: bool | None = None) -> None:
        """Warn of what is new, or raise it if there is an error and that is asked for."""
        found, self._new[:] = list(self._new), []
        if not found:
            return
        where = f"\n\nrecording: {self._path}" if self._path is not None else ""
        text = f"torchsan: {count(len(found), 'finding')} in compiled code\n\n{render_findings(found)}{where}\n"
        error = any(f.severity is Severity.ERROR for f in found)
        if error and (self._raising if raising is None else raising):
            raise FindingsError(text, slug="findings")
        try:
            warnings.warn(text, TorchsanWarning, stacklevel=2)
        except TorchsanWarning as e:  # Warnings are errors here; only FindingsError passes from the middle of a call.
            raise FindingsError(text, slug="findings") from e


class _End(CallWatch):
    def __init__(self, teller: _Teller) -> None:
        self._teller = teller

    def close(self, error: BaseException | None) -> None:
        # A call that failed says so itself, and must go on saying it.
        self._teller.tell(raising=False if error is not None else None)
