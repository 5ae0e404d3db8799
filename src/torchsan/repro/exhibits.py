"""Reads a finding and its exhibit from a recording, and trusts nothing in them. Importing it imports no torch."""

from __future__ import annotations

import keyword
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsan.errors import RecordingError, UsageError
from torchsan.recording import Reader
from torchsan.records import Exhibit, Finding, Given, Kind, OperatorCall, Severity, decode
from torchsan.torch_internals.inductor import is_settable


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Modules to import, by name, and the files among them."""

    modules: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def copy_to(self, folder: Path) -> None:
        """Put the files where a script finds them."""
        for file in self.files:
            shutil.copyfile(file, folder / file.name)


def parse_loads(words: Iterable[str]) -> Loads:
    """Return what `--load` was given; raise UsageError for what is neither a module nor a file."""
    modules, files = [], []
    for word in words:
        name = word
        if word.endswith(".py"):
            file = Path(word).absolute()
            if not file.is_file():
                raise UsageError(f"--load {word}: no such file", slug="no-module")
            files.append(file)
            name = file.stem
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name, re.ASCII) or name == "repro":
            raise UsageError(f"--load {word!r:.100}: expected a module, or a file that is one", slug="no-module")
        modules.append(name)
    return Loads(modules=tuple(modules), files=tuple(files))


KNOWN = frozenset(["aten", "prims", "mkldnn", "mkl", "quantized", "_quantized", "quantized_decomposed", "onednn"])
"""The libraries of operators that compute on what they are given, and do nothing else."""

_REFUSED = frozenset(["aten.from_file"])  # Opens, and even makes, files.
_OPERATOR = re.compile(r"(?P<library>[A-Za-z_]\w*)\.(?P<name>[A-Za-z_]\w*)\.(?P<overload>[A-Za-z_]\w*)", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)
_FILL = re.compile(r"full -?[\w.+-]{1,40}|randn \d{1,9}|randint -?\d{1,20} -?\d{1,20} \d{1,9}", re.ASCII)
_MOST_NODES = 5000
_MARKS = {
    "node": _NAME,
    "dtype": re.compile(r"[a-z]\w{1,30}", re.ASCII),
    "device": re.compile(r"(cpu|meta)(:\d+)?"),
    "layout": re.compile(r"strided"),
    "memory_format": re.compile(r"[a-z_0-9]{1,30}"),
    "float": re.compile(r"-?inf|nan"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to make a reproducer of: a finding, and what its recording keeps for that. `loads` is the user's."""

    recording: Reader
    finding: Finding
    exhibit: Exhibit
    loads: Loads

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that it takes to make the finding again."""
        own = str(self.finding.check)
        # Without guard zones a program that writes out of bounds does something else each time.
        guards = overflow_of(self.finding, self.recording.findings()) is not None
        return (own, "memory") if guards and own != "memory" else (own,)


def read_wanted(recording: Reader, finding: str | None, loads: Loads) -> Wanted:
    """Return what to make. Raise UsageError if there is nothing to make it from, RecordingError if it is malformed."""
    chosen = choose_finding(recording, finding)
    exhibit = read_exhibit(recording, chosen)
    require_modules(exhibit, loads.modules)
    return Wanted(recording=recording, finding=chosen, exhibit=exhibit, loads=loads)


def choose_finding(recording: Reader, wanted: str | None) -> Finding:
    """Return the finding of this id, or the first error. Raise UsageError if there is none.

    A kernel that writes out of bounds may have wrong values, and anything else, for that reason alone: it comes first.
    """
    findings = recording.findings()
    for finding in findings:
        if not re.fullmatch(r"F[0-9]+", finding.id, re.ASCII):  # It names a folder.
            raise _malformed(f"the id {finding.id!r:.100}")
    if wanted is not None:
        for finding in findings:
            if finding.id.lower() == wanted.lower():
                return finding
        ids = ", ".join(f.id for f in findings) or "none"
        raise UsageError(f"no finding {wanted!r:.40} in {recording.path}; there are: {ids}", slug="no-finding")
    errors = [f for f in findings if f.severity is Severity.ERROR]
    if not errors:
        raise UsageError(f"no finding of severity error in {recording.path}; name another one", slug="no-finding")
    return overflow_of(errors[0], errors) or errors[0]


def overflow_of(finding: Finding, findings: Iterable[Finding]) -> Finding | None:
    """The finding that the kernel of this one writes out of bounds, if there is one."""
    for other in findings:
        same = (other.graph, other.kernel) == (finding.graph, finding.kernel) and finding.kernel is not None
        if same and other.kind is Kind.OUT_OF_BOUNDS_WRITE:
            return other
    return None


def read_exhibit(recording: Reader, finding: Finding) -> Exhibit:
    """Return what was kept of a finding; raise UsageError if nothing was, RecordingError if it is malformed."""
    found = None
    for body in recording.events("exhibit"):
        exhibit = decode(Exhibit, body.get("exhibit"))
        if exhibit.finding == finding.id:
            found = exhibit
    if found is None:
        reason = _why_not(recording, finding)
        raise UsageError(f"{finding.id} cannot be made into a reproducer: {reason}", slug="no-exhibit")
    _validate(found)
    return found


def _why_not(recording: Reader, finding: Finding) -> str:
    for body in recording.events("no-exhibit"):
        if body.get("finding") == finding.id:
            return f"the run kept nothing to run again: {body.get('reason')!s:.300}"
    if finding.severity is not Severity.ERROR:
        return f"it is a {finding.severity}, and what it takes is kept for errors only"
    return f"the run kept nothing to run again for this finding of the {finding.check} check"


def foreign_operators(exhibit: Exhibit) -> list[str]:
    """The operators that are not PyTorch's own."""
    return sorted({n.op for n in exhibit.nodes if n.op != "getitem" and n.op.split(".")[0] not in KNOWN})


def require_modules(exhibit: Exhibit, loads: tuple[str, ...]) -> None:
    """Raise UsageError if operators of other libraries are called and no module is given that registers them."""
    foreign = foreign_operators(exhibit)
    if foreign and not loads:
        raise UsageError(
            f"{exhibit.finding} calls {', '.join(foreign)}, which is not PyTorch's own; nothing that a recording names "
            "is loaded by itself: give the module that registers it with --load MODULE",
            slug="unknown-operator",
        )


def _validate(exhibit: Exhibit) -> None:
    if len(exhibit.nodes) > _MOST_NODES:
        raise _malformed(f"{len(exhibit.nodes)} nodes")
    known: set[str] = set()
    for given in (*exhibit.inputs, *(g for call in exhibit.earlier for g in call)):
        _validate_given(given)
    for given in exhibit.inputs:
        _new_name(known, given.name)
    for call in exhibit.earlier:
        if [g.name for g in call] != [g.name for g in exhibit.inputs]:
            raise _malformed("an earlier call with other inputs")
    for node in exhibit.nodes:
        _validate_call(node, known)
        _new_name(known, node.name)
    if not all(_has_plain_name(op) for op in {n.op for n in exhibit.nodes} - {"getitem"}):
        raise _malformed("the name of an operator")
    if not set(exhibit.outputs) <= known or not exhibit.outputs:
        raise _malformed("outputs that are not computed")
    if not all(is_settable(name, value) for name, value in exhibit.config.items()):
        raise _malformed("its configuration")
    if not re.fullmatch(r"[a-z_]{1,40}", exhibit.backend):
        raise _malformed("its backend")


def _has_plain_name(op: str) -> bool:
    """Whether no part of `library.name.overload` is an attribute that every Python object has.

    PyTorch itself has operators such as `aten.__and__.Tensor`; the dispatcher is asked for all of its own.
    """
    library, name, overload = op.split(".")
    return not any(p.startswith("__") for p in (library, overload, "" if library in KNOWN else name))


def _validate_given(given: Given) -> None:
    numbers = [*given.size, *given.stride, given.offset]
    if len(given.size) != len(given.stride) or len(given.size) > 64 or min(numbers) < 0 or max(numbers) > 2**48:
        raise _malformed("the shape of an input")
    if not _MARKS["dtype"].fullmatch(given.dtype) or (given.fill is not None and not _FILL.fullmatch(given.fill)):
        raise _malformed("an input")
    if given.base is not None and not _NAME.fullmatch(given.base):
        raise _malformed("an input that shares memory")


def _validate_call(node: OperatorCall, known: set[str]) -> None:
    match = _OPERATOR.fullmatch(node.op)
    if node.op != "getitem" and (match is None or f"{match['library']}.{match['name']}" in _REFUSED):
        raise _malformed(f"the operator {node.op!r:.100}, which reproducers do not call")
    _validate_values([*node.args, *node.kwargs.values()], known)
    if not all(_NAME.fullmatch(k) and not keyword.iskeyword(k) for k in node.kwargs):
        raise _malformed("the name of an argument")


def _validate_values(values: Iterable[Any], known: set[str]) -> None:
    for value in values:
        match value:
            case None | bool() | int() | float() | str():
                continue
            case list() | tuple():
                _validate_values(value, known)
            case {"complex": [_, _] as parts} if len(value) == 1:
                _validate_values(parts, known)
            case dict() if len(value) == 1:
                ((mark, text),) = value.items()
                if mark not in _MARKS or not isinstance(text, str) or not _MARKS[mark].fullmatch(text):
                    raise _malformed("an argument")
                if mark == "node" and text not in known:
                    raise _malformed("an argument that is not computed before")
            case _:
                raise _malformed("an argument")


def _new_name(known: set[str], name: str) -> None:
    if not _NAME.fullmatch(name) or name in known:
        raise _malformed(f"the name {name!r:.100}")
    known.add(name)


def _malformed(what: str) -> RecordingError:
    return RecordingError(
        f"malformed exhibit in the recording: {what}; it is damaged, or was not written by torchsan",
        slug="malformed-record",
    )
