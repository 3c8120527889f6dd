# SPDX-License-Identifier: Apache-2.0
"""One seed: a run whose boards, links, disk and host have faults until all of them are healed, and then must finish."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from paceline import wire as w
from paceline.errors import PacelineError, RunError
from paceline_host import machine as m
from paceline_host import records
from paceline_host.epoch import next_epoch
from paceline_host.patience import Patience
from paceline_host.peers import Terms
from paceline_host.recovery import begun, recover, replay
from paceline_host.simulation.chaos import plan as p
from paceline_host.simulation.chaos.ddp import Ranks
from paceline_host.simulation.chaos.disk import Disk, Doom, HostDied
from paceline_host.simulation.chaos.faults import HAPPENS, heal, make_hostile
from paceline_host.simulation.chaos.hfl import Silos
from paceline_host.simulation.chaos.host import ChaosHost, ChaosStore
from paceline_host.simulation.chaos.pma import Averaging
from paceline_host.simulation.chaos.psl import Splitting
from paceline_host.simulation.chaos.setting import Setting
from paceline_host.simulation.chaos.wire import Bytes, Wire
from paceline_host.simulation.chaos.witness import Broken
from paceline_host.simulation.clock import Clock
from paceline_host.simulation.line import LinkModel

CHUNK_BYTES = w.CHUNK_FLOOR
CREDIT_BYTES = 2 * w.CHUNK_FLOOR
SETTLED = 7.0  # patiences after the last fault, from which on nothing may be lost any more
BOUND = 60.0  # patiences after the last fault, and rounds of the slowest board alone, in which the run must finish
SETTINGS: dict[str, Callable[[p.Plan, Clock], Setting]] = {
    "pma": Averaging,
    "ddp": Ranks,
    "psl": Splitting,
    "hfl": Silos,
}


@dataclass
class Verdict:
    """What came of a seed. `broken`: the promise that was not kept, "": all were."""

    plan: p.Plan
    broken: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    story: list[tuple[float, str]] = field(default_factory=list)
    lives: int = 0
    seconds: float = 0.0
    checks: int = 0
    ends: list[str] = field(default_factory=list)  # how the run ended, each time that it did
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        """All promises were kept."""
        return not self.broken


def run(plan: p.Plan) -> Verdict:
    """Let a seed happen."""
    memory = Path("/dev/shm")
    scratch = Path(tempfile.mkdtemp(prefix="paceline-chaos-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        return World(plan, scratch).run()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class World:
    """A run under faults. `saw` and the methods of `Ends` are what its host calls."""

    def __init__(self, plan: p.Plan, scratch: Path) -> None:
        self.plan, self.verdict = plan, Verdict(plan)
        self.clock = Clock()
        self.chance = Random(f"faults {plan.seed}")
        self.setting = SETTINGS[plan.regime](plan, self.clock)
        self.task = self.setting.task
        self.doom = Doom()
        self.disk = Disk(scratch, self.doom, Random(f"disk {plan.seed}"))
        self.scratch = scratch
        self.names = [f"board-{i}" for i in range(plan.boards)]
        link = LinkModel(plan.latency_s, plan.bytes_per_s)
        self.boards = [self.setting.board(i, name) for i, name in enumerate(self.names)]
        for board in self.boards:
            board.wire = Wire(self.clock, Random(f"wire {plan.seed} {board.number}"), link,
                              self._to_host(board.name), board.hear)  # fmt: skip
        self.witness = self.setting.witness(self.boards)
        for board in self.boards:
            board.on_step, board.on_hear = self.witness.board_stepped, self.witness.board_hears
        self.host: ChaosHost | None = None
        self.store: ChaosStore | None = None
        self.healed = False
        self.is_over = False
        if plan.hostile is not None:
            make_hostile(self, self.boards[plan.hostile])

    def _to_host(self, name: str) -> Callable[[int, bytes, Bytes], None]:
        def arrive(route: int, header: bytes, payload: Bytes) -> None:
            if self.host is not None:
                self.host.arrive(name, route, header, payload)

        return arrive

    # The whole ------------------------------------------------------------------------------------------------------

    def run(self) -> Verdict:
        """Run to the verdict."""
        clock, plan = self.clock, self.plan
        try:
            with self.disk.in_place():
                self.start_host()
                for board in self.boards:
                    clock.later(self.chance.uniform(0.0, 2.0), board.start)
                clock.later(self.chance.expovariate(1 / plan.every_s), self._fault)
                clock.at(plan.heal_s, self._heal)
                clock.at(plan.heal_s + SETTLED * plan.patience_s, self._settled)
                alone_s = plan.budget * plan.seconds_per_sample / min(plan.speeds)
                clock.run(lambda: self.is_over, plan.heal_s + BOUND * plan.patience_s + 2 * plan.rounds * alone_s)
                self.witness.finished(self.disk.folder)
        except Broken as broken:
            self.verdict.broken = str(broken)
        except RunError as error:
            phase = self.host.machine.phase if self.host is not None else "no host"
            self.verdict.broken = f"P7 liveness: {error} ({phase})"
        except Exception:
            self.verdict.broken = f"P8 bug: {traceback.format_exc()}"
        finally:
            self._close()
        self.verdict.seconds, self.verdict.checks = clock.now_s, self.witness.checks
        self.verdict.lives = self.disk.life + 1
        return self.verdict

    def tell(self, text: str, kind: str = "") -> None:
        self.verdict.story.append((self.clock.now_s, text))
        if kind:
            self.verdict.faults[kind] += 1

    # Lives of the host ----------------------------------------------------------------------------------------------

    def start_host(self) -> None:
        if self.host is not None or self.is_over:
            return
        try:
            self._bring_up()
        except HostDied:
            self.tell("the host dies while it starts")
            self._leave()
        except PacelineError as error:
            self._close()
            self.tell(f"the host cannot start: {error}")
            expected = self.disk.is_full or "sync" in str(error) or "Input/output" in str(error)
            self.witness.check(expected, f"P3 resume: the host cannot start: {error}")
            self._again()

    def _bring_up(self) -> None:
        plan, folder, clock = self.plan, self.disk.folder, self.clock
        folder.mkdir(parents=True, exist_ok=True)
        said: list[str] = []
        epoch = next_epoch(self.scratch)
        recovered = recover(folder, self.task, said.append) if begun(folder) else None
        if recovered is not None and recovered.finished:
            self.is_over = True
            return
        run = records.Run(
            run_id="chaos", policy=plan.policy, regime=plan.regime, seed=plan.seed, budget=plan.budget,
            rounds=plan.rounds, samples=plan.samples, batch=plan.batch, task="simulated", data_label="none: simulated",
            energy_required=False, boards=plan.boards, options={"minimum": plan.minimum},
            **self.setting.journaled(),
        )  # fmt: skip
        rows = [records.Board(i, name) for i, name in enumerate(self.names)]
        zero_s = clock.now_s - (recovered.clock_s if recovered is not None else 0.0)
        self.store = self.setting.store(self.disk, self.doom, run, rows, lambda: clock.now_s - zero_s, recovered)
        self.store.__enter__()
        heartbeat_s = Patience(plan.patience_s).waits["heartbeat_s"][0]
        terms = Terms(epoch, CHUNK_BYTES, CREDIT_BYTES, heartbeat_s, plan.patience_s)
        host = ChaosHost(clock, terms, self.names, self.store, self._to_board, self, self, self.doom, folder, zero_s)
        made, reopened = self.setting.planner(), None
        if recovered is not None:
            if made is not None:
                replay(made, folder)
            reopened = replace(recovered.machine, parts=host.files.left)
        facts = m.RunFacts(
            run="chaos", regime=plan.regime, task="simulated", options="{}", seed=plan.seed, rounds=plan.rounds,
            budget=plan.budget, samples=plan.samples, batch=plan.batch, manifest_sha256=self.task.digest,
            model_bytes=self.setting.model_bytes, patience_s=plan.patience_s, start_s=plan.start_s,
            chunk_bytes=CHUNK_BYTES, credit_bytes=CREDIT_BYTES, energy_needed=False,
        )  # fmt: skip
        machine = self.setting.machine(facts, made, self.names, self.store, reopened)
        self.host = host
        self.witness.begins(folder, epoch, said, machine)
        host.begin(machine)
        for board in self.boards:
            board.wire.host(listens=True)

    def _again(self) -> None:
        self.clock.later(self.chance.uniform(0.5, 2.0 if self.healed else 12.0), self.start_host)

    def _leave(self) -> None:
        """The host is no more: what it leaves is the next one's."""
        self.disk.crash()
        self._close()
        self.disk.forget(self.disk.life - 1)
        self._again()

    def _close(self) -> None:
        if self.host is not None:
            self.verdict.dropped += self.host.peers.dropped
            self.host.end()
        self.witness.ends()
        if self.store is not None:
            self.store.close()
        self.host = self.store = None
        for board in self.boards:
            board.wire.host(listens=False)

    def died(self) -> None:
        """See Ends."""
        self.tell(f"the host dies ({'power' if self.doom.power else 'killed'})")
        self._leave()

    def failed(self, why: str) -> None:
        """See Ends."""
        self.tell(f"the host ends: {why}")
        self.witness.check(self._disk_failed(why), f"P8 disk: {why}")
        self.doom.power = False
        self._leave()

    def _disk_failed(self, why: str) -> bool:
        return any(word in why for word in ("No space", "disk is full", "Input/output"))

    def ended(self, finish: m.Finish) -> None:
        """See Ends."""
        self.tell(f"the run ends: {finish.reason}")
        self.verdict.ends.append(finish.reason)
        if finish.ok:
            self.is_over = True
            self._close()
            return
        self.witness.check(not self.witness.healed, f"P7 liveness: the run ends without a fault: {finish.reason}")
        self._close()
        self._again()

    # What the host says and does ------------------------------------------------------------------------------------

    def _to_board(self, name: str, route: int, header: bytes, payload: Bytes) -> bool:
        board = self.boards[self.names.index(name)]
        self.witness.told(board.number, header)
        return board.wire.tell(route, header, bytes(payload))

    def saw(self, action: m.Action) -> None:
        """See Watch."""
        assert self.host is not None
        if isinstance(action, m.Note) and action.loud:
            self.tell(f"host: {action.detail}")
        self.witness.saw(action, self.host.machine)

    def planned(self, round_: int) -> None:
        """See Watch."""

    def stepped(self) -> None:
        """See Ends."""
        assert self.host is not None
        self.witness.stepped(self.host.machine, self.host.idle)

    def committed(self) -> None:
        """See Ends."""
        assert self.host is not None
        self.witness.committed()

    def hears(self, board: int, header: bytes) -> None:
        """See Ends."""
        self.witness.hears(board, header)

    def said(self, board: int) -> None:
        """See Ends."""
        self.witness.said(board)

    def heard(self, board: int, route: int, header: bytes, *, holds: bool) -> None:
        """See Ends."""
        assert self.host is not None
        session = self.host.peers.session(self.names[board])
        if self.boards[board].wire.is_alive(route):  # else the host finds out as soon as it answers
            self.witness.heard(board, session.nonce if session is not None else None, holds=holds)

    # Faults ---------------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        """Let one happen, and the next one later."""
        if self.healed or self.is_over:
            return
        kind = self.chance.choice(self.plan.kinds)
        if kind in HAPPENS:
            text = HAPPENS[kind](self, self.chance)
            if text:
                self.tell(f"{kind}: {text}", kind)
        self.clock.later(self.chance.expovariate(1 / self.plan.every_s), self._fault)

    def _heal(self) -> None:
        """From here on there are no faults."""
        self.tell("all faults are healed")
        self.healed = True
        self.doom.left = None
        self.disk.is_full = self.disk.sync_fails = False
        heal(self)
        self.start_host()

    def _settled(self) -> None:
        self.tell("nothing may be lost any more")
        self.witness.healed = True
