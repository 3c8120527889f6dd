# SPDX-License-Identifier: Apache-2.0
"""Readings -> joules of a window. Pure: knows no sensor, no clock and no thread; time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from paceline import core
from paceline.quick import quicken


@dataclass(frozen=True)
class Energy:
    """The energy of one window, and how far it is to be trusted."""

    energy_uj: int | None  # None: unknown, the window begins before the first reading
    start_us: int
    end_us: int
    covered_us: int  # of end_us - start_us, what lies in no gap
    bound_uj: int  # worst case of the instrument (error_uw of the readings) and of the gaps
    edge_uj: int  # what the two edges may add to that where they fall between readings; 0 on readings
    flags: tuple[str, ...]  # of "unknown", "gap", "reset"

    @property
    def coverage(self) -> float:
        """Share of the window with readings no further apart than three periods."""
        length_us = self.end_us - self.start_us
        return self.covered_us / length_us if length_us else 1.0


quicken((Energy,))


class EnergyIntegrator:
    """Cumulative energy E(t) over readings of one kind, and its differences.

    Windows that meet add up exactly: window(a, b) + window(b, c) == window(a, c), in microjoules. More than three
    periods without a reading are a gap: bridged by interpolation, counted as uncovered, and the bound grows. The last
    `knots` readings are remembered (64 bytes each; an interval that does not follow at once takes two).
    counter_modulus_uj: a counter wraps from counter_modulus_uj - 1 to 0; 0: unknown, so going back is a reset.
    max_power_uw: a counter that ran faster was reset or misread; 0: 100 kW. One object, one thread at a time.
    """

    def __init__(self, period_us: int, knots: int = 4096, counter_modulus_uj: int = 0, max_power_uw: int = 0) -> None:
        self._core = core.IntegratorHandle(period_us, knots, counter_modulus_uj, max_power_uw)

    def set_period(self, period_us: int) -> None:
        """Let readings come in another period; whether the time up to the next one is a gap is judged by it."""
        self._core.set_period(period_us)

    def add_interval(self, t0_us: int, t1_us: int, power_uw: int, error_uw: int = 0) -> None:
        """Add mean power over [t0_us, t1_us], of a converter that averages. What overlaps the last one is left out.

        CoreError, and nothing changed, when nothing of it is after the last reading.
        """
        self._core.interval(t0_us, t1_us, power_uw, error_uw)

    def add_point(self, t_us: int, power_uw: int, error_uw: int = 0) -> None:
        """Add power at an instant; between two of them it runs straight. CoreError when not after the last one."""
        self._core.point(t_us, power_uw, error_uw)

    def add_counter(self, t_us: int, count_uj: int) -> None:
        """Add a counter's reading; the first one, and one after a reset, is a base. CoreError: not after the last."""
        self._core.counter(t_us, count_uj)

    def window(self, t0_us: int, t1_us: int) -> Energy | None:
        """Return the energy from t0_us to t1_us; None while there is no reading at or after t1_us.

        LookupError: t0_us is older than what is remembered.
        """
        found = self._core.window(t0_us, t1_us)
        if found is None:
            return None
        energy_uj, covered_us, bound_uj, edge_uj, flags = found
        known = None if "unknown" in flags else energy_uj
        return Energy(known, t0_us, t1_us, covered_us, bound_uj, edge_uj, flags)

    @property
    def final_us(self) -> int | None:
        """The instant up to which energy is final; None before the first reading."""
        span = self._core.span_us()
        return None if span is None else span[1]
