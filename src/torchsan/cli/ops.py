"""`torchsan ops MODULE…`: checks every operator that modules register, each by itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torchsan.checks.metadata.registered import given_references, given_samples, load_operators, of_overload
from torchsan.errors import TorchsanError, UsageError
from torchsan.records import Severity, encode
from torchsan.report.exporter import Exporter, Exports, add_export_flags, json_text

if TYPE_CHECKING:
    from torchsan.checks.metadata.operator import Result
    from torchsan.records import Finding

_DESCRIPTION = """\
Load modules and check every operator they register: fake kernel, schema and aliasing against what the operator does, \
eagerly, functionalised and compiled; and referee its kernel, as `check-kernel` does. Arguments are made from the \
schema; a module that knows better has a mapping `torchsan_samples` from `library::operator` to a function that \
returns a list of argument tuples, and `torchsan_references` to functions that say what is right.
"""
_WAYS = ("eager", "functionalized", "compiled", "decomposition", "kernel")
_SECONDS = 12.0
"""For the referee, for one operator."""


class _JsonExporter(Exporter[Sequence["Result"]]):
    name = "json"
    help = "write the results for programs to FILE, or to - for stdout"

    def render(self, subject: Sequence[Result]) -> str:
        return json_text({"schema": 1, "operators": [encode(r) | {"status": r.status} for r in subject]})


_EXPORTERS = (_JsonExporter(),)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ops` to the command line."""
    parser = commands.add_parser("ops", help="check the operators of a library", description=_DESCRIPTION)
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="a module, or the path of a .py file")
    add_export_flags(parser, _EXPORTERS)
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile, which takes seconds each")
    parser.add_argument("--no-referee", action="store_true", help="leave out the referee, which takes seconds each")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table to stdout and return the status: 1 for errors, 4 if an operator could not be checked."""
    exports = Exports(_EXPORTERS, args)
    overloads, samples = load_operators(args.modules)
    if not overloads:
        raise UsageError(
            f"{', '.join(args.modules)} registers no operators; name the module that defines them", slug="no-operators"
        )
    from torchsan.calls import crossref
    from torchsan.checks.metadata.operator import check_operator
    from torchsan.reference.aside import in_own_process

    in_own_process()

    references = given_references(args.modules)
    results = []
    for overload in overloads:
        given = given_samples(overload, samples)
        referee = None if args.no_referee else partial(_refereed, overload, of_overload(overload, references))
        results.append(check_operator(overload, given, watch=crossref, compiled=not args.no_compile, referee=referee))
    exports.write(results)
    if not exports.to_stdout:
        sys.stdout.write(_table(results))
    if any(r.status == "error" for r in results):
        return 1
    return 4 if any(r.status == "not checked" for r in results) else 0


def _refereed(
    overload: Any, reference: Callable[..., Any] | None, samples: list[Any]
) -> tuple[str, list[Finding], list[str]]:
    """Referee the kernel of an operator with the first sample that has no argument which needs its name."""
    from torchsan.kernels.check import run as referee
    from torchsan.kernels.operators import operator_task, positional

    args = next((a for a in (positional(overload, *s) for s in samples) if a is not None), None)
    if args is None:
        return "-", [], ["its kernel was not refereed: it has arguments that can only be named"]
    if not overload._schema.returns and not overload._schema.is_mutable:
        return "-", [], ["its kernel was not refereed: it has no result"]
    name = overload.name()
    try:
        report = referee(operator_task(overload, args, seconds=_SECONDS, reference=reference), name=name, reference="")
    except TorchsanError as e:
        return "-", [], [f"its kernel was not refereed: {e}"[:300]]
    findings = [f for f in report.findings if f.severity is not Severity.NOTE]
    told = ", ".join(sorted({str(f.kind) for f in findings}))
    return told or ("ok" if report else "unreferenced"), findings, []


def _table(results: list[Result]) -> str:
    ways = [w for w in _WAYS if any(w in r.ways for r in results)]
    rows = [("operator", "samples", *ways, "status")]
    rows += [(r.operator, str(r.samples), *(r.ways.get(w, "-")[:40] for w in ways), r.status) for r in results]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for result in results:
        for finding in result.findings:
            lines += ["", f"{finding.severity}: {finding.kind}: {finding.message}"]
            lines += [f"    {finding.evidence[key]}" for key in ("call", "fix", "inputs") if key in finding.evidence]
        lines += [f"\n{result.operator}: {reason}" for reason in result.skipped]
    return "\n".join(lines) + "\n"
