"""`torchsan check-package PACKAGE`: an AOTInductor package against eager and float64."""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchsan.errors import UsageError
from torchsan.recording import Program, Reader, Writer, finalize
from torchsan.report import EXPORTERS, Exports, add_export_flags
from torchsan.report.terminal import print_report
from torchsan.report.verdict import verdict
from torchsan.repro.exhibits import Loads, parse_loads

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_DESCRIPTION = """\
Run an AOTInductor package once, in a process of its own, and compare its outputs with the exported program in eager \
and in float64, with rounding told from bugs. A package that torchsan.aot_compile built with watch="save" also \
records its launches, and the wrong kernel is named. Such a package holds the exported program and the example inputs; \
for others give --program.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `check-package` to the command line."""
    parser = commands.add_parser("check-package", description=_DESCRIPTION)
    flag = parser.add_argument
    flag("package", metavar="PACKAGE", type=Path, help="the .pt2 file that AOTInductor built")
    flag("--program", metavar="FILE", type=Path, help="the exported program, as torch.export.save wrote it")
    flag("--inputs", metavar="FILE", type=Path, help="a .safetensors file with a tensor for each input, by its name")
    flag("--load", metavar="MODULE", action="append", default=[], help="a module that registers your operators")
    flag("--out", metavar="DIR", help="where to write the recording (default torchsan-runs/<time>)")
    add_export_flags(parser, EXPORTERS)
    flag("--quiet", action="store_true", help="findings and verdict only")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check the package, print the report and return its status; of a package that crashes, 128 and the signal."""
    exports = Exports(EXPORTERS, args, keep=[p for p in (args.package, args.program, args.inputs) if p is not None])
    from torchsan.aoti.build import read_about, read_program

    about = read_about(args.package)
    _require_version(args.package, about)
    loads = parse_loads(args.load)
    _import(loads)
    from torchsan.aoti.check import Request, check_package, program_file

    content = read_program(args.package) if args.program is None else None
    if args.program is None and content is None:
        raise UsageError(f"{args.package} does not hold its exported program; give it with --program", slug="usage")
    with program_file(content) if content is not None else nullcontext(args.program) as file:
        program = _load(file)
        inputs = _inputs(program, args.inputs)
        writer = Writer.create(args.out, command=("check-package", str(args.package)))
        try:
            request = Request(
                package=args.package,
                program_file=file,
                program=program,
                inputs=inputs,
                loads=loads.modules,
                paths=tuple(str(f.parent) for f in loads.files),
            )
            result = check_package(request, writer)
            if about is None:
                reason = "the package was not built by torchsan.aot_compile, and records nothing"
                writer.skipped("the launches of the package", reason)
        finally:
            writer.close()
    died = -result.status if result.status < 0 else None
    finalize(writer.path, Program(exit=None if died else result.status, signal=died))
    if result.status != 0:
        sys.stderr.write(result.said)
        where = f" in {result.last}" if result.last else ""
        sys.stderr.write(f"torchsan: the package failed{where}: {_ending(result.status)}\n")
    recording = Reader(writer.path)
    exports.write(recording)
    if not exports.to_stdout:
        print_report(recording, sys.stdout, quiet=args.quiet)
    return verdict(recording).exit


def _import(loads: Loads) -> None:
    sys.path[:0] = [str(Path.cwd()), *(str(f.parent) for f in loads.files)]
    for module in loads.modules:
        try:
            importlib.import_module(module)
        except ImportError as e:
            raise UsageError(f"--load {module}: {e}", slug="no-module") from e


def _ending(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def _require_version(package: Path, about: Any) -> None:
    import torch

    built = about.get("torch") if about is not None else None
    if built is not None and built != torch.__version__:
        raise UsageError(
            f"{package} was built by torch {built!s:.40}, and this is {torch.__version__}; use that, or build it anew",
            slug="bad-package",
        )


def _load(file: Path) -> ExportedProgram:
    import torch

    try:
        return torch.export.load(file)
    except Exception as e:
        raise UsageError(f"{file} is no exported program: {type(e).__name__}: {e!s:.200}", slug="bad-package") from e


def _inputs(program: ExportedProgram, file: Path | None) -> list[Any]:
    """The leaves of the arguments: those of the file, or the ones that the program was exported with."""
    from torchsan.torch_internals.operators import flatten

    if file is None:
        if program.example_inputs is None:
            raise UsageError("the exported program holds no example inputs; give them with --inputs", slug="usage")
        return flatten(program.example_inputs)
    try:
        from safetensors.torch import load_file
    except ImportError as e:
        raise UsageError("reading .safetensors needs the safetensors package; install it", slug="usage") from e
    try:
        tensors = load_file(file)
    except Exception as e:
        raise UsageError(f"cannot read {file}: {type(e).__name__}: {e!s:.200}", slug="usage") from e
    wanted = [str(name) for name in program.graph_signature.user_inputs]
    missing, other = [n for n in wanted if n not in tensors], [n for n in tensors if n not in wanted]
    if missing or other:
        raise UsageError(
            f"{file} does not fit the exported program, whose inputs are {', '.join(wanted)}: "
            + "; ".join([f"no {n}" for n in missing] + [f"{n} is none of them" for n in other]),
            slug="usage",
        )
    return [tensors[name] for name in wanted]
