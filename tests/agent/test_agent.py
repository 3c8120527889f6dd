# SPDX-License-Identifier: Apache-2.0
"""What an agent says of messages that it drops."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline import machine as m
from paceline.talk import Talk
from paceline.wire import Answer, Load, Message, Welcome, encode
from paceline_agent.agent import Agent
from paceline_agent.config import AgentConfig, HostSettings
from paceline_agent.link import Arrival


@pytest.mark.parametrize(
    ("message", "blamed"),
    [
        (Answer(7, 5, "stale", "this lease has ended", 0), False),  # its end was on the way meanwhile
        (Load(7, "run", "pma", "linear", "{}", 1, False), True),  # before any greeting
    ],
    ids=["stale", "out-of-phase"],
)
def test_ends_that_cross_are_not_the_hosts_fault(
    message: Message, blamed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = Agent(AgentConfig(HostSettings("tcp://127.0.0.1:1", ""), "b.key", "state"), tmp_path, Talk("agent"))
    agent._machine = m.AgentMachine(m.Identity("0", "machine", 1, 1 << 20, "none", False), lambda: 7)
    agent._machine.restart(0.0)
    if not blamed:
        header = encode(Welcome(7, 1, 1, 1 << 15, 1 << 16, 2.0, 30.0))
        agent._hear(Arrival(memoryview(header), memoryview(b"")))
    agent._hear(Arrival(memoryview(encode(message)), memoryview(b"")))
    assert ("the host broke the protocol" in capsys.readouterr().err) == blamed
