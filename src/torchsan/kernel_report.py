"""`torchsan.check_kernel(kernel, reference, inputs)`: is this kernel right? Its report, for people and programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from torchsan._version import __version__
from torchsan.kernels.check import Refereed, run
from torchsan.kernels.judging import Nothing
from torchsan.kernels.referee import Task
from torchsan.kernels.targets import claimed_or_nothing, is_triton, launching
from torchsan.records import encode
from torchsan.report.exporter import json_text
from torchsan.report.findings import finding_lines, findings_text, raise_errors, visible
from torchsan.report.json_report import REPORT_SCHEMA, finding_values
from torchsan.report.sarif import as_sarif as sarif_log
from torchsan.torch_internals.seams import torch_version


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport(Refereed):
    """What was found about a kernel; truthy when it is right.

    `tried` says what was tried: the trials with their seeds and outcomes, the inputs that the kernel refused, its
    launches, the versions, and a digest of it all.

    >>> report = torchsan.check_kernel(torch.relu, torch.relu, (torch.randn(9, 10),))
    >>> report.status
    'clean'
    """

    @classmethod
    def of(cls, refereed: Refereed) -> KernelReport:
        """The same, for users."""
        return cls(**{name: getattr(refereed, name) for name in ("kernel", "findings", "coverage", "tried")})

    def raise_if_findings(self) -> None:
        """Raise FindingsError, with the findings as its text, if there is one of severity `error`."""
        raise_errors(self.findings, lambda errors: f"{findings_text(errors, 'error', f'in {self.kernel}')}\n")


def check_kernel(
    kernel: Callable[..., Any],
    reference: Callable[..., Any] | None,
    inputs: tuple[Any, ...] | Callable[[int], tuple[Any, ...]],
    *,
    seeds: int = 32,
    seed: int = 0,
    time: float = 60.0,
    memory: int = 8 << 30,
    mutates: tuple[int, ...] = (),
    grid: tuple[int, ...] | Callable[[dict[str, Any]], tuple[int, ...]] | None = None,
) -> KernelReport:
    """Compare a kernel with its reference on inputs that tell, and watch its memory, its races and its honesty.

    `kernel(*args)` and `reference(*args)` return tensors, or write into their arguments and return nothing. `inputs`
    is an example tuple of arguments, from which others are made, or a function from a seed to such a tuple. Without a
    reference, the operator is taken that the kernel is named after; if there is none, an operator of `torch.library` is
    held to its schema and its fake, and the report is `incomplete`. At least `seeds` inputs are tried, from `seed` on,
    as far as `time` (in seconds) lasts; `memory` is what the kernel may use, in bytes; `mutates` are the arguments that
    it may write although the reference does not. A `@triton.jit` function is launched with `grid`, as Triton takes it,
    and the reference writes into the same arguments as it does; with a tuple, sizes stay as they are.

    The kernel runs in a forked process: it may crash, hang or exit there. Raise UsageError for inputs that the
    reference does not take.

    >>> assert torchsan.check_kernel(lambda t: t.clamp(min=0), torch.relu, (torch.randn(9, 10),))
    """

    def given() -> tuple[tuple[Any, ...], Callable[[int], tuple[Any, ...]] | None]:
        if not callable(inputs):
            return inputs, None
        return inputs(seed), inputs

    def right(args: tuple[Any, ...]) -> Callable[..., Any] | Nothing:
        return reference if reference is not None else claimed_or_nothing(kernel, args)

    task = Task(
        kernel=lambda: launching(kernel, grid) if is_triton(kernel) else kernel,
        reference=right,
        inputs=given,
        seeds=seeds,
        seed=seed,
        seconds=time,
        call_seconds=max(5.0, min(15.0, time / 4)),
        memory=memory,
        mutates=frozenset(mutates),
    )
    return KernelReport.of(run(task, name=_name(kernel), reference=_name(reference)))


def _name(function: Any) -> str:
    if function is None:
        return ""
    return str(getattr(function, "__name__", None) or function)[:200]


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#222}
pre{background:#f6f6f6;padding:.8rem;overflow:auto;border-left:4px solid #bbb}.error{border-color:#c22}
.warning{border-color:#c90}.note{border-color:#29b}table{border-collapse:collapse;font-size:13px}
td,th{border:1px solid #ddd;padding:.2rem .6rem;text-align:left}.bad{color:#c22}"""


def as_json(report: KernelReport) -> dict[str, Any]:
    """Return the report as JSON values: the form of every report of torchsan, and `tried` beside it."""
    return {
        "schema": REPORT_SCHEMA,
        "torchsan": __version__,
        "torch": torch_version() or "",
        "command": ["check-kernel", report.kernel],
        "status": report.status,
        "program": {"exit": None, "signal": None},
        "findings": [finding_values(f) for f in report.findings],
        "coverage": encode(report.coverage),
        "recording": None,
        "options": {},
        "kernels": [],
        "calls": [],
        "timings": [],
        "cost": None,
        "in_flight": [],
        "tried": encode(report.tried),
    }


def as_sarif(report: KernelReport) -> str:
    """Return the findings as a SARIF log."""
    invocation = {
        "executionSuccessful": report.status != "incomplete",
        "commandLine": visible(f"torchsan check-kernel {report.kernel}"),
    }
    script = report.tried["kernel"].get("file") or None
    return json_text(sarif_log(report.findings, __version__, str(Path.cwd()), script, invocation))


def as_html(report: KernelReport) -> str:
    """Return the report as a page that needs nothing else."""
    blocks = []
    for finding in report.findings:
        text = "\n".join(line.text for line in finding_lines(finding))
        blocks.append(f'<pre class="{finding.severity}">{escape(visible(text))}</pre>')
    rows = "".join(_row(t) for t in report.tried["trials"])
    versions = ", ".join(f"{k} {v}" for k, v in report.tried["versions"].items() if v)
    title = f"{escape(visible(report.kernel))}: {report.status}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1>{''.join(blocks) or '<p>Nothing was found.</p>'}"
        f"<h2>What was tried</h2><table><tr><th>seed</th><th>inputs</th><th>outcome</th></tr>{rows}</table>"
        f"<p>{escape(versions)}<br>digest {escape(report.tried['digest'])}</p></html>\n"
    )


def _row(trial: dict[str, Any]) -> str:
    bad = "" if trial["outcome"] in ("right", "refused") else ' class="bad"'
    return (
        f"<tr><td>{trial['seed']}</td><td>{escape(trial['inputs'])}</td><td{bad}>{escape(trial['outcome'])}</td></tr>"
    )
