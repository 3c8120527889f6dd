# SPDX-License-Identifier: Apache-2.0
"""One run in virtual time: a host, its boards, what becomes of these, and what came out.

Boards leave, fall silent and return here; a host does not end. Runs in which everything may end at any instant, and
messages are lost, are in `chaos`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from paceline.policies import policy, regime_of
from paceline.wire import Energy, clip
from paceline_host import machine as m
from paceline_host import planner, records, regimes
from paceline_host.mixing.law import Mixing, MixingSettings
from paceline_host.mixing.machine import MixingMachine
from paceline_host.patience import Patience
from paceline_host.peers import Terms
from paceline_host.policy_notes import POLICY
from paceline_host.simulation import faults as f
from paceline_host.simulation.board import SimulatedBoard
from paceline_host.simulation.clock import Clock
from paceline_host.simulation.draws import uniform
from paceline_host.simulation.host import SimulatedHost
from paceline_host.simulation.line import Line, LinkModel
from paceline_host.simulation.models import BoardModel
from paceline_host.simulation.results import Outcome, RoundOutcome, outcome
from paceline_host.simulation.scenario import REGIME, Scenario
from paceline_host.simulation.store import InlineMixingStore, InlineStore, MemoryMixingStore, MemoryStore
from paceline_host.simulation.task import NAME, TrivialTask

START_S = 60.0
CHUNK_BYTES = 1 << 19


@dataclass
class Tally:
    """What a run's boards have delivered, as the machine said it: by round, and the last joules of each window."""

    rounds: dict[int, RoundOutcome] = field(default_factory=dict)
    energy: dict[tuple[int, int], Energy] = field(default_factory=dict)
    lost: int = 0
    notes: list[tuple[int, str]] = field(default_factory=list)  # of the policy, by round

    def saw(self, action: m.Action) -> None:
        """Take what the machine has decided."""
        if isinstance(action, m.StoreResult):
            self.rounds[action.slice.round].delivered(action.board, action.result.samples, action.result.compute_us)
        elif isinstance(action, m.StoreEnergy):
            self.energy[action.board, action.energy.window] = action.energy
        elif isinstance(action, m.StoreLoss):
            self.lost += 1
        elif isinstance(action, m.Note) and action.kind == POLICY:
            self.notes.append((action.round or 0, action.detail))
        elif isinstance(action, m.StoreSlices) and action.first:
            number = action.slices[0].round
            self.rounds[number] = RoundOutcome(number, {s.board: s.samples for s in action.slices})


class World:
    """Boards and a host, joined. `names` and `models` are those of the boards, in order."""

    def __init__(
        self, scenario: Scenario, names: Sequence[str], models: Sequence[BoardModel], policy_name: str,
        store: InlineStore, row: records.Run, clock: Clock, due: Mapping[int, Sequence[f.Fault]],
    ) -> None:  # fmt: skip
        self.clock, self._due, self.tally = clock, due, Tally()
        self.on_round: Callable[[int], None] = lambda round_: None
        task = TrivialTask(scenario.samples, scenario.seconds_per_sample)
        heartbeat_s = Patience(scenario.patience_s).waits["heartbeat_s"][0]
        terms = Terms(1, CHUNK_BYTES, CHUNK_BYTES, heartbeat_s, scenario.patience_s)
        self.host = SimulatedHost(clock, terms, names, store, self._to_board, self)
        link = LinkModel(
            scenario.latency_s, scenario.megabits_per_s * 125e3, scenario.model_bytes / task.manifest.nbytes
        )
        self.boards = [
            SimulatedBoard(
                clock, i, name, model, task, (self.line(link), self.line(link)), self.host.arrive
            )
            for i, (name, model) in enumerate(zip(names, models, strict=True))
        ]  # fmt: skip
        self._by_name = {board.name: board for board in self.boards}
        one = policy("equal" if row.mixing else policy_name)  # where boards take slices, for what it knows of paces
        self.planner = planner.make(one, len(names), row.budget, scenario.minimum, seed=row.seed)
        facts = m.RunFacts(
            run=row.run_id, regime=row.regime, task=NAME, options="{}", seed=row.seed, rounds=row.rounds,
            budget=row.budget, samples=row.samples, batch=row.batch, manifest_sha256=task.digest,
            model_bytes=task.manifest.nbytes,
            patience_s=scenario.patience_s, start_s=START_S, chunk_bytes=CHUNK_BYTES, credit_bytes=CHUNK_BYTES,
            energy_needed=False,
        )  # fmt: skip
        self.machine: m.RoundMachine
        if row.mixing:
            self.machine = MixingMachine(
                facts, Mixing.read(row.mixing), self.planner, names, store.model, store.model_sha256, clock.now_s
            )
        else:
            regime = regimes.make(row.regime, row.samples, row.budget)
            self.machine = m.RoundMachine(facts, regime, self.planner, names, store.model_sha256, clock.now_s)
        for board in self.boards:  # not all in one instant: no fleet is
            clock.later(uniform(scenario.seed, board.number, 21) * 0.1, board.start)

    def line(self, link: LinkModel) -> Line:
        """Return one direction of a board's link."""
        return Line(self.clock, link)

    def run(self, stopping: Callable[[], bool] = lambda: False) -> m.Finish:
        """Run to the end, or until `stopping`: then the run is ended in order."""
        self.host.begin(self.machine)
        self.clock.run(lambda: self.host.finish is not None or stopping())
        if self.host.finish is None:
            self.host.stop("interrupted")
            self.clock.run(lambda: self.host.finish is not None)
        assert self.host.finish is not None
        return self.host.finish

    # What the host tells --------------------------------------------------------------------------------------------

    def saw(self, action: m.Action) -> None:
        """See Watch."""
        self.tally.saw(action)

    def planned(self, round_: int) -> None:
        """See Watch: what is to become of boards in this round becomes of them now."""
        self.on_round(round_)
        for fault in self._due.get(round_, ()):
            self.befall(fault)

    def befall(self, fault: f.Fault) -> None:
        """Let a fault happen."""
        board = self.boards[fault.board]
        if fault.what == "leave":
            board.leave("it leaves")
        elif fault.what == "return" and not board.alive:
            board.start()
        elif fault.what != "return":
            board.change(lambda model: f.apply(fault, model))

    def _to_board(self, name: str, route: int, header: bytes, payload: memoryview | bytes) -> None:
        board = self._by_name[name]

        def arrive() -> None:
            if board.alive and board.route == route:
                board.hear(header, payload)

        board.down.send(len(header), len(payload), arrive)


@contextmanager
def opened(
    scenario: Scenario, names: Sequence[str], models: Sequence[BoardModel], policy_name: str, folder: Path | None,
    declared: Mapping[str, object], due: Mapping[int, Sequence[f.Fault]],
) -> Iterator[World]:  # fmt: skip
    """Give a world whose run is kept in `folder`; None: nowhere. Raises PacelineError."""
    clock = Clock()
    entry, budget = policy(policy_name), scenario.budget_of(len(names))
    mixing = MixingSettings(slice=scenario.slice)
    run_id = f"{folder.parent.name}/{folder.name}" if folder is not None else f"simulated/{policy_name}"
    row = records.Run(
        run_id=clip(run_id), policy=policy_name, regime=regime_of(entry, REGIME), seed=scenario.seed,
        budget=budget, rounds=scenario.rounds, samples=scenario.samples, batch=scenario.batch,
        task=NAME, data_label="none: simulated", options={"minimum": scenario.minimum},
        energy_required=False, boards=len(names), fsync=False, declared=declared,
        mixing=Mixing.of(entry.name, mixing, budget, len(names)).row() if entry.kind == "mixing" else {},
    )  # fmt: skip
    rows = [records.Board(i, name) for i, name in enumerate(names)]
    task = TrivialTask(scenario.samples, scenario.seconds_per_sample)
    kind: type[InlineStore] = MemoryStore if folder is None else InlineStore
    if entry.kind == "mixing":
        kind = MemoryMixingStore if folder is None else InlineMixingStore
    with kind(folder or Path(), row, rows, task, lambda: clock.now_s) as store:
        yield World(scenario, names, models, policy_name, store, row, clock, due)


def simulate(world: World, policy_name: str, stopping: Callable[[], bool]) -> Outcome:
    """Run a world and return its figures."""
    finish = world.run(stopping)
    closed = world.machine.round_seconds
    tally = world.tally
    return outcome(policy_name, finish, closed, tally.rounds, tally.energy, tally.lost, tally.notes)
