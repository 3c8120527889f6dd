# SPDX-License-Identifier: Apache-2.0
"""Tells a sensor whose value never moves, though its flags do, from one that sees a steady load. Pure: time is given.

A steady value alone proves nothing: a quiet load may be steady to the last bit, a rail without current reads 0, a model
is steady by nature. What proves it is a load that is known to change, computing and resting by turns, under a value of
so many steps of its converter that the change must show. A processor's counter that stands still needs no other proof:
whoever reads it draws power.
"""

from __future__ import annotations

from paceline_agent.meters import Count, Reading

WATCHED = {"ina219", "ina3221", "hwmon", "serial", "rapl"}
STEPS = 200  # of the converter: half a percent shows
TURNS = 3  # times of computing and of resting, each
IN_TURN = 3  # readings wholly inside one
READINGS = 50
STILL_US = 2_000_000  # in which a processor's counter moves two thousand times


class Frozen:
    """Readings of one source, and when it computed."""

    def __init__(self) -> None:
        self._value: int | None = None
        self._since_us = self._until_us = 0
        self._count = self._in_turn = 0
        self._turns = {True: 0, False: 0}
        self._active: bool | None = None  # None: not known yet
        self._edge_us = 0
        self.is_frozen = False

    @property
    def since_us(self) -> int:
        """Return since when the value is the same."""
        return self._since_us

    def seen(self, reading: Reading | Count, steps: int) -> bool:
        """Take a reading; return whether it is from a frozen sensor. `steps`: how many the converter counted."""
        if isinstance(reading, Count):
            begin_us, t_us, value, is_fine = reading.t_us, reading.t_us, reading.count_uj, True
        else:
            begin_us, t_us, value, is_fine = reading.t0_us, reading.t1_us, reading.power_uw, steps >= STEPS
        if value != self._value or not is_fine:
            self._value, self._since_us = value, t_us
            self._count, self._in_turn, self._turns = 0, 0, {True: 0, False: 0}
            self.is_frozen = False
        self._until_us = t_us
        self._count += 1
        self._in_turn += begin_us >= self._edge_us
        if isinstance(reading, Count) and t_us - self._since_us >= STILL_US:
            self.is_frozen = True
        return self.is_frozen

    def edge(self, t_us: int, active: bool) -> bool:
        """Learn that computing began or ended; return whether that has proven it frozen."""
        if active == self._active:
            return False
        if self._active is not None and self._in_turn >= IN_TURN and self._since_us <= self._edge_us:
            self._turns[self._active] += 1
        self._active, self._edge_us, self._in_turn = active, t_us, 0
        was = self.is_frozen
        self.is_frozen = was or (min(self._turns.values()) >= TURNS and self._count >= READINGS)
        return self.is_frozen and not was

    def __str__(self) -> str:
        length_s = (self._until_us - self._since_us) / 1e6
        turns = sum(self._turns.values())
        through = f", while the board computed and rested {turns} times" if turns else ""
        return (
            f"its value has not moved by a bit for {length_s:.1f} s{through}: it is frozen, or does not see this board,"
            " and its joules are not to be trusted"
        )
