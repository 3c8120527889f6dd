# SPDX-License-Identifier: Apache-2.0
"""Keys that knock at a daemon: listed, accepted, rejected, revoked, each with what the board at the other end sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline_host.commands import program

from .fleet_tools import Bench, Program, until
from .test_daemon import Daemon


@pytest.fixture
def daemon(bench: Bench) -> Daemon:
    return Daemon(bench)


def boards(daemon: Daemon, *argv: str | Path) -> Program:
    return daemon.bench.call("paceline", "boards", *argv, "--host", "h")


def knocked(daemon: Daemon) -> list[str]:
    """Return the fingerprints of those who knocked and are not decided upon."""
    listed = boards(daemon, "pending", "--json")
    assert listed.ends() == 0, listed.err
    return [each["fingerprint"] for each in json.loads(listed.out)["pending"]]


@pytest.mark.in_turn
def test_a_key_that_knocked_is_kept_out_let_in_and_withdrawn_by_command(daemon: Daemon) -> None:
    daemon.make_board("pi", admitted=False)
    daemon.start()
    assert daemon.agent("pi").ends() == 5
    (print_,) = knocked(daemon)
    rejected = boards(daemon, "reject", print_)
    assert rejected.ends() == 0, rejected.err
    assert knocked(daemon) == [], "it is not asked about again"

    accepted = boards(daemon, "accept", "kitchen", print_)
    assert (accepted.ends(), accepted.out.strip()) == (0, print_), accepted.err
    assert list((daemon.home / "keys" / "rejected").iterdir()) == []
    agent = daemon.agent("pi")
    until("it to connect", lambda: daemon.board("kitchen").get("state") == "connected")
    again = boards(daemon, "accept", "other", print_)
    assert again.ends() == 5
    assert "this board is known as kitchen" in again.err
    wrong = boards(daemon, "reject", print_)
    assert wrong.ends() == 5
    assert "`paceline boards revoke kitchen` withdraws it" in wrong.err

    gone = boards(daemon, "revoke", "kitchen")
    assert gone.ends() == 0, gone.err
    assert agent.ends() == 5, "its living link is cut"
    assert "kitchen: its key was withdrawn from the host's boards" in agent.err
    assert daemon.agent("pi").ends() == 5
    assert knocked(daemon) == [], "whoever was withdrawn is not asked about either"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["accept", "pi", "0123456789abcdef"], "no key with fingerprint '0123456789abcdef' has knocked"),
        (["accept", "../pi", "0123456789abcdef"], "the name '../pi' cannot be used"),
        (["revoke", "pi"], "so pi is not let in; let in are nobody"),
        (["reject", "nowhere.pub"], "key file nowhere.pub: No such file"),
    ],
)
def test_a_wrong_name_or_key_is_told_and_changes_nothing(
    argv: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    (keys / "boards").mkdir(parents=True)
    assert program().run(["boards", *argv, "--keys", str(keys)]) == 5
    assert sentence in (said := capsys.readouterr().err)
    assert len(said.splitlines()) == 1
    assert list(keys.rglob("*")) == [keys / "boards"]
