"""`torchsan report --artifacts DIR`: a Markdown file for every artifact of the compile, and an index of them.

It says what the web page says of them: both are made from one model.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchsan.errors import UsageError
from torchsan.recording import Reader
from torchsan.recording.folder import write_atomically
from torchsan.records import ArtifactKind
from torchsan.report.findings import count
from torchsan.report.html.page import Model, build
from torchsan.report.markdown import as_code, as_text, fenced

_GRAPHS = ("FX graph", ArtifactKind.STAGE_GRAPH)
_LISTED = 40
_DRAWN = 8


@dataclass(slots=True)
class Artifact:
    """One of them, and what is known of it. Links are numbers of other artifacts."""

    number: int
    entry: dict[str, Any]
    file: str
    text: str
    launches: list[dict[str, Any]] = field(default_factory=list)
    depends: list[int] = field(default_factory=list)
    used_by: list[int] = field(default_factory=list)
    related: list[int] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """What it is."""
        return str(self.entry["kind"])


def write_artifacts(recording: Reader, folder: Path) -> int:
    """Write the files, in a new or empty folder, and return how many artifacts there are. Raise UsageError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"--artifacts {folder} is no empty folder; choose another", slug="bad-target")
    model = build(recording)
    artifacts = _connected(model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "index.md", _index(model, artifacts))
        for artifact in artifacts:
            write_atomically(folder / artifact.file, "\n\n".join(_page(model, artifact, artifacts)) + "\n")
    except OSError as e:
        raise UsageError(f"cannot write --artifacts {folder}: {e.strerror or e}", slug="bad-target") from e
    return len(artifacts)


def _connected(model: Model) -> list[Artifact]:
    index = model.index
    taken: set[str] = set()
    artifacts = [_artifact(model, n, entry, taken) for n, entry in enumerate(index["artifacts"])]
    files = {a.entry["file"]: a.number for a in artifacts if a.kind == "source file"}
    for graph in index["graphs"]:
        _connect_kernels(graph, artifacts)
        _connect_texts(graph, artifacts)
        for twin in index["graphs"]:
            if twin is not graph and twin["id"] == graph["id"]:
                _relate(graph, twin, artifacts)
    for a in artifacts:
        if a.kind in _GRAPHS:
            if (before := a.entry.get("before")) is not None:
                _depend(artifacts, a.number, before)
            else:
                lines = [index["lines"][n][0] for k in _kernels(model, a) for n in k["source"]]
                a.depends += [files[file] for file in sorted(set(lines))]
    return artifacts


def _connect_texts(graph: dict[str, Any], artifacts: list[Artifact]) -> None:
    """The wrapper depends on the FX graph, its kernels on it; what a cache has depends on both."""
    texts = graph["artifacts"]
    if "wrapper" in texts:
        artifacts[texts["wrapper"]].used_by += graph["definitions"].values()
        if "graph" in texts:
            _depend(artifacts, texts["wrapper"], texts["graph"])
    for entry in graph["cache"]:
        for kind in ("graph", "wrapper"):
            if kind in texts:
                _depend(artifacts, entry, texts[kind])


def _depend(artifacts: list[Artifact], number: int, on: int) -> None:
    artifacts[number].depends.append(on)
    artifacts[on].used_by.append(number)


def _connect_kernels(graph: dict[str, Any], artifacts: list[Artifact]) -> None:
    """Give each kernel its launches, and the kernels that write what it reads and read what it writes."""
    kernels = graph["definitions"]
    producers = {k["nth"]: kernels.get(k["name"]) for k in graph["kernels"]}
    for k in graph["kernels"]:
        number = kernels.get(k["name"])
        if number is None:
            continue
        artifacts[number].launches.append(k)
        before = [producers.get(nth) for _, nth in k["reads"] if nth is not None]
        after = [producers.get(nth) for _, readers in k["writes"] for nth in readers]
        artifacts[number].depends += [n for n in before if n is not None and n != number]
        artifacts[number].used_by += [n for n in after if n is not None and n != number]


def _relate(graph: dict[str, Any], twin: dict[str, Any], artifacts: list[Artifact]) -> None:
    """Tell the artifacts of a graph of those with the same names in the other direction of the same compile."""
    for names in ("artifacts", "definitions"):
        for name in set(graph[names]) & set(twin[names]):
            artifacts[graph[names][name]].related.append(twin[names][name])


def _artifact(model: Model, number: int, entry: dict[str, Any], taken: set[str]) -> Artifact:
    name = entry["name"]
    if entry.get("graph") is not None and entry["kind"] == "kernel":
        graph = model.index["graphs"][entry["graph"]]
        name = f"graph{graph['id']}-{graph['direction']}.{name}"
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:100] or "artifact"
    file, n = f"{stem}.md", 1
    while file.lower() in taken or file == "index.md":
        n += 1
        file = f"{stem}-{n}.md"
    taken.add(file.lower())
    holder = entry if "in" not in entry else model.index["artifacts"][entry["in"]]
    text = model.parts.get(str(holder.get("text")), "")
    if "in" in entry:
        text = "\n".join(text.split("\n")[entry["first"] - 1 : entry["last"]])
    return Artifact(number=number, entry=entry, file=file, text=text)


def _index(model: Model, artifacts: list[Artifact]) -> str:
    lines = [f"# Artifacts of {as_code(model.index['run']['command'])}"]
    for kind in dict.fromkeys(a.kind for a in artifacts):
        of_kind = sorted((a for a in artifacts if a.kind == kind), key=lambda a: a.file.lower())
        lines.append(f"## {as_text(kind)} ({len(of_kind)})")
        lines.append("\n".join(f"- {_link(a)}" for a in of_kind))
    return "\n\n".join(lines) + "\n"


def _link(artifact: Artifact) -> str:
    return f"[{as_code(artifact.entry['name'], 200)}]({artifact.file})"


def _page(model: Model, a: Artifact, artifacts: list[Artifact]) -> Iterator[str]:
    """The parts of a page, the same for every artifact; one of which nothing is known says so."""
    yield f"# {as_code(a.entry['name'], 300)}"
    yield "[All artifacts](index.md)"
    yield "## What it is"
    yield _facts(model, a)
    yield "## What it is for"
    yield _list(_purpose(model, a), "It computes no line that the recording knows.")
    yield "## What it is made of"
    yield _list(_structure(model, a), "The recording knows nothing of its structure.")
    yield "## What it depends on, and what depends on it"
    yield _connections(a, artifacts)
    yield "## What it costs"
    yield _list(_cost(model, a), "It was not timed.")
    yield "## Is it safe?"
    yield _list(_safety(model, a), "No check has looked at it by itself.")
    yield "## Related"
    yield _list((_link(artifacts[n]) for n in dict.fromkeys(a.related)), "Nothing.")
    if a.text:
        yield "## Source"
        yield fenced(str(a.entry["language"]), a.text)


def _list(lines: Iterable[str], otherwise: str) -> str:
    found = list(lines)
    more = [f"… and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
    return "\n".join(f"- {line}" for line in [*found[:_LISTED], *more]) or otherwise


def _facts(model: Model, a: Artifact) -> str:
    graph = model.index["graphs"][a.entry["graph"]] if a.entry.get("graph") is not None else None
    facts = {
        "kind": a.kind,
        "file": a.entry["path"],
        "made by": a.entry["made"],
        "made": (graph and graph["made"]) or (model.index["run"]["started"] if a.kind != "source file" else None),
        "stage": a.entry.get("stage"),
        **a.entry.get("facts", {}),
        "size": f"{len(a.text.encode())} bytes, {count(a.text.count(chr(10)) + 1, 'line')}" if a.text else None,
        "sha256": hashlib.sha256(a.text.encode()).hexdigest() if a.text else None,
        "graph": f"{graph['id']} {graph['direction']}" if graph else None,
        "compiled in": f"{graph['seconds']} s" if graph and graph["seconds"] else None,
    }
    return _list((f"{name}: {as_code(value, 500)}" for name, value in facts.items() if value), "")


def _kernels(model: Model, a: Artifact) -> list[dict[str, Any]]:
    """The launches that an artifact is about: its own, or all of its graph."""
    if a.kind == "kernel" or a.entry.get("graph") is None:
        return a.launches
    found: list[dict[str, Any]] = model.index["graphs"][a.entry["graph"]]["kernels"]
    return found


def _purpose(model: Model, a: Artifact) -> Iterator[str]:
    index = model.index
    numbers = dict.fromkeys(n for k in _kernels(model, a) for n in k["source"])
    if a.kind == "source file":
        numbers = dict.fromkeys(n for n, line in enumerate(index["lines"]) if line[0] == a.entry["file"])
    for n in numbers:
        file, line, code, module = index["lines"][n]
        where = f"{as_code(index['files'][file][0], 300)}:{line}"
        yield f"{where} {as_code(code, 300)}" + (f" in {as_code(module, 200)}" if module else "")


def _structure(model: Model, a: Artifact) -> Iterator[str]:
    if a.kind == "kernel":
        loops, parallel = len(re.findall(r"\bfor\s*\(", a.text)), a.text.count("#pragma omp")
        yield f"{count(loops, 'loop')}, {count(parallel, 'OpenMP directive')}, {count(len(a.launches), 'launch site')}"
        for k in a.launches:
            reads, writes = (", ".join(as_code(pair[0]) for pair in k[key]) for key in ("reads", "writes"))
            yield f"launch {k['nth']}: reads {reads or 'nothing'}; writes {writes or 'nothing'}"
    elif a.kind == "wrapper":
        graph = model.index["graphs"][a.entry["graph"]]
        yield f"{count(len(graph['kernels']), 'launch')}, {count(graph['buffers'], 'buffer')} that something reads"
        yield from (f"function {as_code(name)}" for name in re.findall(r"^\s*def (\w+)\(", a.text, re.MULTILINE))
    elif a.kind == ArtifactKind.CACHE_ENTRY:
        yield "a file that PyTorch unpickles, and torchsan does not; `torchsan cache FOLDER` looks into it"
    elif a.kind in _GRAPHS:
        nodes = model.parts[a.entry.get("nodes") or f"nodes-{a.entry['graph']}"]
        yield f"{count(len(nodes), 'node')}"
        if passes := a.entry.get("passes"):
            yield f"changed by {', '.join(map(as_code, passes))}"
        for name, op, type_, inputs, *_ in nodes:
            came = f" from {', '.join(map(as_code, inputs[:6]))}" if inputs else ""
            yield f"{as_code(name)}: {as_code(op)}{f' → {as_code(type_)}' if type_ else ''}{came}"


def _connections(a: Artifact, artifacts: list[Artifact]) -> str:
    before, after = (list(dict.fromkeys(numbers)) for numbers in (a.depends, a.used_by))
    if not before and not after:
        return "Nothing that the recording knows of."
    drawn = [f"    n{n}[{_label(artifacts[n])}] --> n{a.number}[{_label(a)}]" for n in before[:_DRAWN]]
    drawn += [f"    n{a.number}[{_label(a)}] --> n{n}[{_label(artifacts[n])}]" for n in after[:_DRAWN]]
    parts = [fenced("mermaid", "\n".join(["graph LR", *drawn]))]
    for title, numbers in (("Depends on", before), ("Used by", after)):
        if numbers:
            parts += [f"{title}:", _list((_link(artifacts[n]) for n in numbers), "")]
    return "\n\n".join(parts)


def _label(artifact: Artifact) -> str:
    return '"' + re.sub(r"[^\w .-]", "_", artifact.entry["name"])[:60] + '"'


def _cost(model: Model, a: Artifact) -> Iterator[str]:
    kernels = [k for k in _kernels(model, a) if k.get("seconds") is not None]
    if a.kind == "source file" or not kernels:
        return
    seconds = sum(k["seconds"] for k in kernels)
    everything = sum(k.get("seconds") or 0.0 for g in model.index["graphs"] for k in g["kernels"])
    share = seconds / everything if everything else 0.0
    whose = "" if a.kind == "kernel" else "its kernels: "
    yield f"{whose}{seconds:.3g} s in the fastest of the timed calls, {share:.1%} of all kernels"
    read, written = (sum(k["bytes"][n] for k in kernels) for n in (0, 1))
    yield f"{read} bytes read, {written} bytes written"


def _safety(model: Model, a: Artifact) -> Iterator[str]:
    kernels = _kernels(model, a)
    for check in dict.fromkeys(name for k in kernels for name in k["checks"]):
        words = [k["checks"].get(check, "unchecked") for k in kernels]
        yield f"{check}: " + ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    if a.entry.get("graph") is not None:
        inputs = set(model.index["graphs"][a.entry["graph"]]["inputs"])
        mutated = dict.fromkeys(name for k in kernels for name, _ in k["writes"] if name in inputs)
        if mutated:
            yield f"it overwrites inputs of the graph: {', '.join(map(as_code, mutated))}"
    about = {f for k in kernels for f in k["findings"]}
    for f in model.index["findings"]:
        if f["id"] in about or (a.kind in ("wrapper", *_GRAPHS) and f["graph"] == a.entry.get("graph")):
            yield f"{f['id']}: {f['severity']}: {f['kind']}: {as_text(f['message'], 300)}"
