# SPDX-License-Identifier: Apache-2.0
"""What a person sees during a run: on a terminal the block stays one block, elsewhere nothing moves."""

from __future__ import annotations

import io
import re

import pytest

from paceline_host.progress import BoardView, Header, Progress, quantity


class Screen(io.StringIO):
    """A terminal that understands what `Progress` sends, and nothing else."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return what stands on the screen."""
        rows, row, column_zero = [""], 0, True
        for up, clear, new_line, text in re.findall(r"\x1b\[(\d+)A\r|(\x1b\[[KJ])|(\n)|([^\x1b\n]+)", self.getvalue()):
            if up:
                row -= int(up)
                assert row >= 0
                column_zero = True
            elif clear:
                if clear.endswith("J"):
                    del rows[row + 1 :]
                    rows[row] = ""
            elif new_line:
                row += 1
                rows += [""] * (row + 1 - len(rows))
                column_zero = True
            else:
                rows[row] = text if column_zero else rows[row] + text
                column_zero = False
        return rows[:-1]


def header(round_: int, *seconds: float) -> Header:
    return Header("time", round_, 8, "working", seconds)


def view(name: str, share: int = 0, done: int = 0, waits: str = "", counted: int | None = None) -> BoardView:
    return BoardView(name, share, done, 0.00123, 0.0456, "modelled", waits, 1.5, counted)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "40")
    return Screen()


def test_on_a_terminal_the_block_is_redrawn_in_place(screen: Screen) -> None:
    progress = Progress(screen)
    for done in (10, 20, 30):
        progress.show(header(1), [view("pi-4", 100, done), view("pi-5", 200, 2 * done)])
    lines = screen.lines()
    assert len(lines) == 3
    assert lines[0] == "time: round 1/8, working"
    assert re.search(r"pi-4 .* 30/100 .*a sample: +1\.23 ms +45\.6 mJ modelled", lines[1])
    assert re.search(r"pi-5 .* 60/200", lines[2])


def test_a_message_stands_above_the_block_and_stays(screen: Screen) -> None:
    progress = Progress(screen)
    progress.show(header(1), [view("pi-4", 100, 10)])
    progress.say("pi-5: lost")
    progress.show(header(1), [view("pi-4", 100, 20)])
    assert screen.lines()[0] == "paceline: pi-5: lost"
    assert len(screen.lines()) == 3
    assert "20/100" in screen.lines()[2]


def test_the_next_run_leaves_the_last_block_standing(screen: Screen) -> None:
    progress = Progress(screen)
    progress.show(header(1), [view("pi-4", 100, 10)])
    progress.done()
    progress.show(Header("equal", 1, 8, "working", ()), [view("pi-4", 50, 10)])
    assert [line[:5] for line in screen.lines()] == ["time:", "  pi-", "equal", "  pi-"]


def test_a_board_that_is_ready_keeps_its_share_on_the_screen_and_says_whom_it_waits_for(screen: Screen) -> None:
    progress = Progress(screen)
    progress.show(header(2, 3.0), [view("pi-4", 100, 90)])
    progress.show(header(2, 3.0), [view("pi-4", waits="milk-v-mars")])
    assert "100/100" in screen.lines()[1]
    assert "waits for milk-v-mars, 1.5 s" in screen.lines()[1]
    progress.show(header(3, 3.0, 2.0), [view("pi-4")])
    assert "0/0" in screen.lines()[1]


def test_a_small_terminal_is_not_overrun(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "8")
    monkeypatch.setenv("COLUMNS", "40")
    progress = Progress(screen)
    progress.show(header(1), [view(f"board-{i}", 10, 5) for i in range(11)])
    lines = screen.lines()
    assert len(lines) <= 7
    assert lines[-1].strip() == "... and 6 more"
    assert max(len(line) for line in lines) < 40


def test_without_a_terminal_each_round_leaves_one_block() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    for round_, seconds in ((1, ()), (1, ()), (2, (3.0,)), (2, (3.0,)), (3, (3.0, 2.0))):
        progress.show(Header("time", round_, 8, "working", seconds), [view("pi-4", 100 * round_, 5, counted=90)])
    lines = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue()
    assert [line for line in lines if line.startswith("time")] == [
        "time: round 1/8 is over; last 3.00 s, so far 3.0 s, about 21 s to go",
        "time: round 2/8 is over; last 2.00 s, so far 5.0 s, about 12 s to go",
    ]
    assert len(lines) == 4
    assert "    90/90 " in lines[1], "what was counted, not what was dealt"


def test_a_round_that_an_earlier_host_has_closed_is_not_told_again() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.show(header(2, 3.0), [view("pi-4", 100, 5)])
    assert stream.getvalue() == ""
    progress.show(header(3, 3.0, 2.0), [view("pi-4", 100, 5, counted=100)])
    assert stream.getvalue().startswith("time: round 2/8 is over")


def test_a_stream_that_knows_no_blocks_gets_plain_characters() -> None:
    class Plain(io.StringIO):
        encoding = "ascii"

    stream = Plain()
    progress = Progress(stream)
    progress.show(header(1), [view("pi-4", 100, 50)])
    progress.show(header(2, 1.0), [view("pi-4", 100, 50, counted=100)])
    assert "############" in stream.getvalue()
    stream.getvalue().encode("ascii")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"), (0.0, "0.00 us"), (1.234e-6, "1.23 us"), (0.001234, "1.23 ms"), (0.09994, "99.9 ms"),
        (0.9999, "1000 ms"), (1.0, "1.00 s"), (12.34, "12.3 s"), (123.4, "123 s"),
    ],
)  # fmt: skip
def test_quantities_have_three_digits(value: float | None, text: str) -> None:
    assert quantity(value, "s").strip() == text
    assert len(quantity(value, "s")) == len(quantity(1.0, "s"))
