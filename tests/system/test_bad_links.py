# SPDX-License-Identifier: Apache-2.0
"""Real agents and a real daemon over a network that is bad in one way at a time, and healed: the run ends with the
models of an unbroken one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from paceline_host.journal import has_journal
from paceline_host.ledger import Ledger

from .fault_proxy import AT_ONCE, DOWN, UP, FaultProxy, Weather
from .fleet_tools import Bench, Declared, until
from .test_daemon import Daemon
from .test_resume import models

WITHIN_S = 60.0
# Two boards: what one loses the other gets as it is, and the sum of two has no order. A fault comes in the last round,
# so that nobody is away when a round is planned. The daemon's own pieces are larger.
RUN = {"rounds": 2, "budget": 24, "policies": ["equal"], "patience_s": 2.0, "chunk_bytes": 1 << 15}
TASK = {"ballast": 50_000}  # 200 kB, seven pieces, so that a link is at work for a while
DECLARED = Declared(speed=0.03)  # a round takes a second


class Line(Daemon):
    """A daemon with a board `a` behind a bad network, and a board `b` beside it."""

    def begin(self, proxy: FaultProxy) -> None:
        """Start all."""
        self.proxy = proxy
        for name in ("a", "b"):
            self.make_board(name)
        self.start()
        for name, endpoint in (("a", proxy.endpoint), ("b", self.endpoint)):
            self.agents[name] = self.bench.agent(name, endpoint, DECLARED, host_key="../h/keys/host.pub")

    def begin_run(self) -> str:
        """Submit a run; return its ticket."""
        experiment = self.bench.experiment("exp", RUN, task=TASK, fleet={"kind": "boards"})
        return self.ask("run", experiment, "--detach").out.strip()

    def watch(self, ticket: str, what: str, probe: Callable[[Ledger], object]) -> None:
        """Wait until a run's journal shows something."""

        def look() -> object:
            if not has_journal(self.home / "runs" / ticket / "equal"):
                return None
            with self.ledger(f"{ticket}/equal") as ledger:
                return probe(ledger)

        until(what, look, WITHIN_S)

    def ends(self, ticket: str) -> list[str | None]:
        """Wait for the end; return the models."""
        until(f"the end of {ticket}", lambda: self.state(ticket) in ("finished", "failed", "stopped"), WITHIN_S)
        assert self.state(ticket) == "finished", self.host.err
        return models(self.home / "runs" / ticket / "equal")


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with Bench(tmp_path_factory.mktemp("line")) as bench:
        made = Line(bench)
        with FaultProxy(made.endpoint) as proxy:
            made.begin(proxy)
            yield made


@pytest.fixture(scope="module")
def unbroken(line: Line) -> list[str | None]:
    return line.ends(line.begin_run())


def second_round(ledger: Ledger) -> bool:
    """Tell whether the last round is dealt and open."""
    return bool(ledger.slices(2))


def lost(ledger: Ledger) -> bool:
    """Tell whether board a has lost its work of the last round."""
    return any((c.board, c.verdict) == (0, "lost") for c in ledger.contributions(2))


STEADY = {
    "latency": Weather(latency_s=0.15),
    "bandwidth": Weather(bytes_per_s=200_000.0),
    "slices": Weather(slice_bytes=11),
}
HELD = {"black hole": frozenset((UP, DOWN)), "nothing to the host": frozenset((UP,)),
        "nothing from the host": frozenset((DOWN,))}  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.parametrize("fault", STEADY)
def test_a_slow_line_changes_no_model(line: Line, unbroken: list[str | None], fault: str) -> None:
    before, connections = dict(line.proxy.passed), line.proxy.connections
    line.proxy.set(STEADY[fault])
    try:
        assert line.ends(line.begin_run()) == unbroken
    finally:
        line.proxy.set(Weather())
    model_bytes = 4 * TASK["ballast"]
    assert all(line.proxy.passed[way] - before[way] > 2 * model_bytes for way in (UP, DOWN)), "it went elsewhere"
    assert line.proxy.connections == connections, "a slow line is no broken one"


@pytest.mark.in_turn
@pytest.mark.parametrize("fault", HELD)
def test_a_line_that_holds_everything_back_for_longer_than_patience_changes_no_model(
    line: Line, unbroken: list[str | None], fault: str
) -> None:
    ticket, connections = line.begin_run(), line.proxy.connections
    line.watch(ticket, "the last round", second_round)
    line.proxy.set(Weather(held=HELD[fault]))
    try:
        assert line.ends(ticket) == unbroken, "b does what a was to do"
        if UP in HELD[fault]:  # else its result comes, and only a waits in vain
            line.watch(ticket, "a's work to be lost", lost)
        until("a to give the connection up", lambda: line.proxy.connections > connections, WITHIN_S)
    finally:
        line.proxy.set(Weather())
    until("a to be there again", lambda: line.board("a")["state"] == "connected", WITHIN_S)


@pytest.mark.in_turn
@pytest.mark.parametrize("how", ["cut", "reset"])
def test_a_connection_that_breaks_changes_no_model(line: Line, unbroken: list[str | None], how: str) -> None:
    ticket, connections = line.begin_run(), line.proxy.connections
    line.watch(ticket, "the last round", second_round)
    assert getattr(line.proxy, how)() >= 1
    assert line.ends(ticket) == unbroken
    until("a to connect again", lambda: line.proxy.connections > connections, WITHIN_S)


# The proxy itself -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[FaultProxy, socket.socket, socket.socket]]:
    """Yield a proxy and both ends of a connection through it."""
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as far,
        FaultProxy(f"tcp://127.0.0.1:{far.getsockname()[1]}") as proxy,
    ):
        near = socket.create_connection(("127.0.0.1", int(proxy.endpoint.rsplit(":", 1)[1])), timeout=10.0)
        other, _ = far.accept()
        other.settimeout(10.0)
        until("the proxy to know it", lambda: proxy.connections == 1)
        with near, other:
            yield proxy, near, other


Pair = tuple[FaultProxy, socket.socket, socket.socket]


def test_what_was_held_back_comes_whole_and_in_order(pair: Pair) -> None:
    proxy, near, far = pair
    proxy.set(Weather(held=frozenset((UP,)), slice_bytes=7))
    near.sendall(bytes(range(200)))
    far.sendall(b"back")
    assert near.recv(AT_ONCE) == b"back", "one way is held, not the other"
    assert proxy.passed[UP] == 0
    proxy.set(Weather(slice_bytes=7))
    found = b""
    while len(found) < 200:
        part = far.recv(AT_ONCE)
        found += part
    assert found == bytes(range(200))


@pytest.mark.parametrize("how", ["cut", "reset"])
def test_a_broken_connection_is_broken_at_both_ends(pair: Pair, how: str) -> None:
    proxy, near, far = pair
    assert getattr(proxy, how)() == 1
    for end in (near, far):
        if how == "cut":
            assert end.recv(1) == b""
        else:
            with pytest.raises(ConnectionResetError):
                end.recv(1)
    assert proxy.connections == 1
