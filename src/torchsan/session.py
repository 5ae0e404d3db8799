"""Puts the parts together: recorder, checks and watches, and what is done about a finding; and takes them apart again.

`torchsan.session()`, the backend, `crossref`, `check_call`, `torchsan run` and pytest all use the `Session` here.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Self

from torchsan.errors import SessionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from torchsan.options import Options
    from torchsan.recording import Recorder, Shipper, Writer
    from torchsan.records import Coverage, Finding
    from torchsan.watch import Programs
    from torchsan.watch.observer import Observer

# Everything else when it is used: `import torchsan` costs nothing, as a pytest plugin that is off must.


class Scope(Enum):
    """What a session watches."""

    PROCESS = auto()
    """All that this process compiles and calls. There is one such session at a time."""
    BESIDE = auto()
    """The same, also inside or around another session."""
    COMPILES = auto()
    """Only what is compiled inside `Session.compiling`, and the calls of that."""


_REPLICAS_EVERY = 100
"""Of how many optimizer steps the copies of one are compared between ranks, under a budget."""
_active: Session | None = None
_active_lock = threading.Lock()


class Session:
    """One watched stretch of this process; what it found stays on the object when it is over.

    Used as a context manager, or with `open` and `close`. Sessions do not nest, also not across threads, because
    they instrument the whole process.
    """

    _called = "session"

    def __init__(
        self,
        options: Options,
        *,
        recorder: Recorder | None = None,
        scope: Scope = Scope.PROCESS,
        last: Sequence[Observer] = (),
        on_finding: Callable[[Finding], None] | None = None,
    ) -> None:
        """Prepare a session.

        Without a `recorder` it records to `options.out`, or to a folder that goes with it. `last` see everything after
        the checks. `on_finding` is the caller's policy: it is called with each finding once that is recorded, in the
        thread that found it.
        """
        self.options = options
        self.observers: tuple[Observer, ...] = ()
        self._given = recorder
        self._scope = scope
        self._last = last
        self._on_finding = on_finding
        self._recorder: Recorder | None = None
        self._programs: Programs | None = None
        self._thread = threading.local()
        self._stack = ExitStack()
        self._opened = False
        self._pid = 0

    @property
    def path(self) -> Path | None:
        """The folder of the recording; None for a session without `out`, whose recording goes when it ends."""
        if self._given is None and self.options.out is None:
            return None
        return getattr(self._recorder, "path", None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings so far, in the order they were made."""
        return self._recorder.findings if self._recorder is not None else ()

    @property
    def coverage(self) -> Coverage:
        """What was looked at so far, and what was not and why."""
        from torchsan.records import Coverage

        return self._recorder.coverage if self._recorder is not None else Coverage()

    @property
    def sampling(self) -> dict[str, float | int | None] | None:
        """What sampling under a budget came to so far, in numbers; None without a budget."""
        samplers = (getattr(observer, "sampler", None) for observer in self.observers)
        return next((sampler.figures() for sampler in samplers if sampler is not None), None)

    def __repr__(self) -> str:
        from torchsan.report.findings import session_text

        return f"<torchsan {self._called}: {session_text(self.findings, self.coverage)}>"

    def _repr_html_(self) -> str:
        """The session in a notebook: what was looked at, and the findings."""
        from torchsan.report.html.plain import fragment

        return fragment(self.findings, self.coverage)

    def raise_if_findings(self) -> None:
        """Raise FindingsError, with the findings as its text, if there is one of severity `error`."""
        from torchsan.report.findings import raise_errors

        raise_errors(self.findings, self._text)

    def _text(self, errors: Sequence[Finding]) -> str:
        from torchsan.report.findings import findings_text

        return f"{findings_text(errors, 'finding', 'in compiled code')}\n"

    def open(self) -> None:
        """Start watching. Raise SessionError if another session is open in this process, or this one was opened.

        A recorder that was given is closed with the session. If `open` fails it stays open, to record why.
        """
        self._claim()
        self._pid = os.getpid()
        with ExitStack() as stack:  # Undoes what was done when a later step fails.
            if self._scope is Scope.PROCESS:
                stack.callback(_release)
            self._recorder = self._given or _record_to_disk(self.options, stack)
            self._recorder.max_bytes = self.options.max_bytes
            if self._on_finding is not None:
                self._recorder.on_finding = self._on_finding
            stack.callback(self._end_recording)
            stack.callback(self._note_seed)
            _count_time(self._recorder, stack)
            self._watch(self._recorder, stack)
            self._note_seed()
            self._stack = stack.pop_all()
            self._opened = True

    def close(self) -> None:
        """Stop watching and leave nothing behind. Does nothing the second time, and nothing in a forked child."""
        if os.getpid() == self._pid:
            self._stack.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Watch what this thread compiles inside, if the scope is COMPILES, and its calls until the session closes."""
        if self._programs is None or getattr(self._thread, "compiling", False):
            yield  # Another such context is around this one.
            return
        self._thread.compiling = True
        try:
            with ExitStack() as stack:
                stack.enter_context(self._programs.compiles(forget=False))
                for observer in self.observers:
                    stack.enter_context(observer.attached())
                yield
        finally:
            self._thread.compiling = False

    def _claim(self) -> None:
        global _active
        with _active_lock:
            if self._scope is Scope.PROCESS and _active is not None:
                where = f" (recording to {_active.path})" if _active.path else ""
                raise SessionError(
                    f"a torchsan session is open in this process already{where}; sessions do not nest: "
                    "close it first, or drop this one when the program runs under `torchsan run`",
                    slug="nested-session",
                )
            if self._recorder is not None:
                raise SessionError(f"this {self._called} was used already; make a new one", slug="nested-session")
            if self._scope is Scope.PROCESS:
                _active = self

    def _watch(self, recorder: Recorder, stack: ExitStack) -> None:
        from dataclasses import replace

        # Imported here, so that preparing a session or asking for its findings does not need the instruments.
        from torchsan.checks import observers
        from torchsan.checks.collector import raise_error
        from torchsan.recording import current_rank
        from torchsan.torch_internals import check_version
        from torchsan.torch_internals.seams import called
        from torchsan.torch_internals.tried import failures_here
        from torchsan.watch import Programs, attach, watching
        from torchsan.watch.observer import not_checked
        from torchsan.watch.operators import OperatorObserver
        from torchsan.watch.replicas import observe_replicas
        from torchsan.watch.stack import room_on_the_stack

        stack.enter_context(room_on_the_stack())

        caveat = check_version()
        if caveat is not None:
            recorder.skipped("PyTorch", caveat)
        failing = failures_here() if self.options.check else {}
        for check in self.options.check:
            if check in failing:
                not_checked(recorder, called(check), failing[check])
        options = replace(self.options, check=tuple(c for c in self.options.check if c not in failing))
        checks = observers(options, recorder, raise_error if options.fail_fast else None)
        self.observers = (*stack.enter_context(watching(recorder, options, checks)), *self._last)
        if self._scope is Scope.COMPILES:
            self._programs = Programs(recorder, self.observers)
            stack.callback(self._programs.detach)
            for observer in self.observers:
                if isinstance(observer, OperatorObserver):  # It sees what compiled graphs call.
                    stack.callback(observer.closed)
            return
        stack.enter_context(attach(recorder, self.observers))
        rank = current_rank(os.environ)
        if self._scope is Scope.PROCESS and rank is not None and rank.world > 1:
            recorder.event("rank", {"rank": rank})
            # All ranks look at the same steps. To hash all parameters takes much of a step.
            stack.enter_context(observe_replicas(recorder, 1 if options.budget is None else _REPLICAS_EVERY))

    def _end_recording(self) -> None:
        close = getattr(self._recorder, "close", None)
        if close is not None and (self._opened or self._given is None):
            close()

    def _note_seed(self) -> None:
        torch = sys.modules.get("torch")
        seed = getattr(torch, "initial_seed", None)  # Absent while torch is still being imported.
        if seed is not None and self._recorder is not None:
            self._recorder.event("seed", {"torch": seed()})


def active() -> Session | None:
    """Return the session that is open in this process, if there is one."""
    return _active


def _release() -> None:
    global _active
    _active = None


def _count_time(recorder: Recorder, stack: ExitStack) -> None:
    """Count where the time goes from here on; `stack` records it."""
    from torchsan.recording.spent import Ledger

    ledger = Ledger()
    ledger.open()
    stack.callback(lambda: recorder.event("cost", {"cost": ledger.close()}))


def _record_to_disk(options: Options, stack: ExitStack) -> Recorder:
    """Begin a recording where the options say; `stack` ends it, and sends or removes it if it is not to stay there.

    Where there is no room for one, say so and record in memory: that is no reason to stop a program.
    """
    import errno

    from torchsan.recording import Recorder
    from torchsan.recording.folder import NoSpaceError

    with ExitStack() as begun:
        try:
            recorder = _begin_recording(options, begun)
        except (NoSpaceError, OSError) as e:
            if isinstance(e, OSError) and e.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOENT):
                raise
            with suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(f"torchsan: nothing is recorded: {e}; the program goes on, and so do the checks\n")
            return Recorder()
        stack.push(begun.pop_all())
        return recorder


def _begin_recording(options: Options, stack: ExitStack) -> Writer:
    import tempfile

    from torchsan.recording import Writer, create_folder, current_rank, finalize, is_url

    path = options.out
    rank = current_rank(os.environ)
    if path is not None and rank is not None:
        path = rank.folder(path)
    elif path is None:
        path = stack.enter_context(tempfile.TemporaryDirectory(prefix="torchsan-", ignore_cleanup_errors=True))
    url = path if is_url(path) else None
    folder = create_folder(None if url else path, command=getattr(sys, "argv", ()), options=options)
    if url is not None:
        stack.callback(_sent_or_kept, folder, ship(folder, url))
    stack.callback(finalize, folder, None)
    return Writer(folder)


def ship(folder: Path, url: str) -> Shipper:
    """Begin to send a new recording to `url`; if that cannot be, remove it and raise UsageError."""
    from torchsan.recording import Shipper
    from torchsan.recording.folder import remove_folder

    try:
        return Shipper(folder, url)
    except BaseException:
        remove_folder(folder)
        raise


def _sent_or_kept(folder: Path, shipper: Shipper) -> None:
    from torchsan.recording.folder import remove_folder

    if shipper.finish():
        remove_folder(folder)


def session(
    *,
    check: str | Sequence[str] | None = None,
    watch: str | None = None,
    kernels: str | Sequence[str] | None = None,
    when: str | None = None,
    out: str | Path | None = None,
    calls: int | str | None = None,
    budget: str | None = None,
    max_bytes: int | str | None = None,
    max_memory: int | str | None = None,
    no_guards: bool = False,
) -> Session:
    """Return a context manager that watches all compiled code of this process while it is open.

    The options are those of `torchsan run`; one that is None has its default. With `out` the recording is kept there;
    without, it is gone when the context ends, and findings and coverage stay on the object. A rank of a distributed job
    records to `out/rank-N`. Raise UsageError for a value that is not allowed.

    >>> with torchsan.session(check="values") as run:
    ...     y = compiled(x)
    >>> run.raise_if_findings()
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from torchsan.options import Options, parse_options

    return Session(Options(**parse_options("session()", given)))
