# SPDX-License-Identifier: Apache-2.0
"""Runs whose processes are killed and stopped at random: `python -m tests.system.kills [--kills 100] [--seed 1]`.

Host, agents and trainers are real; each signal, and when it comes, is drawn from a seed. A killed host is resumed, a
killed agent started anew, as their services would; what is stopped is let go on. In the end the run must have what an
unbroken one has. What happens in between depends on the machine's pace too, so a seed repeats the kills, not the fate.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from paceline_host.journal import has_journal
from paceline_host.ledger import Ledger
from paceline_host.records import Contribution

from .conftest import write_pictures
from .fleet_tools import Bench, Program
from .kill_checks import REGIMES, Regime
from .test_kill import trainer_of
from .test_resume import KILLED, counted

PATIENCE_S = 4.0
WITHIN_S = 240.0  # a run with all its kills; far above what any has taken
LOOK_S = 0.02
LIVES = 15  # of a host; a run that comes to no end in so many has failed
RUN_FAILED = 9
ALONE = ("no board came back", "no board was ready", "no board is ready")  # sentences after which a run is resumed


@dataclass(frozen=True)
class Blow:
    """One signal. `at_work`: its time counts from when a round is open, not from the blow before."""

    victim: str  # host, agent or trainer
    board: str
    number: signal.Signals
    after_s: float
    at_work: bool
    pause_s: float  # until SIGCONT, or until it is started again


def blows(regime: str, seed: int, many: int) -> list[Blow]:
    """Draw what happens to a run."""
    draw, kind = random.Random(f"{regime} {seed}"), REGIMES[regime]
    victims = ("host",) if seed % 3 == 0 else ("host", "host", "agent", "trainer")  # so no board is lost in a third
    found = []
    for _ in range(many):
        stop = draw.random() < 0.25
        found.append(
            Blow(
                draw.choice(victims), draw.choice(kind.boards),
                signal.SIGSTOP if stop else signal.SIGKILL, draw.uniform(0, kind.lasts_s), draw.random() < 0.75,
                draw.uniform(0, 2 * PATIENCE_S if stop else 2.0),
            )
        )  # fmt: skip
    return found


@dataclass
class Fight:
    """A run, its boards, and what has been done to them."""

    bench: Bench
    kind: Regime
    pictures: Path
    story: list[str] = field(default_factory=list)
    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)  # of the host, when it was killed
    kept: set[Contribution] = field(default_factory=set)
    agents: dict[str, Program] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    later: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    lives: int = 0

    def __post_init__(self) -> None:
        self.bench.make_keys(*self.kind.boards)
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        fleet = {"kind": "boards", "keys": "keys", "listen": self.endpoint, "start_s": 60.0}
        run = {**self.kind.run, "patience_s": PATIENCE_S}
        data = f'[data]\nfolder = "{self.pictures}"\n' if self.kind.pictures else ""
        self.file = self.bench.experiment("exp", run, task=self.kind.task, fleet=fleet, more=data + self.kind.more)
        self.folder = self.bench.folder / "runs" / "exp-001" / self.kind.policy
        self._numbers = count()
        self.begin_host()
        self.host.says("listening on")  # an agent that finds nobody waits for ten seconds
        for name in self.kind.boards:
            self.begin_agent(name)

    def begin_agent(self, name: str) -> None:
        """Start a board's agent, for the first time or anew."""
        config = self.bench.write_agent(name, self.endpoint, self.kind.declared[name])
        if self.kind.pictures:
            config.write_text(f'data_dir = "{self.pictures}"\n' + config.read_text(encoding="utf-8"), encoding="utf-8")
        number = len(self.bench.programs)
        self.agents[name] = self.bench.start(f"{name}-{number}", "paceline-agent", "run", "--config", config)

    def begin_host(self) -> None:
        """Start the host: the run, or its next life."""
        self.lives += 1
        assert self.lives <= LIVES, f"no end after {LIVES} lives of the host"
        runs = self.bench.folder / "runs"
        argv: list[str | Path] = (
            ["resume", runs / "exp-001"] if has_journal(self.folder) else ["run", self.file, "--runs-dir", runs]
        )
        if argv[0] == "run" and runs.exists():  # killed before there was anything to take up
            runs.rename(self.bench.folder / f"nothing-{self.lives}")
        self.host = self.bench.start(f"host-{len(self.bench.programs)}", "paceline", *argv)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Have something done later."""
        heapq.heappush(self.later, (time.monotonic() + seconds, next(self._numbers), act))

    def tend(self) -> bool:
        """Do what is due; start anew what has ended. Tell whether the run is over."""
        while self.later and self.later[0][0] <= time.monotonic():
            heapq.heappop(self.later)[2]()
        for name, agent in self.agents.items():
            if agent.process.poll() is not None and not self.later:  # by itself; who was killed is in `later`
                self.begin_agent(name)
        status = self.host.process.poll()
        if status is None or status == KILLED:  # whoever killed it starts it again
            return False
        if status == RUN_FAILED and any(text in self.host.err for text in ALONE):
            self.story.append(f"the run ended for want of boards: {self.host.err.splitlines()[-1]}")
            self.begin_host()
            return False
        assert status == 0, f"the host ended with {status}:\n{self.host.err[-2000:]}"
        return True

    def at_work(self) -> bool:
        """Tell whether a round is open and dealt."""
        if not has_journal(self.folder):
            return False
        with Ledger(self.folder) as ledger:
            return ledger.run.ended is None and any(
                ledger.slices(row.round) for row in ledger.rounds() if row.closed_s is None
            )

    def strike(self, blow: Blow) -> None:
        """Send a signal, and see to it that the victim goes on later; nothing where there is no victim."""
        program = self.host if blow.victim == "host" else self.agents[blow.board]
        if program.process.poll() is not None or program.pid in self.stopped:
            return
        pid = trainer_of(self.bench, program.pid) if blow.victim == "trainer" else program.pid
        if not pid or pid in self.stopped:
            return
        _send(pid, blow.number)
        self.done[blow.victim, blow.number.name] += 1
        what = blow.victim if blow.victim == "host" else f"{blow.victim} of {blow.board}"
        self.story.append(f"{blow.number.name} to the {what}, for {blow.pause_s:.1f} s; {self.phase()}")
        if blow.number == signal.SIGSTOP:
            self.stopped.add(pid)
            self.after(blow.pause_s, lambda: self._go_on(pid))
        elif blow.victim == "host":
            program.process.wait()
            self.phases[self.phase()] += 1
            self._nothing_lost()
            self.after(blow.pause_s, self.begin_host)
        elif blow.victim == "agent":
            self.after(blow.pause_s, lambda: self._again(blow.board))

    def let_all_go(self) -> None:
        """Leave nothing stopped; what was counted must be counted still."""
        for pid in list(self.stopped):
            self._go_on(pid)
        self._nothing_lost()

    def _go_on(self, pid: int) -> None:
        self.stopped.discard(pid)
        _send(pid, signal.SIGCONT)

    def _again(self, name: str) -> None:
        if self.agents[name].process.poll() is not None:
            self.begin_agent(name)

    def _nothing_lost(self) -> None:
        now = counted(self.folder)
        assert self.kept <= now, f"what was counted did not stay counted: {self.kept - now}"
        self.kept = now

    def phase(self) -> str:
        """Return where the run is, by its journal."""
        if not has_journal(self.folder):
            return "before the journal"
        with Ledger(self.folder) as ledger:
            if ledger.run.ended is not None:
                return "after the end"
            open_rounds = [row for row in ledger.rounds() if row.closed_s is None]
            if not open_rounds:
                return "between rounds" if ledger.rounds() else "boards gather"
            number = open_rounds[0].round
            left = {s.index for s in ledger.slices(number)} - {s.redealt_from for s in ledger.slices(number)}
            done = left & {c.slice for c in ledger.contributions(number, "accepted")}
            steps = len(ledger.steps(number))
            if steps:
                return "a round is open, steps are committed"
            return "a round is open, " + ("no result" if not done else "all results" if done == left else "results")


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def fight(regime: str, seed: int, many: int, folder: Path, pictures: Path, whole: Path | None) -> Fight:
    """Run once under the blows of a seed, and check what it has left. Raises AssertionError with the whole story."""
    kind = REGIMES[regime]
    end_s = time.monotonic() + WITHIN_S
    with Bench(folder) as bench:
        under_way = Fight(bench, kind, pictures)
        todo = blows(regime, seed, many)
        try:
            due_s: float | None = None
            while not under_way.tend():
                assert time.monotonic() < end_s, f"no end in {WITHIN_S:g} s: {under_way.phase()}\n{_tails(bench)}"
                time.sleep(LOOK_S)
                if not todo:
                    continue
                if due_s is None and (not todo[0].at_work or under_way.at_work()):
                    due_s = time.monotonic() + todo[0].after_s
                if due_s is not None and time.monotonic() >= due_s:
                    under_way.strike(todo.pop(0))
                    due_s = None
            under_way.let_all_go()
            kind.check(under_way.folder, pictures, whole)
            for program in bench.programs:
                assert "Traceback" not in program.err, f"{program.name}:\n{program.err[-3000:]}"
        except AssertionError as error:
            story = "\n  ".join(under_way.story)
            raise AssertionError(f"regime {regime}, seed {seed}:\n  {story}\n{error}") from error
    return under_way


def _tails(bench: Bench) -> str:
    return "\n".join(f"{program.name}:\n{program.err[-800:]}" for program in bench.programs[-6:])


# The soak ------------------------------------------------------------------------------------------------------------


def soak(regime: str, seed: int, kills: int, home: Path, pictures: Path) -> tuple[list[Fight], list[str]]:
    """Run one seed after the other until so many signals have been sent; return what was done, and the faults."""
    done: list[Fight] = []
    faults: list[str] = []
    try:
        whole = fight(regime, 0, 0, home / f"{regime}-whole", pictures, None).folder
        while sum(sum(one.done.values()) for one in done) < kills and len(faults) < 5:
            folder = home / f"{regime}-{seed}"
            try:
                done.append(fight(regime, seed, REGIMES[regime].blows, folder, pictures, whole))
                said = "; ".join(done[-1].story)
            except AssertionError as error:
                faults.append(f"{error}\n  its folder: {folder}")
                said = faults[-1]
            print(f"{regime}, seed {seed}: {said}", flush=True)
            seed += 1
    except AssertionError as error:
        faults.append(f"without any kill: {error}")
    return done, faults


def main(argv: Sequence[str] | None = None) -> int:
    """Soak all regimes, two at a time; print what was killed. 1: a run has not come to what it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="over all regimes together")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of each regime's first run")
    parser.add_argument("--regimes", nargs="+", choices=REGIMES, default=list(REGIMES), metavar="NAME")
    given = parser.parse_args(argv)
    home = Path(tempfile.mkdtemp(prefix="paceline-kills-"))
    pictures = home / "pictures"
    pictures.mkdir()
    write_pictures(pictures)
    each = -(-given.kills // len(given.regimes))
    with ThreadPoolExecutor(2) as pool:
        soaked = list(pool.map(lambda name: soak(name, given.seed, each, home, pictures), given.regimes))
    phases: Counter[str] = Counter()
    for name, (fights, _) in zip(given.regimes, soaked, strict=True):
        done = sum((one.done for one in fights), Counter[tuple[str, str]]())
        phases += sum((one.phases for one in fights), Counter[str]())
        what = ", ".join(f"{victim} {number} {times}" for (victim, number), times in sorted(done.items()))
        print(f"{name}: {len(fights)} runs, {sum(done.values())} signals: {what}")
    print("hosts were killed while:", ", ".join(f"{phase} {times}" for phase, times in phases.most_common()))
    faults = [fault for _, found in soaked for fault in found]
    print(f"{len(faults)} faults")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
