# SPDX-License-Identifier: Apache-2.0
"""The report as a reader meets it: in a real browser, on a phone and on a desk, by day and by night, on paper."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline_host.html import write_html
from paceline_host.report import load_report

from ..host.page_folders import compared, troubled
from .browser import Page, chromium

WIDTHS = {"phone": 360, "desk": 1200}
# The weakest pair of ink and paper decides whether a page can be read: WCAG asks 4.5 of text.
CONTRAST = """(() => {
  const light = c => { const [r, g, b] = c.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const under = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
  return Math.min(...[...document.querySelectorAll('body *')].filter(e => [...e.childNodes].some(
    n => n.nodeType === 3 && n.data.trim()) && !['title', 'desc'].includes(e.tagName)).map(e => {
    const style = getComputedStyle(e), ink = light(e instanceof SVGElement ? style.fill : style.color);
    const paper = light(under(e)); return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05); }));
})()"""
SMALLEST = """Math.min(...[...document.querySelectorAll('svg text')].map(
  e => 11 * e.getScreenCTM().a))"""  # the drawings' font is 11 units


@pytest.fixture(scope="module")
def page(needs_tool: Callable[[str, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    with chromium(needs_tool("chromium", "chromium"), folder / "profile") as opened:
        yield opened


@pytest.fixture(scope="module", params=["comparison", "one-run", "troubled"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    if request.param == "troubled":
        runs = troubled(folder / "t-001")
    else:
        runs = compared(folder / "c-001") / ("time" if request.param == "one-run" else "")
    return write_html(load_report(runs), folder / f"{request.param}.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_the_page_can_be_read(page: Page, report: Path, width: int, scheme: str) -> None:
    page.open(report, width, features={"prefers-color-scheme": scheme})
    assert page.complaints() == []
    assert page.requests() == [report.as_uri()]
    assert page.value("document.title").endswith(": paceline")
    assert page.value("document.documentElement.scrollWidth") <= width, "the page itself must not scroll sideways"
    assert page.value("document.querySelectorAll('script').length") == 0
    page.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(CONTRAST) >= 4.5
    assert page.value(SMALLEST) >= 9.5
    folder = Path(os.environ.get("PACELINE_SCREENSHOTS", report.parent))  # to look at them
    shot = page.photograph(folder / f"{report.stem}-{width}-{scheme}.png").read_bytes()
    assert shot.startswith(b"\x89PNG")
    assert struct.unpack(">I", shot[16:20])[0] <= width


def test_a_name_that_is_a_script_does_not_run(page: Page, tmp_path: Path) -> None:
    report = write_html(load_report(troubled(tmp_path / "t-001")), tmp_path / "r.html")
    page.open(report, 360)
    assert page.value("document.querySelectorAll('script, img').length") == 0
    assert not [event for event in page.events if event["method"] == "Page.javascriptDialogOpening"]
    assert page.value("document.body.innerText.includes(\"<script>alert('x')</script>\")") is True


def test_tables_that_are_too_wide_scroll_and_keep_their_first_column(page: Page, tmp_path: Path) -> None:
    page.open(write_html(load_report(compared(tmp_path / "c-001")), tmp_path / "r.html"), 360)
    assert page.value("[...document.querySelectorAll('.wide')].some(e => e.scrollWidth > e.clientWidth)") is True
    page.value("document.querySelectorAll('.wide').forEach(e => { e.scrollLeft = 60; })")
    moved = (
        "[...document.querySelectorAll('.wide')].filter(e => e.scrollLeft > 50).map(e => "
        "e.querySelector('tbody th').getBoundingClientRect().left - e.getBoundingClientRect().left)"
    )
    found = page.value(moved)
    assert found
    assert all(0 <= left <= 2 for left in found)


def test_it_prints_what_is_folded_on_the_screen(page: Page, tmp_path: Path) -> None:
    page.open(write_html(load_report(compared(tmp_path / "c-001")), tmp_path / "r.html"), 1200)
    seen = "document.querySelector('details .wide').innerText.includes('makespan')"
    assert page.value(seen) is False
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.value(seen) is True
    page.call("Emulation.setEmulatedMedia", media="")
    assert page.print().startswith(b"%PDF-")
