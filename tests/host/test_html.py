# SPDX-License-Identifier: Apache-2.0
"""The page from journals on disk: whole, inert, silent about nothing that is unknown, and in need of nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import StorageError
from paceline_host import html as pages
from paceline_host.charts import Line, lines, number, ticks
from paceline_host.cli import main
from paceline_host.details import details
from paceline_host.html import write_html, write_pages
from paceline_host.markup import VOID, Markup, table, tag
from paceline_host.report import ROWS, load_report, wanted

from .page_folders import HOSTILE, NAMES, SCRIPT, compared, troubled
from .run_folder import Story, run_row

MAY_LOAD = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"}


class Reader(HTMLParser):
    """Reads a page strictly: what is opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"{tag}: an attribute is given twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        """All visible text, words apart by one space."""
        return " ".join(" ".join(self.words).split())

    def named(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements of a name."""
        return [attributes for tag, attributes in self.tags if tag == name]


def read(folder: Path) -> Reader:
    return Reader(write_html(load_report(folder), folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(params=["comparison", "one run", "troubled"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Reader:
    if request.param == "troubled":
        return read(troubled(tmp_path / "t-001"))
    folder = compared(tmp_path / "c-001")
    return read(folder if request.param == "comparison" else folder / "time")


def test_it_needs_no_network_and_runs_no_script(reader: Reader) -> None:
    names = {name for name, _ in reader.tags}
    assert not names & {"script", "iframe", "object", "embed", "img", "base", "form"}
    for name, attributes in reader.tags:
        assert not [key for key in attributes if key.startswith("on")], name
        loads = {key: value for key, value in attributes.items() if key in MAY_LOAD}
        assert loads in ({}, {"href": "data:,"}), name
    policy = next(a["content"] for a in reader.named("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in policy


def test_no_address_is_in_the_file_itself(tmp_path: Path) -> None:
    text = write_html(load_report(compared(tmp_path / "c-001")), tmp_path / "r.html").read_text(encoding="utf-8")
    assert re.findall(r"https?://|//\w|@import|url\(", text.replace("</", "")) == []


def test_pictures_have_words_and_tables_have_headers(reader: Reader) -> None:
    pictures = [a for a in reader.named("svg") if a.get("aria-hidden") != "true"]
    assert len(pictures) >= 4
    for picture in pictures:
        assert picture["role"] == "img"
        assert picture["aria-label"]
    names = [name for name, _ in reader.tags]
    assert names.count("table") == names.count("caption") == names.count("thead")
    assert all(a.get("scope") in {"col", "row"} for a in reader.named("th"))
    assert next(name for name in names if name in {"h1", "h2", "h3"}) == "h1"
    assert names.count("h1") == 1
    assert reader.named("html") == [{"lang": "en"}]


def test_a_comparison_says_what_the_table_says(tmp_path: Path) -> None:
    folder = compared(tmp_path / "c-001")
    report = load_report(folder)
    text = read(folder).text
    for name, cell in ((name, cell) for name, cell in ROWS if wanted(report, name)):
        assert name.strip() in text
        assert all(cell(report, run) in text for run in report.runs), name
    change = report.change(report.runs[1])
    assert change is not None
    assert change.makespan is not None
    assert change.joules is not None
    assert f"{-100 * change.makespan:.1f} % less time and" in text
    assert f"{100 * abs(change.joules):.1f} % less joules (modelled)" in text
    for policy in ("equal", "time"):
        assert f"✓ {policy}: every sample counted exactly once : 300 samples, 3 rounds of 100" in text
    assert "Rings: the closed form" in text
    assert all(name in text for name in NAMES)
    assert "None: no board was lost" in text
    assert "cpu_count 96" in text
    assert "python 3.12.1" in text


def test_a_run_alone_is_still_compared_with_its_sibling(tmp_path: Path) -> None:
    folder = compared(tmp_path / "c-001")
    text = read(folder / "time").text
    assert "time against equal: 29.3 % less time" in text.replace(" :", ":")
    assert "Run equal" not in text
    assert "against equal" not in read(folder / "equal").text.replace("compared", "")


def test_a_stranger_beside_it_is_no_reference(tmp_path: Path) -> None:
    Story(run=run_row(run_id="other-001/equal", policy="equal")).tell(tmp_path / "equal")
    Story(run=run_row(run_id="mine-001/time")).tell(tmp_path / "time")
    assert load_report(tmp_path / "time").beside == ()


def test_each_board_has_its_seconds_and_joules_a_sample(tmp_path: Path) -> None:
    """0.01 and 0.03 s a sample at 5 and 3 W."""
    Story(names=NAMES, active_w=(5.0, None, 3.0)).tell(tmp_path / "r")
    first, second, third = details(tmp_path / "r").boards
    assert (first.name, first.samples, first.source) == ("pi-4", 160, "modelled")
    assert first.seconds_per_sample == pytest.approx(0.01)
    assert first.joules_per_sample == pytest.approx(0.05)
    assert (second.joules_per_sample, second.total_j) == (None, None)
    assert third.joules_per_sample == pytest.approx(0.09)
    assert (third.late, third.uncounted, third.gaps) == (0.0, 0, False)


def test_what_is_unknown_says_so(tmp_path: Path) -> None:
    text = read(compared(tmp_path / "c-001", active_w=(None, None, None))).text
    assert "time against equal: 29.3 % less time; no percentage of joules: unknown on some boards" in text.replace(
        " :", ":"
    ).replace(" ;", ";")
    assert "Left out, because their joules are unknown: time." in text
    assert "The joules of this run are unknown" in text
    text = read(compared(tmp_path / "d-001", active_w=(5.0, None, 3.0))).text
    assert "≥ " in text
    assert "Unknown, wholly or for a time, on jupiter." in text


def test_a_pace_that_was_not_held_withholds_percentages(tmp_path: Path) -> None:
    text = read(compared(tmp_path / "c-001", overruns=1)).text
    assert "no percentages against equal: pace not held in time" in text
    assert "time against equal: not stated" in text
    assert "%  less" not in text
    assert "% less" not in text


def test_a_fault_of_the_ledger_is_shown_where_the_proof_stands(tmp_path: Path) -> None:
    folder = compared(tmp_path / "c-001", shares=((40, 30, 30), (60, 20, 10), (60, 20, 20)))
    text = read(folder).text
    assert "✗ time: NOT proven that every sample was counted exactly once" in text
    assert "round 2: 90 samples counted, the budget is 100" in text
    assert "✓ equal: every sample counted exactly once" in text


def test_text_from_a_journal_is_inert(tmp_path: Path) -> None:
    folder = troubled(tmp_path / "t-001")
    raw = write_html(load_report(folder), tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script" not in raw
    assert "<img" not in raw
    assert "<!--" not in raw
    assert not re.search("[\x00\u202e]", raw)
    reader = Reader(raw)
    assert SCRIPT in reader.text  # shown, as what it is
    assert raw.count("</style>") == 1
    for attributes in (attributes for _, attributes in reader.tags):
        assert "onerror" not in attributes


def test_a_lost_board_and_a_refused_update_are_events(tmp_path: Path) -> None:
    folder = troubled(tmp_path / "t-001")
    found = details(folder).happenings
    assert [one.kind for one in found] == ["lost", "lost", HOSTILE, "rejected", "stale"]
    assert [one.at_s for one in found] == [10.0, 10.0, 10.5, 11.0, 12.0]
    text = read(folder).text
    assert "slice 0 not counted: no sign of life for 30 s" in text
    assert "slice 2 not counted: stale" in text
    assert "stopped: " in text
    assert "3 of 4" in text


def test_a_run_without_a_closed_round_has_a_page(tmp_path: Path) -> None:
    Story(run=run_row(policy="equal"), shares=()).tell(tmp_path / "r", ended=False)
    text = read(tmp_path / "r").text
    assert "○ equal: unknown, no round is closed" in text
    assert "Nothing to draw." in text
    assert "0 of 3" in text


def test_many_events_are_cut_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline_host.run_section.EVENTS_SHOWN", 2)
    assert "3 more are in the journal" in read(troubled(tmp_path / "t-001")).text


def test_the_same_journals_give_the_same_bytes(tmp_path: Path) -> None:
    folder = compared(tmp_path / "c-001")
    first = write_html(load_report(folder), tmp_path / "a.html").read_bytes()
    assert write_html(load_report(folder), tmp_path / "b.html").read_bytes() == first


def test_a_page_lies_in_each_folder(tmp_path: Path) -> None:
    folder = compared(tmp_path / "c-001")
    assert write_pages(load_report(folder), folder) == folder / "report.html"
    whole = {run: (folder / run / "report.html").read_bytes() for run in ("equal", "time")}
    for run, page in whole.items():
        write_pages(load_report(folder / run), folder / run)
        assert (folder / run / "report.html").read_bytes() == page


def test_the_command_writes_it_and_names_it_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = compared(tmp_path / "c-001")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().err.splitlines()[-1].endswith(str(folder / "report.html"))
    assert all((folder / run / "report.html").is_file() for run in ("", "equal", "time"))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    report = load_report(compared(tmp_path / "c-001"))
    with pytest.raises(StorageError, match=r"nowhere.*cannot be written"):
        write_html(report, tmp_path / "nowhere" / "report.html")


# Parts ----------------------------------------------------------------------------------------------------------------


@given(st.text(), st.text())
def test_any_text_stays_text(inner: str, value: str) -> None:
    reader = Reader(tag("p", inner, tag("b", inner), title=value))
    assert [name for name, _ in reader.tags] == ["p", "b"]
    tag("p", inner, title=value).encode("utf-8")


def test_finished_markup_stands_and_nothing_is_nothing() -> None:
    assert tag("p", Markup("<br>"), None, [1, "<"], class_="a", title=None) == '<p class="a"><br>1&lt;</p>'
    assert 'aria-label="a&lt;b"' in table("a<b", ["x"], [["y"]])


@given(st.floats(-1e9, 1e9, allow_nan=False), st.floats(0, 1e9, allow_nan=False), st.integers(2, 9))
def test_ticks_go_round_what_they_measure(low: float, span: float, about: int) -> None:
    found = ticks(low, low + span, about)
    slack = 1e-6 * max(1.0, abs(low), abs(low + span))
    assert found[0] <= low + slack
    assert found[-1] >= low + span - slack
    assert len({number(tick, found) for tick in found}) == len(found) <= about + 3


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1, 8, [1, 3, 5, 7]), (1, 1, [1]), (1, 3, [1, 2, 3])],
    ids=["eight rounds", "one round", "three rounds"],
)
def test_ticks_of_rounds_are_rounds(low: int, high: int, expected: Sequence[int]) -> None:
    assert ticks(low, high, 5, whole=True) == expected


def test_a_loss_that_ran_away_is_a_gap() -> None:
    points = [(1, 2.0), (2, float("inf")), (3, float("nan")), (4, 3.0)]
    drawn = lines("t", "a", [Line("x", points, 0)], x_label="round", y_label="loss")
    assert drawn.count('class="mark"') == 2
    assert "nan" not in drawn
    assert "Nothing to draw" in lines("t", "a", [Line("x", points[1:3], 0)], x_label="round", y_label="loss")


def test_a_gap_breaks_the_line_and_a_long_run_has_no_markers() -> None:
    drawn = lines("t", "a", [Line("x", [(1, 1.0), (2, None), (3, 2.0)], 0)], x_label="round", y_label="s")
    assert len(re.findall("M", next(iter(re.findall(r'<path d="([^"]*)" class="line"', drawn))))) == 2
    long = lines("t", "a", [Line("x", [(i, 1.0) for i in range(999)], 0)], x_label="round", y_label="s")
    assert 'class="mark"' not in long
    assert pages.PAGE == "report.html"
