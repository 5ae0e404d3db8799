from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.html.recordings import FORWARD, big, hostile, kernel, ordinary
from tests.samples import finding, graph
from torchsan.errors import RecordingError
from torchsan.recording import Reader, Writer
from torchsan.records import Check, GraphId, GraphRecord
from torchsan.report.html.evidence import evidence_model
from torchsan.report.html.page import Model, build, render_model
from torchsan.report.html.parts import graph_model
from torchsan.report.html.sources import Cutter, Lines, cut
from torchsan.report.launches import Launches
from torchsan.torch_internals.wrapper.outline import Wrapper, read_wrapper

OLD = Path(__file__).parents[2] / "data" / "recording-schema-1"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return build(Reader(ordinary(tmp_path_factory.mktemp("ordinary") / "run")))


def kernels(model: Model) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = model.index["graphs"][0]["kernels"]
    return found


def test_kernels_are_connected_by_what_they_write_and_read(model: Model) -> None:
    assert kernels(model)[0]["reads"] == [["arg0_1", None]]
    assert kernels(model)[1]["reads"] == [["buf0", 0]]
    assert kernels(model)[1]["writes"] == [["buf1", [2]]]
    assert kernels(model)[5]["writes"] == [["buf5", []]]


def test_a_kernel_has_its_verdict_time_bytes_and_values(model: Model) -> None:
    assert [k["verdict"] for k in kernels(model)] == ["right", "unchecked", "error", "right", "error", "right"]
    assert kernels(model)[2]["findings"] == ["F1"]
    assert kernels(model)[0]["seconds"] == 1e-3, "the fastest of the two calls"
    assert kernels(model)[0]["bytes"] == [128, 128]
    assert kernels(model)[3]["range"] == [-4.25, 5.5, 4, 0]


def test_a_kernel_leads_to_its_source_in_the_wrapper(model: Model) -> None:
    graph = model.index["graphs"][0]
    artifact = model.index["artifacts"][graph["definitions"]["cpp_fused_relu_2"]]
    holder = model.index["artifacts"][artifact["in"]]
    lines = model.parts[holder["text"]].splitlines()[artifact["first"] - 1 : artifact["last"]]
    assert lines[0].startswith("#include")
    assert lines[-2].endswith("// cpp_fused_relu_2")
    assert "cpp_fused_relu_2(buf1, buf2)" in model.parts[holder["text"]].splitlines()[kernels(model)[2]["line"] - 1]


def test_nodes_lead_to_the_users_lines_and_to_the_text_of_the_graph(model: Model) -> None:
    name, op, type_, inputs, line, place = model.parts["nodes-0"][3]
    assert (name, op, type_, inputs) == ("relu_2", "aten.relu.default", "float32[4, 8]", ["arg0_1"])
    file, number, code, module = model.index["lines"][line]
    assert (number, code, module) == (12, "x = step_12(x)", "layers.2")
    assert model.index["files"][file][1] == "/home/ada/project/model.py"
    text = model.parts[model.index["artifacts"][model.index["graphs"][0]["artifacts"]["graph"]]["text"]]
    assert "relu_2:" in text.splitlines()[place - 1]


def test_evidence_becomes_pictures(model: Model) -> None:
    pictures = [[p["picture"] for p in f["pictures"]] for f in model.index["findings"]]
    assert pictures == [["map", "errors", "samples"], ["diff"], ["chain"], ["bounds"], ["table"]]
    assert model.index["findings"][0]["launch"] == 2
    assert model.index["findings"][2]["pictures"][0]["holders"][0] == "global kept of model"
    assert model.index["findings"][2]["rest"] == {"bytes": 128}


def test_memory_and_values_are_parts(model: Model) -> None:
    (call,) = model.parts["memory"]
    assert call["lives"] == [["buf0", 128, 0, 3, None, "layers.0"]]
    assert call["by_module"] == [["layers.0", 128]]
    assert len(call["actual"]) == 12
    columns = model.parts["values"]["columns"]
    assert columns["nan"] == [0, 0, 0, 4, 0, 0]
    assert columns["mean"][0] == 0.123457, "six digits are enough for the eye"


def test_a_diff_that_is_drawn_is_not_among_the_lines_to_read() -> None:
    diff = "--- before\n+++ after\n-a = aten.add.Tensor(x, y)"
    text = ["at [0]: compiled 1, eager 2", "what it did to the graph:", *diff.splitlines()]
    assert evidence_model({"diff": diff, "text": text})["text"] == text[:1]
    assert evidence_model({"text": text})["text"] == text


def test_what_is_not_well_formed_becomes_no_picture() -> None:
    shown = evidence_model(
        {"picture": {"map": {"rows": -1}, "errors": [], "samples": [3]}, "differences": [1], "diff": 2}
    )
    assert shown["pictures"] == []
    assert shown["rest"] == {"differences": [1], "diff": 2}


def test_a_recording_of_an_older_version_still_opens() -> None:
    """It has no nodes, no times, no lives of buffers and no pictures: those are found elsewhere, or left out."""
    old = build(Reader(OLD))
    first = old.index["findings"][0]
    assert [p["picture"] for p in first["pictures"]] == ["samples"]
    assert first["launch"] == 0
    assert [k["verdict"] for k in kernels(old)] == ["error", "right", "right", "right"]
    nodes = {node[0]: node for node in old.parts["nodes-0"]}
    assert old.index["lines"][nodes["amin"][4]][1] == 20
    assert nodes["sub"][3] == ["arg0_1", "amin"]
    assert old.parts["memory"][0]["lives"] == []
    assert old.parts["values"]["all"] > 10
    assert len(render_model(old)) < 400_000


def test_a_finding_without_a_launch_finds_its_kernel() -> None:
    two = Launches(graph(kernels=2))
    assert two.blamed(finding(evidence={})) == 0
    assert two.blamed(finding(evidence={"launch": 1})) == 1
    assert two.blamed(finding(evidence={"launch": 7}, kernel="cpp_fused_relu_1", buffer=None)) == 1
    assert two.blamed(finding(evidence={}, kernel="another")) is None


@pytest.mark.parametrize(
    "text", ["", "x = (", "(" * 5000, "\x00", "class Runner:\n    def call(self, args):\n        pass"]
)
def test_a_wrapper_that_is_none_has_nothing_in_it(text: str) -> None:
    assert read_wrapper(text).definitions == {}


def test_long_texts_are_cut_with_a_note() -> None:
    assert cut("x" * 5000, 10) == "x" * 10 + "… (5,000 characters in all)"
    assert cut("\ud800") == "?"
    assert cut("a\u202eb\x1b[2J\u2066\tc\nd") == "a\\u202eb\\x1b[2J\\u2066\tc\nd"
    assert Cutter(items=2)([1, 2, 3]) == [1, 2, "… 1 more"]
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    assert "not shown" in str(Cutter()(deep))


def test_a_malformed_record_is_an_error_with_a_slug(tmp_path: Path) -> None:
    writer = Writer.create(tmp_path / "run", command=[])
    writer.graph(graph())
    writer.event("times", {"times": {"graph": 0, "direction": "sideways", "call": 0}})
    writer.close()
    with pytest.raises(RecordingError, match=r"\[malformed-record\]"):
        build(Reader(writer.path))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield big(tmp_path_factory.mktemp("big") / "run", kernels=400, values=4000)


def test_a_page_grows_slowly(large: Path) -> None:
    """A fifth of the size that may take 15 MB; the slow test has all of it."""
    start = time.monotonic()
    page = render_model(build(Reader(large)))
    assert len(page) < 3_000_000
    assert time.monotonic() - start < 30


def test_a_hostile_recording_makes_a_small_page(tmp_path: Path) -> None:
    page = render_model(build(Reader(hostile(tmp_path / "run", long=1_000_000))))
    assert len(page) < 600_000


def test_the_checked_buffers_of_a_graph_can_be_asked_for(tmp_path: Path) -> None:
    recording = Reader(ordinary(tmp_path / "run"))
    assert "buf1" not in recording.checked(GraphId(0), FORWARD)
    assert "buf2" in recording.checked(GraphId(0), FORWARD)
    assert {"graph0-forward.fx.py", "graph0-forward.wrapper.py"} < set(recording.artifacts())


def test_what_each_check_says_of_a_kernel_is_true() -> None:
    """An operator with several results is checked if these are; one that only one check can look at is so for that."""
    both = kernel(0, "torch.ops.aten.attention.default", ())
    random = kernel(1, "aten.randint.low_out", ())
    record = GraphRecord(
        id=GraphId(0),
        direction=FORWARD,
        kernels=(dataclasses.replace(both, writes=("buf0",)), dataclasses.replace(random, writes=("buf3",))),
        buffers=("buf1", "buf2", "buf3"),
        artifacts={},
    )
    checked = {Check.VALUES: frozenset({"buf1", "buf2"}), Check.MEMORY: frozenset({"buf1", "buf3"})}
    model = graph_model(
        record,
        findings=[],
        times={},
        values=[],
        checked=checked,
        wrapper=Wrapper(aliases={"buf1": "buf0", "buf2": "buf0"}),
        lines=Lines(""),
    )
    assert [k["checks"] for k in model["kernels"]] == [
        {"values": "right", "memory": "partly"},
        {"values": "unchecked", "memory": "right"},
    ]
    assert [k["verdict"] for k in model["kernels"]] == ["partly", "partly"]
    assert model["checked"] == 3
