"""Recordings of nearly 10 MB that are made to take as much memory and time as possible, a shape each.

`python -m tests.programs.greedy_recordings FOLDER [SHAPE…]` makes each in FOLDER, reads it with every command that
reads recordings, and prints the peak memory in megabytes and the seconds of each.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.report.html.recordings import ordinary
from torchsan.recording.folder import write_atomically

SIZE = 9_500_000
"""Bytes of a recording: just below 10 MB, with what SQLite needs beside the texts."""

Event = tuple[str, str]

_FINDING = '"kind":"wrong-values","severity":"error","check":"values","message":""'
_GRAPH = '"direction":"forward","artifacts":{}'


def _many(head: str, one: Callable[[int], str], tail: str, size: int = SIZE) -> str:
    """A text of about `size` characters: `head`, elements with commas between them, `tail`."""
    parts: list[str] = []
    length = n = 0
    while length < size - 200_000 or not parts:
        parts.append(one(n))
        length += len(parts[-1]) + 1
        n += 1
    return f"{head}{','.join(parts)}{tail}"


def _forever(one: Callable[[int], Event]) -> Iterator[Event]:
    n = 0
    while True:
        yield one(n)
        n += 1


def _kernel(n: int) -> str:
    return f'{{"name":"","nth":{n},"kind":"fused"}}'


def _evidence(parts: str) -> Callable[[int], Event]:
    return lambda n: ("finding", f'{{"id":"F{n + 1}",{_FINDING},"evidence":{{"x":[{parts}]}}}}')


def _watched(n: int) -> Event:
    body = f'{{"graph":0,"direction":"forward","call":0,"launch":{n},"kernel":"","phase":"after","name":"{n}"}}'
    return "watched", f'{{"watched":{body}}}'


_FIGURES = '"given":0,"allocated":0,"planned_peak":0,"peak":0,"saved":0,"returned":0'


def _memory(field: str, one: str) -> str:
    return _many(f'{{"graph":0,"direction":"forward","call":0,{_FIGURES},"{field}":[', lambda n: one, "]}")


def _exhibit(n: int) -> Event:
    calls = ",".join(f'{{"name":"n{i}","op":"aten.sin.default","args":[{{"node":"x"}}]}}' for i in range(4000))
    given = '{"name":"x","dtype":"float32","size":[4],"stride":[1],"fill":"full 1"}'
    body = f'{{"finding":"F1","check":"values","nodes":[{calls}],"inputs":[{given}],"outputs":["n0"]}}'
    return "exhibit", f'{{"exhibit":{body}}}'


SHAPES: dict[str, Callable[[], Iterator[Event]]] = {
    "brackets": lambda: iter([("x", _many('{"x":[', lambda n: "[" * 60 + "]" * 60, "]}"))]),
    "brackets in many events": lambda: _forever(lambda n: ("x", '{"x":' + "[" * 60 + "]" * 60 + "}")),
    "dictionaries": lambda: iter([("x", _many('{"x":[', lambda n: '{"":0}', "]}"))]),
    "dictionaries with names": lambda: iter([("x", _many("{", lambda n: f'"{n}":0', "}"))]),
    "numbers": lambda: iter([("x", _many('{"x":[', lambda n: ".5", "]}"))]),
    "tiny events": lambda: _forever(lambda n: ("x", "{}")),
    "large characters": lambda: iter([("x", _many('{"x":[', lambda n: '"\U00010000"', "]}", SIZE // 3))]),
    "kernels": lambda: iter([("graph", _many(f'{{"id":0,{_GRAPH},"kernels":[', _kernel, "]}"))]),
    "graphs": lambda: _forever(lambda n: ("graph", f'{{"id":{n},{_GRAPH},"kernels":[{_kernel(0)}]}}')),
    "graphs and checks": lambda: _forever(
        lambda n: (
            ("graph", f'{{"id":{n},{_GRAPH},"buffers":["a"]}}')
            if n % 2
            else ("checked", f'{{"graph":{n},"direction":"forward","buffers":["{n}"]}}')
        )
    ),
    "nodes": lambda: iter(
        [
            ("graph", f'{{"id":0,{_GRAPH}}}'),
            ("nodes", _many('{"nodes":{"graph":0,"direction":"forward","nodes":[', _node, "]}}")),
        ]
    ),
    "findings": lambda: _forever(lambda n: ("finding", f'{{"id":"F{n + 1}",{_FINDING}}}')),
    "findings of a kernel": lambda: _blaming(),
    "findings and amendments": lambda: _forever(
        lambda n: (("finding", "amended")[n % 2], f'{{"id":"F{n // 2 + 1}",{_FINDING}}}')
    ),
    "evidence": lambda: _forever(_evidence(",".join(["[]"] * 200_000))),
    "evidence of dictionaries": lambda: _forever(_evidence(",".join(['{"":0}'] * 100_000))),
    "evidence of numbers": lambda: _forever(_evidence(",".join(["1"] * 240_000))),
    "evidence in small parts": lambda: _forever(_evidence(",".join(["[]"] * 20))),
    "skipped": lambda: _forever(lambda n: ("skipped", f'{{"what":"{n}","reason":"{n}"}}')),
    "skipped for one reason": lambda: _forever(lambda n: ("skipped", f'{{"what":"{n}","reason":""}}')),
    "checked": lambda: iter(
        [("checked", _many('{"graph":0,"direction":"forward","buffers":[', lambda n: f'"{n}"', "]}"))]
    ),
    "operators": lambda: iter([("ops-checked", _many('{"ops":[', lambda n: f'"{n}"', "]}"))]),
    "incomplete": lambda: _forever(lambda n: ("incomplete", f'{{"what":{n}}}')),
    "watched": lambda: _forever(_watched),
    "timeline": lambda: iter([("memory", _memory("timeline", "[0,0,0]"))]),
    "lives": lambda: iter([("memory", _memory("lives", '{"buffer":"","bytes":0,"born":0}'))]),
    "lines at the peak": lambda: iter([("memory", _memory("by_source", '{"file":"","line":0,"module":"","bytes":0}'))]),
    "memory of many calls": lambda: _forever(
        lambda n: ("memory", f'{{"graph":{n},"direction":"forward","call":0,{_FIGURES}}}')
    ),
    "times": lambda: iter(
        [
            ("graph", f'{{"id":0,{_GRAPH},"kernels":[{_kernel(0)}]}}'),
            ("times", _many('{"times":{"graph":0,"direction":"forward","call":0,"launches":[', _launch, "]}}")),
        ]
    ),
    "exhibits": lambda: _with_finding(_exhibit),
    "lines of source": lambda: iter(
        [
            (
                "graph",
                _many(
                    f'{{"id":0,{_GRAPH},"kernels":[{{"name":"","nth":0,"kind":"fused","source":[',
                    lambda n: f'{{"file":"{n}","line":{n}}}',
                    "]}]}",
                ),
            )
        ]
    ),
    "reads": lambda: iter(
        [
            (
                "graph",
                _many(f'{{"id":0,{_GRAPH},"kernels":[{{"name":"","nth":0,"kind":"fused","reads":[', _name, "]}]}"),
            )
        ]
    ),
    "buffers": lambda: iter([("graph", _many(f'{{"id":0,{_GRAPH},"buffers":[', _name, "]}"))]),
    "a message": lambda: iter([("finding", f'{{"id":"F1",{_FINDING[:-1]}{chr(92)}n{"x" * 9_000_000}"}}')]),
    "a message of lines": lambda: iter([("finding", f'{{"id":"F1",{_FINDING[:-1]}{(chr(92) + "n") * 4_500_000}"}}')]),
    "replicas": lambda: _forever(
        lambda n: (
            "replica-step",
            f'{{"step":{{"optimizer":0,"step":{n},"before":[],"gradients":[],"parameters":[]}}}}',
        )
    ),
}
"""What the events of each are; the file ends them when it is full."""


def _name(n: int) -> str:
    return f'"{n}"'


def _node(n: int) -> str:
    return f'{{"name":"{n}","op":""}}'


def _launch(n: int) -> str:
    return f'{{"nth":{n},"launches":1,"seconds":0,"bytes_read":0,"bytes_written":0}}'


def _blaming() -> Iterator[Event]:
    kernels = ",".join(map(_kernel, range(100_000)))
    yield "graph", f'{{"id":0,{_GRAPH},"kernels":[{kernels}]}}'
    where = '"graph":{"id":0,"direction":"forward"},"kernel":"x"'
    yield from _forever(lambda n: ("finding", f'{{"id":"F{n + 1}",{_FINDING},{where}}}'))


def _with_finding(rest: Callable[[int], Event]) -> Iterator[Event]:
    yield "finding", f'{{"id":"F1",{_FINDING}}}'
    yield from _forever(rest)


def _text(text: Callable[[], str], name: str = "graph") -> Callable[[Path], None]:
    def put(folder: Path) -> None:
        body = json.dumps({"id": 0, "direction": "forward", "artifacts": {name: "text.py"}})
        _insert(folder, iter([("graph", body)]))
        (folder / "artifacts" / "text.py").write_text(text(), encoding="utf-8")

    return put


def _many_texts(folder: Path) -> None:
    _insert(folder, iter([]))
    for n in range(400):
        (folder / "artifacts" / f"{n}.py").write_text("\x00" * 24_000)


def _manifest(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def put(folder: Path) -> None:
        _insert(folder, iter([]))
        manifest = json.loads((folder / "manifest.json").read_text())
        change(manifest)
        write_atomically(folder / "manifest.json", json.dumps(manifest))

    return put


def _printed(statement: Callable[[int], str]) -> Callable[[], str]:
    return lambda: (
        "class GraphModule(torch.nn.Module):\n    def forward(self, x):\n"
        + "".join(f"        {statement(n)}\n" for n in range(SIZE // (len(statement(100_000)) + 9)))
    )


def _wrapped(statement: Callable[[int], str]) -> Callable[[], str]:
    return lambda: (
        "def call(args):\n"
        + "".join(f"    {statement(n)}\n" for n in range(SIZE // (len(statement(100_000)) + 5)))
        + "    return ()\n"
    )


FILES: dict[str, Callable[[Path], None]] = {
    "a printed graph": _text(_printed(lambda n: f"a{n} = x+x")),
    "a printed graph of brackets": _text(_printed(lambda n: f"a{n} = {'[' * 50}{']' * 50}")),
    "a printed graph of lists": _text(_printed(lambda n: f"a{n} = {','.join('1' * 500)}")),
    "a printed graph of lines": _text(lambda: "\n" * SIZE),
    "a wrapper": _text(_wrapped(lambda n: f"a{n} = b{n}"), "wrapper"),
    "a wrapper of kernels": _text(_wrapped(lambda n: f"f{n}(a{n})"), "wrapper"),
    "a wrapper of lists": _text(_wrapped(lambda n: f"a{n} = {','.join('1' * 500)}"), "wrapper"),
    "a text of control characters": _text(lambda: "\x00" * SIZE, "more"),
    "a text of large characters": _text(lambda: "\U00010000" * (SIZE // 4), "more"),
    "many texts": _many_texts,
    "a long environment": _manifest(lambda m: m.update(environment={f"{n}": "" for n in range(700_000)})),
    "suppressions": _manifest(
        lambda m: m["options"].update(suppress=[{"reason": "", "id": f"{n}"} for n in range(300_000)])
    ),
    "a long command": _manifest(lambda m: m.update(command=[""] * 2_400_000)),
}


def _insert(folder: Path, events: Iterator[Event], size: int = SIZE) -> None:
    """Put `events` in the place of those of a recording, until its log is of this size."""
    with contextlib.closing(sqlite3.connect(folder / "events.sqlite", isolation_level=None)) as log:
        log.execute("BEGIN")
        log.execute("DELETE FROM events")
        length = 0
        for kind, body in events:
            length += len(kind) + len(body.encode()) + 16
            if length > size:
                break
            log.execute("INSERT INTO events (time, thread, kind, body) VALUES (0.0, 0, ?, ?)", (kind, body))
        log.execute("COMMIT")
        log.execute("VACUUM")


def make(shape: str, folder: Path) -> Path:
    """Make the recording of a shape."""
    ordinary(folder)
    shutil.rmtree(folder / "artifacts")
    (folder / "artifacts").mkdir()
    if shape in SHAPES:
        _insert(folder, SHAPES[shape]())
    else:
        FILES[shape](folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert 2_000_000 < size < 10_000_000, (shape, size)
    return folder


COMMANDS: dict[str, Callable[[Path, Path], list[str]]] = {
    "report": lambda run, out: ["report", str(run)],
    "all": lambda run, out: ["report", "--all", str(run)],
    "finding": lambda run, out: ["report", "--finding", "F1", str(run)],
    "kernels": lambda run, out: ["report", "--kernels", "*", str(run)],
    "json": lambda run, out: ["report", f"--json={out}", str(run)],
    "html": lambda run, out: ["report", f"--html={out}", str(run)],
    "perfetto": lambda run, out: ["report", f"--perfetto={out}", str(run)],
    "sarif": lambda run, out: ["report", f"--sarif={out}", str(run)],
    "junit": lambda run, out: ["report", f"--junit={out}", str(run)],
    "markdown": lambda run, out: ["report", f"--markdown={out}", "--github", str(run)],
    "many": lambda run, out: ["report", f"--json={out}", str(run), str(run.parent)],
    "tables": lambda run, out: ["export", f"--parquet={out}", str(run)],
    "values": lambda run, out: ["values", str(run)],
    "save": lambda run, out: ["values", f"--save={out}", str(run)],
    "diff": lambda run, out: ["diff", "--time-limit=0", f"--json={out}", str(run), str(run)],
    "diff-html": lambda run, out: ["diff", "--all", "--time-limit=0", f"--html={out}", str(run), str(run)],
    "repro": lambda run, out: ["repro", f"--out={out}", str(run), "F1"],
}

# The peak of this process alone: what `getrusage` says counts the process before `exec` as well.
_MEASURED = """
import os, re, sys
from pathlib import Path
sys.argv = ["torchsan", *sys.argv[1:]]
from torchsan.cli.main import main
try:
    status = main(sys.argv[1:])
finally:
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
    times = os.times()
    sys.stderr.write(f"\\npeak {peak} {times.user + times.system:.1f} {status}\\n")
"""


def measure(command: list[str], seconds: int = 120) -> tuple[int, float, int | None, str]:
    """Run a command of torchsan; return its peak memory in MB, the time it computed, its status and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        timeout=seconds,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    said, _, end = done.stderr.rpartition("\npeak ")
    words = end.split()
    if len(words) != 3:
        return 0, 0.0, None, done.stderr[-2000:]
    return int(words[0]) // 1024, float(words[1]), int(words[2]), said


def go(folder: Path, shapes: list[str]) -> None:
    for shape in shapes or [*SHAPES, *FILES]:
        run = make(shape, folder / shape.replace(" ", "-"))
        for name, command in COMMANDS.items():
            out = folder / "out"
            try:
                peak, took, status, said = measure(command(run, out))
            except subprocess.TimeoutExpired:
                peak, took, status, said = 0, 120.0, None, "hangs"
            bad = "BAD " if peak > 500 or took > 10 or status in (None, 3) else ""
            print(f"{bad}{shape}: {name}: {peak} MB, {took:.1f} s, status {status} {said.strip()[-160:]!r}", flush=True)
            out.unlink() if out.is_file() else shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(run)


if __name__ == "__main__":
    go(Path(sys.argv[1]), sys.argv[2:])
