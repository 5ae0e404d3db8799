"""The page in a real Chromium: every view by mouse and by keyboard, search, links, themes, hostile and big runs."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.report.html.conftest import Open
from tests.report.html.recordings import HOSTILE, big, hostile, ordinary
from tests.report.html.test_parts import OLD
from torchsan.recording import Reader
from torchsan.report.html.page import render_html

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

VIEWS = {
    "verdict": "Verdict",
    "findings": "Findings (5)",
    "program": "Program",
    "memory": "Memory",
    "values": "Values",
    "artifacts": "Artifacts",
}


def written(recording: Path) -> Path:
    file = recording.with_suffix(".html")
    file.write_text(render_html(Reader(recording)), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(ordinary(tmp_path_factory.mktemp("ordinary") / "run"))


@pytest.fixture(scope="module")
def bad_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(hostile(tmp_path_factory.mktemp("hostile") / "run"))


def shown(page: Page, view: str) -> None:
    """Wait until a view is shown and filled."""
    page.wait_for_selector(f"main[data-view={view}]")
    page.wait_for_function("!document.querySelector('main .later > p:only-child')?.textContent.startsWith('…')")


def test_every_view_by_mouse(file: Path, open_page: Open) -> None:
    page = open_page(file)
    shown(page, "verdict")
    for view, name in reversed(VIEWS.items()):
        page.get_by_role("navigation", name="Views").get_by_role("link", name=name).click()
        shown(page, view)
        assert page.locator("#views a[aria-current=page]").inner_text() == name
        assert len(page.locator("main").inner_text()) > 80


def test_every_view_by_keyboard(file: Path, open_page: Open) -> None:
    page = open_page(file)
    for number, view in enumerate(VIEWS, 1):
        page.keyboard.press(str(number))
        shown(page, view)
    page.keyboard.press("2")
    shown(page, "findings")
    page.keyboard.press("j")
    page.wait_for_function("location.hash === '#findings/F2'")
    page.keyboard.press("k")
    page.wait_for_function("location.hash === '#findings/F1'")
    page.keyboard.press("3")
    shown(page, "program")
    second = page.locator("td.name a").nth(1).get_attribute("href")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_function("wanted => location.hash === wanted", arg=second)
    page.keyboard.press("b")
    page.wait_for_function("location.hash === '#program'")
    page.keyboard.press("?")
    assert "search all names" in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()


def test_views_are_reached_by_tab_and_arrows(file: Path, open_page: Open) -> None:
    page = open_page(file)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    shown(page, "program")


def test_every_picture_is_drawn(file: Path, open_page: Open) -> None:
    page = open_page(file, "#findings/F1")
    assert page.locator("svg.map rect").count() == 8
    page.locator("svg.map").hover(position={"x": 5, "y": 5})
    assert page.locator("figure .hovered").inner_text() == "rows 0–0, columns 0–0: 0 of 1 wrong"
    assert page.locator("svg.bars rect.bad").count() == 2
    assert "10000000 ×" in page.get_by_role("region", name="Elements side by side").inner_text()
    for finding, selector, text in (
        ("F2", ".diff .added", "+a = aten.sub.Tensor(x, y)"),
        ("F3", "ol.chain", "kept[0]"),
        ("F4", "svg.bounds", "✕ 14"),
        ("F5", "figure table", "float64"),
    ):
        page.evaluate(f"location.hash = '#findings/{finding}'")
        page.wait_for_selector(f"article[aria-label='Finding {finding}']")
        assert text in str(page.locator(selector).first.text_content())


def test_kernel_nodes_and_source_lines_stand_side_by_side_and_are_linked(file: Path, open_page: Open) -> None:
    page = open_page(file, "#findings/F1")
    kernel, nodes, source = (
        page.get_by_role("region", name=name, exact=True) for name in ("Generated kernel", "FX nodes", "Your source")
    )
    kernel.get_by_text("out_ptr0[0]").wait_for()
    boxes = [part.bounding_box() for part in (kernel, nodes, source)]
    assert all(box is not None and box["width"] > 150 for box in boxes)
    assert len({round(box["y"]) for box in boxes if box is not None}) == 1, "beside each other"
    nodes.locator("li").first.hover()
    assert source.locator("li.lit").count() == 1
    nodes.get_by_role("link", name="relu_2").click()
    page.wait_for_function("location.hash.startsWith('#artifacts/')")
    page.wait_for_selector(".row.target")
    assert "relu_2:" in page.locator(".row.target").inner_text()
    page.locator(".row.target a").first.click()  # From the node to the kernel that computes it.
    page.wait_for_function("location.hash === '#program/0/2'")
    page.get_by_role("region", name="Your source", exact=True).get_by_role("link").first.click()
    page.wait_for_selector(".fileline.target")
    target = page.locator(".fileline.target")
    assert "x = step_12(x)" in target.inner_text()
    target.get_by_role("link", name="cpp_fused_relu_2 #2").click()  # From the line back to the kernel.
    page.wait_for_function("location.hash === '#program/0/2'")


def test_a_kernel_leads_to_its_neighbours_its_source_and_its_values(file: Path, open_page: Open) -> None:
    page = open_page(file, "#program")
    page.get_by_role("link", name="cpp_fused_relu_3", exact=True).click()
    page.get_by_role("region", name="Reads").get_by_role("link", name="#2 cpp_fused_relu_2").click()
    page.wait_for_function("location.hash === '#program/0/2'")
    page.get_by_role("region", name="Writes").get_by_role("link", name="#3 cpp_fused_relu_3").click()
    page.wait_for_function("location.hash === '#program/0/3'")
    page.get_by_text("4 NaN").wait_for()
    page.get_by_role("region", name="Generated kernel").get_by_role("link", name="cpp_fused_relu_3").click()
    page.wait_for_selector("main[data-view=artifacts]")
    page.get_by_role("heading", name="Depends on").wait_for()
    assert "lines" in page.locator("article .facts").first.inner_text()


def test_kernels_can_be_filtered(file: Path, open_page: Open) -> None:
    page = open_page(file, "#program")
    page.get_by_label("Filter kernels").fill("BUF3")
    assert page.locator("td.name").all_inner_texts() == ["cpp_fused_relu_4", "cpp_fused_relu_3"]
    page.get_by_label("Verdict").select_option("error")
    assert page.locator("td.name").all_inner_texts() == ["cpp_fused_relu_4"]
    page.get_by_label("Filter kernels").fill("nothing like it")
    page.get_by_text("no kernel fits").wait_for()


def test_the_memory_chart_shows_the_buffers_of_a_step(file: Path, open_page: Open) -> None:
    page = open_page(file, "#memory")
    status = page.get_by_role("status")
    status.get_by_text("Step 9 (peak)").wait_for()
    chart = page.locator("svg.chart")
    chart.focus()
    chart.press("ArrowLeft")
    assert "Step 8" in status.inner_text()
    assert "buf0" in status.inner_text()
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + box["height"] / 2)
    assert "Step 1\n" in status.inner_text()


def test_the_strips_of_values_can_be_read_by_mouse_and_keyboard(file: Path, open_page: Open) -> None:
    page = open_page(file, "#values")
    canvas = page.locator("canvas.strips")
    canvas.focus()
    for _ in range(4):
        canvas.press("ArrowRight")
    assert "NaN 4" in page.locator(".hovered").inner_text()
    page.get_by_label("Which").select_option("odd")
    page.get_by_text("1 value of 6").wait_for()
    page.get_by_label("Filter values").fill("nothing like it")
    page.get_by_text("0 values of 6").wait_for()


@pytest.mark.parametrize(
    ("wanted", "kind", "view"),
    [
        ("aten.relu", "operator", "program"),
        ("relu_4 of", "node", "artifacts"),
        ("cpp_fused_relu_5", "kernel", "program"),
        ("buf3", "buffer", "program"),
        ("model.py", "source file", "artifacts"),
        ("layers.2", "module", "artifacts"),
        ("graph0-forward.wrapper", "wrapper", "artifacts"),
        ("F2 wrong", "finding", "findings"),
    ],
)
def test_search_finds_all_kinds_of_names(file: Path, open_page: Open, wanted: str, kind: str, view: str) -> None:
    page = open_page(file)
    page.keyboard.press("/")
    page.keyboard.type(wanted)
    first = page.get_by_role("option").first
    first.wait_for()
    assert first.locator(".tag").inner_text() == kind
    page.keyboard.press("Enter")
    shown(page, view)
    assert not page.locator("#results").is_visible()


CONTRAST = """() => {
  const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const back = (e) => {
    if (!e) return [255, 255, 255];
    const c = parse(getComputedStyle(e).backgroundColor);
    return c.length === 3 || c[3] > 0 ? c : back(e.parentElement);
  };
  const poor = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !e.checkVisibility() || e.closest("script, style, noscript, svg")) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(back(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(`${e.className} ${walk.currentNode.data.trim().slice(0, 40)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_can_be_read(file: Path, open_page: Open, theme: str) -> None:
    page = open_page(file, theme=theme)
    for route, view in [(v, v) for v in VIEWS] + [("program/0/2", "program"), ("artifacts/0", "artifacts")]:
        page.evaluate(f"location.hash = '#{route}'")
        shown(page, view)
        assert page.evaluate(CONTRAST) == []
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.get_by_role("button", name=re.compile("Light|Dark")).click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == before


def test_landmarks_and_names(file: Path, open_page: Open) -> None:
    page = open_page(file, "#program")
    for role in ("banner", "main", "search"):
        assert page.get_by_role(role).count() == 1
    nameless = "e => !(e.textContent.trim() || e.ariaLabel || e.labels?.length)"
    controls = "[...document.querySelectorAll('button, a, input, select')]"
    assert page.evaluate(f"{controls}.filter({nameless}).length") == 0
    assert page.locator("h1").count() == 1


def test_on_paper_are_verdict_findings_and_kernels(file: Path, open_page: Open) -> None:
    page = open_page(file, "#memory")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    text = page.inner_text("body")
    for wanted in ("What was checked", "F5: metadata-mismatch", "cpp_fused_relu_5"):
        assert wanted in text
    assert "Bytes live" not in text
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator(".paper").count() == 0


@pytest.mark.parametrize("width", [700, 390])
def test_it_fits_a_narrow_window(file: Path, open_page: Open, width: int) -> None:
    page = open_page(file)
    page.set_viewport_size({"width": width, "height": 800})
    for route, view in [(v, v) for v in VIEWS] + [("program/0/2", "program"), ("artifacts/0", "artifacts")]:
        page.evaluate(f"location.hash = '#{route}'")
        shown(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, route


def test_many_kernels_are_folded_by_layer_with_those_at_fault_on_top(tmp_path: Path, open_page: Open) -> None:
    page = open_page(written(big(tmp_path / "run", kernels=100, values=0)), "#program")
    assert page.locator("td.name").count() == 20
    assert page.locator("details.layer summary b").all_inner_texts() == [f"layers.{n}" for n in range(5)]
    page.locator("details.layer summary").first.click()
    page.wait_for_function("document.querySelectorAll('td.name').length === 36")
    page.get_by_label("Filter kernels").fill("layers.3")
    page.wait_for_function("document.querySelectorAll('td.name').length === 20")
    assert page.locator("details.layer").count() == 0


def test_an_artifact_is_reached_by_its_name(file: Path, open_page: Open) -> None:
    page = open_page(file, "#artifacts/0-forward.cpp_fused_relu_2")
    page.get_by_role("heading", name="What it costs").wait_for()
    assert page.locator("article h2").first.inner_text() == "cpp_fused_relu_2"
    assert page.get_by_role("img", name="What it depends on, and what depends on it").count() == 1


def test_a_hostile_recording_shows_as_text_and_runs_nothing(bad_file: Path, open_page: Open) -> None:
    page = open_page(bad_file)
    routes = ["verdict", "findings/F1", "findings/F2", "program", "memory", "values", "artifacts"]
    routes += [f"program/0/{n}" for n in range(8)] + [f"artifacts/{n}" for n in range(14)]
    routes += ["constructor", "__proto__", "%E0%A4%A", "program/__proto__/1", "artifacts/file-99", "findings/<script>"]
    for route in routes:
        page.evaluate("route => { location.hash = '#' + route; }", route)
        view = route.split("/")[0]
        shown(page, view if view in VIEWS else "verdict")
        assert page.evaluate("window.hacked") is None
        links = page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
        assert all(href.startswith("#") for href in links)
        assert page.locator("img, iframe, svg[onload], main script").count() == 0
    page.evaluate("location.hash = '#findings/F2'")
    text = page.locator("main").inner_text()
    for payload in HOSTILE[:4]:
        assert payload[:60] in text
    page.evaluate("location.hash = '#findings/F1'")
    assert "10,000,234 characters in all" in re.sub(r"10,000,\d+", "10,000,234", page.locator("main").inner_text())
    page.keyboard.press("/")
    page.keyboard.type("<")
    page.get_by_role("option").first.wait_for()
    page.keyboard.press("Enter")
    assert page.evaluate("window.hacked") is None


def test_a_recording_of_an_older_version(tmp_path: Path, open_page: Open) -> None:
    file = tmp_path / "old.html"
    file.write_text(render_html(Reader(OLD)), encoding="utf-8")
    page = open_page(file)
    for view in VIEWS:
        page.evaluate(f"location.hash = '#{view}'")
        shown(page, view)
    page.evaluate("location.hash = '#findings/F1'")
    page.get_by_text("darkest = torch.amin(pixels, dim=-1, keepdim=True)").first.wait_for()
    page.get_by_text("at::vec::minimum").first.wait_for()


def test_a_big_run_is_usable_within_two_seconds(tmp_path: Path, open_page: Open) -> None:
    file = written(big(tmp_path / "run"))
    assert file.stat().st_size <= 15_000_000
    page = open_page(file)
    # From the address to a view that reacts; then each view for itself.
    took = {}
    start = time.monotonic()
    page.reload()
    shown(page, "verdict")
    took["load"] = time.monotonic() - start
    for view in ("findings", "program", "memory", "values", "artifacts"):
        start = time.monotonic()
        page.evaluate(f"location.hash = '#{view}'")
        shown(page, view)
        took[view] = time.monotonic() - start
    start = time.monotonic()
    page.evaluate("location.hash = '#program/0/1999'")
    page.get_by_text("// cpp_fused_add_mul_native_layer_norm_relu_view_1999").wait_for()
    took["kernel"] = time.monotonic() - start
    start = time.monotonic()
    page.keyboard.press("/")
    page.keyboard.type("view_1234")
    page.get_by_role("option").first.wait_for()
    took["search"] = time.monotonic() - start
    assert max(took.values()) <= 2, took


def test_the_graphs_of_the_stages_and_what_a_cache_has_are_pages_that_lead_to_each_other(
    file: Path, open_page: Open
) -> None:
    page = open_page(file, "#artifacts/graph0-forward.1-capture.fx.py")
    page.get_by_role("heading", name="What it costs").wait_for()
    assert "read off your Python code" in page.locator("article").inner_text()
    assert "relu_1" in page.locator("article .card", has_text="Defines (2)").inner_text()
    page.locator("article .card", has_text="Related").get_by_role("link", name="graph0-forward.fx.py").click()
    page.wait_for_function("document.querySelector('article h2').innerText === 'graph0-forward.fx.py'")
    text = page.locator("article").inner_text()
    assert "remove_noop_ops" in text
    depends = page.locator("article .card", has_text="Depends on (1)")
    assert depends.get_by_role("link", name="graph0-forward.1-capture.fx.py").count() == 1
    page.locator("article .card", has_text="Related").get_by_role("link", name="graph0-forward.cache.py").click()
    page.wait_for_function("document.querySelector('article h2').innerText === 'graph0-forward.cache.py'")
    assert "fabc" in page.locator("article").inner_text()
