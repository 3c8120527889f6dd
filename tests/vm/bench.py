# SPDX-License-Identifier: Apache-2.0
"""The test module's files, from within the guest: set a load, switch a fault, ask for the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BENCH = Path("/sys/kernel/debug/paceline_bench")
ADAPTER = "paceline-bench"


@dataclass(frozen=True)
class Truth:
    """Nanojoules since the module was loaded, as of an instant."""

    t_us: int
    delivered_nj: int  # what the load drew
    converted_nj: int  # what the chip's conversions have seen of it; where nothing converts, the same


class Rail:
    """One load: of a chip by its address, of an INA3221 by channel too, of a powercap zone by its name."""

    def __init__(self, of: str, channel: str = "") -> None:
        self._load = BENCH / of / f"load{channel}"
        self._truth = BENCH / of / f"truth{channel}"

    def load(self, steps: Sequence[tuple[int, int, int]]) -> None:
        """From now on draw (microseconds, microamperes, millivolts), one after the other, again and again."""
        self._load.write_text("\n".join(" ".join(map(str, step)) for step in steps) + "\n", encoding="ascii")

    def epoch_us(self) -> int:
        """Return when the first of the present steps began."""
        return int(self._load.read_text(encoding="ascii").split()[0])

    def truth(self, t_us: int) -> Truth:
        """Return the truth as of an instant of CLOCK_MONOTONIC that is past, and after the last change of the load."""
        self._truth.write_text(str(t_us), encoding="ascii")
        return Truth(*map(int, self._truth.read_text(encoding="ascii").split()))


def fault(address: int, name: str, value: int) -> None:
    """Switch one of a chip's faults."""
    (BENCH / f"{address:02x}" / name).write_text(str(value), encoding="ascii")


def transferred(address: int, unit: str) -> int:
    """Return how many "transfers" or "bytes" a chip has had since the module was loaded; addresses are not in it."""
    return int((BENCH / f"{address:02x}" / unit).read_text(encoding="ascii"))


def bus_number() -> int:
    """Return the number of the test module's adapter: another one may have come first."""
    (place,) = (p.parent for p in Path("/sys/class/i2c-dev").glob("i2c-*/name") if p.read_text().strip() == ADAPTER)
    return int(place.name.removeprefix("i2c-"))
