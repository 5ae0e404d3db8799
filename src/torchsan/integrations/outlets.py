"""Where findings and figures of a running job are told: a logger, TensorBoard's event files, a Prometheus text file."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from torchsan.errors import UsageError
from torchsan.records import Finding

Figures = Mapping[str, float]
"""Numbers of a running job by name, such as `torchsan/errors`."""


class Outlet(Protocol):
    """Takes what is to be told. Called from the thread that trains."""

    def figures(self, figures: Figures, step: int) -> None:
        """Tell the figures of a step."""

    def finding(self, finding: Finding, step: int) -> None:
        """Tell of a finding."""

    def close(self) -> None:
        """The job is over."""


class LogOutlet:
    """To a logger: a line for the figures, and one for each finding."""

    def __init__(self, name: str = "torchsan") -> None:
        self._log = logging.getLogger(name)

    def figures(self, figures: Figures, step: int) -> None:
        text = ", ".join(f"{name.removeprefix('torchsan/')} {value:.4g}" for name, value in figures.items())
        self._log.info("step %d: %s", step, text)

    def finding(self, finding: Finding, step: int) -> None:
        level = {"error": logging.ERROR, "warning": logging.WARNING}.get(str(finding.severity), logging.INFO)
        self._log.log(level, "step %d: %s: %s: %s", step, finding.id, finding.kind, finding.message)

    def close(self) -> None:
        """Loggers are not ours to close."""


class TensorBoardOutlet:
    """To event files in a folder, for TensorBoard: scalars, and findings as text."""

    def __init__(self, folder: str) -> None:
        """Raise UsageError if the package `tensorboard` is missing."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as e:
            raise UsageError(
                f"event files need the package tensorboard ({e}): `pip install 'torchsan[tensorboard]'`",
                slug="no-tensorboard",
            ) from e
        self._writer: Any = SummaryWriter(folder)

    def figures(self, figures: Figures, step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finding(self, finding: Finding, step: int) -> None:
        self._writer.add_text("torchsan/findings", f"{finding.id}: {finding.kind}: {finding.message}", step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class PrometheusOutlet:
    """To a text file that Prometheus' node exporter collects; it is replaced as a whole each time."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def figures(self, figures: Figures, step: int) -> None:
        rank = os.environ.get("RANK", "")
        label = f'{{rank="{rank}"}}' if rank.isdigit() else ""
        lines = []
        for name, value in {**figures, "torchsan/step": float(step)}.items():
            metric = name.replace("/", "_").replace("-", "_")
            lines += [f"# TYPE {metric} gauge", f"{metric}{label} {value!r}"]
        descriptor, temporary = tempfile.mkstemp(dir=self._file.absolute().parent, prefix=".torchsan-", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write("\n".join([*lines, ""]))
            Path(temporary).chmod(0o644)  # The exporter is somebody else.
            Path(temporary).replace(self._file)
        finally:
            with suppress(FileNotFoundError):
                Path(temporary).unlink()

    def finding(self, finding: Finding, step: int) -> None:
        """Findings are counted among the figures, which follow."""

    def close(self) -> None:
        """The last figures stay."""


_OUTLETS: dict[str, Callable[[str], Outlet]] = {
    "log": lambda name: LogOutlet(name or "torchsan"),
    "tensorboard": lambda folder: TensorBoardOutlet(folder or "runs/torchsan"),
    "prometheus": lambda file: PrometheusOutlet(file or "torchsan.prom"),
}


def open_outlets(to: str | Outlet | Sequence[str | Outlet]) -> list[Outlet]:
    """Return the outlets that are named: `log`, `tensorboard:FOLDER`, `prometheus:FILE`; or given. Raise UsageError."""
    wanted: Sequence[str | Outlet] = to if isinstance(to, list | tuple) else [to]  # type: ignore[list-item]  # not one
    opened = []
    for each in wanted:
        if not isinstance(each, str):
            opened.append(each)
            continue
        name, _, rest = each.partition(":")
        if name not in _OUTLETS:
            allowed = "log, log:NAME, tensorboard:FOLDER, prometheus:FILE"
            raise UsageError(f"to={each!r} is no place for figures; allowed: {allowed}", slug="bad-option")
        opened.append(_OUTLETS[name](rest))
    return opened
