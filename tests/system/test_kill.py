# SPDX-License-Identifier: Apache-2.0
"""Processes killed with SIGKILL at bad moments: every sample is counted once, or the run says why not."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

from paceline.core import permutation
from paceline_host.ledger import Ledger

from .fleet_tools import Bench, Declared, command_line, endpoint_of, mid_round, places_of, until

VICTIM_AGENT, VICTIM_TRAINER = "milk-v-mars", "milk-v-jupiter"  # the slowest two: at work when others are done
ROUNDS = 4


def test_eleven_boards_lose_an_agent_and_a_trainer_and_no_sample(bench: Bench) -> None:
    experiment = bench.experiment(
        "eleven",
        {"rounds": ROUNDS, "budget": 1870, "seed": 3, "policies": ["equal"]},
        task={"name": "linear", "batch": 8, "samples": 3000},  # so a round crosses from one epoch into the next
        fleet={"profile": "eleven-boards"},
    )
    host = bench.host(experiment)
    run = "eleven-001/equal"
    bench.watch(run, "round 1 to close", lambda ledger: any(r.closed_s is not None for r in ledger.rounds()), host)
    with Ledger(bench.folder / "runs" / run) as ledger:
        boards = {board.name: board for board in ledger.boards()}
    agents = {name: board.agent_pid for name, board in boards.items() if board.agent_pid is not None}
    trainers = {name: board.trainer_pid for name, board in boards.items() if board.trainer_pid is not None}
    assert len(agents) == len(trainers) == 11
    assert len({*agents.values(), *trainers.values()}) == 22, "each is a process of its own"
    assert all("paceline_agent run --config" in command_line(pid) for pid in agents.values())
    assert all("paceline_agent.trainer" in command_line(pid) for pid in trainers.values())

    at_work = [boards[VICTIM_AGENT].board, boards[VICTIM_TRAINER].board]
    bench.watch(run, "the middle of round 2", lambda ledger: mid_round(ledger, 2, at_work), host)
    os.kill(agents[VICTIM_AGENT], signal.SIGKILL)
    os.kill(trainers[VICTIM_TRAINER], signal.SIGKILL)

    assert host.ends() == 0, host.err
    until("the dead agent's trainer to end", lambda: not command_line(trainers[VICTIM_AGENT]))
    assert bench.left() == {}
    assert f"{VICTIM_AGENT}: its agent process ended by SIGKILL" in host.err
    assert f"{VICTIM_TRAINER}: trainer" in host.err
    with Ledger(bench.folder / "runs" / run) as ledger:
        assert ledger.verify().faults == ()
        assert [r.closed_s is not None for r in ledger.rounds()] == [True] * ROUNDS
        assert {c.board for c in ledger.contributions(2) if c.verdict in ("lost", "failed")} == set(at_work)
        assert any(s.redealt_from is not None for s in ledger.slices(2))
        for number in range(1, ROUNDS + 1):
            assert counted(ledger, number) == expected(ledger, number)
        assert back_at_work(ledger, boards[VICTIM_TRAINER].board), "its agent started another trainer"
        assert ledger.boards()[boards[VICTIM_TRAINER].board].trainer_pid not in (None, trainers[VICTIM_TRAINER])


def counted(ledger: Ledger, number: int) -> Counter[tuple[int, int]]:
    """Rebuild what a round counted, each (epoch, sample), from slices and accepted contributions alone."""
    ranges = {s.index: s.ranges for s in ledger.slices(number)}
    found: Counter[tuple[int, int]] = Counter()
    for contribution in ledger.contributions(number, "accepted"):
        for epoch, begin, end in ranges[contribution.slice]:
            order = permutation(ledger.run.seed, epoch, ledger.run.samples)
            found.update((epoch, int(order[position])) for position in range(begin, end))
    return found


def expected(ledger: Ledger, number: int) -> Counter[tuple[int, int]]:
    """Return what a round must count, from the run's seed, budget and sample count alone: each exactly once."""
    run = ledger.run
    orders = {epoch: permutation(run.seed, epoch, run.samples) for epoch, _ in places_of(run, number)}
    return Counter((epoch, int(orders[epoch][position])) for epoch, position in places_of(run, number))


def back_at_work(ledger: Ledger, board: int) -> bool:
    """Tell whether a board did a slice after round 2."""
    return any(c.board == board and c.round > 2 for c in ledger.contributions(verdict="accepted"))


def test_a_run_whose_boards_are_all_killed_ends_with_one_sentence(bench: Bench) -> None:
    """One agent dies before it is ever ready, so the run starts without it; then the other one dies at work."""
    bench.make_keys("first", "second")
    experiment = bench.experiment(
        "alone",
        {"rounds": 3, "budget": 200, "minimum": 100, "patience_s": 2.0, "policies": ["time"]},
        fleet={"kind": "boards", "keys": "keys", "start_s": 2.5},
    )
    host = bench.host(experiment)
    endpoint = endpoint_of(host)
    unready = bench.agent("second", endpoint)
    trainer = until("the second agent to start its trainer", lambda: trainer_of(bench, unready.pid))
    unready.signal(signal.SIGKILL)
    until("its trainer to follow", lambda: not command_line(trainer))

    first = bench.agent("first", endpoint, Declared(speed=0.01))
    run = "alone-001/time"
    bench.watch(run, "a plan", lambda ledger: bool(ledger.slices(1)), host)
    with Ledger(bench.folder / "runs" / run) as ledger:
        assert [s.board for s in ledger.slices(1)] == [0]
    first.signal(signal.SIGKILL)

    assert host.ends() == 9, host.err
    assert "starting without second: not ready" in host.err
    assert "first: no sign of life" in host.err
    assert "no board is left; waiting 2 s for one to come back" in host.err
    assert "no board came back within 2 s" in host.err
    with Ledger(bench.folder / "runs" / run) as ledger:
        assert ledger.run.ended is not None
        assert ledger.run.ended["reason"] == "no board came back within 2 s"
        assert ledger.verify().faults == ()


def trainer_of(bench: Bench, agent: int) -> int:
    """Return the pid of an agent's trainer child; 0: there is none."""
    for pid in bench.left():
        with suppress(OSError):  # it may end meanwhile
            status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
            if int(status.rpartition(") ")[2].split()[1]) == agent:
                return pid
    return 0
