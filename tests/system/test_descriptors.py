# SPDX-License-Identifier: Apache-2.0
"""A host that runs out of file descriptors in the middle of a run: it goes on, or ends with a sentence."""

from __future__ import annotations

import resource
import socket
from contextlib import ExitStack, suppress

import pytest

from .fleet_tools import Bench, Declared, endpoint_of

OK, RUN, STORAGE = 0, 9, 10


@pytest.mark.parametrize("limit", [8, 20])
def test_a_host_without_descriptors_goes_on_or_ends_with_one_sentence(bench: Bench, limit: int) -> None:
    """20 are enough for the host to end of itself while libzmq still reports each connection that it cannot take."""
    bench.make_keys("a")
    host = bench.host(bench.experiment("few", {"rounds": 40, "budget": 60, "policies": ["equal"]}), "--quiet")
    endpoint = endpoint_of(host)
    bench.agent("a", endpoint, Declared(speed=4.0))
    bench.watch("few-001/equal", "a round", lambda ledger: len(ledger.rounds()) >= 2, host)
    resource.prlimit(host.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    ip, port = endpoint.removeprefix("tcp://").split(":")
    with ExitStack() as strangers:
        for _ in range(3):
            with suppress(OSError):
                strangers.enter_context(socket.create_connection((ip, int(port)), timeout=1.0))
        status = host.ends()
    assert status in (OK, RUN, STORAGE), host.err
    assert "Traceback" not in host.err
    if status != OK:
        assert "Too many open files" in host.err
        assert host.err.splitlines()[-1].endswith(f"go on with: paceline resume {bench.folder / 'runs' / 'few-001'}")
