"""`torchsan check-kernel FILE[:NAME]`: is this kernel right?"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from torchsan.cli.supervise import cleaned_up
from torchsan.report.exporter import Exporter, Exports, add_export_flags, json_text
from torchsan.report.findings import clean, finding_lines

if TYPE_CHECKING:
    from torchsan.kernel_report import KernelReport
    from torchsan.kernels.referee import Task

_DESCRIPTION = """\
Compare a kernel with its reference on inputs that tell: values by the rounding judge, memory out of bounds and \
uninitialised, races between Triton's programs (by its interpreter, no GPU is needed), changed arguments, results that \
are kept from earlier calls and other cheats. FILE has `kernel`, `reference` and `inputs`, or other names, if given; \
`inputs` is an example tuple of arguments, or a function from a seed to one. The kernel runs in a process of its own, \
with limits of time and memory.
"""


class _JsonExporter(Exporter["KernelReport"]):
    name = "json"
    help = "write the verdict for programs to FILE, or to - for stdout"

    def render(self, subject: KernelReport) -> str:
        from torchsan.kernel_report import as_json

        return json_text(as_json(subject))


class _HtmlExporter(Exporter["KernelReport"]):
    name = "html"
    help = "write the verdict as a web page"

    def render(self, subject: KernelReport) -> str:
        from torchsan.kernel_report import as_html

        return as_html(subject)


class _SarifExporter(Exporter["KernelReport"]):
    name = "sarif"
    help = "write the findings for code scanning"

    def render(self, subject: KernelReport) -> str:
        from torchsan.kernel_report import as_sarif

        return as_sarif(subject)


EXPORTERS: tuple[Exporter[Any], ...] = (_JsonExporter(), _HtmlExporter(), _SarifExporter())


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `check-kernel` to the command line."""
    parser = commands.add_parser("check-kernel", description=_DESCRIPTION)
    flag = parser.add_argument
    flag(
        "kernel", metavar="FILE[:NAME]", help="the kernel: a function, an operator, a module's class (default `kernel`)"
    )
    flag("--reference", metavar="FILE[:NAME]", help="what is right (default `reference` in the kernel's file)")
    flag("--inputs", metavar="FILE[:NAME]", help="the arguments (default `inputs` in either file)")
    flag("--seeds", metavar="N", type=_positive, default=32, help="how many inputs to try (default 32)")
    flag("--seed", metavar="N", type=int, default=0, help="the first seed (default 0)")
    flag("--time", metavar="S", type=_seconds, default=60.0, help="how long, in seconds (default 60)")
    flag("--memory", metavar="GB", type=_seconds, default=8.0, help="how much memory the kernel may use (default 8)")
    flag("--mutates", metavar="N,…", type=_numbers, default=(), help="arguments that it may write, counted from 0")
    flag("--quiet", action="store_true", help="the verdict only")
    add_export_flags(parser, EXPORTERS)
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("expected a number above 0")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError("expected a number above 0")
    return number


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def run(args: argparse.Namespace) -> int:
    """Referee the kernel, print the report and return its status: 0, 1, or 4 if nothing could be compared."""
    exports = Exports(EXPORTERS, args)
    task, reference = _task(args)
    from torchsan.kernel_report import KernelReport
    from torchsan.kernels.check import run as referee

    with cleaned_up():
        report = KernelReport.of(referee(task, name=args.kernel, reference=reference))
    exports.write(report)
    if not exports.to_stdout:
        _print(report, quiet=args.quiet)
    return report.exit


def _task(args: argparse.Namespace) -> tuple[Task, str]:
    from torchsan.kernels import targets
    from torchsan.kernels.referee import Task

    file, name = targets.split(args.kernel)
    reference = targets.split(args.reference) if args.reference else None
    given = targets.split(args.inputs) if args.inputs else None
    os.environ["TORCHSAN_KERNEL_FILE_USES_TRITON"] = str(int(b"triton" in file.read_bytes()))

    def kernel() -> Any:
        return targets.made(targets.find(file, name, targets.KERNELS, "kernel"), file)

    def right(example: tuple[Any, ...]) -> Any:
        if reference is not None:
            return targets.made(targets.find(*reference, targets.REFERENCES, "reference"), reference[0])
        module = targets.load(file)
        for word in targets.REFERENCES:
            if hasattr(module, word) and word != name:
                return targets.made(getattr(module, word), file)
        return targets.claimed_or_nothing(kernel(), example)

    def inputs() -> Any:
        if given is not None:
            return targets.example(targets.find(*given, targets.INPUTS, "inputs"), args.seed)
        for place in (file, *([reference[0]] if reference is not None else [])):
            module = targets.load(place)
            for word in targets.INPUTS:
                if hasattr(module, word):
                    return targets.example(getattr(module, word), args.seed)
        return targets.example(targets.find(file, None, targets.INPUTS, "inputs"), args.seed)

    task = Task(
        kernel=kernel,
        reference=right,
        inputs=inputs,
        seeds=args.seeds,
        seed=args.seed,
        seconds=args.time,
        call_seconds=max(5.0, min(15.0, args.time / 4)),
        memory=int(args.memory * (1 << 30)),
        mutates=frozenset(args.mutates),
    )
    return task, args.reference or ""


def _print(report: KernelReport, *, quiet: bool) -> None:
    write = sys.stdout.write
    for finding in () if quiet else report.findings:
        write("\n".join(line.text for line in finding_lines(finding)) + "\n\n")
    trials = report.tried["trials"]
    refused = sum(t["outcome"] in ("refused", "raised") for t in trials)
    launches = sum(report.tried["launches"].values())
    said = f"{clean(report.kernel)}: {report.status}, {len(trials)} inputs tried"
    said += f", {refused} refused" if refused else ""
    said += f", {launches} launches interpreted" if launches else ""
    write(said + "\n")
    for skipped in () if quiet else report.coverage.skipped[:8]:
        write(f"not checked: {clean(skipped.what, 160)}: {clean(skipped.reason, 200)}\n")
