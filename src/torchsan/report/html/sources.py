"""The texts of a recording, cut so that the page stays small and can be laid out whatever the recording holds."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from torchsan.errors import RecordingError
from torchsan.recording import Reader
from torchsan.records import ArtifactKind, ArtifactRecord, SourceLine, Stage
from torchsan.report.findings import shown_file, visible
from torchsan.torch_internals.wrapper.outline import Wrapper

_DEPTH = 12


def cut(text: str, limit: int = 2000) -> str:
    """Return the text, or its beginning and a note of how long it is. What cannot be seen is written out.

    Lone surrogates, which UTF-8 lacks, become question marks.
    """
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text):,} characters in all)"
    return visible(text.encode("utf-8", "replace").decode("utf-8"))


def cut_all(texts: Iterable[str], most: int, limit: int = 200) -> list[str]:
    """Return the first texts, each cut."""
    return [cut(text, limit) for text in itertools.islice(texts, most)]


class Cutter:
    """Cuts any JSON value to a bounded one: texts, lists, dictionaries and nesting."""

    def __init__(self, text: int = 2000, items: int = 200, total: int = 20_000) -> None:
        """`text` characters a string, `items` a list or dictionary, `total` values in all."""
        self._text, self._items, self._left = text, items, total

    def __call__(self, value: Any, depth: int = 0) -> Any:
        """Return `value`, or a smaller one that says what was left out."""
        self._left -= 1
        if isinstance(value, str):
            return cut(value, self._text)
        if isinstance(value, list | tuple | dict):
            if depth >= _DEPTH or self._left <= 0:
                return f"… ({len(value):,} items, not shown)"
            more = len(value) - self._items
            if isinstance(value, dict):
                shown = {cut(str(k), 200): self(v, depth + 1) for k, v in list(value.items())[: self._items]}
                return shown | ({"…": f"{more:,} more"} if more > 0 else {})
            return [self(v, depth + 1) for v in value[: self._items]] + ([f"… {more:,} more"] if more > 0 else [])
        return number(value)


def number(value: Any, digits: int | None = None) -> Any:
    """Return a number as JSON has it: non-finite ones as texts, floats with so many digits if that is asked for.

    Complex numbers become texts, and so do integers that a browser would round.
    """
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else cut(str(value) if value.bit_length() < 4096 else hex(value), 60)
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
        return value if digits is None else float(f"{value:.{digits}g}")
    return cut(str(value), 60)


_LONGEST = 12_000_000
"""Characters of one text. A wrapper with 2,000 kernels has some 8 million; packed, it is a tenth of that."""
_ALL = 60_000_000


class Lines:
    """Numbers source lines, files and modules as they come."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._numbers: dict[SourceLine, int] = {}
        self.files: dict[str, int] = {}

    def number(self, line: SourceLine) -> int:
        """The position of a line in the table."""
        if line not in self._numbers:
            self._numbers[line] = len(self._numbers)
            self.files.setdefault(line.file, len(self.files))
        return self._numbers[line]

    def numbers(self, lines: Iterable[SourceLine]) -> list[int]:
        """The positions of some lines."""
        return [self.number(line) for line in lines]

    def table(self) -> list[list[Any]]:
        """For each line: the number of its file, the line, its text, and the module."""
        return [
            [self.files[line.file], line.line, cut(line.code.strip(), 400), cut(line.module, 200)]
            for line in self._numbers
        ]

    def names(self) -> list[list[str]]:
        """For each file: its path from the folder that the program ran in, as the user types it, and in full."""
        below = self._cwd.rstrip("/\\") + ("\\" if "\\" in self._cwd else "/")
        return [[cut(shown_file(file.removeprefix(below)), 300), cut(file, 500)] for file in self.files]


_KINDS = {"graph": "FX graph", "wrapper": "wrapper"}
_MADE_BY = {
    "kernel": "Inductor's code generation, as a part of the wrapper",
    "wrapper": "Inductor's code generation, from the FX graph",
    "FX graph": "AOTAutograd and Inductor's graph passes: the graph that Inductor generated code for",
    "source file": "you: the lines of it that were compiled",
    "cache entry": "a compile cache of PyTorch's, which keeps what it compiled for the next run",
}
_STAGES = {
    Stage.CAPTURE: "Dynamo: the graph that it read off your Python code",
    Stage.AOT: "AOTAutograd: mutations taken out, operators decomposed, and the backward added or split off",
    Stage.JOINT_PASSES: "Inductor's graph passes on the graph of forward and backward together",
    Stage.POST_GRAD_PASSES: "Inductor's last graph passes: the graph that it generated code for",
}
"""Who made the graph of a stage."""
_OF_GRAPH = 20
_LANGUAGES = {"py": "python", "cpp": "cpp"}
_OTHERS = 500


class Artifacts:
    """Reads the texts of a recording, each once, and numbers those that the page takes along.

    `parts` are the texts by name, cut if they are very long; `found` says what each of them is.
    """

    def __init__(self, recording: Reader) -> None:
        self._recording = recording
        self._read: dict[str, str] = {}
        self._taken: dict[str, int] = {}
        self._left = _ALL
        self.parts: dict[str, str] = {}
        self.found: list[dict[str, Any]] = []

    def read(self, name: str | None) -> str:
        """The text of an artifact; one that cannot be read is a text that says so, and None an empty one."""
        if name is None:
            return ""
        if name not in self._read:
            try:
                self._read[name] = self._recording.artifact(name)
            except RecordingError as e:
                self._read[name] = f"({e})"
        return self._read[name]

    def read_of_graph(self, name: str | None) -> str:
        """The text of an artifact for the first graph that names it, and then an empty one: no two have the same.

        A recording that says otherwise could have one text parsed and shown very many times.
        """
        return "" if name in self._taken else self.read(name)

    def add_graph(self, graph: int, artifacts: dict[str, str], wrapper: Wrapper) -> dict[str, Any]:
        """Add the texts of a graph, and the kernels of its wrapper. Return the numbers that they got.

        `definitions` maps the name of a kernel to the number of its artifact.
        """
        numbers: dict[str, int] = {}
        definitions: dict[str, int] = {}
        for kind, name in list(artifacts.items())[:_OF_GRAPH]:
            numbers[cut(kind, 50)] = self._add(name, _KINDS.get(kind, cut(kind, 50)), graph)
        for definition in wrapper.definitions.values() if "wrapper" in numbers else ():
            holder = numbers["wrapper"]
            definitions[cut(definition.name, 300)] = len(self.found)
            self.found.append(
                {
                    "kind": "kernel",
                    "name": cut(definition.name, 300),
                    "path": self.found[holder]["path"],
                    "language": "cpp" if definition.language == "cpp" else "python",
                    "graph": graph,
                    "in": holder,
                    "first": definition.first,
                    "last": definition.last,
                    "made": _MADE_BY["kernel"],
                }
            )
        return {"artifacts": numbers, "definitions": definitions}

    def add_made(self, graph: int, made: Iterable[ArtifactRecord]) -> dict[str, list[int]]:
        """Add the graphs of the stages that one went through, and its entries in caches; return their numbers.

        The last of the stages may be the graph that code was generated for, which `add_graph` has added.
        """
        numbers: dict[str, list[int]] = {"stages": [], "cache": []}
        for record in itertools.islice(made, _OF_GRAPH):
            stage = record.kind is ArtifactKind.STAGE_GRAPH
            number = self._add(record.name, record.kind.value, graph)
            entry = self.found[number]
            if entry["graph"] != graph or number in numbers["stages"]:
                continue  # No two graphs have the same text; a recording that says so is damaged.
            if stage and record.stage is not None:
                entry["made"] = _STAGES.get(record.stage, entry["made"])
            entry |= {
                "stage": record.stage and record.stage.value,
                "passes": cut_all(record.passes, 100),
                "facts": {cut(k, 50): cut(v, 300) for k, v in list(record.facts.items())[:_OF_GRAPH]},
            }
            numbers["stages" if stage else "cache"].append(number)
        return numbers

    def connect_stages(self, graphs: Sequence[dict[str, Any]]) -> None:
        """Note of each graph which one it was made of: that of the stage before, and first of all Dynamo's.

        A backward begins where the graph of both directions was split.
        """
        joint: dict[Any, int] = {}
        for graph in sorted(graphs, key=lambda g: g["direction"] == "backward"):
            last = graph["artifacts"].get("graph")
            chain = [*(n for n in graph["stages"] if n != last), *([last] if last is not None else [])]
            before = joint.get(graph["id"]) if graph["direction"] == "backward" else None
            for number in chain:
                if before is not None:
                    self.found[number]["before"] = before
                    if "partition" in self.found[number].get("passes", ()):
                        joint.setdefault(graph["id"], before)
                before = number

    def add_others(self) -> None:
        """Add the texts of the recording that belong to no graph."""
        for name in self._recording.artifacts()[:_OTHERS]:
            if name not in self._taken:
                self._add(name, "text", None)

    def add_files(self, lines: Lines) -> None:
        """Add the user's files, of which the recording has single lines."""
        for number, (shown, path) in enumerate(lines.names()):
            self.found.append(
                {
                    "kind": "source file",
                    "name": shown,
                    "path": path,
                    "language": "python",
                    "graph": None,
                    "file": number,
                    "made": _MADE_BY["source file"],
                }
            )

    def _add(self, name: str, kind: str, graph: int | None) -> int:
        """Put an artifact into the page, with its size as it is and as it is shown. Return its number, also again."""
        if name in self._taken:
            return self._taken[name]
        self._taken[name] = len(self.found)
        text = self.read(name)
        shown = text[: max(0, min(_LONGEST, self._left))]
        self._left -= len(shown)
        key = f"text-{len(self.parts)}"
        self.parts[key] = visible(shown.encode("utf-8", "replace").decode("utf-8"))
        entry = {
            "kind": kind,
            "name": cut(name, 300),
            "path": cut(f"artifacts/{name}", 300),
            "language": _LANGUAGES.get(name.rpartition(".")[2], "text"),
            "graph": graph,
            "made": _MADE_BY.get(kind, "this run"),
            "text": key,
            "bytes": len(text.encode("utf-8", "replace")),
            "lines": text.count("\n") + (not text.endswith("\n") and bool(text)),
            "cut": len(text) if len(shown) < len(text) else None,
            "digest": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(),
        }
        self.found.append(entry)
        return len(self.found) - 1
