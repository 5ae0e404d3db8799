"""`torchsan ops MODULE…`: checks every operator that modules register, each by itself."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

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
    overloads, samples = _load(args.modules)
    from torchsan.calls import crossref
    from torchsan.checks.metadata.operator import check_operator

    results = []
    for overload in overloads:
        given = _given(overload, samples)
        results.append(check_operator(overload, given, watch=crossref, compiled=not args.no_compile))
    exports.write(results)
    if not exports.to_stdout:
        sys.stdout.write(_table(results, compiled=not args.no_compile))
    if any(r.status == "error" for r in results):
        return 1
    return 4 if any(r.status == "not checked" for r in results) else 0


def _load(names: Iterable[str]) -> tuple[list[Any], dict[str, Callable[[], Any]]]:
    """Import the modules; return the overloads that this registered, and the samples that the modules bring."""
    from torchsan.torch_internals.operators import is_own, overloads_named, registered_names

    sys.path.insert(0, str(Path.cwd()))
    before = registered_names()
    samples: dict[str, Callable[[], Any]] = {}
    for name in names:
        found = getattr(_import(name), "torchsan_samples", {})
        if not isinstance(found, Mapping):
            raise UsageError(f"torchsan_samples of {name} is no mapping of operators to functions", slug="bad-samples")
        samples.update(found)
    overloads = [o for o in overloads_named(registered_names() - before) if not is_own(o)]
    if not overloads:
        raise UsageError(
            f"{', '.join(names)} registers no operators; name the module that defines them", slug="no-operators"
        )
    return overloads, samples


def _import(name: str) -> ModuleType:
    try:
        if name.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(name).stem, name)
            if spec is None or spec.loader is None or not Path(name).exists():
                raise UsageError(f"no such file: {name}", slug="no-module")
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return module
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise UsageError(f"cannot import {name}: {e}; is it installed, or in this folder?", slug="no-module") from e


def _given(overload: Any, samples: Mapping[str, Callable[[], Any]]) -> list[Any] | None:
    """The user's samples for an overload: tuples of arguments, or pairs of a tuple and a dictionary."""
    name = overload.name()
    make = samples.get(name) or samples.get(name.partition(".")[0])
    if make is None:
        return None
    given = []
    for sample in make():
        pair = isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[1], dict)
        given.append(sample if pair else (tuple(sample), {}))
    return given


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
