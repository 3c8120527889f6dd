# SPDX-License-Identifier: Apache-2.0
"""Tells a sensor whose value never moves, though its flags do, from one that sees a steady load. Pure: time is given.

A steady value alone proves nothing: a quiet load may be steady to the last bit, a rail without current reads 0, a model
is steady by nature. What proves it is a load that is known to change, computing and resting by turns, under a value of
so many steps of its converter that the change must show. A processor's counter that stands still needs no other proof:
whoever reads it draws power. Of others that count joules, it is proof that they moved all the time before.
"""

from __future__ import annotations

from dataclasses import replace

from paceline_agent.meters import Count, Reading

WATCHED = {"ina219", "ina3221", "hwmon", "serial", "rapl"}
STEPS = 200  # of the converter: half a percent shows
TURNS = 3  # times of computing and of resting, each
IN_TURN = 3  # readings wholly inside one
READINGS = 50
STILL_US = 2_000_000  # for a counter; some chips move theirs only so often ...
STILL_UPDATES = 10  # ... and that many of these must pass
RAPL_STILL_US = 200_000  # a processor's moves each millisecond; whoever reads it may be late
STANDS_STILL = "one of its counters stands still, which it cannot: it is frozen, and its joules are unknown"
MOVES = 3  # of a device's count, to know how often it moves


def watcher(kind: str, label: str, update_us: int = 0) -> Frozen | None:
    """Return what watches a source; None: its value may be steady. `update_us`: of its `rhythm`."""
    if kind == "replay":
        kind = label.removeprefix("replay/").partition("/")[0]
    if kind not in WATCHED:
        return None
    return Frozen(RAPL_STILL_US if kind == "rapl" else max(STILL_US, STILL_UPDATES * update_us))


class Frozen:
    """Readings of one source, and when it computed. `still_us`: for so long its counter cannot stand still."""

    def __init__(self, still_us: int = STILL_US) -> None:
        self._still_us = still_us
        self._value: int | None = None
        self._since_us = self._until_us = 0
        self._count = self._in_turn = 0
        self._turns = {True: 0, False: 0}
        self._active: bool | None = None  # None: not known yet
        self._edge_us = 0
        self._moved_us = self._moves = self._apart_us = 0  # a device's count: when last, how often, how far apart
        self.is_frozen = False

    @property
    def since_us(self) -> int:
        """Return since when the value is the same."""
        return self._since_us

    def flagged(self, reading: Reading | Count, steps: int, *, counts: bool = False) -> Reading | Count:
        """Take a reading as `seen` does; return it, with the flag where it has one."""
        if not self.seen(reading, steps, counts=counts) or "frozen" in reading.flags:
            return reading
        return replace(reading, flags=(*reading.flags, "frozen"))

    def seen(self, reading: Reading | Count, steps: int, *, counts: bool = False) -> bool:
        """Take a reading; return whether it is from a frozen sensor. `steps`: how many the converter counted.

        counts: the device counts joules, and what is given as power is its count's step.
        """
        if isinstance(reading, Count):
            begin_us, t_us, value, is_fine = reading.t_us, reading.t_us, reading.count_uj, True
        else:
            begin_us, t_us, value = reading.t0_us, reading.t1_us, reading.power_uw
            is_fine = value == 0 if counts else steps >= STEPS
        if value != self._value or not is_fine:
            self._value, self._since_us = value, begin_us if counts and is_fine else t_us
            self._count, self._in_turn, self._turns = 0, 0, {True: 0, False: 0}
            self.is_frozen = False
        self._until_us = t_us
        self._count += 1
        self._in_turn += begin_us >= self._edge_us
        if counts:
            self.is_frozen = self._stands_still(t_us, has_moved=value != 0)
        if isinstance(reading, Count) and t_us - self._since_us >= self._still_us:
            self.is_frozen = True
        return self.is_frozen

    def _stands_still(self, t_us: int, *, has_moved: bool) -> bool:
        """Return whether a device's count stands still for much longer than it ever did while it moved."""
        passed_us = t_us - self._moved_us
        is_over = self._moves > MOVES and passed_us >= max(self._still_us, READINGS * self._apart_us)
        if has_moved:
            self._apart_us = self._apart_us if is_over or self._moves == 0 else max(self._apart_us, passed_us)
            self._moved_us, self._moves = t_us, self._moves + 1
        return is_over and not has_moved

    def edge(self, t_us: int, active: bool) -> bool:
        """Learn that computing began or ended; return whether that has proven it frozen."""
        if active == self._active:
            return False
        if self._active is not None and self._in_turn >= IN_TURN and self._since_us <= self._edge_us:
            self._turns[self._active] += 1
        self._active, self._edge_us, self._in_turn = active, t_us, 0
        was = self.is_frozen
        self.is_frozen = was or (self._value != 0 and min(self._turns.values()) >= TURNS and self._count >= READINGS)
        return self.is_frozen and not was

    def __str__(self) -> str:
        length_s = (self._until_us - self._since_us) / 1e6
        turns = sum(self._turns.values())
        through = f", while the board computed and rested {turns} times" if turns else ""
        return (
            f"its value has not moved by a bit for {length_s:.1f} s{through}: it is frozen, or does not see this board,"
            " and its joules are unknown"
        )
