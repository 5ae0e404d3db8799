"""`torchsan ops MODULE…`: checks every operator that modules register, each by itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchsan.checks.metadata.registered import given_samples, load_operators
from torchsan.errors import UsageError
from torchsan.records import encode
from torchsan.report.exporter import Exporter, Exports, add_export_flags, json_text

if TYPE_CHECKING:
    from torchsan.checks.metadata.operator import Result

_DESCRIPTION = """\
Load modules and check every operator they register: fake kernel, schema and aliasing against what the operator does, \
eagerly, functionalised and compiled. Arguments are made from the schema; a module that knows better has a mapping \
`torchsan_samples` from `library::operator` to a function that returns a list of argument tuples.
"""
_WAYS = ("eager", "functionalized", "compiled", "decomposition")


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

    results = []
    for overload in overloads:
        given = given_samples(overload, samples)
        results.append(check_operator(overload, given, watch=crossref, compiled=not args.no_compile))
    exports.write(results)
    if not exports.to_stdout:
        sys.stdout.write(_table(results, compiled=not args.no_compile))
    if any(r.status == "error" for r in results):
        return 1
    return 4 if any(r.status == "not checked" for r in results) else 0


def _table(results: list[Result], *, compiled: bool) -> str:
    ways = [w for w in _WAYS if compiled or w != "compiled"]
    rows = [("operator", "samples", *ways, "status")]
    rows += [(r.operator, str(r.samples), *(r.ways.get(w, "-")[:40] for w in ways), r.status) for r in results]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for result in results:
        for finding in result.findings:
            evidence = finding.evidence
            lines += ["", f"{finding.severity}: {finding.kind}: {finding.message}"]
            lines += [f"    {evidence['call']}", f"    {evidence['fix']}"]
        lines += [f"\n{result.operator}: {reason}" for reason in result.skipped]
    return "\n".join(lines) + "\n"
