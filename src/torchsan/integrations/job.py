"""A job that torchsan stays on in: a session with a budget, and someone who is told what it finds, step by step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from torchsan.errors import UsageError
from torchsan.integrations.outlets import Outlet, open_outlets
from torchsan.records import Severity
from torchsan.session import Session, active, session

if TYPE_CHECKING:
    from types import TracebackType

    from torchsan.records import Finding

log = logging.getLogger(__name__)

_ON_FINDING = ("continue", "stop", "raise")


class Job:
    """Checks a sample of a long job's launches, and tells what comes of it while the job runs.

    >>> with torchsan.integrations.Job(budget="5%", to="log") as job:
    ...     y = compiled(x)
    ...     job.step()
    >>> job.findings
    ()
    """

    def __init__(
        self,
        *,
        budget: str = "1%",
        to: str | Outlet | Sequence[str | Outlet] = "log",
        every: int = 100,
        on_finding: str = "continue",
        **options: Any,
    ) -> None:
        """`to` is one or several of `log`, `log:NAME`, `tensorboard:FOLDER` and `prometheus:FILE`, which are told the
        figures of each `every`-th step, and findings at once.

        At an error the job goes on, `should_stop` becomes true for the loop or trainer to stop at, or `step` raises
        FindingsError: `on_finding` is `continue`, `stop` or `raise`. The other options are those of
        `torchsan.session()`. Inside a session, or under `torchsan run`, that one checks, with its own options. Raise
        UsageError for a value that is not allowed.
        """
        if on_finding not in _ON_FINDING:
            raise UsageError(f"on_finding is {on_finding!r}; allowed: {', '.join(_ON_FINDING)}", slug="bad-option")
        if every < 1:
            raise UsageError(f"every is {every!r}; expected a number of steps from 1", slug="bad-option")
        self._to = to
        self._every = every
        self._on_finding = on_finding
        self._options = {"check": "values", "budget": budget, **options}
        self._outlets: list[Outlet] = []
        self._session: Session | None = None
        self._ours = False
        self._told = 0
        self._step = 0
        self.should_stop = False
        """Whether an error was found and `on_finding` is `stop`."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings so far."""
        return self._session.findings if self._session is not None else ()

    @property
    def figures(self) -> dict[str, float]:
        """What was seen so far, in numbers."""
        if self._session is None:
            return {}
        coverage, counts = self._session.coverage, dict.fromkeys(Severity, 0)
        for finding in self._session.findings:
            counts[finding.severity] += 1
        figures = {f"torchsan/{severity}s": float(n) for severity, n in counts.items()}
        figures["torchsan/kernels"] = float(coverage.kernels)
        figures["torchsan/buffers"] = float(coverage.buffers)
        figures["torchsan/buffers_checked"] = float(coverage.buffers_checked)
        sampling = self._session.sampling
        if sampling is not None:
            names = {"share": "cost", "looks": "launches_checked", "every": "calls_between_checks"}
            known = {name: sampling[key] for key, name in names.items()}
            figures |= {f"torchsan/{name}": float(value) for name, value in known.items() if value is not None}
        return figures

    def open(self) -> None:
        """Begin to check. Raise UsageError for options that are not allowed."""
        if self._session is not None:
            return
        self._outlets = open_outlets(self._to)
        known = active()
        self._ours = known is None
        self._session = session(**self._options) if known is None else known
        if self._ours:
            self._session.open()

    def step(self, number: int | None = None) -> None:
        """A step of training is over, with this number or the next. Tell what is new."""
        self._step = self._step + 1 if number is None else number
        new = self.findings[self._told :]
        if new or self._step % self._every == 0:
            self._tell(new)
        errors = [f for f in new if f.severity is Severity.ERROR]
        if errors and self._on_finding == "stop":
            self.should_stop = True
        if errors and self._on_finding == "raise" and self._session is not None:
            self._session.raise_if_findings()

    def close(self) -> None:
        """Stop checking, and tell the last figures. Does nothing the second time."""
        if self._session is None or not self._outlets:
            return
        if self._ours:
            self._session.close()
        self._tell(self.findings[self._told :])
        outlets, self._outlets = self._outlets, []
        for outlet in outlets:
            try:
                outlet.close()
            except Exception:  # the job has ended well all the same
                log.debug("could not close %s", outlet, exc_info=True)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _tell(self, new: Sequence[Finding]) -> None:
        """Tell every outlet. One that fails is dropped, and said: a job does not end because a disk is full."""
        self._told += len(new)
        figures = self.figures
        for outlet in tuple(self._outlets):
            try:
                for finding in new:
                    outlet.finding(finding, self._step)
                outlet.figures(figures, self._step)
            except Exception as e:  # a job does not end because nobody can be told
                log.debug("%s failed", type(outlet).__name__, exc_info=True)
                log.warning("torchsan: figures are told no more to %s: %s", type(outlet).__name__, e)
                self._outlets.remove(outlet)
