# SPDX-License-Identifier: Apache-2.0
"""The link beside raw TCP and ZeroMQ in the clear: a small question and its answer, 1 and 10 MB one way, and 10 MB to
eleven boards at once, each a process of its own. 45 MB one way are in `bench_transfer`.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict

from paceline.errors import LinkError
from paceline.one_way import CHUNK_BYTES, CREDIT_BYTES, DEADLINE_S, KINDS, NONCE, Trial
from paceline.transfer import Sender
from paceline.wire import Chunk, Credit, Ping, decode, encode
from paceline_host import link as links
from paceline_host.bench_transfer import BOARD, TO_AGENT, TO_HOST, InTheClear, run

BOARDS, FAN_BYTES = 11, 10_000_000
SIZES = (1_000_000, 10_000_000)
REPEATS, FAN_REPEATS = 9, 7
Row = tuple[str, str, list[float]]


def measure(say: Callable[[str], None], repeats: int = REPEATS, fan_repeats: int = FAN_REPEATS) -> Iterator[Row]:
    """Yield (name, unit, values) of each figure, and its ratio to raw TCP's median. Raises PacelineError."""
    say("link: there and back, and one way")
    kinds = range(len(KINDS))
    trials = [
        trial for _ in range(repeats)
        for trial in (
            *(Trial("ask", kind, size=64) for kind in kinds),
            *(Trial("both ways", kind, size=size) for size in SIZES for kind in kinds),
        )
    ]  # fmt: skip
    found: dict[str, dict[str, list[float]]] = {}
    for trial, seconds in run(say, trials):
        mega = f"{trial.size / 1e6:g} MB"
        names = ["64 B there and back"] if trial.what == "ask" else [f"{mega} {TO_AGENT}", f"{mega} {TO_HOST}"]
        for name, took_s in zip(names, seconds, strict=True):
            found.setdefault(name, {}).setdefault(KINDS[trial.kind], []).append(took_s)
    say(f"link: {FAN_BYTES / 1e6:g} MB to {BOARDS} boards")
    found[f"{FAN_BYTES / 1e6:g} MB to {BOARDS} boards"] = fan_out(say, fan_repeats)
    for name, by_kind in found.items():
        unit, times = ("us", 1e6) if name.startswith("64 B") else ("ms", 1e3)
        raw_s = statistics.median(by_kind[KINDS[0]])
        for kind, values in by_kind.items():
            yield f"{name}: {kind}", unit, [value * times for value in values]
        for kind in KINDS[1:]:
            yield f"{name}: {kind} / {KINDS[0]}", "x", [value / raw_s for value in by_kind[kind]]


def fan_out(say: Callable[[str], None], repeats: int) -> dict[str, list[float]]:
    """Return by kind the seconds until every board had everything."""
    host, boards = links.new_pair(), [links.new_pair() for _ in range(BOARDS)]
    keys = {f"{BOARD}-{i}": board.public for i, board in enumerate(boards)}
    trials = [Trial("to agent", kind, size=FAN_BYTES) for _ in range(repeats) for kind in range(len(KINDS))]
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with ExitStack() as life:
        plain = InTheClear("tcp://127.0.0.1:*", host, keys, say)
        life.callback(plain.close)
        curve = links.HostLink("tcp://127.0.0.1:*", host, keys, say)
        life.callback(curve.close)
        listener = life.enter_context(socket.create_server(("127.0.0.1", 0), backlog=BOARDS))
        listener.settimeout(DEADLINE_S)
        for board in boards:
            order = {
                "control": listener.getsockname(), "plain": plain.endpoint, "curve": curve.endpoint,
                "trials": [asdict(trial) for trial in trials], "host_key": host.public, "public": board.public,
                "secret": board.secret,
            }  # fmt: skip
            agent = subprocess.Popen([sys.executable, "-m", "paceline_agent.one_way_end"], stdin=subprocess.PIPE)
            life.callback(agent.wait)
            life.callback(agent.terminate)
            assert agent.stdin is not None
            agent.stdin.write(json.dumps(order).encode() + b"\n")
            agent.stdin.close()
        controls = []
        for _ in boards:
            control, _ = listener.accept()
            life.enter_context(control)
            control.settimeout(DEADLINE_S)
            controls.append(control)
        routes = {id(link): _greeted(link) for link in (plain, curve)}
        data = memoryview(os.urandom(FAN_BYTES))
        for number, trial in enumerate(trials):
            for control in controls:
                _hear(control)
            began_s = time.perf_counter()
            link = (None, plain, curve)[trial.kind]
            if link is None:
                for begin in range(0, len(data), CHUNK_BYTES):
                    for control in controls:
                        control.sendall(data[begin : begin + CHUNK_BYTES])
            else:
                _push(link, routes[id(link)], 2 * number, data)
            for control in controls:
                _hear(control)
            found[KINDS[trial.kind]].append(time.perf_counter() - began_s)
    return found


def _greeted(link: links.HostLink) -> list[bytes]:
    """Wait for the first message of every board; return their routes."""
    routes: list[bytes] = []
    end_s = time.monotonic() + DEADLINE_S
    while len(routes) < BOARDS:
        if time.monotonic() > end_s:
            raise LinkError(f"{len(routes)} of {BOARDS} of the benchmark's agents connected within {DEADLINE_S:g} s")
        link.poll(0.5)
        for arrival in link.receive():
            if isinstance(decode(arrival.header, (Ping,)), Ping) and arrival.route not in routes:
                routes.append(arrival.route)
    return routes


def _push(link: links.HostLink, routes: list[bytes], lease: int, data: memoryview) -> None:
    """Send to all, each under its own credit."""
    senders = {route: Sender(len(data), CHUNK_BYTES, CREDIT_BYTES) for route in routes}
    ready, end_s = list(routes), time.monotonic() + DEADLINE_S
    while True:
        for route in ready:
            for begin, end in senders[route].pieces():
                if not link.send_to(route, encode(Chunk(NONCE, lease, begin)), data[begin:end]):
                    raise LinkError("the link would not take what credit allows")
        if all(sender.done for sender in senders.values()):
            return
        if time.monotonic() > end_s:
            raise LinkError(f"the transfers did not end within {DEADLINE_S:g} s")
        link.poll(1.0)
        ready = []
        for arrival in link.receive():
            message = decode(arrival.header, (Credit,))
            if isinstance(message, Credit) and message.lease == lease:
                senders[arrival.route].granted(message.have, message.upto, time.monotonic())
                ready.append(arrival.route)


def _hear(control: socket.socket) -> None:
    if not control.recv(1):
        raise LinkError("an agent of the benchmark is gone")
