"""Reads a finding and its exhibit from a recording, and trusts nothing in them. Importing it imports no torch."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchsan.errors import UsageError
from torchsan.graphs.data import KNOWN, foreign_operators, malformed, validate_calls, validate_inputs
from torchsan.recording import Reader
from torchsan.records import Exhibit, Finding, Kind, Severity, decode
from torchsan.torch_internals.inductor import is_settable


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Modules to import, by name, and the files among them."""

    modules: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    def copy_to(self, folder: Path) -> None:
        """Put the files where a script finds them, in the place of what is there, be it a link."""
        for file in self.files:
            place = folder / file.name
            if not place.exists() or not file.samefile(place):
                place.unlink(missing_ok=True)
                shutil.copyfile(file, place)


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


_MOST_NODES = 5000
_BACKENDS = frozenset(["inductor", "eager", "aot_eager", "aot_eager_decomp_partition", "torchsan"])
"""Backends that are PyTorch's or ours, and load nothing else."""


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
    if wanted is not None:
        for finding in findings:
            if finding.id.lower() == wanted.lower():
                return finding
        ids = ", ".join(f.id for f in findings) or "none"
        raise UsageError(f"no finding {wanted!r:.40} in {recording.path}; there are: {ids}", slug="no-finding")
    errors = [f for f in findings if f.severity is Severity.ERROR]
    if not errors:
        raise UsageError(f"no finding of severity error in {recording.path}; others are not made", slug="no-finding")
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


def require_modules(exhibit: Exhibit, loads: tuple[str, ...]) -> None:
    """Raise UsageError if operators of other libraries are called and no module is given that registers them."""
    foreign = foreign_operators(exhibit)
    if exhibit.backend not in _BACKENDS and not loads:
        raise UsageError(
            f"{exhibit.finding} needs the backend {exhibit.backend}, which is not PyTorch's own; nothing that a "
            "recording names is loaded by itself: give the module that registers it with --load MODULE",
            slug="unknown-operator",
        )
    if foreign and not loads:
        raise UsageError(
            f"{exhibit.finding} calls {', '.join(foreign)}, which is not PyTorch's own; nothing that a recording names "
            "is loaded by itself: give the module that registers it with --load MODULE",
            slug="unknown-operator",
        )


def _validate(exhibit: Exhibit) -> None:
    if len(exhibit.nodes) > _MOST_NODES:
        raise malformed(f"{len(exhibit.nodes)} nodes")
    known: set[str] = set()
    validate_inputs(exhibit.inputs, known)
    for call in exhibit.earlier:
        validate_inputs(call, set())
        if [g.name for g in call] != [g.name for g in exhibit.inputs]:
            raise malformed("an earlier call with other inputs")
    validate_calls(exhibit.nodes, known)
    if not all(_has_plain_name(op) for op in {n.op for n in exhibit.nodes} - {"getitem"}):
        raise malformed("the name of an operator")
    if not set(exhibit.outputs) <= known or not exhibit.outputs:
        raise malformed("outputs that are not computed")
    if not all(is_settable(name, value) for name, value in exhibit.config.items()):
        raise malformed("its configuration")
    if not re.fullmatch(r"[a-z_]{1,40}", exhibit.backend):
        raise malformed("its backend")


def _has_plain_name(op: str) -> bool:
    """Whether no part of `library.name.overload` is an attribute that every Python object has.

    PyTorch itself has operators such as `aten.__and__.Tensor`; the dispatcher is asked for all of its own.
    """
    library, name, overload = op.split(".")
    return not any(p.startswith("__") for p in (library, overload, "" if library in KNOWN else name))
