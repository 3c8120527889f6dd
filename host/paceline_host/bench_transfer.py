# SPDX-License-Identifier: Apache-2.0
"""45 MB one way: raw TCP, plain ZeroMQ and the link with CURVE, interleaved, between two processes of this machine.

`InTheClear` is for this benchmark alone: it shows what encryption costs. No setting of a host leads here.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict

from paceline.errors import LinkError, RunError
from paceline.keys import KeyPair
from paceline.one_way import DEADLINE_S, KINDS, Link, Place, Trial, ask_by, send_by, take_by
from paceline.one_way import trials as transfers
from paceline_host import link as links

BOARD = "bench"
TO_AGENT, TO_HOST = "host to agent", "agent to host"
APART = ", a processor each"  # behind either, where each end keeps to a processor of its own


class InTheClear(links.HostLink):
    def _new_socket(self, keys: KeyPair) -> links.Socket:
        return links._router(self._context, None)

    def _self_test(self, keys: KeyPair) -> None:
        """Nobody is refused here."""

    def _peer_of(self, frame: object) -> links.Peer | None:
        return links.Peer(board=BOARD)


class _OneBoard:
    """A host's link as the benchmark's halves want it: with one peer."""

    def __init__(self, link: links.HostLink) -> None:
        self._link = link
        self.poll = link.poll
        self.endpoint = link.endpoint

    def receive(self) -> Iterable[links.Arrival]:
        return self._link.receive()

    def send(self, header: bytes, payload: memoryview | bytes = b"") -> bool:
        return self._link.send(BOARD, header, payload)

    def greet(self) -> None:
        """Wait for the agent's first message."""
        end_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s:
            self._link.poll(0.5)
            for arrival in self._link.receive():
                self._link.adopt(BOARD, arrival.route)
                return
        raise LinkError(f"the benchmark's agent did not connect within {DEADLINE_S:g} s")


def measure(say: Callable[[str], None], repeats: int) -> dict[tuple[str, str], list[float]]:
    """Return the seconds of each trial by (kind, direction, with APART or without). Raises PacelineError."""
    found: dict[tuple[str, str], list[float]] = {}
    for trial, seconds in run(say, list(transfers(repeats))):
        for way, took_s in zip((TO_AGENT, TO_HOST), seconds, strict=True):
            found.setdefault((KINDS[trial.kind], way + (APART if trial.apart else "")), []).append(took_s)
    return found


def run(say: Callable[[str], None], trials: Sequence[Trial]) -> list[tuple[Trial, list[float]]]:
    """Return each trial with its seconds: to the agent and back, or of one question. Raises PacelineError."""
    host, board = links.new_pair(), links.new_pair()
    found: list[tuple[Trial, list[float]]] = []
    with ExitStack() as life:
        plain = InTheClear("tcp://127.0.0.1:*", host, {BOARD: board.public}, say)
        life.callback(plain.close)
        curve = links.HostLink("tcp://127.0.0.1:*", host, {BOARD: board.public}, say)
        life.callback(curve.close)
        listener = life.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(DEADLINE_S)
        agent = subprocess.Popen([sys.executable, "-m", "paceline_agent.one_way_end"], stdin=subprocess.PIPE)
        life.callback(agent.wait)
        life.callback(agent.terminate)
        order = {
            "control": listener.getsockname(), "plain": plain.endpoint, "curve": curve.endpoint,
            "trials": [asdict(trial) for trial in trials], "host_key": host.public,
            "public": board.public, "secret": board.secret,
        }  # fmt: skip
        assert agent.stdin is not None
        agent.stdin.write(json.dumps(order).encode() + b"\n")
        agent.stdin.close()
        control, _ = listener.accept()
        life.enter_context(control)
        control.settimeout(DEADLINE_S)
        control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ends: list[Link | None] = [None]
        for link in (plain, curve):
            end = _OneBoard(link)
            end.greet()
            ends.append(end)
        most = max(trial.size for trial in trials)
        sent, taken = os.urandom(most), bytearray(most)
        place = Place(0)
        life.callback(place.keep, False)
        for number, trial in enumerate(trials):
            place.keep(trial.apart)
            way = ends[trial.kind]
            if trial.what == "ask":
                found.append((trial, [ask_by(way, control, 2 * number)]))
                continue
            to_agent_s = send_by(way, control, 2 * number, memoryview(sent)[: trial.size])
            taken[::4096] = bytes(-(-most // 4096))  # what an earlier trial brought must not pass for this one's
            to_host_s = take_by(way, control, 2 * number + 1, memoryview(taken)[: trial.size])
            found.append((trial, [to_agent_s, to_host_s]))
            if memoryview(taken)[: trial.size] != memoryview(sent)[: trial.size]:
                raise RunError(f"{KINDS[trial.kind]}: what came back is not what was sent")
    return found
