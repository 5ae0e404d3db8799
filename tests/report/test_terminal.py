from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.samples import finding, graph
from torchsan.errors import RecordingError
from torchsan.options import Options
from torchsan.recording import Program, Reader, Writer, finalize
from torchsan.records import CallCount, Direction, Gap, GapKind, GraphId, Severity, SourceLine
from torchsan.records.suppression import Suppression
from torchsan.report.perfetto import as_trace
from torchsan.report.terminal import print_report


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def without_styles(stream: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())


def shown(recording: Reader, quiet: bool = False, everything: bool = False) -> str:
    stream = io.StringIO()
    print_report(recording, stream, quiet=quiet, everything=everything)
    return stream.getvalue()


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.chdir(tmp_path)
    return Writer.create("run", command=["script.py"])


def finished(writer: Writer) -> Reader:
    writer.close()
    finalize(writer.path, Program(exit=0))
    return Reader(writer.path)


def test_the_report_of_a_run_with_a_finding(writer: Writer) -> None:
    writer.graph(graph())
    writer.finding(finding())
    for n in range(6):
        writer.skipped(f"buf{n}", "too large")
    assert (
        shown(finished(writer))
        == """
F1: error: wrong-values
    the kernel computes other values than eager
    at model.py:12 in layers.0
        x = self.act(x)
    max_abs: 0.5
    first_bad: [0, 3]
    in:      kernel cpp_fused_relu_0, buffer buf0, graph 0 forward, stage kernel
    nodes:   relu
    ops:     aten.relu.default

Compiled program: 1 graph, 2 kernels, 2 buffers (0 checked), 0 operators checked
  graph 0 forward: 2 kernels, compiled in 0.5 s
      0  cpp_fused_relu_0  model.py:12  x = self.act(x)  <- F1
      1  cpp_fused_relu_1  model.py:12  x = self.act(x)

Not checked
  6 × too large: buf0, buf1, buf2, buf3, …

torchsan: findings: 1 error; 0 of 2 kernels, 0 of 2 buffers checked
recording: run   again: torchsan report run
next: torchsan explain wrong-values   as a page: torchsan open run
"""
    )


def test_a_script_is_offered_of_what_was_kept(writer: Writer) -> None:
    writer.finding(finding())
    writer.event("exhibit", {"exhibit": {"finding": "F1"}})
    assert "   as a script: torchsan repro run F1   as a page" in shown(finished(writer))


def test_a_long_name_is_shortened_in_the_middle_and_whole_when_all_is_asked_for(writer: Writer) -> None:
    name = f"cpp_fused_{'add_mul_' * 12}native_layer_norm_17"
    first, second = graph().kernels
    writer.graph(replace(graph(), kernels=(replace(first, name=name), second)))
    recording = finished(writer)
    rows = [line for line in shown(recording).splitlines() if "model.py:12" in line]
    assert rows[0].split()[1].startswith("cpp_fused_add_mul_")
    assert rows[0].split()[1].endswith("ayer_norm_17")
    assert rows[0].index("model.py") == rows[1].index("model.py")
    assert name in shown(recording, everything=True)


def test_quiet_and_clean_is_one_line(writer: Writer) -> None:
    writer.graph(graph())
    assert shown(finished(writer), quiet=True) == "\ntorchsan: clean: 0 of 2 kernels, 0 of 2 buffers checked\n"


def test_a_long_program_fits_a_screen_unless_all_is_asked_for(writer: Writer) -> None:
    writer.graph(graph(0, Direction.FORWARD, kernels=20))
    writer.graph(graph(0, Direction.BACKWARD, kernels=20))
    writer.graph(graph(1, Direction.INFERENCE, kernels=20))
    recording = finished(writer)
    short, long = shown(recording), shown(recording, everything=True)
    assert len(short.splitlines()) == 60
    assert short.count("cpp_fused_relu") == 51
    assert "9 kernels more: torchsan report --all run" in short
    assert long.count("cpp_fused_relu") == 60
    assert "more:" not in long


HOSTILE = "\x1b[2J\x1b]0;title\x07 [bold red]x[/] :boom: \r\n\x9b31m\u202e"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_recording_cannot_control_the_terminal(writer: Writer, stream: type[io.StringIO]) -> None:
    source = (SourceLine(file=HOSTILE, line=1, code=HOSTILE, module=HOSTILE),)
    writer.graph(graph())
    writer.finding(
        finding(
            message=HOSTILE, kernel=HOSTILE, nodes=(HOSTILE,), source=source, evidence={HOSTILE: HOSTILE, "\ud800": 1}
        )
    )
    writer.skipped(HOSTILE, HOSTILE)
    out = stream()
    print_report(finished(writer), out)
    text = out.getvalue()
    for bad in ("\x1b[2J", "\x1b]", "\x07", "\r", "\x9b", "\u202e", "\ud800"):
        assert bad not in text
    assert "[bold red]x[/] :boom:" in text


def test_an_endless_text_is_cut(writer: Writer) -> None:
    writer.graph(graph())
    writer.finding(finding(message="x" * 100_000))
    assert len(shown(finished(writer))) < 5000


def test_a_stream_that_is_not_utf8_gets_escapes(writer: Writer) -> None:
    writer.graph(graph())
    writer.skipped("buf×", "größer")
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    print_report(finished(writer), stream)
    assert b"gr\\xf6\\xdfer" in raw.getvalue()


def test_colour_does_not_change_the_text(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    writer.graph(graph())
    writer.finding(finding())
    recording = finished(writer)
    terminal = Terminal()
    print_report(recording, terminal)
    assert without_styles(terminal) == shown(recording)


def test_a_report_is_no_wider_than_the_terminal(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    writer.graph(graph())
    writer.finding(finding())
    stream = Terminal()
    print_report(finished(writer), stream)
    assert max(map(len, without_styles(stream).splitlines())) <= 60


@pytest.mark.parametrize("body", [{}, {"graph": 0}, {"graph": "x", "direction": "forward"}, {"by_source": 7}])
def test_a_malformed_memory_event_is_refused(tmp_path: Path, body: dict[str, object]) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.event("memory", body)
    writer.close()
    recording = Reader(writer.path)
    with pytest.raises(RecordingError, match="malformed MemoryCall"):
        print_report(recording, io.StringIO())
    with pytest.raises(RecordingError, match="malformed"):
        as_trace(recording)


def test_a_text_of_many_lines_is_not_shown_whole(writer: Writer) -> None:
    many = "\n" * 1_000_000
    writer.finding(finding(message=many, evidence={"x": many}))
    writer.finding(finding(evidence={"text": ["line"] * 100_000}))
    assert len(shown(finished(writer), everything=True).splitlines()) < 20_000


def brief(recording: Reader) -> str:
    stream = io.StringIO()
    print_report(recording, stream, verbose=False)
    return stream.getvalue()


def test_a_clean_run_is_one_line(writer: Writer) -> None:
    writer.graph(graph(kernels=30))
    text = brief(finished(writer))
    assert text.count("\n") == 1
    assert text.startswith("torchsan: clean: 0 of 30 kernels, 0 of 30 buffers")
    assert "recording: run" in text


def test_only_kernels_beside_the_culprit_are_shown_and_no_notes(writer: Writer) -> None:
    writer.graph(graph(kernels=90))
    writer.finding(finding(kernel="cpp_fused_relu_55"))
    writer.finding(finding(Severity.NOTE, message="too small to tell"))
    text = brief(finished(writer))
    shown = [word for word in text.split() if word.startswith("cpp_fused_relu_") and not word.endswith(",")]
    assert shown == [f"cpp_fused_relu_{n}" for n in range(53, 58)]
    assert "… and 85 kernels more: torchsan report" in text
    assert "too small to tell" not in text
    assert "1 error, 1 note" in text


def test_what_was_not_compiled_is_counted_and_listed(writer: Writer) -> None:
    writer.graph(graph())
    writer.event("calls", CallCount(graph=GraphId(0), direction=Direction.FORWARD, seen=60, checked=2))
    writer.gap(Gap(kind=GapKind.GRAPH_BREAK, reason="print", function="f", file="model.py", line=3))
    for _ in range(8):
        writer.gap(Gap(kind=GapKind.RECOMPILE, reason="size", function="f", file="model.py", line=1))
    writer.gap(Gap(kind=GapKind.EAGER, reason="recompile limit exceeded", function="f", file="model.py", line=1))
    writer.checked(GraphId(0), Direction.FORWARD, ["buf0", "buf1"])
    recording = finished(writer)
    said = "1 graph break, 8 recompiles, 1 function in plain Python"
    assert brief(recording).splitlines()[-1] == f"torchsan: not all was compiled: {said}; why: torchsan report run"
    assert f"""
Calls checked: graph 0 forward 2 of 60
Not all was compiled: {said}
  graph break at model.py:3: print
  recompile at model.py:1 (8 times): size
  f runs as plain Python at model.py:1: recompile limit exceeded
""" in shown(recording)


def test_a_recompile_leaves_nothing_uncompiled(writer: Writer) -> None:
    writer.graph(graph())
    writer.gap(Gap(kind=GapKind.RECOMPILE, reason="size", function="f", file="model.py", line=1))
    writer.checked(GraphId(0), Direction.FORWARD, ["buf0", "buf1"])
    assert "torchsan: compiled more than once: 1 recompile; why: torchsan report run" in brief(finished(writer))


LINES = tuple(SourceLine(file="model.py", line=n) for n in range(12, 24))


def test_a_line_that_ran_in_several_modules_stands_once(writer: Writer) -> None:
    modules = ("", "tok", "pos", "layers.0", "layers.1")
    lines = [SourceLine(file="model.py", line=3, code="x = f(x)", module=m) for m in modules]
    writer.finding(finding(source=(*lines, SourceLine(file="model.py", line=4))))
    text = brief(finished(writer))
    assert "    at model.py:3 in tok, pos, layers.0, …\n        x = f(x)\n    at model.py:4\n" in text


def test_what_follows_from_a_finding_stands_with_it_and_what_was_shown_has_a_line(writer: Writer) -> None:
    writer.graph(graph())
    first = writer.finding(finding(call=1, step=7, source=LINES))
    writer.finding(finding(Severity.WARNING, message="output 0 is wrong", evidence={"follows": "F1"}))
    recording = finished(writer)
    text = brief(recording)
    assert "\n    F2 follows from F1: wrong-values: output 0 is wrong  (model.py:12)\n" in text
    assert "\nF2: " not in text
    assert "torchsan: findings: 1 error, and 1 that follows from it; " in text
    assert "when:    call 1 of graph 0, step 7" in text
    assert "    … and 4 lines more\n" in text
    stream = io.StringIO()
    print_report(recording, stream, verbose=False, shown={"F1": first})
    assert """
Shown above, when they were found:
F1: error: wrong-values: the kernel computes other values than eager  (model.py:12)
F2 follows from F1: warning: wrong-values: output 0 is wrong  (model.py:12)
""" in stream.getvalue()


def test_files_of_installed_packages_are_shown_from_the_package_on(writer: Writer) -> None:
    line = SourceLine(file="/usr/lib/python3/site-packages/torch/nn/linear.py", line=3, code="return x")
    writer.finding(finding(source=(line,)))
    assert "    at torch/nn/linear.py:3\n" in brief(finished(writer))


def test_a_module_that_is_a_number_is_called_a_module(writer: Writer) -> None:
    lines = [SourceLine(file="model.py", line=n, module=m) for n, m in enumerate(("1", "layers.1", ""), start=3)]
    writer.finding(finding(source=tuple(lines)))
    text = brief(finished(writer))
    assert "    at model.py:3 in module 1\n    at model.py:4 in layers.1\n    at model.py:5\n" in text


def test_what_is_suppressed_is_counted_and_shown_when_asked_for(writer: Writer) -> None:
    writer.close()
    known = Options(suppress=(Suppression(kernel="*", reason="reported upstream"),))
    other = Writer.create("other", command=["script.py"], options=known)
    other.graph(graph())
    other.finding(finding())
    recording = finished(other)
    assert brief(recording).startswith("torchsan: clean of errors (1 suppressed): ")
    assert "\n  F1 suppressed: wrong-values: reported upstream\n" in brief(recording)
    assert "F1: error: wrong-values (suppressed)\n    suppressed: reported upstream" in shown(recording)


def test_an_error_that_follows_from_a_suppressed_one_stands_by_itself(tmp_path: Path) -> None:
    known = Options(suppress=(Suppression(source="model.py:12", reason="reported upstream"),))
    writer = Writer.create(tmp_path / "run", command=["script.py"], options=known)
    writer.graph(graph())
    writer.finding(finding())
    writer.finding(finding(source=(SourceLine(file="model.py", line=20),), evidence={"follows": "F1"}))
    recording = finished(writer)
    assert "\nF2: error: wrong-values\n" in shown(recording)
    assert "torchsan: findings: 1 error, 1 suppressed; " in shown(recording)


def test_of_many_idle_suppressions_a_few_are_told(tmp_path: Path) -> None:
    known = tuple(Suppression(reason="known", kernel=f"k{n}") for n in range(50))
    writer = Writer.create(tmp_path / "run", command=["script.py"], options=Options(suppress=known))
    writer.graph(graph())
    recording = finished(writer)
    assert shown(recording).count("fits no finding") == 6
    assert "… and 44 suppressions more: torchsan report --all" in shown(recording)
    assert shown(recording, everything=True).count("fits no finding") == 50


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("/here/passes.py", " --load /here/passes.py"),
        ("/x; rm -r y/passes.py", " --load '/x; rm -r y/passes.py'"),
        ("/here/script.py", ""),
    ],
)
def test_a_pass_of_ones_own_is_loaded_by_the_reproducer(writer: Writer, file: str, hint: str) -> None:
    writer.graph(graph())
    writer.finding(finding(evidence={"pass": {"name": "post", "function": f"scale at {file}:3"}}))
    writer.event("exhibit", {"exhibit": {"finding": "F1"}})
    assert f"torchsan repro run F1{hint}   as a page" in shown(finished(writer))
