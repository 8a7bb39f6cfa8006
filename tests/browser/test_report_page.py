"""The health report in a real browser: charts, themes, widths, keyboard, contrast, names that are only data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.reports import hostile, shop

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: run make test-browser")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing: run make test-browser")
pytestmark = pytest.mark.browser

CHROMIUM = os.environ.get("PARKETTO_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WIDTHS = {"phone": 375, "laptop": 1440}
# Elements that end right of the window, unless they are inside of something that scrolls.
OVERFLOWING = """() => [...document.querySelectorAll("body *")].filter((each) => {
    const box = each.getBoundingClientRect();
    const scrolled = each.closest(".scroll, code, .hidden, .skip, #vg-tooltip-element");
    return !scrolled && box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map((each) => each.outerHTML.slice(0, 200))"""
# The charts whose drawing has no mark with an area, or is cut off.
EMPTY = """() => [...document.querySelectorAll(".chart")].filter((each) => {
    const marks = [...each.querySelectorAll("svg .mark-rect path, svg .mark-symbol path")];
    return !marks.some((mark) => mark.getBBox().width > 1 && mark.getBBox().height > 1);
}).map((each) => each.id)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: install it, or name it in PARKETTO_CHROMIUM")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports on disk, by name."""
    folder = tmp_path_factory.mktemp("reports")
    found = {"shop": folder / "shop.html", "hostile": folder / "hostile.html"}
    shop(folder).report(found["shop"])
    hostile(folder).report(found["hostile"])
    return found


class Opened:
    """A page in a window of its own, with what the browser complained about or asked for."""

    def __init__(self, browser: Any, path: Path, *, width: int = 1440, scheme: str = "light") -> None:
        self._context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self._context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self._context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self._requested(request.url, path.as_uri()))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-charts]")

    def _requested(self, url: str, own: str) -> None:
        if url != own and not url.startswith("data:"):
            self.complaints.append(f"requested {url}")

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *failure: object) -> None:
        self._context.close()

    def colour(self, selector: str, name: str) -> str:
        script = "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]"
        return str(self.page.evaluate(script, [selector, name]))


@pytest.mark.parametrize("name", ["shop", "hostile"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_charts_are_drawn_and_nothing_overflows(
    browser: Any, pages: dict[str, Path], width: int, scheme: str, name: str
) -> None:
    with Opened(browser, pages[name], width=width, scheme=scheme) as opened:
        page = opened.page
        assert page.locator(".chart svg").count() == page.locator(".chart").count() >= 5
        assert page.evaluate(EMPTY) == []
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert page.evaluate(OVERFLOWING) == []
        # With all tables open, wide ones scroll inside of their card.
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        assert page.evaluate(OVERFLOWING) == []
        assert opened.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_accessibility_rules_hold(browser: Any, pages: dict[str, Path], width: int, scheme: str) -> None:
    """Contrast, labels, landmarks, headings, scrollable regions: the rules of axe-core."""
    with Opened(browser, pages["shop"], width=width, scheme=scheme) as opened:
        opened.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        found = axe.Axe().run(opened.page)
        assert found.violations_count == 0, found.generate_report()


def test_the_theme_follows_the_system_and_the_button(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["shop"], scheme="dark") as opened:
        page = opened.page
        dark = opened.colour("body", "backgroundColor")
        bars = ".chart svg .mark-rect path"
        dark_bar = page.locator(bars).nth(1).get_attribute("fill")
        page.emulate_media(color_scheme="light")
        light = opened.colour("body", "backgroundColor")
        assert dark != light
        # The page's policy forbids functions as text, so the test waits for elements.
        page.locator(bars).nth(1).and_(page.locator(f":not([fill='{dark_bar}'])")).wait_for()
        button = page.get_by_role("button", name="Theme")
        for theme, colour in (("light", light), ("dark", dark), ("auto", light)):
            button.click()
            assert theme in button.inner_text()
            assert opened.colour("body", "backgroundColor") == colour
        assert opened.complaints == []


def test_the_keyboard_reaches_and_operates_everything(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["shop"]) as opened:
        page = opened.page
        visited = []
        for _ in range(120):
            page.keyboard.press("Tab")
            here = page.evaluate(
                "(() => { const at = document.activeElement; const style = getComputedStyle(at); return "
                "[at.tagName, at.id || at.className, style.outlineStyle !== 'none' || at.matches('.skip')]; })()"
            )
            if here[0] == "BODY":
                break
            visited.append(here)
        assert all(outlined for _, _, outlined in visited), "the focus is always visible"
        reached = [tag for tag, _, _ in visited]
        assert visited[0][:2] == ["A", "skip"]
        assert reached.count("BUTTON") == page.locator("button").count()
        assert reached.count("SUMMARY") == page.locator("summary").count()
        summary = page.locator("summary").first
        summary.focus()
        page.keyboard.press("Enter")
        assert page.locator("details").first.evaluate("each => each.open")
        page.locator(".copy").first.focus()
        page.keyboard.press("Enter")
        page.locator(".copy", has_text="Copied").first.wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == page.locator(".command code").first.inner_text()


def test_names_are_never_executed(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["hostile"]) as opened:
        page = opened.page
        shown = []
        for mark in page.locator("#partitions svg .mark-rect path, #clustering svg .mark-rect path").all()[:8]:
            mark.scroll_into_view_if_needed()
            box = mark.bounding_box()
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            page.wait_for_selector("#vg-tooltip-element.visible")
            shown.append(page.locator("#vg-tooltip-element").inner_text())
        assert any("<script>" in text for text in shown), "tooltips show names as they are"
        assert page.evaluate("typeof window.hit") == "undefined"
        assert page.locator("img, main b, main i").count() == 0
        assert opened.complaints == []
