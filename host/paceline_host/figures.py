# SPDX-License-Identifier: Apache-2.0
"""The figures of one run, computed from its journal alone. Unknown is None. Knows no other run and no layout."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline.wire import ENERGY_FLAGS
from paceline_host.closed_form import slice_seconds
from paceline_host.ddp.figures import RankFigures, rank_figures
from paceline_host.hfl.figures import SiloFigures, mean_of_silos, silo_figures
from paceline_host.journal import is_held
from paceline_host.ledger import Ledger
from paceline_host.mixing.figures import MixFigures, mix_figures
from paceline_host.mixing.standing import makespans
from paceline_host.owed_joules import owing
from paceline_host.policy_notes import POLICY, once
from paceline_host.profile import BoardProfile
from paceline_host.records import PARTS, Board, Contribution, Energy, Epoch, Round, Run, Step

# What readings may say of themselves; "unknown" and "estimated" are told apart, "gap" is in the coverage.
DOUBTS = ENERGY_FLAGS.keys() - {"unknown", "gap", "estimated"}
WAITED_US = 1_000_000  # waits of less in all say less than what was drawn before the first round
PACE_LIMIT = 0.05  # more late steps than this on any board, and the declared pace was not held (DECISIONS 53)


@dataclass(frozen=True)
class Joules:
    """All boards together over the whole run. `total_j` and `parts_j` are of the boards that are known."""

    total_j: float | None  # None: no board is known
    parts_j: Mapping[str, float] | None
    bound_j: float | None  # sum of the instrument bounds
    label: str  # "modelled", "measured", "measured and modelled", "unknown"
    coverage: float | None  # share of the time with readings
    unknown: tuple[str, ...]  # boards that are missing from the total, wholly or for a time
    sampling_j: float | None = None  # 95 % half-width; boards are independent of one another, so squares add up
    estimated: tuple[str, ...] = ()  # boards on which edges may have moved more than a tenth of the compute joules
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what is said of whose readings, by board
    waiting_w: Mapping[str, float] = field(default_factory=dict)  # of waits, else what was drawn before the first round

    @property
    def complete(self) -> bool:
        return self.total_j is not None and not self.unknown


@dataclass(frozen=True)
class RoundFigures:
    """One closed round. Joules are cumulative over all known boards."""

    round: int
    makespan_s: float
    end_s: float  # makespans up to here, evaluation left out
    samples: Mapping[str, int]  # accepted, by board
    compute_s: Mapping[str, float]
    compute_cv: float | None
    joules: float | None
    accuracy: float | None
    loss: float | None
    predicted_s: float | None


@dataclass(frozen=True)
class SplitFigures:
    """What split learning has beside rounds; per epoch means over all closed epochs."""

    steps: float
    batch: float  # median over all steps
    deviation: float | None  # mean over all steps of the L1 label deviation, 0 to 2
    sent_bytes: float
    received_bytes: float
    host_s: float
    rest_s: float | None  # of a step: what neither the host's computing nor the busiest board's explains
    voided: int  # steps, in all
    left: int  # samples that were out of reach, in all


@dataclass(frozen=True)
class RunFigures:
    """One run."""

    run: Run
    folder: str
    state: str  # "finished", "stopped: why", "running", "unfinished": its host died
    boards: tuple[str, ...]
    rounds: tuple[RoundFigures, ...]
    samples: int
    makespan_s: float | None
    makespan_median_s: float | None  # of rounds >= 2
    predicted_s: float | None  # what the closed form says of the whole run, with the executed shares
    predicted_median_s: float | None
    joules: Joules
    compute_cv: float | None  # median over rounds >= 2 of the population CV of compute times
    accuracy: float | None
    loss: float | None
    metric: str
    controller_fraction: float | None  # of the rounds' time
    late: Mapping[str, float]  # boards that did not hold their pace: share of their steps that came late
    voided: int  # leases that ended without a counted result
    faults: tuple[str, ...]  # of the proof that each sample was counted exactly once
    resumed: tuple[int, ...] = ()  # rounds that were interrupted and taken up again: their makespans say little
    split: SplitFigures | None = None  # of split learning
    ranks: RankFigures | None = None  # of synchronised ranks; with silos their mean
    silos: tuple[SiloFigures, ...] = ()
    mixing: MixFigures | None = None  # of regime async
    barred: tuple[str, ...] = ()  # boards that got no more work after failures in a row
    notes: tuple[str, ...] = ()  # what the policy had to assume or to give up

    @property
    def left_out(self) -> int:
        """Samples of split learning's epochs that were counted not at all."""
        return 0 if self.split is None else self.split.left

    @property
    def complete(self) -> bool:
        return len(self.rounds) == self.run.rounds and not self.faults


def figures(folder: Path) -> RunFigures:
    """Read a run's journal and compute everything. Raises StorageError."""
    with Ledger(folder) as ledger:
        boards = ledger.boards()
        names = {board.board: board.name for board in boards}
        contributions = ledger.contributions()
        accepted: dict[int, list[Contribution]] = defaultdict(list)
        for row in contributions:
            if row.verdict == "accepted":
                accepted[row.round].append(row)
        closed = [row for row in ledger.rounds() if row.closed_s is not None]
        energy = ledger.energy()
        owed = owing(energy, contributions, closed, ledger.events())
        rounds = _rounds(ledger.run, closed, accepted, energy, names)
        proof = ledger.verify()
        late = _late([row for rows in accepted.values() for row in rows], names)
        run = ledger.run
        split = _split(ledger.epochs(), ledger.steps(), rounds) if run.regime == "psl" else None
        silos, mixing = silo_figures(ledger), mix_figures(ledger)
        voided = sum(epoch.voided for epoch in ledger.epochs())
        barred = sorted({event.board for event in ledger.events("barred") if event.board is not None})
        said = once((event.round, event.detail) for event in ledger.events(POLICY))
        ranks = mean_of_silos(silos, voided) if silos else rank_figures(ledger)
    busy_s = sum(row.makespan_s for row in rounds)
    predicted = [row.predicted_s for row in rounds if row.predicted_s is not None]
    all_predicted = bool(rounds) and len(predicted) == len(rounds)
    later = rounds[1:]
    return RunFigures(
        run=run, folder=str(folder), state=_state(run, folder), boards=tuple(names.values()), rounds=tuple(rounds),
        samples=proof.samples, makespan_s=busy_s if rounds else None,
        makespan_median_s=_median([row.makespan_s for row in later]),
        predicted_s=sum(predicted) if all_predicted else None,
        predicted_median_s=_median(predicted[1:]) if all_predicted else None,
        joules=replace(
            _joules(energy, names, {row.board for row in contributions}, owed), waiting_w=_waiting_w(boards, energy)
        ),
        compute_cv=_median([row.compute_cv for row in later if row.compute_cv is not None]),
        accuracy=rounds[-1].accuracy if rounds else None, loss=rounds[-1].loss if rounds else None,
        metric=closed[-1].metric if closed else "",
        controller_fraction=sum(row.allocate_s for row in closed) / busy_s if busy_s > 0 else None, late=late,
        voided=sum(row.verdict != "accepted" for row in contributions), faults=proof.faults,
        resumed=tuple(row.round for row in closed if row.flags), split=split, ranks=ranks,
        silos=silos, mixing=mixing, barred=tuple(names[board] for board in barred), notes=said,
    )  # fmt: skip


def _rounds(
    run: Run,
    closed: Sequence[Round],
    accepted: Mapping[int, Sequence[Contribution]],
    energy: Sequence[Energy],
    names: Mapping[int, str],
) -> list[RoundFigures]:
    out: list[RoundFigures] = []
    end_s = 0.0
    for row, makespan_s in zip(closed, makespans(closed), strict=True):
        end_s += makespan_s
        samples: dict[str, int] = defaultdict(int)
        compute_s: dict[str, float] = defaultdict(float)
        for part in accepted[row.round]:
            samples[names[part.board]] += part.samples
            compute_s[names[part.board]] += part.compute_us * 1e-6
        out.append(
            RoundFigures(
                row.round, makespan_s, end_s, dict(samples), dict(compute_s), _cv(list(compute_s.values())),
                _joules_until(energy, row.round), row.accuracy, row.loss,
                _predicted(run, accepted[row.round], names),
            )
        )  # fmt: skip
    return out


def _split(epochs: Sequence[Epoch], steps: Sequence[Step], rounds: Sequence[RoundFigures]) -> SplitFigures | None:
    if not epochs:
        return None
    rest = [
        (row.makespan_s - epoch.host_s - max(row.compute_s.values(), default=0.0)) / epoch.steps
        for epoch, row in zip(epochs, rounds, strict=True)
        if epoch.steps
    ]
    deviations = [step.deviation for step in steps if step.deviation is not None]
    return SplitFigures(
        steps=statistics.fmean(epoch.steps for epoch in epochs),
        batch=statistics.median(step.samples for step in steps),
        deviation=statistics.fmean(deviations) if deviations else None,
        sent_bytes=statistics.fmean(epoch.sent_bytes for epoch in epochs),
        received_bytes=statistics.fmean(epoch.received_bytes for epoch in epochs),
        host_s=statistics.fmean(epoch.host_s for epoch in epochs),
        rest_s=_median(rest), voided=sum(epoch.voided for epoch in epochs),
        left=sum(epoch.left for epoch in epochs),
    )  # fmt: skip


def _predicted(run: Run, parts: Sequence[Contribution], names: Mapping[int, str]) -> float | None:
    """Return the closed form of a round's makespan; None: real boards, or a lost slice was dealt out again."""
    declared = {entry["name"]: BoardProfile(**entry) for entry in run.declared.get("boards", ())}
    boards = [names[part.board] for part in parts]
    if run.regime != "pma" or not declared or len(set(boards)) < len(boards) or not declared.keys() >= set(boards):
        return None
    if not all(board.paced for board in declared.values()):
        return None
    reference_s = float(run.declared["reference_seconds_per_sample"])
    return max(
        slice_seconds(declared[name], part.samples, run.batch, reference_s)
        for name, part in zip(boards, parts, strict=True)
    )


def _joules(rows: Sequence[Energy], names: Mapping[int, str], worked: set[int], owed: set[int]) -> Joules:
    """Add up each board's last split of each session.

    A board with several sessions is unknown in between, one of `owed` after its last split.
    """
    last: dict[tuple[int, str], Energy] = {(row.board, row.session): row for row in rows}  # rows come in round order
    sessions: dict[int, int] = defaultdict(int)
    for board, _ in last:
        sessions[board] += 1
    unknown = {board for (board, _), row in last.items() if row.total_uj is None}
    unknown |= {board for board, count in sessions.items() if count > 1} | (worked - sessions.keys()) | owed
    known = [row for row in last.values() if row.total_uj is not None]
    missing = tuple(names[board] for board in sorted(unknown))
    if not known:
        return Joules(None, None, None, "unknown", None, missing)
    parts = {name: sum(row.parts_uj[i] or 0 for row in known) * 1e-6 for i, name in enumerate(PARTS)}
    bounds = [row.bound_uj for row in known if row.bound_uj is not None]
    samplings = [row.sampling_uj for row in known if row.sampling_uj is not None]
    flags: dict[str, dict[str, None]] = defaultdict(dict)
    for (board, _), row in sorted(last.items()):
        flags[names[board]] |= {flag: None for flag, bit in ENERGY_FLAGS.items() if row.flags & bit}
    span_us = sum(row.span_us for row in known)
    return Joules(
        sum(row.total_uj or 0 for row in known) * 1e-6,
        parts,
        sum(bounds) * 1e-6 if len(bounds) == len(known) else None,
        label({row.source for row in known}),
        sum(row.covered_us for row in known) / span_us if span_us else None,
        missing,
        math.hypot(*samplings) * 1e-6 if len(samplings) == len(known) else None,
        tuple(name for name, said in flags.items() if "estimated" in said),
        {name: tuple(flag for flag in said if flag in DOUBTS) for name, said in flags.items() if DOUBTS & said.keys()},
    )


def _waiting_w(boards: Sequence[Board], rows: Sequence[Energy]) -> dict[str, float]:
    """Return the watts at the barrier of each board where they are known: waits replace the prior (DECISIONS 34)."""
    last: dict[tuple[int, str], Energy] = {(row.board, row.session): row for row in rows}
    found = {}
    for board in boards:
        waits = [row for (number, _), row in last.items() if number == board.board and row.wait_uj is not None]
        wait_us = sum(row.wait_us for row in waits)
        if wait_us >= WAITED_US:
            found[board.name] = sum(row.wait_uj or 0 for row in waits) / wait_us
        elif board.idle_uw is not None:
            found[board.name] = board.idle_uw * 1e-6
    return found


def label(sources: set[str]) -> str:
    """Return how joules from these sources are to be called."""
    modelled = {source for source in sources if source.startswith("modelled")}
    if modelled == sources:
        return "modelled"
    return "measured and modelled" if modelled else "measured"


def _joules_until(rows: Sequence[Energy], round_: int) -> float | None:
    until = {(row.board, row.session): row.total_uj for row in rows if row.round <= round_}
    known = [total for total in until.values() if total is not None]
    return sum(known) * 1e-6 if known else None


def _late(rows: Sequence[Contribution], names: Mapping[int, str]) -> dict[str, float]:
    steps: dict[int, int] = defaultdict(int)
    overruns: dict[int, int] = defaultdict(int)
    for row in rows:
        steps[row.board] += row.steps
        overruns[row.board] += row.overruns
    shares = {names[board]: overruns[board] / steps[board] for board in sorted(steps) if steps[board]}
    return {name: share for name, share in shares.items() if share > PACE_LIMIT}


def _state(run: Run, folder: Path) -> str:
    if run.ended is None:
        return "running" if is_held(folder) else "unfinished"
    return "finished" if run.ended["ok"] else f"stopped: {run.ended['reason']}"


def _cv(seconds: Sequence[float]) -> float | None:
    """Return the population coefficient of variation."""
    mean = statistics.fmean(seconds) if seconds else 0.0
    return statistics.pstdev(seconds) / mean if mean > 0 else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
