# SPDX-License-Identifier: Apache-2.0
"""A rank's group: by which address, on which port, and how each way in which it cannot form is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from paceline.errors import DataError, SettingsError
from paceline_agent.workers.ddp import device_of
from paceline_agent.workers.group import (
    Broken,
    Group,
    address_for,
    address_towards,
    broken_by,
    interface_of,
    is_loopback,
    need_consent,
)

HERE = "127.0.0.1"
NAMES = ["fast", "slow"]


def broken(action: Callable[[], object]) -> Broken:
    """Return how an action breaks the group."""
    with pytest.raises(Broken) as raised:
        action()
    return raised.value


def test_the_address_is_that_of_the_way_to_the_host() -> None:
    assert address_towards("tcp://127.0.0.1:5555") == HERE
    assert interface_of(HERE) == "lo"
    assert interface_of("127.0.1.1") == "lo"  # whatever the host's own name is resolved to
    assert broken(lambda: address_towards("tcp://no-such-host.invalid:1")).kind == "route"
    assert broken(lambda: interface_of("192.0.2.77")).kind == "interface"


def test_off_loopback_plain_collectives_need_consent() -> None:
    assert is_loopback("127.0.1.1")
    need_consent(HERE, False)
    need_consent("192.0.2.1", True)
    with pytest.raises(DataError, match=r"over 192.0.2.1; set run.allow_plain_collectives = true"):
        need_consent("192.0.2.1", False)


def test_a_rank_alone_stays_on_loopback_and_so_needs_no_consent() -> None:
    assert address_for(1, "tcp://no-such-host.invalid:1") == HERE
    assert broken(lambda: address_for(2, "tcp://no-such-host.invalid:1")).kind == "route"


def test_a_collective_that_waited_in_vain_is_told_apart_from_one_that_failed() -> None:
    source = "[/build/gloo/transport/tcp/unbound_buffer.cc:129] "
    late = broken_by(RuntimeError(f"{source}Timed out waiting 3000ms for send operation to complete"), 3.0)
    assert (late.kind, str(late)) == ("late", "waited 3 s for another rank's part of the step")
    advice = "This is typically caused by a remote worker crashing. GLHF! \N{ROCKET}\nmore"
    failed = broken_by(RuntimeError(f"{source}Connection closed by peer [127.0.0.1]:4711. {advice}"), 3.0)
    assert (failed.kind, str(failed)) == (
        "collective", "a collective failed: Connection closed by peer [127.0.0.1]:4711",
    )  # fmt: skip
    version = broken_by(RuntimeError("x 1.2.3 failed\x1b[31m. errno: 7."), 3.0)
    assert str(version) == "a collective failed: x 1.2.3 failed [31m. errno: 7"


def test_each_store_takes_a_port_that_is_free_at_its_address_alone() -> None:
    one, two = Group(0, NAMES, HERE, 5.0), Group(0, NAMES, HERE, 5.0)
    ports = {one.open(), two.open()}
    assert len(ports) == 2
    for port in ports:
        socket.create_connection((HERE, port), 5.0).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), 5.0)
    one.close()
    two.close()


def test_an_address_that_is_not_here_cannot_hold_a_store() -> None:
    found = broken(Group(0, NAMES, "192.0.2.77", 1.0).open)
    assert (found.kind, found.blamed) == ("store", [0])
    assert "192.0.2.77" in str(found)


def test_a_store_that_cannot_be_reached_is_the_fault_of_who_cannot() -> None:
    with socket.socket() as taken:
        taken.bind((HERE, 0))  # and does not listen
        found = broken(lambda: Group(1, NAMES, HERE, 1.0).find(HERE, taken.getsockname()[1]))
    assert (found.kind, found.blamed) == ("unreachable", [1])
    assert "cannot reach the store of fast at 127.0.0.1:" in str(found)


def test_a_rank_that_does_not_come_is_named_when_the_patience_ends() -> None:
    group = Group(0, NAMES, HERE, 0.5)
    group.open()
    found = broken(lambda: group.meet({"torch": "2.4"}))
    assert (found.kind, found.blamed) == ("meeting", [1])
    assert "slow" in str(found)
    group.close()


@pytest.mark.parametrize(
    ("key", "ours", "theirs"), [("torch", "2.4", "2.5"), ("model", "ab12", "cd34"), ("dtype", "float32", "float64")]
)
def test_ranks_that_differ_are_named_before_any_collective(key: str, ours: str, theirs: str) -> None:
    first, second = Group(0, NAMES, HERE, 10.0), Group(1, NAMES, HERE, 10.0)
    port = first.open()
    found: list[Broken] = []

    def come() -> None:
        second.find(HERE, port)
        found.append(broken(lambda: second.meet({"same": "s", key: theirs})))

    other = threading.Thread(target=come)
    other.start()
    found.append(broken(lambda: first.meet({"same": "s", key: ours})))
    other.join()
    for one in found:
        assert (one.kind, one.blamed) == ("different", [1])
        assert f"slow has {key} {theirs}, fast {ours}" in str(one)
    first.close()
    second.close()


def test_a_board_without_a_gpu_refuses_nccl_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device_of("gloo") == "cpu"
    with pytest.raises(
        SettingsError, match=r'run.backend = "nccl": torch \S+ finds no CUDA GPU on this board; expected'
    ):
        device_of("nccl")
