from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config

import torchsan
from tests.report.html.recordings import HOSTILE, hostile, ordinary
from tests.samples import graph
from torchsan.cli.main import main
from torchsan.recording import Reader, Writer
from torchsan.records import CallTimes, GraphNodes, MemoryCall, decode
from torchsan.report.html.page import Model, build, render_html
from torchsan.torch_internals.wrapper.outline import Wrapper


class Page(HTMLParser):
    """The elements of a page, with their attributes and what stands in scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")
        self._open = True

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._open = False

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(a, text) for (t, a), text in zip(self.elements, self.texts, strict=True) if t == tag]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render_html(Reader(hostile(tmp_path_factory.mktemp("hostile") / "run", long=100_000)))


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_only_our_script_and_our_style_may_run(page: Page) -> None:
    ((policy, _),) = [(a, t) for a, t in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    scripts = [text for attributes, text in page.all("script") if "type" not in attributes]
    styles = [text for _, text in page.all("style")]
    assert len(scripts) == len(styles) == 1
    content = str(policy["content"])
    for text, directive in ((scripts[0], "script-src"), (styles[0], "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in content
    assert content.startswith("default-src 'none';")
    assert "unsafe" not in content
    assert "require-trusted-types-for 'script'" in content


def test_the_policy_comes_before_everything_that_it_is_for(page: Page) -> None:
    tags = [tag for tag, _ in page.elements]
    policy = next(i for i, (_, a) in enumerate(page.elements) if a.get("http-equiv"))
    assert policy < tags.index("style") < tags.index("script")


def test_the_data_cannot_end_its_block(page: Page, text: str) -> None:
    blocks = [(a, t) for a, t in page.all("script") if "type" in a]
    assert {a["type"] for a, _ in blocks} == {"application/json", "text/plain"}
    for attributes, data in blocks:
        allowed = r"[\x20-\x7e]*" if attributes["type"] == "application/json" else r"[A-Za-z0-9+/=]*"
        assert re.fullmatch(allowed, data)
        assert not set(data) & set("<>&")
    (index,) = [t for a, t in blocks if a["id"] == "index"]
    assert HOSTILE[0] in json.loads(index)["findings"][0]["message"]
    assert not any(payload in text for payload in HOSTILE[:5] if "<" in payload)


def test_the_parts_are_packed_json(page: Page) -> None:
    parts = {a["id"]: t for a, t in page.all("script") if a.get("type") == "text/plain"}
    values = json.loads(gzip.decompress(base64.b64decode(parts["part-values"])))
    assert values["all"] == 9


def test_nothing_is_loaded_from_anywhere(page: Page) -> None:
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "srcset", "style"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)


def test_the_title_is_text(page: Page) -> None:
    ((_, title),) = page.all("title")
    assert title.startswith("torchsan: findings: torchsan run")
    assert HOSTILE[0] in title


def test_our_script_makes_no_markup_from_texts(page: Page) -> None:
    ((_, script),) = [(a, t) for a, t in page.all("script") if "type" not in a]
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "setTimeout("):
        assert word not in script


def test_a_page_is_the_same_every_time(tmp_path: Path) -> None:
    recording = ordinary(tmp_path / "run")
    assert render_html(Reader(recording)) == render_html(Reader(recording))


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = ordinary(tmp_path / "run")
    assert main(["report", "--quiet", "--html", str(tmp_path / "report.html"), str(recording)]) == 1
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert "wrong-values" in capsys.readouterr().out
    assert main(["report", "--html", "-", str(recording)]) == 1
    assert capsys.readouterr().out == render_html(Reader(recording))


def test_a_text_that_many_graphs_name_is_parsed_and_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer.create(tmp_path / "run", command=["a.py"])
    name = writer.artifact("graph0.py", "class Graph: ...\n")
    for n in range(20):
        writer.graph(replace(graph(n), artifacts={"wrapper": name, "graph": name}))
    writer.close()
    parsed: list[str] = []

    def read(text: str) -> Wrapper:
        parsed.append(text)
        return Wrapper()

    monkeypatch.setattr("torchsan.report.html.page.read_wrapper", read)
    model = build(Reader(writer.path))
    assert len(parsed) == 1
    assert len([part for part in model.parts if part.startswith("text-")]) == 1
    assert all(shown["artifacts"] == {"wrapper": 0, "graph": 0} for shown in model.index["graphs"])


def test_a_page_that_cannot_be_written_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = ordinary(tmp_path / "run")
    assert main(["report", "--html", str(tmp_path / "missing" / "report.html"), str(recording)]) == 2
    assert "--html" in capsys.readouterr().err


class Block(torch.nn.Module):
    """A real program, compiled once, with PyTorch's own planted bug."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.up(x)) * 2


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("real") / "run"
    with (
        torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}),
        torch.no_grad(),
        torchsan.session(check=("values", "memory"), watch="print", out=folder),
    ):
        compiled = torch.compile(Block())
        for _ in range(3):
            compiled(torch.randn(4, 8))
    torch._dynamo.reset()
    return Reader(folder)


@pytest.fixture(scope="module")
def model(recording: Reader) -> Model:
    return build(recording)


def test_the_wrong_kernel_stands_out_with_its_picture(model: Model) -> None:
    (graph,) = model.index["graphs"]
    verdicts = {k["name"]: k["verdict"] for k in graph["kernels"]}
    assert verdicts.pop("extern_kernels.addmm") == "right"
    assert list(verdicts.values()) == ["error"]
    (finding,) = [f for f in model.index["findings"] if f["check"] == "values"]
    assert [p["picture"] for p in finding["pictures"]] == ["map", "errors", "samples"]
    assert finding["pictures"][0]["cells"].count(1) == 4 * 16
    assert graph["kernels"][finding["launch"]]["findings"] == [finding["id"]]


def test_nodes_lead_to_this_file(recording: Reader, model: Model) -> None:
    (event,) = recording.events("nodes")
    nodes = decode(GraphNodes, event["nodes"])
    relu = next(n for n in nodes.nodes if n.op == "aten.relu.default")
    assert (relu.type, relu.inputs) == ("float32[4, 16]", ("addmm",))
    assert relu.source is not None
    source = nodes.sources[relu.source]
    assert source.file == __file__
    assert source.code == "return torch.relu(self.up(x)) * 2"
    table: list[Any] = model.parts["nodes-0"]
    assert next(row for row in table if row[0] == relu.name)[5] > 2


def test_the_launches_of_the_checked_calls_are_timed(recording: Reader) -> None:
    calls = [decode(CallTimes, event["times"]) for event in recording.events("times")]
    assert [c.call for c in calls] == [0, 1]
    fused = calls[0].launches[1]
    assert fused.launches == 1
    assert 0 < fused.seconds < 10
    assert fused.bytes_written == 4 * 16 * 4


def test_buffers_live_and_die_on_the_timeline(recording: Reader) -> None:
    calls = [decode(MemoryCall, event) for event in recording.events("memory")]
    call = calls[0]
    assert [(b.buffer, b.bytes, b.born) for b in call.lives] == [("buf0", 256, 0)]
    assert call.lives[0].died is None, "it is returned"
    assert call.timeline[-1][2] == 256
