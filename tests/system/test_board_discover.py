# SPDX-License-Identifier: Apache-2.0
"""`paceline boards discover`: a real announcement over mDNS, ssh's own reading of a config, ports by VID and PID."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from serial.tools.list_ports_common import ListPortInfo

from paceline_host.commands import program
from paceline_host.onboard.serial_line import KNOWN, Port, ports

CONFIG = """
Include {folder}/more/*.conf
Host pi4 "orange pi" *.lab !bad
  HostName 192.0.2.7
  User pi
host=nano # the small one
  Port 2222
Match host pi4
  IdentityFile none
Host *
  User somebody
"""
MORE = """
Host visionfive rv-?
  HostName 2001:db8::9
"""


def discovered(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> dict[str, Any]:
    assert program().run(["boards", "discover", "--json", *map(str, argv)]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_hosts_of_the_ssh_config_are_what_ssh_makes_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("ssh") is None:
        pytest.skip("ssh is missing: apt-get install openssh-client")
    (tmp_path / "more").mkdir()
    (tmp_path / "more/rv.conf").write_text(MORE, encoding="ascii")
    config = tmp_path / "config"
    config.write_text(CONFIG.format(folder=tmp_path), encoding="ascii")
    keys = tmp_path / "keys"
    keys.mkdir()
    place = {"ssh": [], "prefix": "/p", "private": True, "python": "p", "arch": "a", "release": "r", "installed": "i"}
    table = {"schema": "paceline-boards-1", "boards": {"kitchen": {"address": "pi@192.0.2.7", **place}}}
    (keys / "boards.json").write_text(json.dumps(table), encoding="ascii")
    told = discovered(capsys, "--only", "ssh", "--ssh-config", config, "--keys", keys)
    assert {(each["name"], each["where"], each["known"]) for each in told["found"]} == {
        ("pi4", "pi@192.0.2.7:22", "kitchen"),
        ("nano", "somebody@nano:2222", None),
        ("visionfive", "somebody@2001:db8::9:22", None),
    }
    config.write_text("Hots pi4\n", encoding="ascii")
    told = discovered(capsys, "--only", "ssh", "--ssh-config", config)
    assert "ssh cannot use its config" in told["not_looked_at"]["ssh"]


def test_who_announces_ssh_is_heard_once_and_by_sound_names_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zeroconf = pytest.importorskip("zeroconf", reason="pip install paceline[discover]")
    address = socket.inet_aton("127.0.0.7")
    services = [
        zeroconf.ServiceInfo(kind, f"{name}.{kind}", port=2022, addresses=[address], server=f"{name}.local.")
        for name, kind in (
            ("pi4", "_ssh._tcp.local."),
            ("pi4", "_sftp-ssh._tcp.local."),
            ("pi;reboot", "_ssh._tcp.local."),
        )
    ]
    with zeroconf.Zeroconf(interfaces=["127.0.0.1"]) as announcer:
        for service in services:
            announcer.register_service(service, cooperating_responders=True)
        told = discovered(capsys, "--only", "mdns", "--interface", "127.0.0.1", "--seconds", "3")
    (found,) = told["found"]
    assert (found["name"], found["where"]) == ("pi4.local", "127.0.0.7")
    assert found["next"] == "paceline boards install USER@pi4.local --port 2022"


def test_without_the_extra_mdns_is_named_and_the_rest_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zeroconf", None)  # an import of it fails, as where it is missing
    told = discovered(capsys, "--only", "mdns", "--only", "serial")
    assert told["not_looked_at"] == {"mdns": "not looked at: it takes `pip install paceline[discover]`"}


def test_ports_are_told_apart_by_what_they_say_they_are() -> None:
    def port(device: str, vid: int | None, pid: int | None) -> ListPortInfo:
        info = ListPortInfo(device)
        info.vid, info.pid, info.description = vid, pid, "some device"
        return info

    assert ports([
        port("/dev/ttyUSB1", 0x1A86, 0x7523), port("/dev/ttyS0", None, None), port("/dev/ttyACM0", 0x2E8A, 0x000A),
        port("/dev/ttyACM1", 0x0955, 0x7020), port("/dev/ttyACM2", 0x2341, 0x0043),
        port("/dev/ttyACM3", 0xF00D, 0x0001),
    ]) == [
        Port("/dev/ttyACM0", "meter", "Raspberry Pi Pico (2e8a:000a)"),
        Port("/dev/ttyACM1", "board", "Jetson in device mode (0955:7020)"),
        Port("/dev/ttyACM2", "meter", "Arduino (2341:0043)"),
        Port("/dev/ttyACM3", "", "some device (f00d:0001)"),
        Port("/dev/ttyUSB1", "console", "WCH CH340 adapter (1a86:7523)"),
    ]  # fmt: skip
    assert len({(vid, pid) for vid, pid, _, _ in KNOWN}) == len(KNOWN)
    for info in ports():
        assert info.device.startswith("/dev/"), "and this machine's own can be listed"
