"""`with always_on(accelerator, budget="1%") as job:` around a loop of Accelerate."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator  # type: ignore[import-untyped]  # has no types

from torchsan.integrations.job import Job
from torchsan.records import Finding

__all__ = ["always_on"]


def always_on(accelerator: Accelerator, **options: Any) -> Job:
    """Return a Job, to be used as a context manager, that tells the trackers of the accelerator.

    The options are those of `torchsan.integrations.Job`; without `to`, figures go to a logger and to `accelerator.log`.

    >>> with always_on(accelerator, budget="1%") as job:
    ...     for batch in loader:
    ...         train_step(batch)
    ...         job.step()
    """
    return Job(**{"to": ["log", _Trackers(accelerator)], **options})


class _Trackers:
    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def figures(self, figures: Any, step: int) -> None:
        self._accelerator.log(dict(figures), step=step)

    def finding(self, finding: Finding, step: int) -> None:
        """Findings are counted among the figures; trackers take numbers."""

    def close(self) -> None:
        """Trackers end with the accelerator."""
