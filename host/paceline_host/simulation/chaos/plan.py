# SPDX-License-Identifier: Apache-2.0
"""What a seed stands for: boards, a short run, and which kinds of faults happen how often. Nothing happens here.

Each seed has its own selection of kinds, so that rare pairs of faults are not drowned by frequent ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

# kind -> what happens. All of these really happen between programs, machines and disks; see HOSTILE for the rest.
KINDS = {
    "cut": "a connection is reset; what was under way is lost, or comes late over the old one",
    "half-open": "the same, and the host's end does not notice",
    "partition": "for a while nothing passes between a board and the host",
    "one-way": "for a while nothing passes in one direction",
    "slow-link": "a link is twenty times slower for a while",
    "kill-board": "an agent is killed and started again",
    "power-board": "a board loses power; what it had finished may be lost with it",
    "leave-board": "an agent says goodbye, and is started again later",
    "freeze-board": "an agent stands still for a while (SIGSTOP, swapping)",
    "kill-trainer": "a trainer dies",
    "hang-trainer": "a trainer hangs",
    "slow-board": "a board works five times slower for a while",
    "meter-dies": "a board's meter tells nothing for a while",
    "meter-absurd": "a board's meter tells a thousand times too much for a while",
    "full-board": "a board's disk is full for a while: what it has finished is not kept",
    "memory": "a bit of a model flips on a board",
    "kill-host": "the host is killed at a point that is drawn: between any two of its actions or writes",
    "power-host": "the host's machine loses power at such a point: only what was synced is kept, some of the rest torn",
    "freeze-host": "the host stands still for a while",
    "slow-disk": "commits take up to three seconds for a while",
    "full-disk": "the host's disk is full for a while",
    "sync-fails": "a sync of the host's disk fails once",
    "clock-jump": "the host's wall clock jumps, to 1970 or far ahead, and the host is started again",
}
# What CURVE over TCP does not do, and a board with a valid key can: of its own messages, on the way to the host.
HOSTILE = {
    "repeat": "messages are said again, at once or much later",
    "reorder": "messages overtake each other",
    "corrupt": "bits of headers and payloads flip",
    "drop": "single messages are left out",
    "lie": "seconds are a thousand times too few or too many",
}
# Between boards that step together, beside all that.
RANK_KINDS = {
    "apart": "for a while nothing passes between a board and the others",
    "group-breaks": "a connection between two boards ends in the midst of what they exchange",
}
MODELS = (64, 40_000, 80_000)  # bytes: with the assignment; in chunks, and in the journal; in chunks, and in the spool
SPLIT_POLICIES = ("gpsl", "gpsl", "fls", "fpls")
POLICIES = ("equal", "time", "low-energy", "frontier:energy")


@dataclass(frozen=True)
class Plan:
    """One seed's run. A hostile board is one of the boards; None: all are honest."""

    seed: int
    boards: int
    rounds: int
    budget: int
    samples: int
    minimum: int
    policy: str
    model_bytes: int
    speeds: tuple[float, ...]
    bytes_per_s: float
    latency_s: float
    kinds: tuple[str, ...]
    every_s: float  # mean time between two faults
    heal_s: float  # when they end
    hostile: int | None
    seconds_per_sample: float
    patience_s: float = 8.0
    start_s: float = 15.0
    batch: int = 4
    regime: str = "pma"
    steps: int = 0  # of a round, where boards step together


def drawn(seed: int, regime: str = "pma") -> Plan:
    """Return what a seed stands for under a regime."""
    return _REGIMES[regime](_averaging(seed))


def _averaging(seed: int) -> Plan:
    chance = Random(f"plan {seed}")
    boards = chance.randint(3, 5)
    kinds = [kind for kind in KINDS if chance.random() < 0.4] or ["cut"]
    hostile = chance.randrange(boards) if chance.random() < 0.25 else None
    if hostile is not None:
        kinds += [kind for kind in HOSTILE if chance.random() < 0.5] or ["repeat"]
    return Plan(
        seed=seed, boards=boards, rounds=chance.randint(3, 5), budget=chance.choice((40, 60, 97)),
        samples=chance.choice((50, 150, 1000)), minimum=chance.choice((1, 4)), policy=chance.choice(POLICIES),
        model_bytes=chance.choice(MODELS), speeds=tuple(chance.uniform(0.4, 4.0) for _ in range(boards)),
        bytes_per_s=chance.choice((50e3, 400e3, 10e6)), latency_s=chance.choice((0.0005, 0.02, 0.3)),
        kinds=tuple(kinds), every_s=chance.choice((0.5, 2.0, 8.0)), heal_s=chance.uniform(5.0, 60.0), hostile=hostile,
        seconds_per_sample=chance.choice((0.03, 0.3, 1.0, 3.0)),
    )  # fmt: skip


def _stepping(plan: Plan) -> Plan:
    """Ranks: no healthy step may take as long as a collective waits, and what a rank says of its state is believed."""
    chance = Random(f"ranks {plan.seed}")
    steps = chance.randint(2, 6)
    kinds = [kind for kind in plan.kinds if kind != "corrupt"] + [k for k in RANK_KINDS if chance.random() < 0.5]
    slowest_s = plan.seconds_per_sample / min(plan.speeds) * plan.budget / steps
    return replace(
        plan, regime="ddp", steps=steps, minimum=max(plan.minimum, steps), kinds=tuple(kinds),
        policy=chance.choice((*POLICIES, "ema-batch:every=2")),
        seconds_per_sample=plan.seconds_per_sample * min(1.0, plan.patience_s / 3 / slowest_s),
    )  # fmt: skip


def _in_silos(plan: Plan) -> Plan:
    """The same in two silos, of which each has half of the samples and of the budget."""
    return replace(_stepping(plan), regime="hfl", budget=max(plan.budget, 60))


def _splitting(plan: Plan) -> Plan:
    """Clients with data of their own: an epoch of a few steps."""
    chance = Random(f"clients {plan.seed}")
    samples = min(plan.samples, 150)
    batch = -(-samples // chance.randint(2, 8))
    return replace(
        plan, regime="psl", samples=samples, budget=samples, batch=batch, policy=chance.choice(SPLIT_POLICIES),
        seconds_per_sample=min(plan.seconds_per_sample, plan.patience_s * min(plan.speeds) / batch),
    )  # fmt: skip


_REGIMES: dict[str, Callable[[Plan], Plan]] = {
    "pma": lambda plan: plan,
    "ddp": _stepping,
    "hfl": _in_silos,
    "psl": _splitting,
}
