# SPDX-License-Identifier: Apache-2.0
"""A daemon that is killed at every point of a run, and started again: its boards live on, and the end is that of an
unbroken run. One folder and one set of agents serve many points, as they would serve many days.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from .fleet_tools import Bench, Program, until
from .test_daemon import Daemon
from .test_resume import BOARDS, KILLED, MORTAL, RUN, chosen, counted, models

GROUPS = 3  # side by side; most of the time is spent waiting for connections
DONE = ("finished", "failed", "stopped")


class MortalDaemon(Daemon):
    """A daemon that dies at a chosen point, with three boards that outlive it."""

    def begin(self) -> None:
        """Make the boards and start their agents."""
        self.pts = self.bench.folder / "points"
        for name, declared in BOARDS.items():
            self.make_board(name)
            self.agents[name] = self.bench.agent(name, self.endpoint, declared, host_key="../h/keys/host.pub")
        self.plan = self.bench.experiment("exp", RUN, fleet={"kind": "boards"})

    def live(self, target: str) -> Program:
        """Start the daemon as a process that is to die at `target`."""
        self.pts.unlink(missing_ok=True)
        name = f"daemon-{len(self.bench.programs)}"
        self.host = self.bench.start_python(name, MORTAL, target, self.pts, "host", "--config", "h/host.toml")
        return self.host

    def tickets(self) -> set[str]:
        """Return the names of all tickets."""
        return {path.parent.name for path in (self.home / "runs").glob("*/ticket.toml")}

    def submit_once(self) -> str:
        """Submit the experiment until a daemon has it on its disk; return the ticket."""
        before = self.tickets()

        def ask() -> str:
            self.bench.call("paceline", "run", self.plan, "--host", "h", "--detach")
            return next(iter(self.tickets() - before), "")

        return until("a ticket", ask)

    def done(self, ticket: str) -> bool:
        """Tell whether a ticket is over, as its file says."""
        return self.state(ticket) in DONE


@contextmanager
def mortal_daemon(folder: Path) -> Iterator[MortalDaemon]:
    """Bring up agents; nothing is left in the end."""
    with Bench(folder) as bench:
        daemon = MortalDaemon(bench)
        daemon.begin()
        yield daemon


def killed_at(daemon: MortalDaemon, point: str) -> list[str | None]:
    """Let a run begin whose daemon dies at a point, let the next daemon end it; return the models."""
    dying = daemon.live(point)
    dying.says("listening on")
    before = daemon.tickets()

    daemon.bench.call("paceline", "run", daemon.plan, "--host", "h", "--detach")  # may find nobody to answer
    what = f"the daemon to die at {point}"
    until(what, lambda: dying.process.poll() is not None, 90.0)  # boards try again after up to 16 s
    assert dying.ends() == KILLED, f"{point}:\n{dying.err}"
    assert daemon.pts.read_text(encoding="utf-8") == f"{point}\n"
    found = daemon.tickets() - before
    kept = {ticket: counted(daemon.home / "runs" / ticket / "equal") for ticket in found}
    daemon.live("NEVER").says("listening on")
    ticket = next(iter(found)) if found else daemon.submit_once()
    until(f"{ticket} to be over", lambda: daemon.done(ticket), 90.0)
    daemon.host.process.terminate()
    assert daemon.host.ends() == 0, daemon.host.err
    assert daemon.state(ticket) == "finished", daemon.host.err
    run = daemon.home / "runs" / ticket / "equal"
    assert kept.get(ticket, set()) <= counted(run), "what was counted did not stay counted"
    return models(run)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str | None]]:
    """Return the points that a daemon passes with one run, and the models."""
    with mortal_daemon(tmp_path_factory.mktemp("unbroken")) as daemon:
        daemon.live("LIST").says("listening on")
        ticket = daemon.submit_once()
        until("the run to be over", lambda: daemon.done(ticket))
        points = daemon.pts.read_text(encoding="utf-8").split()
        return points, models(daemon.home / "runs" / ticket / "equal")


@pytest.mark.timeout(900)
def test_killed_at_every_write_and_after_every_message_a_daemon_takes_up_its_run(
    unbroken: tuple[list[str], list[str | None]], tmp_path: Path
) -> None:
    points, wanted = unbroken
    kinds = {point.rpartition(":")[0] for point in points}
    assert {
        "commit-StoreResult",
        "committed-FinishRound",
        "ticket",
        "said:queued",
        "heard:delivery",
        "said:answer",
    } <= kinds
    tried = chosen(points)

    def group(number: int) -> list[str]:
        faults: list[str] = []
        mine: Sequence[str] = tried[number::GROUPS]
        with mortal_daemon(tmp_path / f"group-{number}") as daemon:
            for point in mine:
                try:
                    got = killed_at(daemon, point)
                except AssertionError as error:
                    said = [f"{name}: {agent.err[-300:]}" for name, agent in daemon.agents.items()]
                    return [*faults, "\n".join([f"{point}: {error}", daemon.host.err[-900:], *said])]
                if got != wanted:
                    faults.append(f"{point}: other models: {got} instead of {wanted}")
        return faults

    with ThreadPoolExecutor(GROUPS) as pool:
        faults = [text for found in pool.map(group, range(GROUPS)) for text in found]
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults)
