"""Everything that has a source: graphs, wrappers, kernels, other texts of the recording, and the user's files."""

from __future__ import annotations

from typing import Any

from torchsan.recording import Reader
from torchsan.report.html.bounds import cut
from torchsan.report.html.lines import Lines
from torchsan.report.html.texts import Texts
from torchsan.report.html.wrapper import Wrapper

__all__ = ["Artifacts"]

_KINDS = {"graph": "FX graph", "wrapper": "wrapper"}
_LANGUAGES = {"py": "python", "cpp": "cpp"}
_OTHERS = 500


class Artifacts:
    """Collects the artifacts of a page, and numbers them in the order in which they come."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._taken: set[str] = set()
        self.found: list[dict[str, Any]] = []

    def add_graph(self, graph: int, artifacts: dict[str, str], wrapper: Wrapper) -> dict[str, Any]:
        """Add the texts of a graph, and the kernels of its wrapper. Return the numbers that they got.

        `definitions` maps the name of a kernel to the number of its artifact.
        """
        numbers: dict[str, int] = {}
        definitions: dict[str, int] = {}
        for kind, name in list(artifacts.items())[:20]:
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
                }
            )
        return {"artifacts": numbers, "definitions": definitions}

    def add_others(self, recording: Reader) -> None:
        """Add the texts of the recording that belong to no graph."""
        for name in recording.artifacts()[:_OTHERS]:
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
                }
            )

    def _add(self, name: str, kind: str, graph: int | None) -> int:
        self._taken.add(name)
        entry = {
            "kind": kind,
            "name": cut(name, 300),
            "path": cut(f"artifacts/{name}", 300),
            "language": _LANGUAGES.get(name.rpartition(".")[2], "text"),
            "graph": graph,
            **self._texts.part(name),
        }
        self.found.append(entry)
        return len(self.found) - 1
