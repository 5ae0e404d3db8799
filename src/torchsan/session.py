"""Puts the parts together: `with torchsan.session() as run:` watches this process and gives the findings."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from torchsan.errors import FindingsError, SessionError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from torchsan.options import Options
    from torchsan.recording import Shipper, Writer
    from torchsan.records import Coverage, Finding

# Everything else when it is used: `import torchsan` costs nothing, as a pytest plugin that is off must.


_active: Session | None = None
_active_lock = threading.Lock()


class Session:
    """One watched stretch of this process; what it found stays on the object when it is over.

    Used as a context manager, or with `open` and `close`. Sessions do not nest, also not across threads, because
    they instrument the whole process.
    """

    def __init__(self, options: Options, *, writer: Writer | None = None) -> None:
        """Prepare a session. Without a `writer` it records to `options.out`, or to a folder that goes with it."""
        self.options = options
        self._given = writer
        self._writer: Writer | None = None
        self._stack = ExitStack()
        self._pid = 0

    @property
    def path(self) -> Path | None:
        """The folder of the recording; None for a session without `out`, whose recording goes when it ends."""
        if self._given is None and self.options.out is None:
            return None
        return self._writer.path if self._writer is not None else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings so far, in the order they were made."""
        return self._writer.findings if self._writer is not None else ()

    @property
    def coverage(self) -> Coverage:
        """What was looked at so far, and what was not and why."""
        from torchsan.records import Coverage

        return self._writer.coverage if self._writer is not None else Coverage()

    def raise_if_findings(self) -> None:
        """Raise FindingsError, with the findings as its text, if there is one of severity `error`."""
        from torchsan.records import Severity
        from torchsan.report import render_findings

        errors = [f for f in self.findings if f.severity is Severity.ERROR]
        if errors:
            count = f"{len(errors)} finding{'s' if len(errors) > 1 else ''}"
            raise FindingsError(f"torchsan: {count} in compiled code\n\n{render_findings(errors)}\n", slug="findings")

    def open(self) -> None:
        """Start watching. Raise SessionError if another session is open in this process, or this one was opened."""
        global _active
        with _active_lock:
            if _active is not None:
                where = f" (recording to {_active.path})" if _active.path else ""
                raise SessionError(
                    f"a torchsan session is open in this process already{where}; sessions do not nest: "
                    "close it first, or drop this one when the program runs under `torchsan run`",
                    slug="nested-session",
                )
            if self._writer is not None:
                raise SessionError("this session was used already; make a new one", slug="nested-session")
            _active = self
        self._pid = os.getpid()
        with ExitStack() as stack:  # Undoes what was done when a later step fails.
            stack.callback(_deactivate)
            self._writer = self._given or self._make_writer(stack)
            stack.callback(self._writer.close)
            stack.callback(self._note_seed)
            # Here, so that preparing a session or asking for its findings does not need the instruments.
            from torchsan.checks import observers
            from torchsan.checks.collector import raise_error
            from torchsan.watch import attach

            checks = observers(self.options, self._writer, raise_error if self.options.fail_fast else None)
            stack.enter_context(attach(self._writer, self.options, checks))
            self._note_seed()
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Stop watching and leave nothing behind. Does nothing the second time, and nothing in a forked child."""
        if os.getpid() == self._pid:
            self._stack.close()

    def __enter__(self) -> Session:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _make_writer(self, stack: ExitStack) -> Writer:
        import tempfile

        from torchsan.recording import Writer, current_rank, finalize, is_url

        path = self.options.out
        rank = current_rank(os.environ)
        if path is not None and rank is not None:
            path = rank.folder(path)
        elif path is None:
            path = stack.enter_context(tempfile.TemporaryDirectory(prefix="torchsan-", ignore_cleanup_errors=True))
        url = path if is_url(path) else None
        writer = Writer.create(None if url else path, command=getattr(sys, "argv", ()), options=self.options)
        if url is not None:
            stack.callback(_sent_or_kept, writer.path, _shipper(writer, url))
        stack.callback(finalize, writer.path, None)
        return writer

    def _note_seed(self) -> None:
        torch = sys.modules.get("torch")
        seed = getattr(torch, "initial_seed", None)  # Absent while torch is still being imported.
        if seed is not None and self._writer is not None:
            self._writer.event("seed", {"torch": seed()})


def _shipper(writer: Writer, url: str) -> Shipper:
    from torchsan.recording import Shipper
    from torchsan.recording.shipping import remove

    try:
        return Shipper(writer.path, url)
    except BaseException:
        writer.close()
        remove(writer.path)
        raise


def _sent_or_kept(folder: Path, shipper: Shipper) -> None:
    from torchsan.recording.shipping import remove

    if shipper.finish():
        remove(folder)


def active() -> Session | None:
    """Return the session that is open in this process, if there is one."""
    return _active


def _deactivate() -> None:
    global _active
    _active = None


def session(
    *,
    check: str | Sequence[str] | None = None,
    watch: str | None = None,
    kernels: str | Sequence[str] | None = None,
    when: str | None = None,
    out: str | Path | None = None,
    calls: int | str | None = None,
    max_bytes: int | str | None = None,
    no_guards: bool = False,
) -> Session:
    """Return a context manager that watches all compiled code of this process while it is open.

    The options are those of `torchsan run`; one that is None has its default. With `out` the recording is kept there;
    without, it is gone when the context ends, and findings and coverage stay on the object. A rank of a distributed job
    records to `out/rank-N`. Raise UsageError for a
    value that is not allowed.
    """
    from torchsan.options import Options, parse_options

    given: dict[str, Any] = {
        "check": check,
        "watch": watch,
        "kernels": kernels,
        "when": when,
        "out": out,
        "calls": calls,
        "max_bytes": max_bytes,
        "no_guards": no_guards,
    }
    return Session(Options(**parse_options("session()", {k: v for k, v in given.items() if v is not None})))
