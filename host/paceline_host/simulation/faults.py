# SPDX-License-Identifier: Apache-2.0
"""What becomes of boards on the way: a schedule, written down or drawn from a seed, and what it makes of a model.

A fault of round r happens when the plan of round r is on disk and its work is being given out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from paceline.errors import SettingsError
from paceline.settings import Bounds, did_you_mean
from paceline_host.simulation.draws import mix, uniform
from paceline_host.simulation.models import BoardModel

# kind -> (what its factor is if none is given, what it does)
KINDS = {
    "leave": (0.0, "it says goodbye and ends; its slice is dealt to the others"),
    "return": (0.0, "its agent is started again"),
    "throttle": (2.0, "its clock runs so many times slower; x1: as before"),
    "load": (1.5, "other work makes it so many times slower; x1: none any more"),
    "noise": (0.3, "its slices take longer or shorter at random, by this relative standard deviation"),
    "meter": (0.0, "its meter dies: its joules are unknown from here on"),
}
_NUMBER, _FACTOR = re.compile(r"\d{1,18}", re.ASCII), re.compile(r"x?\d{1,18}(\.\d{1,18})?", re.ASCII)
_WITHOUT = {kind for kind, (factor, _) in KINDS.items() if not factor}
_DRAWN = ("leave", "throttle", "load", "noise", "meter")
_AWAY = 3  # rounds after which a board that was drawn to leave returns, and a throttled or loaded one is as before


@dataclass(frozen=True)
class Fault:
    """One of KINDS. `factor` None: what the kind has."""

    board: Annotated[int, Bounds(ge=0)]
    round: Annotated[int, Bounds(ge=1)]
    what: str
    factor: Annotated[float, Bounds(ge=0, le=1e3)] | None = None

    def __post_init__(self) -> None:
        if self.what not in KINDS:
            raise ValueError(f"there is no fault {self.what!r}; {did_you_mean(self.what, list(KINDS))}")
        if self.what in _WITHOUT and self.factor is not None:
            raise ValueError(f"{self.what} has no factor")
        if self.what in ("throttle", "load") and self.size < 1.0:
            raise ValueError(f"{self.what} x{self.factor:g} would be faster; expected x1 or more")
        if self.what == "noise" and self.size >= 1.0:
            raise ValueError(f"noise {self.factor:g} is no relative deviation below 1; expected for instance 0.3")

    @property
    def size(self) -> float:
        """How much."""
        return KINDS[self.what][0] if self.factor is None else self.factor


def parse(text: str) -> Fault:
    """Read "board=3 round=5 throttle x2". Raises SettingsError."""
    values: dict[str, int] = {}
    what, factor = "", None
    for word in text.split():
        key, equals, value = word.partition("=")
        if equals and key in ("board", "round") and key not in values and _NUMBER.fullmatch(value):
            values[key] = int(value)
        elif factor is None and _FACTOR.fullmatch(word):
            factor = float(word.removeprefix("x"))
        elif not what and not equals:
            what = word
        else:
            raise SettingsError(
                [f"--fault {text!r}: {word!r} is not understood, or is too much; for instance {EXAMPLE!r}"]
            )
    if values.keys() != {"board", "round"} or not what:
        missing = ", ".join([*sorted({"board", "round"} - values.keys()), *([] if what else ["what happens"])])
        raise SettingsError([f"--fault {text!r}: does not say {missing}; for instance {EXAMPLE!r}"])
    try:
        return Fault(values["board"], values["round"], what, factor)
    except ValueError as error:
        raise SettingsError([f"--fault {text!r}: {error}"]) from None


EXAMPLE = "board=3 round=5 throttle x2"


def drawn(rate: float, boards: int, rounds: int, seed: int) -> list[Fault]:
    """Return faults at random: each board has one in each round with that probability; most pass after some rounds.

    Board 0 never leaves, so that there is always one.
    """
    found = []
    for round_ in range(2, rounds + 1):
        for board in range(boards):
            if uniform(seed, board, round_, 11) > rate:
                continue
            kind = _DRAWN[mix(seed, board, round_, 12) % len(_DRAWN)]
            if kind == "leave" and board == 0:
                continue
            found.append(Fault(board, round_, kind))
            if kind == "leave":
                found.append(Fault(board, round_ + _AWAY, "return"))
            elif kind in ("throttle", "load"):
                found.append(Fault(board, round_ + _AWAY, kind, 1.0))
    return [fault for fault in found if fault.round <= rounds]


def by_round(faults: Sequence[Fault], boards: int, rounds: int) -> dict[int, list[Fault]]:
    """Return them by round. Raises SettingsError for a board or a round that there is not."""
    found: dict[int, list[Fault]] = {}
    wrong = []
    for fault in faults:
        if fault.board >= boards:
            wrong.append(f"fault of board {fault.board}: there are {boards} boards, numbered from 0 to {boards - 1}")
        if fault.round > rounds:
            wrong.append(f"fault of round {fault.round}: there are {rounds} rounds, so it would never happen")
        found.setdefault(fault.round, []).append(fault)
    if wrong:
        raise SettingsError(wrong)
    return found


def apply(fault: Fault, model: BoardModel) -> None:
    """Let a fault that is no coming or going change a board."""
    if fault.what == "throttle":
        model.slow = fault.size
    elif fault.what == "load":
        model.load = fault.size
    elif fault.what == "noise":
        model.noise = fault.size
    elif fault.what == "meter":
        model.metered = False
