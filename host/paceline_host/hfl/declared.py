# SPDX-License-Identifier: Apache-2.0
"""What is wrong with [[silo]] tables by themselves, or over a fleet whose boards are known: where, and in which words.

Pure: no data set is opened for it. What only the data can tell is found later, by `run.check`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from paceline.settings import did_you_mean
from paceline.toml import Keys
from paceline_host.ddp.run import too_little

if TYPE_CHECKING:
    from paceline_host.experiment import RunSettings, SiloSettings

Silos = Mapping[int, "SiloSettings"]  # by their places in the file
Fault = tuple[Keys, str]


def faults(
    silos: Silos, run: RunSettings | None, names: Sequence[str] | None, *, final: bool = True
) -> Iterator[Fault]:
    """Yield all faults. `run`, `names` (the fleet's boards) None: not known. Not `final`: a board may be in no silo."""
    yield from _once(silos)
    if names is not None:
        unknown = list(_unknown(silos, names))
        yield from unknown
        if final and not unknown:  # whoever is meant by an unknown name is in no silo either
            yield from _left(silos, names)
    yield from _samples(silos)
    for place, one in silos.items():
        if run and one.boards and (fault := too_little(run, one.budget, len(one.boards))):
            yield ("silo", place, "budget"), f"silo {one.name!r}: {fault}"


def kind(one: SiloSettings) -> str:
    """Return how a silo gets its samples, as its boards are told it."""
    return "dealt" if one.samples is None else "own" if isinstance(one.samples, int) else "range"


def _once(silos: Silos) -> Iterator[Fault]:
    """Of names and of boards."""
    names: set[str] = set()
    seats: dict[str, str] = {}
    for place, one in silos.items():
        if one.name in names:
            yield ("silo", place, "name"), f"silo {one.name!r}: another one has this name; expected a name of its own"
        names.add(one.name)
        if not one.boards:
            text = f"silo {one.name!r}: boards is empty; expected at least one board, or leave the silo out"
            yield ("silo", place, "boards"), text
        for board in one.boards:
            if board in seats:
                text = f"board {board!r} is in silo {seats[board]!r} already; a board is in one silo, once"
                yield ("silo", place, "boards"), f"silo {one.name!r}: {text}"
            seats.setdefault(board, one.name)


def _unknown(silos: Silos, names: Sequence[str]) -> Iterator[Fault]:
    for place, one in silos.items():
        for board in one.boards:
            if board not in names:
                text = f"there is no board {board!r} in the fleet; {did_you_mean(board, list(names))}"
                yield ("silo", place, "boards"), f"silo {one.name!r}: {text}"


def _left(silos: Silos, names: Sequence[str]) -> Iterator[Fault]:
    seated = {board for one in silos.values() for board in one.boards}
    if left := [name for name in names if name not in seated]:
        yield ("silo",), f"silos: {', '.join(left)} of the fleet: in no silo; expected each board in one"


def _samples(silos: Silos) -> Iterator[Fault]:
    if len({kind(one) for one in silos.values()}) > 1:
        text = "silos: some name their samples and others not, or in another way; expected one way for all silos"
        yield ("silo",), text
    ranges = []
    for place, one in silos.items():
        if isinstance(one.samples, tuple):
            begin, end = one.samples
            if 0 <= begin < end:
                ranges.append((begin, end, place))
            else:
                text = f"silo {one.name!r}: samples = [{begin}, {end}]: expected 0 <= begin < end"
                yield ("silo", place, "samples"), text
    ranges.sort()
    for (_, end, place), (begin, _, other) in pairwise(ranges):
        if begin < end:
            text = f"its samples begin at {begin}, those of silo {silos[place].name!r} end at {end}; none is in two"
            yield ("silo", other, "samples"), f"silo {silos[other].name!r}: {text}"
