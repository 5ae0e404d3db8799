"""What a user can set: flags win over `TORCHSAN_OPTIONS`, which wins over `[tool.torchsan]` of pyproject.toml.

Every value goes through the same parser wherever it stands, so that an error names the place it came from.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from torchsan.errors import UsageError
from torchsan.records.finding import DEFAULT_CHECKS, Check, Kind
from torchsan.records.suppression import Suppression

VARIABLE = "TORCHSAN_OPTIONS"
OF_A_SESSION = ("check", "watch", "kernels", "when", "out", "calls", "budget", "max_bytes", "max_memory", "no_guards")
"""The options that `session()` and the backend take; the others are for the command line."""


class Watch(StrEnum):
    """What to do with the values that kernels read and write."""

    OFF = "off"
    NAMES = "names"
    PRINT = "print"
    SAVE = "save"


class When(StrEnum):
    """On which side of a launch to watch values."""

    BEFORE = "before"
    AFTER = "after"
    BOTH = "both"


Calls = int | None | tuple[int, ...]
"""Which calls of a graph are checked: the first so many, all for None, or those of these numbers, from 0."""


def selects_call(calls: Calls, number: int) -> bool:
    """Return whether the call of this number, from 0, is to be checked."""
    if isinstance(calls, tuple):
        return number in calls
    return calls is None or number < calls


def calls_until(calls: Calls, number: int) -> int:
    """Return how many calls, from this number on, come before the next that is to be checked."""
    if calls is None:
        return 0
    later = [n - number for n in calls if n >= number] if isinstance(calls, tuple) else [0] if number < calls else []
    return min(later, default=NEVER)


NEVER = 1 << 62
"""So many calls that there will not be as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything a run can be told. Values are valid by construction when they come from `parse_options`."""

    check: tuple[Check, ...] = DEFAULT_CHECKS
    watch: Watch = Watch.OFF
    kernels: tuple[str, ...] = ()
    """Globs of kernel names; one with `!` in front excludes. Empty means all."""
    when: When = When.BOTH
    out: str | None = None
    json: str | None = None
    html: str | None = None
    sarif: str | None = None
    markdown: str | None = None
    junit: str | None = None
    perfetto: str | None = None
    calls: Calls = 2
    """Which calls of each compiled graph are checked."""
    budget: float | None = None
    """The share of the run's time that checks may take, by sampling launches; None checks `calls` instead."""
    max_bytes: int | None = None
    """How much tensor data a run may keep on disk; None means no limit."""
    max_memory: int | None = None
    """How much memory the check of one launch may take for copies; None means no limit."""
    no_guards: bool = False
    repro: bool = False
    fail_fast: bool = False
    quiet: bool = False
    verbose: bool = False
    github: bool = False
    explain_cost: bool = False
    """Tell where the time went."""
    exit_code: int = 1
    """The exit status of a run with findings of severity `error`."""
    baseline: str | None = None
    suppress: tuple[Suppression, ...] = ()
    """Findings that do not count, from the files and from `baseline`."""

    def selects(self, kernel: str) -> bool:
        """Return whether `kernels` selects the kernel of this name; the last glob that matches decides."""
        selected = not any(not glob.startswith("!") for glob in self.kernels)
        for glob in self.kernels:
            if fnmatch.fnmatchcase(kernel, glob.removeprefix("!")):
                selected = not glob.startswith("!")
        return selected


def parse_options(source: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` as arguments of Options. `source` is the place that errors name, such as `--check`'s `flags`.

    Names are written with `-` or `_`; a value is a string as on the command line, or the Python or TOML value itself.
    Raise UsageError for an unknown name or a value that is not allowed.
    """
    parsed = {}
    for name, value in values.items():
        key = name.replace("-", "_")
        if key not in _PARSERS:
            _unknown(source, "option", name, [k.replace("_", "-") for k in _PARSERS])
        parsed[key] = _PARSERS[key](source, name, value)
    return parsed


def resolve_options(flags: Mapping[str, Any], environ: Mapping[str, str], cwd: Path) -> Options:
    """Return the options for a run in `cwd`: flags over the variable over the nearest pyproject.toml upwards."""
    merged = _from_file(cwd)
    merged |= parse_options(VARIABLE, _split_variable(environ.get(VARIABLE, "")))
    merged |= parse_options("the command line", flags)
    if merged.get("baseline") is not None:
        merged["suppress"] = (*merged.get("suppress", ()), *_known(merged["baseline"]))
    return Options(**merged)


def _from_file(cwd: Path) -> dict[str, Any]:
    """Return what the nearest `torchsan.toml` or `pyproject.toml` upwards says; the first wins in the same folder."""
    for folder in (cwd, *cwd.parents):
        for name, heading in (("torchsan.toml", ()), ("pyproject.toml", ("tool", "torchsan"))):
            file = folder / name
            if not file.is_file():
                continue
            try:
                table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
                for key in heading:
                    table = table.get(key, {})
            except (OSError, ValueError, AttributeError, RecursionError) as e:
                raise UsageError(f"cannot read {file}: {e}", slug="bad-option") from e
            if not isinstance(table, dict):
                raise UsageError(f"{file}: [tool.torchsan] is not a table", slug="bad-option")
            return parse_options(f"[tool.torchsan] of {file}" if heading else str(file), table)
    return {}


def _known(baseline: str) -> Iterator[Suppression]:
    """The findings of an earlier report, as suppressions."""
    try:
        findings = json.loads(Path(baseline).read_text(encoding="utf-8"))["findings"]
        prints = {finding["fingerprint"]: None for finding in findings}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise UsageError(
            f"--baseline {baseline} is no report that `torchsan run --json` wrote: {type(e).__name__}: {e}",
            slug="bad-option",
        ) from e
    for name in prints:
        yield Suppression(id=str(name), reason="in the baseline", baseline=True)


def _split_variable(text: str) -> dict[str, str]:
    """Split `check=values,memory:watch=print`.

    A value may hold `:` itself (`out=c:/runs`), so the text is split only where the name of an option follows.
    """
    if not text.strip():
        return {}
    names = "|".join(re.escape(n) for k in _PARSERS for n in {k, k.replace("_", "-")})
    values = {}
    for part in re.split(rf":(?=(?:{names})(?:=|:|$))", text.strip()):
        name, equals, value = part.partition("=")
        if equals and ":" in value and name.strip() not in _PATHS:
            # No other value can hold a colon: what follows it was meant as an option, and is misspelt.
            value, _, rest = value.partition(":")
            values[rest.partition("=")[0].strip()] = rest.partition("=")[2]
        values[name.strip()] = value if equals else "true"
    return values


def _unknown(source: str, what: str, given: object, allowed: Iterable[str]) -> NoReturn:
    allowed = [str(a) for a in allowed]
    near = difflib.get_close_matches(str(given), allowed, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"unknown {what} {given!r} in {source}; {hint}allowed: {', '.join(allowed)}", slug="bad-option")


def _refuse(source: str, name: str, value: object, wanted: str) -> NoReturn:
    raise UsageError(f"{name} = {value!r} in {source}: {wanted}", slug="bad-option")


def _words(source: str, name: str, value: Any) -> list[str]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, Iterable):
        _refuse(source, name, value, "expected a list, or words with commas between them")
    words = list(value)
    if not all(isinstance(w, str) for w in words):
        _refuse(source, name, value, "expected a list of words")
    return [w.strip() for w in words if w.strip()]


def _checks(source: str, name: str, value: Any) -> tuple[Check, ...]:
    words = _words(source, name, value)
    for word in words:
        if word not in list(Check):
            _unknown(source, "check", word, Check)
    if not words:
        _refuse(source, name, value, f"expected at least one of {', '.join(Check)}")
    return tuple(dict.fromkeys(Check(word) for word in words))


def _globs(source: str, name: str, value: Any) -> tuple[str, ...]:
    return tuple(_words(source, name, value))


E_ = TypeVar("E_", bound=StrEnum)


def _one_of(kind: type[E_]) -> Callable[[str, str, Any], E_]:
    def parse(source: str, name: str, value: Any) -> E_:
        if value is False and "off" in list(kind):
            value = "off"  # What YAML users and TOML's `watch = false` mean.
        if value not in list(kind):
            _unknown(source, f"value of {name}", value, list(kind))
        return kind(value)

    return parse


def _path(source: str, name: str, value: Any) -> str:
    text = str(value) if isinstance(value, str | Path) else ""
    if not text or "\0" in text:
        _refuse(source, name, value, "expected a path")
    return text


_NUMBER = re.compile(r"[0-9]{1,18}")


def _calls(source: str, name: str, value: Any) -> Calls:
    if value == "all":
        return None
    text = str(value).strip()
    if text.startswith("steps:"):
        numbers = [word.strip() for word in text.removeprefix("steps:").split(",")]
        if not all(_NUMBER.fullmatch(word) for word in numbers):
            _refuse(source, name, value, "expected numbers of calls, from 0, such as steps:100,1000")
        return tuple(sorted({int(word) for word in numbers}))
    if isinstance(value, bool) or not _NUMBER.fullmatch(text) or int(text) < 1:
        _refuse(source, name, value, "expected a whole number from 1, 'all', or 'steps:100,1000'")
    return int(text)


def _budget(source: str, name: str, value: Any) -> float:
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?|\.\d{1,6}) ?%", str(value).strip())
    share = float(match[1]) / 100 if match is not None else 0.0
    if not 0 < share <= 1:
        _refuse(source, name, value, "expected a share of the time, such as 1% or 0.5%")
    return share


_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _bytes(source: str, name: str, value: Any) -> int:
    match = re.fullmatch(r"(\d{1,18}) ?([KMGT]?)(?:iB|B)?", str(value).strip(), re.IGNORECASE)
    if isinstance(value, bool) or match is None:
        _refuse(source, name, value, "expected a number of bytes, such as 512M or 2G")
    return int(match[1]) * _SUFFIXES[match[2].upper()]


_BOOLS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def _bool(source: str, name: str, value: Any) -> bool:
    key = str(value).strip().lower()
    if key not in _BOOLS:
        _refuse(source, name, value, "expected true or false")
    return _BOOLS[key]


_SELECTORS = ("kind", "check", "op", "kernel", "source", "id")


def _suppressions(source: str, name: str, value: Any) -> tuple[Suppression, ...]:
    if not isinstance(value, list | tuple):
        _refuse(source, name, value, "expected tables: [[suppress]] in torchsan.toml")
    return tuple(s if isinstance(s, Suppression) else _suppression(source, name, s) for s in value)


def _suppression(source: str, name: str, table: Any) -> Suppression:
    if not isinstance(table, dict):
        _refuse(source, name, table, "expected a table")
    given: dict[str, Any] = {str(key): str(value) for key, value in table.items()}
    for key in given:
        if key not in (*_SELECTORS, "reason", "expires"):
            _unknown(source, "key of suppress", key, (*_SELECTORS, "reason", "expires"))
    if not given.get("reason", "").strip():
        _refuse(source, name, table, "a suppression needs a reason")
    if not set(given) & set(_SELECTORS):
        _refuse(source, name, table, f"a suppression needs one of {', '.join(_SELECTORS)}")
    for key, allowed in (("kind", list(Kind)), ("check", list(Check))):
        if key in given and given[key] not in allowed:
            _unknown(source, key, given[key], allowed)
    if "expires" in given and not re.fullmatch(r"\d{4}-\d\d-\d\d", given["expires"]):
        _refuse(source, "expires", given["expires"], "expected a date such as 2027-03-01")
    return Suppression(**given)


def _status(source: str, name: str, value: Any) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not _NUMBER.fullmatch(text) or int(text) > 255:
        _refuse(source, name, value, "expected an exit status from 0 to 255")
    return int(text)


_PATHS = ("out", "json", "html", "sarif", "markdown", "junit", "perfetto", "baseline")
_PARSERS: dict[str, Callable[[str, str, Any], Any]] = {
    "check": _checks,
    "watch": _one_of(Watch),
    "kernels": _globs,
    "when": _one_of(When),
    **dict.fromkeys(_PATHS, _path),
    "calls": _calls,
    "budget": _budget,
    "max_bytes": _bytes,
    "max_memory": _bytes,
    "no_guards": _bool,
    "repro": _bool,
    "fail_fast": _bool,
    "quiet": _bool,
    "verbose": _bool,
    "github": _bool,
    "explain_cost": _bool,
    "exit_code": _status,
    "suppress": _suppressions,
}
