# SPDX-License-Identifier: Apache-2.0
"""What a person sees while a run goes on: one line a board. Knows text and the terminal only; is given plain data.

On a terminal the block is redrawn in place; elsewhere each round leaves one block when it is over, and nothing moves.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TextIO

BAR = 12  # characters
NAME = 20


@dataclass(frozen=True)
class Header:
    """Where the run stands. `round_seconds`: makespans of the rounds that are over."""

    policy: str
    round: int
    rounds: int
    phase: str
    round_seconds: Sequence[float]

    def of_round(self, closed: int) -> Header:
        """Return what it was when so many rounds were over, and no other had begun."""
        return replace(self, round=closed, phase="over", round_seconds=self.round_seconds[:closed])


@dataclass(frozen=True)
class BoardView:
    """One board. `share` 0: has no work at present. None: unknown."""

    name: str
    share: int
    done: int
    seconds_per_sample: float | None
    energy_per_sample_j: float | None
    energy_label: str  # "modelled" or the meter's name
    waiting_for: str  # empty: it works
    since_s: float  # how long it has been doing that
    counted: int | None = None  # samples of the last round that is over; None: an earlier life of the host ended it


class Progress:
    """`show` the state as often as you like, `say` a message between, `done` when the run is over."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._moves = stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        self._drawn = 0  # lines of the block that stand above the cursor
        self._round = 0
        self._closed = 0
        self._shares: dict[str, int] = {}
        self._last: tuple[Header, list[BoardView]] | None = None

    def say(self, text: str) -> None:
        """Write a message; the block moves below it."""
        self._write([f"paceline: {line}" for line in text.splitlines()], keep=True)
        if self._moves and self._last is not None:
            self._write(self._block(*self._last), keep=False)

    def show(self, header: Header, boards: Sequence[BoardView]) -> None:
        """Show the state."""
        if header.round != self._round:
            self._round = header.round
            self._shares = {}
        views = [self._remembered(board) for board in boards]
        if self._moves:
            self._last = header, views
            self._write(self._block(header, views), keep=False)
        elif len(header.round_seconds) > self._closed:
            self._closed = len(header.round_seconds)
            if ended := _ended(boards):
                self._write(self._block(header.of_round(self._closed), ended), keep=True)
        self._last = header, views

    def done(self) -> None:
        """The run is over: what stands on the screen stays, the next run starts below."""
        self._drawn, self._last, self._closed, self._round = 0, None, 0, 0

    def _remembered(self, board: BoardView) -> BoardView:
        """A board that has finished its share still shows it until the round is over."""
        share = self._shares[board.name] = max(board.share, self._shares.get(board.name, 0))
        return board if board.share else replace(board, share=share, done=share)

    def _block(self, header: Header, boards: Sequence[BoardView]) -> list[str]:
        columns, rows = shutil.get_terminal_size((110, 50))
        room = max(1, rows - 3) if self._moves else len(boards)
        unicode = (getattr(self._stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
        lines = [head(header)]
        lines += [_line(board, unicode, self._moves) for board in boards[:room]]
        if len(boards) > room:
            lines.append(f"  ... and {len(boards) - room} more")
        return [line[: columns - 1] for line in lines] if self._moves else lines

    def _write(self, lines: list[str], *, keep: bool) -> None:
        up = f"\x1b[{self._drawn}A\r" if self._drawn else ""
        clear = "\x1b[K" if self._moves else ""
        below = "\x1b[J" if self._drawn else ""
        with suppress(OSError, ValueError):  # that nobody looks on any more ends no run
            self._stream.write(up + "".join(f"{line}{clear}\n" for line in lines) + below)
            self._stream.flush()
        self._drawn = 0 if keep or not self._moves else len(lines)


def _ended(boards: Sequence[BoardView]) -> list[BoardView]:
    """Return what was counted of the round that is over, with what is known of costs now."""
    counts = [(board, board.counted) for board in boards if board.counted is not None]
    return [replace(board, share=count, done=count) for board, count in counts]


def head(header: Header) -> str:
    """Return in a line where the run stands."""
    spent = header.round_seconds
    state = " is over" if header.phase == "over" else f", {header.phase}"
    text = f"{header.policy}: round {header.round}/{header.rounds}{state}"
    if not spent:
        return text
    typical = statistics.median(spent[1:] or spent)
    left = header.rounds - len(spent)
    text += f"; last {spent[-1]:.2f} s, so far {sum(spent):.1f} s"
    return text + (f", about {typical * left:.{0 if typical * left > 10 else 1}f} s to go" if left else "")


def _line(board: BoardView, unicode: bool, live: bool) -> str:
    full, empty = ("\u2588", "\u2591") if unicode else ("#", ".")
    filled = BAR * min(board.done, board.share) // board.share if board.share else 0
    bar = full * filled + empty * (BAR - filled)
    label = f" {board.energy_label}" if board.energy_label and board.energy_per_sample_j is not None else ""
    costs = f"{quantity(board.seconds_per_sample, 's')}  {quantity(board.energy_per_sample_j, 'J')}{label}"
    amount = f"{board.done:>6}/{board.share:<6}"
    waits = f"  waits for {board.waiting_for}, {board.since_s:.1f} s" if board.waiting_for and live else ""
    return f"  {board.name[:NAME]:<{NAME}} {bar} {amount} a sample: {costs}{waits}"


def quantity(value: float | None, unit: str) -> str:
    """Return three digits with a prefix: 0.00123 s -> "1.23 ms". None is "unknown"."""
    if value is None:
        return f"{'unknown':>{8 + len(unit)}}"
    for factor, prefix in ((1.0, ""), (1e-3, "m"), (1e-6, "u")):
        if value >= factor or factor == 1e-6:
            scaled = value / factor
            digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
            return f"{scaled:>6.{digits}f} {prefix + unit:<{1 + len(unit)}}"
    raise AssertionError("unreachable")
