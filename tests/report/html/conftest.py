"""A real browser for the tests that need one: the Chromium of the system, or Playwright's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest
from tools.pictures import VARIABLE, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page, Request


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    with sync_api.sync_playwright() as playwright:
        try:
            # As root Chromium runs without its sandbox or not at all; what it shows here is our own.
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        except sync_api.Error as e:
            hint = f"install Chromium, set {VARIABLE}, or run `playwright install chromium`"
            pytest.skip(f"no browser: {hint} ({str(e).splitlines()[0]})")
        yield browser
        browser.close()


Open = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open a file; at the end of the test, nothing must have been said on the console, asked for or thrown."""
    contexts = []
    complaints: list[str] = []

    def open_(file: Path, route: str = "", theme: Literal["light", "dark"] = "light") -> Page:
        context = browser.new_context(viewport={"width": 1366, "height": 768}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)

        def answer(dialog: Dialog) -> None:
            complaints.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        def ask(request: Request) -> None:
            if request.url != file.as_uri() and not request.url.startswith(f"{file.as_uri()}#"):
                complaints.append(f"request: {request.url}")

        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", answer)
        page.on("request", ask)
        page.goto(f"{file.as_uri()}{route}")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
