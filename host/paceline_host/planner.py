# SPDX-License-Identifier: Apache-2.0
"""Policies as planners: who gets how many samples next round. Pure; the arithmetic is in paceline.Controller (the C
core).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from paceline import Controller, allocate
from paceline.errors import RunError, SettingsError
from paceline.policies import Policy
from paceline_host.oort import Selection

Silos = Sequence[tuple[Sequence[int], int]]  # boards and budget of each; none: all boards share one budget


class Planner(Protocol):
    """What the round machine asks of a policy. Boards are indices 0..K-1."""

    def plan(self, present: Sequence[int]) -> list[int]:
        """Return the shares of the present boards, in their order; they sum to the budget."""
        ...

    def observe(self, board: int, seconds: float, energy_j: float | None, samples: int) -> None:
        """Take a board's measured compute of one contribution."""
        ...

    def observe_wait(self, board: int, seconds: float, energy_j: float) -> None:
        """Take what a board drew while it did not compute; told right before a plan, where `heeds_waits`."""
        ...

    def observe_steps(self, board: int, seconds: float, samples: int) -> None:
        """Take a board's measured compute of the last steps of a round; told where `every` is not 0."""
        ...

    def observe_idle(self, board: int, watts: float) -> None:
        """Take what a board drew before the first round: a prior for its waits; told likewise."""
        ...

    def seconds_per_sample(self, board: int) -> float | None:
        """Return the present estimate, None before the first report."""
        ...

    @property
    def every(self) -> int:
        """So many steps of a round, and what is left of it is divided anew by `seconds_per_sample`; 0: never."""
        ...

    @property
    def heeds_waits(self) -> bool:
        """Whether plans depend on what boards draw while they wait."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the last plan had to assume or to give up, a sentence each."""
        ...


class Measured(ABC):
    """Keeps the controller's estimates whatever the policy does with them."""

    heeds_waits = False

    def __init__(self, boards: int, budget: int, minimum: int, policy: Policy, silos: Silos = ()) -> None:
        self.every = policy.every
        self._minimum = minimum
        self._silos = silos or ((tuple(range(boards)), budget),)
        kind = policy.name if policy.kind == "frontier" else "weighted"
        of = {board: number for number, (members, _) in enumerate(self._silos) for board in members}
        self.controller = Controller(
            boards, [own for _, own in self._silos], policy.w_energy or 0.0, minimum=minimum, policy=kind,
            groups=[of[board] for board in range(boards)],
        )  # fmt: skip
        self._present = set(range(boards))

    def observe(self, board: int, seconds: float, energy_j: float | None, samples: int) -> None:
        self.controller.observe(board, seconds=seconds, energy_j=energy_j, samples=samples)

    def observe_wait(self, board: int, seconds: float, energy_j: float) -> None:
        self.controller.observe_wait(board, seconds, energy_j)

    def observe_steps(self, board: int, seconds: float, samples: int) -> None:
        raise NotImplementedError(f"{type(self).__name__} plans whole rounds")

    def observe_idle(self, board: int, watts: float) -> None:
        self.controller.set_idle_power(board, watts)

    def seconds_per_sample(self, board: int) -> float | None:
        return self.controller.pace(board)  # not from the list of all: each lease asks

    @property
    def notes(self) -> tuple[str, ...]:
        return self.controller.notes

    @abstractmethod
    def plan(self, present: Sequence[int]) -> list[int]:
        """Return the shares of the present boards, in their order; they sum to the budget."""

    def _enough(self, present: Sequence[int]) -> None:
        for members, budget in self._silos:
            here = len(set(members) & set(present))
            if here * self._minimum > budget:
                raise RunError(
                    f"a budget of {budget} samples cannot give {here} boards at least {self._minimum} each; "
                    f"raise [run] budget to {here * self._minimum} or more"
                )

    def _equal(self, present: Sequence[int]) -> list[int]:
        return self._by_costs(present, {})

    def _by_costs(self, present: Sequence[int], costs: Mapping[int, float]) -> list[int]:
        """Divide each silo's budget by costs; one that is not known is typical, where none is known all are alike."""
        self._enough(present)
        shares: dict[int, int] = {}
        for members, budget in self._silos:
            here = [board for board in present if board in members]
            known = sorted(costs[board] for board in here if board in costs)
            typical = known[len(known) // 2] if known else 1.0
            if here:
                own = allocate([costs.get(board, typical) for board in here], budget, minimum=self._minimum)
                shares.update(zip(here, own, strict=True))
        return [shares[board] for board in present]


class Weighted(Measured):
    """The adaptive policies: cost = blend of relative seconds and relative joules (papers A.2)."""

    def plan(self, present: Sequence[int]) -> list[int]:
        self._enough(present)
        now = set(present)
        for board in self._present - now:
            self.controller.remove(board)
        for board in now - self._present:
            self.controller.restore(board)
        self._present = now
        shares = self.controller.allocate()
        return [shares[board] for board in present]


class Frontier(Weighted):
    """The goals "frontier:...": least joules, least time, or one within a bound on the other."""

    heeds_waits = True


class Equal(Measured):
    """The same share for everybody."""

    def plan(self, present: Sequence[int]) -> list[int]:
        return self._equal(present)


class EmaBatch(Measured):
    """Shares proportional to smoothed throughput: no dead-band, no joules, nothing held back. Renewed each round by the
    round's mean throughput, or every k steps by that of the k steps.
    """

    SMOOTHING = 0.5

    def __init__(self, boards: int, budget: int, minimum: int, policy: Policy, silos: Silos = ()) -> None:
        super().__init__(boards, budget, minimum, policy, silos)
        self._rates: dict[int, float] = {}  # samples a second
        self._told: set[int] = set()  # whose steps of this round are known: their account says nothing new

    def observe(self, board: int, seconds: float, energy_j: float | None, samples: int) -> None:
        super().observe(board, seconds, energy_j, samples)
        if board not in self._told:
            self._learn(board, samples / seconds)
        self._told.discard(board)

    def observe_steps(self, board: int, seconds: float, samples: int) -> None:
        self._told.add(board)
        self._learn(board, samples / seconds)

    def _learn(self, board: int, rate: float) -> None:
        a = self.SMOOTHING
        self._rates[board] = a * rate + (1 - a) * self._rates.get(board, rate)

    def seconds_per_sample(self, board: int) -> float | None:
        return 1.0 / self._rates[board] if board in self._rates else None

    def plan(self, present: Sequence[int]) -> list[int]:
        return self._by_costs(present, {board: 1.0 / rate for board, rate in self._rates.items()})


class Oort(Measured):
    """Two thirds of the boards, rounded up, are selected; they share the budget equally (DECISIONS 38)."""

    def __init__(self, boards: int, budget: int, minimum: int, policy: Policy, seed: int) -> None:
        super().__init__(boards, budget, minimum, policy)
        self._selection = Selection(seed)
        self._budget = budget
        self._share = 0.0  # of the present round

    def observe(self, board: int, seconds: float, energy_j: float | None, samples: int) -> None:
        super().observe(board, seconds, energy_j, samples)
        # As if it had had the share alone: who takes over a slice of another's is not slow, nor useful, for that.
        self._selection.reported(board, seconds / samples * self._share, self._share)

    def plan(self, present: Sequence[int]) -> list[int]:
        chosen = self._selection.choose(present, -(-2 * len(present) // 3))
        self._share = self._budget / len(chosen)
        given = dict(zip(chosen, self._equal(chosen), strict=True))
        return [given.get(board, 0) for board in present]


class Static(Measured):
    """Profile once: round 1 is equal, its seconds per sample fix the split for good (its profiling round counts)."""

    def __init__(self, boards: int, budget: int, minimum: int, policy: Policy, silos: Silos = ()) -> None:
        super().__init__(boards, budget, minimum, policy, silos)
        self._profile: dict[int, float] = {}

    def observe(self, board: int, seconds: float, energy_j: float | None, samples: int) -> None:
        super().observe(board, seconds, energy_j, samples)
        self._profile.setdefault(board, seconds / samples)

    def plan(self, present: Sequence[int]) -> list[int]:
        return self._by_costs(present, self._profile)


def make(policy: Policy, boards: int, budget: int, minimum: int, silos: Silos = (), *, seed: int = 0) -> Measured:
    """Return the planner of a policy; `seed`: of those that leave something to chance.

    Raises SettingsError when a budget is below boards x minimum.
    """
    kinds: dict[str, type[Measured]] = {
        "equal": Equal, "static": Static, "weighted": Weighted, "frontier": Frontier, "ema-batch": EmaBatch,
    }  # fmt: skip
    for members, own in silos or ((range(boards), budget),):
        if len(members) * minimum > own:
            fault = f"[run] budget = {own} is below {len(members)} boards x {minimum} samples"
            raise SettingsError([f"{fault}; raise it to {len(members) * minimum} or more"])
    if policy.kind == "mixing":
        raise SettingsError([f"policy {policy.name}: boards take slices as they are done, so it divides no samples"])
    if policy.kind == "oort":
        return Oort(boards, budget, minimum, policy, seed)
    return kinds[policy.kind](boards, budget, minimum, policy, silos)
