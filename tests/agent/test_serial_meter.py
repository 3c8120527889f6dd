# SPDX-License-Identifier: Apache-2.0
"""The serial meter over real pyserial: a peer process with faults on a pty and on TCP, and every way not to begin."""

from __future__ import annotations

import fcntl
import grp
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import tty
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
import serial
from serial.rfc2217 import PortManager

from paceline import machine as m
from paceline.energy import Energy, EnergyIntegrator
from paceline.errors import SettingsError
from paceline.settings import load
from paceline_agent.commands import program
from paceline_agent.joules import Joules
from paceline_agent.meters import MeterError, MeterSettings, Reading, open_source
from paceline_agent.meters import serial_frames as f
from paceline_agent.meters.findings import Where
from paceline_agent.meters.serial_meter import NOTES, SerialMeter
from paceline_agent.meters.serial_port import lasting_name, ports_here
from paceline_agent.meters.serial_scan import find

from .serial_peer import HIGH_UW, LOW_UW, Script, truth_uj

HERE = Path(__file__).resolve().parent

PATIENCE_S = 20.0
PERIOD_MS = 20
T = TypeVar("T")


def now_us() -> int:
    return time.monotonic_ns() // 1000


def wait_for(look: Callable[[], T | None]) -> T:
    """Look again and again until there is something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        found = look()
        if found is not None:
            return found
        select.select([], [], [], 0.01)
    raise AssertionError("nothing came within the patience")


@contextmanager
def peer(script: Script) -> Iterator[str]:
    """Start the peer; yield what a meter must open."""
    command = [sys.executable, str(HERE / "serial_peer.py"), json.dumps(asdict(script))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if script.link:
            wait_for(lambda: True if Path(script.link).exists() else None)
            yield script.link
        else:
            assert process.stdout is not None
            yield f"socket://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def meter_at(port: str, **more: object) -> Iterator[SerialMeter]:
    settings = MeterSettings("serial", PERIOD_MS, port=port, **more)  # type: ignore[arg-type]  # fields by name
    meter = open_source(settings, now_us())
    assert isinstance(meter, SerialMeter)
    try:
        yield meter
    finally:
        meter.close()


@contextmanager
def line() -> Iterator[tuple[int, str]]:
    """Yield the far end of a pty, and the name of the near one."""
    far, near = os.openpty()
    tty.setraw(near)
    try:
        yield far, os.ttyname(near)
    finally:
        os.close(far)
        os.close(near)


def until(meter: SerialMeter, enough: Callable[[list[Reading]], bool]) -> tuple[list[Reading], list[str]]:
    """Read as the meter's thread does; return the readings, and what was said of trouble meanwhile."""
    readings: list[Reading] = []
    troubles: list[str] = []

    def look() -> bool | None:
        try:
            readings.extend(meter.read(now_us()))
        except MeterError as error:
            if str(error) not in troubles[-1:]:
                troubles.append(str(error))
        return enough(readings) or None

    wait_for(look)
    return readings, troubles


def spans(seconds: float) -> Callable[[list[Reading]], bool]:
    return lambda readings: bool(readings) and readings[-1].t1_us - readings[0].t0_us >= seconds * 1e6


def joules(readings: list[Reading]) -> tuple[Energy, int]:
    """Return the energy of the whole by the real integrator, and its bound with both edges."""
    integrator = EnergyIntegrator(PERIOD_MS * 1000)
    for r in readings:
        if r.t0_us < r.t1_us:
            integrator.add_interval(r.t0_us, r.t1_us, r.power_uw, r.error_uw)
        else:
            integrator.add_point(r.t1_us, r.power_uw, r.error_uw)
    energy = integrator.window(readings[0].t0_us, readings[-1].t1_us)
    assert energy is not None
    return energy, energy.bound_uj + 2 * max(r.edge_uj for r in readings)


# Joules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("over", "kind"), [("pty", "energy"), ("tcp", "mean")])
def test_joules_of_a_drifting_jittering_peer_hold_their_bound(over: str, kind: str, tmp_path: Path) -> None:
    link = str(tmp_path / "meter") if over == "pty" else ""
    script = Script(link, PERIOD_MS * 1000, ppm=100, jitter_us=5_000, kind=kind)
    with peer(script) as port, meter_at(port) as meter:
        readings, troubles = until(meter, spans(2.8))
        assert troubles == []
        assert meter.ident is not None
        assert meter.ident.firmware == "peer 1"
        assert (meter.damaged, meter.health.lost) == (0, 0)
    energy, bound_uj = joules(readings)
    truth = truth_uj(energy.start_us, energy.end_us)
    assert energy.energy_uj is not None
    assert abs(energy.energy_uj - truth) <= bound_uj
    assert bound_uj < 0.05 * truth


FAULTS = {
    "120": "half", "123": "flip", "126": "garbage", "129": "drop", "132": "double", "135": "flip", "136": "flip",
}  # fmt: skip


def test_damage_on_the_line_costs_frames_and_no_joule(tmp_path: Path) -> None:
    with peer(Script(str(tmp_path / "meter"), faults=FAULTS)) as port, meter_at(port) as meter:
        readings, troubles = until(meter, spans(3.2))
        assert troubles == []
        assert meter.damaged >= 4
        assert meter.health.lost >= 5
        assert meter.health.doubled >= 1
    assert [r.flags for r in readings].count(("lost",)) >= 4
    assert {r.flags for r in readings} == {(), ("lost",)}
    assert [1 for a, b in pairwise(readings) if a.t1_us != b.t0_us] == [], "a counter knows what a lost frame said"
    energy, bound_uj = joules(readings)
    assert energy.energy_uj is not None
    assert abs(energy.energy_uj - truth_uj(energy.start_us, energy.end_us)) <= bound_uj


def test_a_reset_begins_another_epoch_and_invents_nothing(tmp_path: Path) -> None:
    with peer(Script(str(tmp_path / "meter"), faults={"125": "reset"})) as port, meter_at(port) as meter:
        readings, troubles = until(meter, lambda found: meter.health.resets == 1 and spans(5)(found))
    assert [t for t in troubles if "began anew" not in t] == []  # told where a poll happens to find only the reset
    assert all(LOW_UW - 1000 <= r.power_uw <= HIGH_UW + 1000 for r in readings)
    (hole,) = [b for a, b in pairwise(readings) if b.t0_us > a.t1_us]
    assert hole.error_uw >= HIGH_UW - LOW_UW - 1000
    assert [r for r in readings if r.flags] == [hole]
    assert hole.flags == ("reset",)
    energy, bound_uj = joules(readings)
    assert energy.energy_uj is not None
    assert abs(energy.energy_uj - truth_uj(energy.start_us, energy.end_us)) <= bound_uj


@pytest.mark.parametrize("over", ["pty", "tcp"])
def test_unplugged_it_says_so_and_back_it_is_believed_again(over: str, tmp_path: Path) -> None:
    link = str(tmp_path / "meter") if over == "pty" else ""
    with peer(Script(link, faults={"125": "unplug"})) as port, meter_at(port) as meter:
        readings, troubles = until(meter, spans(3.5))
        assert troubles, "whoever waits for joules is told why there are none"
        assert "unplugged" in troubles[0]
    holes = [b.t1_us - b.t0_us for b in readings if b.t1_us - b.t0_us > 250_000]
    assert len(holes) == 1, "the counter went on, and so knows what was drawn meanwhile"
    energy, bound_uj = joules(readings)
    assert energy.energy_uj is not None
    assert abs(energy.energy_uj - truth_uj(energy.start_us, energy.end_us)) <= bound_uj


def test_a_fault_of_the_device_is_told_in_its_words(tmp_path: Path) -> None:
    faults = {str(number): "fault" for number in range(115, 150)}
    with peer(Script(str(tmp_path / "meter"), faults=faults)) as port, meter_at(port) as meter:
        _, troubles = until(meter, spans(3.2))
    assert any("no INA219 at 0x40" in trouble for trouble in troubles)


def test_the_agents_loop_gets_its_windows(tmp_path: Path) -> None:
    settings = MeterSettings("serial", PERIOD_MS, port=str(tmp_path / "meter"))
    with peer(Script(settings.port, ppm=-100)), Joules(settings) as board:
        assert (board.source, board.known) == ("serial/meter", True)

        def first() -> bool | None:
            board.drain()
            return True if board._integrator is not None and board._integrator.final_us is not None else None

        wait_for(first)
        begin_us = now_us()
        board.open(begin_us)
        board.mark(begin_us, "compute", 3)
        end_us = begin_us + 700_000
        wait_for(lambda: True if now_us() > end_us else None)
        board.mark(end_us, "transfer", 3)
        board.measure(3)

        def answer() -> m.Measured | None:
            board.drain()
            return next((event for event in board.settled() if isinstance(event, m.Measured)), None)

        measured = wait_for(answer)
    assert measured.energy_uj is not None
    assert measured.bound_uj is not None
    period_uj = 2 * PERIOD_MS * (HIGH_UW - LOW_UW) // 1000  # at either edge, what a period hides
    assert abs(measured.energy_uj - truth_uj(begin_us, end_us)) <= measured.bound_uj + period_uj
    assert measured.source == "serial/meter"


@pytest.mark.filterwarnings("ignore:set(Daemon|Name):DeprecationWarning")  # pyserial's own
def test_over_rfc2217() -> None:
    """A real server of pyserial's; its own port is TCP, because a pty has no modem lines to report."""
    with peer(Script()) as device, socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve_rfc2217, args=(server, device), daemon=True)
        thread.start()
        with meter_at(f"rfc2217://127.0.0.1:{server.getsockname()[1]}") as meter:
            readings, _ = until(meter, spans(2.5))
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    energy, bound_uj = joules(readings)
    assert energy.energy_uj is not None
    assert abs(energy.energy_uj - truth_uj(energy.start_us, energy.end_us)) <= bound_uj


def _serve_rfc2217(server: socket.socket, device: str) -> None:
    connection, _ = server.accept()

    class Answers:
        def write(self, data: bytes) -> None:
            connection.sendall(data)

    port: Any = serial.serial_for_url(device, timeout=0)
    with port, connection:
        answers: Any = Answers()
        manager: Any = PortManager(port, answers)
        while True:
            ready, _, _ = select.select([connection, port.fileno()], [], [])
            if port.fileno() in ready:
                connection.sendall(b"".join(manager.escape(port.read(4096))))
            if connection in ready:
                data = connection.recv(4096)
                if not data:
                    return
                for _ in manager.filter(data):
                    pass


def test_a_printing_meter_is_read_by_its_columns() -> None:
    with line() as (far, port), meter_at(port, format="csv", channels=("v", "ma")) as meter:
        os.write(far, b"half a line\n")
        for _ in range(20):
            os.write(far, b"5.0,500\r\n")
            until(meter, bool)
        assert meter.damaged == 0
        readings, _ = until(meter, bool) if os.write(far, b"4.0,500\n") else ([], [])
    assert [r.power_uw for r in readings] == [2_000_000]


@pytest.mark.parametrize(
    ("quantity", "flags", "step", "said"),
    [
        (f.POWER, f.STALE, 0, "the meter has no fresh value"),
        (f.POWER, 0, 1, "or one that cannot be"),
        (f.ENERGY, 0, -1_000_000, "its count went back"),
    ],
    ids=["stale", "a megawatt", "a count that falls"],
)
def test_a_meter_that_speaks_on_without_a_reading_is_a_read_that_failed(
    quantity: int, flags: int, step: int, said: str
) -> None:
    channels = (f.Channel("VIN", quantity, f.COUNTED, 1_000_000),)
    with line() as (far, port), meter_at(port) as meter:
        os.write(far, f.encode(f.Ident(20_000, 1, bytes(8), "", channels)))

        def trouble() -> str | None:
            try:
                assert meter.read(now_us()) == []
            except MeterError as error:
                return str(error)
            return None

        for number in range(5):
            raw = f.pack_values(channels, ((10**9 + number * step,),))
            os.write(far, f.encode(f.ReadingFrame(number, number * 20_000, 1, flags, 1, raw)))
            if number > 0 or quantity == f.POWER:  # the first count is a base
                assert said in wait_for(trouble)


@pytest.mark.parametrize(("quantity", "counts"), [(f.POWER, False), (f.ENERGY, True)])
def test_a_meter_says_whether_it_counts_joules(quantity: int, counts: bool) -> None:
    channels = (f.Channel("VIN", quantity, f.COUNTED, 1_000_000),)
    with line() as (far, port), meter_at(port) as meter:
        assert not meter.counts, "not known yet"
        os.write(far, f.encode(f.Ident(20_000, 1, bytes(8), "", channels)))

        def heard() -> bool | None:
            meter.read(now_us())
            return True if meter.ident is not None else None

        wait_for(heard)
        assert meter.counts is counts


# How it does not begin -----------------------------------------------------------------------------------------------


def test_a_port_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(MeterError, match=r"/dev/ttyACM77' is not there: (here are|there are no serial ports here)"):
        open_source(MeterSettings("serial", port="/dev/ttyACM77"), 0)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = f"socket://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(MeterError, match=r"cannot be opened: .*refused"):
        open_source(MeterSettings("serial", port=port), 0)


def test_what_is_no_port_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for port in (str(tmp_path / "file"), "/dev/null"):
        with pytest.raises(MeterError, match=rf"meter\.port = '{port}' is no serial port; here: "):
            open_source(MeterSettings("serial", port=port), 0)
    for port in ("nonsense://x", "socket://", "socket://host", "socket://host:x", "rfc2217://:5"):
        with pytest.raises(MeterError, match=rf"'{port}': expected a device, socket://HOST:PORT or rfc2217:"):
            open_source(MeterSettings("serial", port=port), 0)


def test_another_programs_port_is_left_alone() -> None:
    with line() as (_, port):
        other = os.open(port, os.O_RDWR | os.O_NOCTTY)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(MeterError, match=r"in use by another program: `fuser -v /dev/"):
            open_source(MeterSettings("serial", port=port), 0)
        os.close(other)
        with meter_at(port), pytest.raises(MeterError, match="in use by another program"):
            open_source(MeterSettings("serial", port=port), 0)


@contextmanager
def without_rights() -> Iterator[None]:
    """Be nobody, if we are root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_without_rights_the_group_to_join_is_named() -> None:
    with line() as (_, port):
        os.chmod(port, 0o600 if os.geteuid() == 0 else 0)
        with without_rights(), pytest.raises(MeterError) as caught:
            open_source(MeterSettings("serial", port=port), 0)
        group = grp.getgrgid(os.stat(port).st_gid).gr_name
    text = str(caught.value)
    assert f"{port} may not be opened by " in text
    assert f"it belongs to group {group}; `sudo usermod -aG {group} " in text


def test_garbage_and_silence_are_told_apart() -> None:
    with line() as (far, port), meter_at(port) as meter:
        later_us = now_us() + 10_000_000
        with pytest.raises(MeterError, match="is open and says nothing"):
            meter.read(later_us)
        os.write(far, b"U" * 700 + b"\0" + b"\xa5" * 100)
        wait_for(lambda: True if meter.damaged or meter.read(now_us()) else None)
        with pytest.raises(MeterError, match=r"says nothing that is a reading .*meter\.baud = 115200"):
            meter.read(later_us)


def test_a_meter_of_another_version_or_with_other_channels_is_named() -> None:
    channel = f.Channel("VIN", f.ENERGY, f.COUNTED, 1)
    ident = f.Ident(10_000, 1, bytes(8), "", (channel,))

    def trouble(meter: SerialMeter) -> str | None:
        try:
            meter.read(now_us())
        except MeterError as error:
            return str(error)
        return None

    with line() as (far, port):
        with meter_at(port, channels=("VOUT",)) as meter:
            os.write(far, b"\0" + f.encode(ident))
            assert "the meter has VIN; choose of them, got ['VOUT']" in wait_for(lambda: trouble(meter))
        with meter_at(port) as meter:
            body = bytes((1, 9)) + bytes(30)
            os.write(far, b"\0" + f.stuff(body + zlib.crc32(body).to_bytes(4, "little")) + b"\0")
            assert "speaks version 9 of the format, this agent version 1" in wait_for(lambda: trouble(meter))
        with meter_at(port) as meter:
            os.write(far, b"\0" + f.encode(f.Ident(360_000, 1, bytes(8), "", (channel,))))
            assert "meter.period_ms = 20 is shorter than the meter's own period: use 360" in wait_for(
                lambda: trouble(meter)
            )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('source = "serial"', "needs port"),
        ('source = "serial"\nport = "/dev/x"\nformat = "csv"', "expected each once"),
        ('source = "serial"\nport = "/dev/x"\nbaud = 1', "meter.baud: expected"),
        ('source = "rapl"\nport = "/dev/x"', 'belong to source = "serial"'),
    ],
)
def test_settings_that_make_no_meter_are_refused(text: str, named: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(f"{text}\n", MeterSettings, where="agent.toml")
    assert named.removeprefix("meter.") in str(refused.value)


def test_a_device_has_a_lasting_name(tmp_path: Path) -> None:
    by_id = tmp_path / "by-id"
    by_id.mkdir()
    assert (lasting_name("/dev/null", by_id), ports_here(by_id, tmp_path)) == (None, [])
    (tmp_path / "ttyACM0").touch()
    (tmp_path / "ttyUSB3").touch()
    (by_id / "usb-Maker_Meter_0001-if00").symlink_to(tmp_path / "ttyACM0")
    assert lasting_name(str(tmp_path / "ttyACM0"), by_id) == str(by_id / "usb-Maker_Meter_0001-if00")
    assert ports_here(by_id, tmp_path) == [str(by_id / "usb-Maker_Meter_0001-if00"), str(tmp_path / "ttyUSB3")]


def test_nothing_is_left_of_a_closed_meter() -> None:
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with line() as (_, port):
        for _ in range(10):
            with meter_at(port):
                pass
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_what_a_meter_says_to_a_person_is_shown_by_watch_without_its_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "agent.toml"
    with peer(Script(str(tmp_path / "meter"), faults={str(n): "text" for n in range(100, 160)})) as port:
        config.write_text(
            'key_file = "a.key"\nstate_dir = "s"\n[host]\nendpoint = "tcp://127.0.0.1:1"\npublic_key = "a.pub"\n'
            f'[meter]\nsource = "serial"\nport = "{port}"\n'
        )
        words = ["meter", "watch", "--config", str(config), "--seconds", "1.5", "--every", "0.1", "--json"]
        assert program().run(words) == 0
    shown = capsys.readouterr()
    assert "the meter says: shunt is  [31mhot\n" in shown.err
    assert "\x1b" not in shown.err
    assert shown.err.count("the meter says") <= NOTES + 3, "one that goes on and on is heard now and then"
    last = json.loads(shown.out.splitlines()[-2])
    assert (last["period_s"], last["schema"]) == (0.1, "paceline-watch-1")


def test_scan_names_who_answers_at_a_port(tmp_path: Path) -> None:
    with peer(Script(str(tmp_path / "ttyACM0"))), line() as (far, near):
        (tmp_path / "ttyACM1").symlink_to(near)
        with line() as (_, silent):
            (tmp_path / "ttyUSB0").symlink_to(silent)
            ending = threading.Event()

            def chatter() -> None:
                while not ending.wait(0.05):
                    os.write(far, b"U=5.01 V I=0.31 A\r\n")

            thread = threading.Thread(target=chatter)
            thread.start()
            try:
                where = Where(tmp_path / "sys", tmp_path, listen=True)
                found = {Path(each.name).name: each for each in find(where)}
                assert list(find(Where(tmp_path / "sys", tmp_path))) == [], "ports are opened only where that is wanted"
            finally:
                ending.set()
                thread.join()
    assert sorted(found) == ["ttyACM0", "ttyACM1"], "of one that is silent nothing is known but that it is there"
    meter, other = found["ttyACM0"], found["ttyACM1"]
    assert (meter.usable, meter.settings) == (True, {"port": str(tmp_path / "ttyACM0")})
    assert meter.about == "peer 1, number 7065657230303031: VIN, part; each 20 ms"
    assert not other.usable
    assert "it speaks, but no frames of ours" in other.about
    assert "U=5.01 V" in other.about
