"""Runs the user's program in this process the way Python would have, with a session around it."""

from __future__ import annotations

import atexit
import importlib.util
import io
import os
import pkgutil
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

from torchsan.errors import TorchsanError, UsageError
from torchsan.recording import Writer
from torchsan.recording.flight import Flight
from torchsan.recording.folder import read_manifest
from torchsan.records import Finding, Severity
from torchsan.session import Session
from torchsan.torch_internals.compiles import process_ends

_OWN_FILES = {__file__, str(Path(__file__).with_name("_child.py"))}


class _NotFoundError(Exception):
    """There is no such program; the text says so as Python does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """What to execute, and the names that `__main__` has while it does. `argv0` replaces the program's name."""

    code: CodeType
    names: dict[str, Any]
    argv0: str


def run_program(folder: str, shared: int, command: Sequence[str]) -> None:
    """Run `SCRIPT [ARGS…]` or `-m MODULE [ARGS…]` and record to `folder`; if that is empty, only run it.

    `shared` is the descriptor of a page that tells the parent what happens (`torchsan.recording.flight`), or negative.
    What the program raises goes on to the interpreter, which does with it what it always does: print the traceback,
    exit with the status of SystemExit, die of SIGINT. An exit handler that was registered before those of the program
    closes the session, so it runs last.
    """
    flight = Flight(shared) if shared >= 0 else None
    writer = _open_writer(folder)
    if writer is not None:
        writer.flight = flight
        atexit.register(_end, _watch(writer))
        writer.event("started", {})
    if flight is not None:
        flight.started()
    try:
        program = _find(list(command))
        main = ModuleType("__main__")
        vars(main).update(program.names, __builtins__=sys.modules["builtins"])
        sys.modules["__main__"] = main
        sys.argv[0] = program.argv0
        exec(program.code, vars(main))  # noqa: S102  # Running the user's program is the point.
    except _NotFoundError as e:
        if writer is None:
            sys.stderr.write(f"torchsan: error: {e} [no-program]\n")
            raise SystemExit(2) from None
        _fail(writer, str(e), 2, "no-program")
    except BaseException:
        sys.excepthook = _without_our_frames(sys.excepthook)
        raise


def _open_writer(folder: str) -> Writer | None:
    """Open the recording; say so if it cannot be written. The folder was made just now: it is not the user's fault."""
    if not folder:
        return None
    try:
        return Writer(Path(folder))
    except UsageError as e:
        sys.stderr.write(f"torchsan: nothing is recorded and nothing checked: {e}; the program runs without\n")
        return None


def _watch(writer: Writer) -> Session:
    """Open the session of the program; if that fails, leave it to the parent to say why, and exit."""
    options = read_manifest(writer.path).options
    stop = partial(_stop_at_error, writer) if options.fail_fast else None
    session = Session(options, recorder=writer, on_finding=stop)
    try:
        session.open()
    except TorchsanError as e:
        # The session has closed its writer, and with it the log.
        _fail(Writer(writer.path), str(e).removesuffix(f" [{e.slug}]"), 2 if isinstance(e, UsageError) else 3, e.slug)
    except Exception as e:  # noqa: BLE001  # Whatever it is, the parent says it in place of the report.
        _fail(Writer(writer.path), f"cannot watch the program: {type(e).__name__}: {e}", 3, "internal-error")
    return session


def _end(session: Session) -> None:
    """Close the session of a program that is over, and keep quiet about daemon threads that still run.

    Without torchsan they would be gone by now. PyTorch has taken its operators back, so what they do fails.
    """
    threading.excepthook = lambda _args: None
    sys.setswitchinterval(1e-4)  # Threads that compute leave us little time otherwise, and get further themselves.
    process_ends()
    session.close()


def _stop_at_error(writer: Writer, finding: Finding) -> None:
    """End the process, from whichever thread found the error; an exception could be caught on its way."""
    if finding.severity is not Severity.ERROR:
        return
    writer.event("stopped", {"finding": finding.id})
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(1)


def _fail(writer: Writer, message: str, status: int, slug: str) -> NoReturn:
    """Leave it to the parent to say why the program did not run."""
    writer.event("failed", {"message": message, "status": status, "slug": slug})
    raise SystemExit(status)


def _find(command: list[str]) -> _Program:
    """Find the program, and make `sys.path` and `sys.argv` what they would be. Raise _NotFoundError."""
    sys.orig_argv = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv)] + command
    if command[0] == "-m":
        sys.argv = command[1:]
        sys.argv[0] = "-m"  # What packages see that are imported on the way to the module.
        _set_path(str(Path.cwd()))
        return _find_module(command[1])
    sys.argv = command
    script = command[0]
    if pkgutil.get_importer(script) is not None:  # A folder or a zip file with a __main__.py.
        # Python puts these on the path even in safe mode, because there is no other way to run them.
        sys.path.insert(0, _absolute(script))
        spec = PathFinder.find_spec("__main__", [_absolute(script)])
        if spec is None:
            raise _NotFoundError(f"can't find '__main__' module in {script!r}")
        return _from_spec(spec, argv0=script)
    _set_path(str(Path(os.path.realpath(script)).parent))
    return _from_file(script)


def _absolute(script: str) -> str:
    """Python puts the current folder before the script, and changes nothing else."""
    return os.path.join(os.getcwd(), script)  # noqa: PTH109, PTH118  # pathlib drops `./`


def _set_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def _from_file(script: str) -> _Program:
    path = _absolute(script)
    loader: SourceFileLoader | SourcelessFileLoader
    try:
        if script.endswith(".pyc"):
            loader = SourcelessFileLoader("__main__", path)
            code = loader.get_code("__main__")
            assert code is not None
        else:
            loader = SourceFileLoader("__main__", path)
            with io.open_code(path) as stream:
                source = stream.read()
            code = compile(source, path, "exec", dont_inherit=True)
    except OSError as e:
        raise _NotFoundError(f"can't open file {path!r}: {e.strerror}") from e
    names = {"__file__": path, "__cached__": None, "__loader__": loader, "__spec__": None, "__package__": None}
    return _Program(code=code, names=names | _annotations(), argv0=script)


def _find_module(name: str) -> _Program:
    spec = _find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        package, spec = name, _find_spec(f"{name}.__main__")
        if spec is None:
            raise _NotFoundError(
                f"No module named {package}.__main__; {package!r} is a package and cannot be directly executed"
            )
    if spec is None:
        raise _NotFoundError(f"No module named {name}")
    return _from_spec(spec, argv0=spec.origin or name)


def _find_spec(name: str) -> ModuleSpec | None:
    """Like importlib's, but an error inside a parent package is the program's own, and not `not found`."""
    parent = name.rpartition(".")[0]
    if name.startswith("."):
        raise _NotFoundError("Relative module names not supported")
    try:
        if parent:
            importlib.import_module(parent)
        return importlib.util.find_spec(name)
    except ImportError as e:
        if e.name is None or (e.name != parent and not parent.startswith(f"{e.name}.")):
            raise
        raise _NotFoundError(f"Error while finding module specification for {name!r} ({type(e).__name__}: {e})") from e
    except ValueError as e:
        raise _NotFoundError(f"Error while finding module specification for {name!r} ({type(e).__name__}: {e})") from e


def _from_spec(spec: ModuleSpec, *, argv0: str) -> _Program:
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code is not None else None
    if code is None:
        raise _NotFoundError(f"No code object available for {spec.name}")
    names = {
        "__file__": spec.origin,
        "__cached__": spec.cached,
        "__loader__": spec.loader,
        "__spec__": spec,
        "__package__": spec.parent,
    }
    return _Program(code=code, names=names | _annotations(), argv0=argv0)


def _annotations() -> dict[str, Any]:
    return {"__annotations__": {}} if sys.version_info < (3, 14) else {}


_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def _without_our_frames(hook: _Hook) -> _Hook:
    """Return `hook` for tracebacks as they are without torchsan, which begin in the user's program."""

    def excepthook(kind: type[BaseException], value: BaseException, tb: TracebackType | None) -> Any:
        while tb is not None and tb.tb_frame.f_code.co_filename in _OWN_FILES:
            tb = tb.tb_next
        while tb is not None and tb.tb_frame.f_code.co_filename.startswith("<frozen importlib"):
            tb = tb.tb_next
        return hook(kind, value.with_traceback(tb), tb)

    return excepthook
