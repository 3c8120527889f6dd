# SPDX-License-Identifier: Apache-2.0
"""What a daemon keeps and reads on disk: host.toml, operator.toml, key folders, tickets, its unit."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from paceline.errors import SettingsError, StorageError
from paceline.notify import notify
from paceline_host import tickets
from paceline_host.host_config import WHERE, HostConfig, load_host, load_operator, make_host
from paceline_host.keyring import Keyring, changed
from paceline_host.link import new_pair
from paceline_host.tickets import Ticket
from paceline_host.unit import unit

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder as `paceline host --init` makes it."""
    make_host(tmp_path / "h", new_pair(), new_pair())
    return tmp_path / "h"


def test_what_init_makes_is_read_by_both_ends(home: Path) -> None:
    config = load_host(home / "host.toml")
    defaults = HostConfig()
    assert (config.listen, config.patience_s, config.chunk_bytes, config.resume) == (
        defaults.listen, defaults.patience_s, defaults.chunk_bytes, defaults.resume
    )  # fmt: skip
    assert (config.keys, config.runs_dir, config.data_dir) == (str(home / "keys"), str(home / "runs"), "")
    operator = load_operator(str(home))
    pair, host_key = operator.read_keys()
    assert host_key == config.read_keys().public
    boards, operators = config.read_peers([])
    assert boards == {}
    assert list(operators.values()) == [pair.public]
    secrets = list(home.rglob("*.key"))
    assert len(secrets) == 2
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in secrets)


def test_every_key_that_the_made_file_names_is_one_with_its_default(home: Path) -> None:
    text = (home / "host.toml").read_text(encoding="utf-8")
    keys = [line.partition(" =")[0][2:] for line in text.splitlines() if line.startswith("# ") and " = " in line]
    assert keys == list(HostConfig.__dataclass_fields__)
    uncommented = "\n".join(line[2:] if " = " in line else line for line in text.splitlines())
    (home / "all.toml").write_text(uncommented, encoding="utf-8")
    assert load_host(home / "all.toml") == load_host(home / "host.toml")


def test_a_faulty_file_is_told_with_all_its_faults(tmp_path: Path) -> None:
    (tmp_path / "host.toml").write_text('lisen = "x"\npatience_s = -1\n', encoding="utf-8")
    with pytest.raises(SettingsError, match="did you mean listen") as caught:
        load_host(tmp_path / "host.toml")
    assert len(caught.value.errors) == 2
    (tmp_path / "host.toml").write_text('listen = "5570"\n', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"host.toml: listen = '5570': expected tcp://ADDRESS:PORT"):
        load_host(tmp_path / "host.toml")


def test_an_operator_finds_its_host(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_operator(str(home / "operator.toml"))
    assert load_operator(str(home / "host.toml")) == expected
    monkeypatch.setenv(WHERE, str(home))
    assert load_operator(None) == expected
    monkeypatch.delenv(WHERE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    with pytest.raises(SettingsError, match=r"operator\.toml does not exist, so there is no host to speak to"):
        load_operator(None)
    shutil.copytree(home, home / "config" / "paceline", ignore=shutil.ignore_patterns("config"))
    assert load_operator(None).endpoint == expected.endpoint
    elsewhere = load_operator("tcp://192.0.2.1:1")
    assert elsewhere.endpoint == "tcp://192.0.2.1:1"
    assert elsewhere.key_file == str(home / "config" / "paceline" / Path(expected.key_file).name)


def test_a_keyring_sees_what_changes_and_tells_a_fault_once(home: Path) -> None:
    ring = Keyring(load_host(home / "host.toml"))
    assert ring.look() is None
    key = new_pair().public
    public = home / "keys" / "boards" / "pi.pub"
    public.write_text(key + "\n", encoding="ascii")
    now = ring.look()
    assert now is not None
    assert now.boards == {"pi": key}
    public.write_text("nonsense\n", encoding="ascii")
    other = home / "keys" / "boards" / "nano.pub"
    other.write_text(key + "\n", encoding="ascii")
    now = ring.look()
    assert now is not None
    assert now.boards == {"nano": key}, "a file that holds no key keeps nobody else out"
    (fault,) = ring.faults
    assert "pi.pub: not a key" in fault
    assert ring.look() is None
    public.unlink()
    other.unlink()
    now = ring.look()
    assert now is not None
    assert now.boards == {}
    assert changed({"a": "1", "b": "2"}, {"b": "3", "c": "4"}) == (["b", "c"], ["a", "b"])


def test_tickets_come_back_in_order_and_a_spoilt_one_is_named(tmp_path: Path) -> None:
    made = [Ticket(name, number, "ann", "now") for number, name in ((2, "b-001"), (1, "z-001"), (10, "a-001"))]
    for each in made:
        (tmp_path / each.name).mkdir()
        tickets.save(tmp_path, each)
    reason = 'two "lines"\nof it'
    stopped = Ticket("b-001", 2, "ann", "now", "stopped", reason)
    tickets.save(tmp_path, stopped)
    (tmp_path / "bad-001").mkdir()
    (tmp_path / "bad-001" / tickets.FILE).write_text("state = 3", encoding="utf-8")
    said: list[str] = []
    assert list(tickets.every(tmp_path, said.append)) == [made[1], stopped, made[2]]
    assert len(said) == 1
    assert "bad-001" in said[0]
    assert tickets.find(tmp_path, "b-001") == stopped
    assert tickets.find(tmp_path, "none-001") is None
    with pytest.raises(StorageError, match="cannot write"):
        tickets.save(tmp_path, Ticket("none-001", 3, "ann", "now"))


def test_one_daemon_at_a_time_holds_a_folder_of_runs(tmp_path: Path) -> None:
    refused = pytest.raises(StorageError, match="another host daemon works in")
    with tickets.held(tmp_path / "runs"), refused, tickets.held(tmp_path / "runs"):
        pass
    with tickets.held(tmp_path / "runs"):
        pass


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_service_manager_hears_that_the_host_is_ready(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "n") if kind == "path" else f"@paceline-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0"))
        manager.settimeout(10.0)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert notify("READY=1")
        assert manager.recv(100) == b"READY=1"
    assert not notify("READY=1"), "nobody is there any more, and that is no error"
    monkeypatch.delenv("NOTIFY_SOCKET")
    assert not notify("READY=1")


def test_the_unit_is_whole_and_systemd_takes_it(home: Path) -> None:
    config = load_host(home / "host.toml")
    Path(config.runs_dir).mkdir()
    text = unit(home / "host.toml", config)
    assert "@" not in text.replace("@system-service", "")
    assert f"host --config {home / 'host.toml'}" in text
    assert f"ReadWritePaths={home / 'runs'}" in text
    path = home / "paceline-host.service"
    path.write_text(text, encoding="utf-8")
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:  # without it, and without the user that step 1 of the file makes, the text alone is checked
        done = subprocess.run([analyze, "verify", str(path)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
