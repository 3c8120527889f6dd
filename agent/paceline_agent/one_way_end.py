# SPDX-License-Identifier: Apache-2.0
"""The agent's end of `paceline bench transfer` and `link`: a process of its own that takes and sends, as told on stdin.

`_InTheClear` is for this benchmark alone: what encryption costs can only be seen beside a link without it. No setting
of an agent leads here, and a host refuses such a peer.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from contextlib import ExitStack

from paceline.errors import LinkError
from paceline.keys import KeyPair
from paceline.one_way import DEADLINE_S, Link, Place, Trial, answer_by, send_by, take_by
from paceline.wire import Ping, encode
from paceline_agent import link as links


class _InTheClear(links.AgentLink):
    def _new_socket(self) -> links.Socket:
        dealer = super()._new_socket()
        dealer.curve_server = 0  # back to ZeroMQ's NULL mechanism
        return dealer


def main() -> int:
    """Read the host's orders from stdin, say hello on both links, then walk through the same trials as the host."""
    order = json.loads(sys.stdin.readline())
    keys, host_key = KeyPair(order["public"], order["secret"]), order["host_key"]
    with ExitStack() as life:
        control = life.enter_context(socket.create_connection(order["control"], DEADLINE_S))
        control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain = _InTheClear(order["plain"], keys, host_key)
        life.callback(plain.close)
        curve = links.AgentLink(order["curve"], keys, host_key)
        life.callback(curve.close)
        for link in (plain, curve):
            _greet(link)
        ways: tuple[Link | None, ...] = (None, plain, curve)
        trials = [Trial(**values) for values in order["trials"]]
        buffer = memoryview(bytearray(max(trial.size for trial in trials)))
        place = Place(1)
        for number, trial in enumerate(trials):
            place.keep(trial.apart)
            way = ways[trial.kind]
            if trial.what == "ask":
                answer_by(way, control, 2 * number)
                continue
            take_by(way, control, 2 * number, buffer[: trial.size])
            if trial.what == "both ways":
                send_by(way, control, 2 * number + 1, buffer[: trial.size])
    return 0


def _greet(link: links.AgentLink) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not link.send(encode(Ping(1, 0, 0))):
        if time.monotonic() > end_s:
            raise LinkError(f"the benchmark's host does not answer: {link.trouble}")
        link.poll(0.01)


if __name__ == "__main__":
    sys.exit(main())
