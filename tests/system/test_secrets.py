# SPDX-License-Identifier: Apache-2.0
"""Where secrets are not: in nothing that a host, an agent and an operator say and write when they say all they can."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
import zmq.utils.z85

from .fleet_tools import Bench, Declared, command_line, until
from .test_daemon import Daemon


def forms(secret: str) -> list[bytes]:
    """Return a secret in every form in which somebody could have written it."""
    raw = zmq.utils.z85.decode(secret.encode())
    return [secret.encode(), raw, raw.hex().encode(), raw.hex().upper().encode(), json.dumps(secret)[1:-1].encode()]


@pytest.fixture
def folder(bench: Bench) -> Path:
    """Let a daemon, a board and an operator do a run while they say all they can; return where everything is."""
    daemon = Daemon(bench)
    daemon.make_board("pi")
    host = bench.start("daemon", "paceline", "--log-level", "debug", "host", "--config", "h/host.toml")
    host.says("listening on")
    config = bench.write_agent("pi", daemon.endpoint, Declared(speed=4.0), host_key="../h/keys/host.pub")
    agent = bench.start("agent", "paceline-agent", "--log-level", "debug", "run", "--config", config)
    daemon.make_board("stranger", admitted=False)
    refused = bench.agent("stranger", daemon.endpoint, host_key="../h/keys/host.pub")
    assert refused.ends() == 5, refused.err
    experiment = bench.experiment("small", {"rounds": 2, "budget": 40}, fleet={"kind": "boards"})
    watched = bench.call("paceline", "--log-level", "debug", "run", experiment, "--host", "h")
    assert watched.ends() == 0, watched.err
    bench.call("paceline", "status", "--host", "h", "--json")
    bench.call("paceline", "config", "show", "h/host.toml")
    bench.call("paceline-agent", "config", "show", config)
    until("all to be said", lambda: "small-001" in host.err)
    for program in (host, agent):
        (bench.folder / f"{program.name}.cmdline").write_text(command_line(program.pid))
        (bench.folder / f"{program.name}.environ").write_bytes(Path(f"/proc/{program.pid}/environ").read_bytes())
    return bench.folder


def test_no_secret_is_anywhere_but_in_its_file_and_that_is_its_owners_alone(folder: Path) -> None:
    secrets = {path: path.read_text().strip() for path in folder.rglob("*.key")}
    assert len(secrets) == 4, "host, operator, board and stranger"
    looked_at = 0
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        assert not mode & 0o022, f"{path} may be written by others: {mode:04o}"
        content = path.read_bytes()
        looked_at += 1
        for owner, secret in secrets.items():
            if path == owner:
                assert mode == 0o600
                continue
            assert not [form for form in forms(secret) if form in content], f"{path} holds the secret of {owner.name}"
    assert looked_at > 30
    assert list(folder.rglob("*.sqlite")), "the journal was looked at too"


def test_the_search_finds_a_secret_that_is_there(tmp_path: Path) -> None:
    secret = "".join(chr(code) for code in b"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID")
    assert re.fullmatch(r"[!-~]{40}", secret)
    (tmp_path / "log").write_bytes(b"key is " + zmq.utils.z85.decode(secret.encode()).hex().encode())
    assert [form for form in forms(secret) if form in (tmp_path / "log").read_bytes()]
