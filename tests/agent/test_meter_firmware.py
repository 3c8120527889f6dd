# SPDX-License-Identifier: Apache-2.0
"""The microcontroller meter, emulated, with the real agent at the other end of its line; joules against the truth."""

from __future__ import annotations

import random
import re
import subprocess
import time
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from paceline.energy import EnergyIntegrator
from paceline_agent.meters import MeterError, MeterSettings, Reading, open_source
from paceline_agent.meters import serial_frames as f
from paceline_agent.meters.serial_meter import SerialMeter

from .firmware_machine import KINDS, PATIENCE_S, Kind, Machine, built, deepest, running

RV32, M3 = KINDS
BY_NAME = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)

INTERRUPT_BYTES = 32  # what a Cortex-M puts there

Images = Callable[[Kind], Path]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, needs_tool: Callable[[str, str], Path]) -> Images:
    """Return a function kind -> folder with meter.elf, template.elf and what the linker said of them."""
    folders: dict[str, Path] = {}

    def build(kind: Kind) -> Path:
        if kind.name not in folders:
            needs_tool(*kind.compiler)
            needs_tool(*kind.emulator)
            folder = tmp_path_factory.mktemp(kind.name)
            said = built(kind, folder, needs_tool("cmake", "cmake"), needs_tool("ninja", "ninja-build"))
            (folder / "sizes").write_text(said, encoding="utf-8")
            folders[kind.name] = folder
        return folders[kind.name]

    return build


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Listener:
    """The agent's serial meter, read as its thread does."""

    def __init__(self, machine: Machine) -> None:
        meter = open_source(MeterSettings("serial", port=machine.port, delay_ms=12.0), now_us())
        assert isinstance(meter, SerialMeter)
        self.meter = meter
        self.readings: list[Reading] = []
        self.troubles: list[str] = []

    def until(self, enough: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not enough():
            assert time.monotonic() < deadline_s, (len(self.readings), self.troubles, self.meter.health)
            try:
                self.readings.extend(self.meter.read(now_us()))
            except MeterError as error:
                if str(error) not in self.troubles[-1:]:
                    self.troubles.append(str(error))
            time.sleep(0.005)

    def spans(self, seconds: float) -> Callable[[], bool]:
        return lambda: bool(self.readings) and self.readings[-1].t1_us - self.readings[0].t0_us >= seconds * 1e6


def holds(readings: list[Reading], machine: Machine, ahead_us: int, within: float = 0.1) -> None:
    """The joules of the whole lie within their bound of the truth, which is not empty talk."""
    integrator = EnergyIntegrator(100_000)
    for each in readings:
        integrator.add_interval(each.t0_us, each.t1_us, each.power_uw, each.error_uw)
    begin_us, end_us = readings[0].t0_us, readings[-1].t1_us
    energy = integrator.window(begin_us, end_us)
    assert energy is not None
    assert energy.energy_uj is not None
    clock_uj = machine.swing_uw * 0.01  # a busy machine tells its clock with some milliseconds of delay
    edges_uj = 2 * max(each.edge_uj for each in readings) + clock_uj
    truth = machine.truth_uj(begin_us + ahead_us, end_us + ahead_us)
    assert abs(energy.energy_uj - truth) <= energy.bound_uj + edges_uj
    assert abs(energy.energy_uj - truth) <= 0.02 * truth + clock_uj
    assert energy.bound_uj + edges_uj <= within * truth


def framed(body: bytes) -> bytes:
    return b"\0" + f.stuff(body + zlib.crc32(body).to_bytes(4, "little")) + b"\0"


def counted_uj(reading: f.ReadingFrame, ident: f.Ident) -> int:
    values = reading.values(ident)
    assert values is not None
    return sum(count[0] for count, channel in zip(values, ident.channels, strict=True) if channel.flags & f.COUNTED)


def boots(said: list[f.Frame]) -> set[int]:
    return {each.boot for each in said if isinstance(each, f.Ident)}


def notes(said: list[f.Frame]) -> list[str]:
    return [each.text for each in said if isinstance(each, f.Text)]


# Joules ------------------------------------------------------------------------------------------------------------


def test_the_agents_joules_are_the_loads_and_a_host_that_was_away_misses_none(images: Images, tmp_path: Path) -> None:
    with running(RV32, images(RV32) / "meter.elf", tmp_path) as machine:
        first = Listener(machine)
        first.until(first.spans(2.5))
        ahead_us = machine.clock_us()
        assert first.meter.ident is not None
        assert [channel.name for channel in first.meter.ident.channels] == ["5V", "3V3", "fan"]
        assert (first.troubles, first.meter.damaged, first.meter.health.lost) == ([], 0, 0)
        holds(first.readings, machine, ahead_us)
        machine.cut()  # the host goes away, the agent's line with it, and both come back
        first.until(lambda: first.meter.health.lost > 0 and first.spans(4.0)())
        assert "it was unplugged" in first.troubles[0]
        assert first.meter.health.resets == 0
        holds(first.readings, machine, ahead_us, within=0.5)
        assert all(a.t1_us == b.t0_us for a, b in pairwise(first.readings)), "the counter knows of the time between"
        first.meter.close()
        again = Listener(machine)  # an agent that was started anew
        again.until(lambda: again.meter.ident is not None)
        assert again.meter.ident == first.meter.ident
        told = [frame for _, frame in machine.frames if isinstance(frame, f.ReadingFrame)]
        assert all(b.sequence > a.sequence for a, b in pairwise(told)), "the device has noticed nothing of it"
        again.meter.close()


def test_noise_on_the_line_costs_frames_and_no_joule(images: Images, tmp_path: Path) -> None:
    dice = random.Random(7)

    def noise(data: bytes) -> bytes:
        out = bytearray()
        for byte in data:
            chance = dice.random()
            if chance < 0.001:
                continue  # dropped
            out.append(byte ^ 1 << dice.randrange(8) if chance < 0.002 else byte)
        return bytes(out) + (dice.randbytes(3) if dice.random() < 0.05 else b"")

    with running(M3, images(M3) / "meter.elf", tmp_path, over="pty") as machine:
        machine.noise = noise
        listener = Listener(machine)

        def enough() -> bool:
            machine.say(dice.randbytes(5))  # it gets its part as well
            return listener.meter.health.lost > 0 and listener.spans(3.0)()

        listener.until(enough)
        machine.say(b"\0")
        assert listener.meter.damaged > 0
        assert listener.meter.health.resets == 0
        holds(listener.readings, machine, machine.clock_us(), within=1.0)
        assert len(boots([frame for _, frame in machine.frames])) == 1
        assert len(notes([frame for _, frame in machine.frames])) == 1, "no noise was a command"
        listener.meter.close()


@pytest.mark.parametrize(("kind", "how"), [(RV32, "system_reset"), (M3, "power")], ids=["reset", "power"])
def test_a_device_that_lost_its_supply_is_flagged_and_invents_nothing(
    kind: Kind, how: str, images: Images, tmp_path: Path
) -> None:
    with running(kind, images(kind) / "meter.elf", tmp_path) as machine:
        listener = Listener(machine)
        listener.until(listener.spans(0.5))
        if how == "power":
            machine.cycle_power()
        else:
            machine.monitor(how)
        listener.until(lambda: any(each.flags for each in listener.readings[:-1]))
        assert listener.meter.health.resets == 1
        most_uw = machine.truth_uj(0, 400_000) / 0.4  # nothing is ever higher than the load's height
        assert all(0 < each.power_uw < 1.2 * most_uw for each in listener.readings)
        assert [each.flags for each in listener.readings if each.flags] == [("reset",)]
        holes = [b for a, b in pairwise(listener.readings) if b.t0_us > a.t1_us]
        assert [each.flags for each in holes] == [("reset",)], "of the time between nothing is known"
        listener.meter.close()


# Commands, watchdog, self-test ---------------------------------------------------------------------------------------


@BY_NAME
def test_it_obeys_what_is_whole_and_nothing_else(kind: Kind, images: Images, tmp_path: Path) -> None:
    with running(kind, images(kind) / "meter.elf", tmp_path) as machine:
        (report,) = notes(machine.wait(notes))
        assert report.startswith("self-test ok; 5V 5000 mV; 3V3 330")
        assert report.endswith("; reset by power")
        since = len(machine.frames)
        for garbage in (b"\xff" * 300, b"\0\0\0", framed(b"\x41!"), framed(b"\x55"), framed(b"\x41")[:-2] + b"\x01\0"):
            machine.say(garbage)
        machine.say(f.ask_edge(0xFFFFFFFF) + b"half" + f.ask_selftest())
        said = machine.wait(lambda said: notes(said) and any(isinstance(each, f.Edge) for each in said), since)
        assert notes(said) == [report]
        (edge,) = (each.counters for each in said if isinstance(each, f.Edge))
        ident = next(frame for _, frame in machine.frames if isinstance(frame, f.Ident))
        before = next(frame for _, frame in machine.frames if isinstance(frame, f.ReadingFrame) and not frame.flags)
        assert (edge.sequence, edge.flags) == (0xFFFFFFFF, 0)
        found = counted_uj(edge, ident) - counted_uj(before, ident)
        truth = machine.truth_uj(before.t_us, edge.t_us)
        assert abs(found - truth) < 0.02 * truth, "an edge's joules are those of its very instant"


@BY_NAME
def test_the_watchdog_bites_when_the_main_loop_hangs(kind: Kind, images: Images, tmp_path: Path) -> None:
    with running(kind, images(kind) / "meter.elf", tmp_path) as machine:
        machine.wait(boots)
        since = len(machine.frames)
        machine.say(framed(b"\x42"))
        said = machine.wait(notes, since)
        assert notes(said)[0].endswith("; reset by watchdog")
        assert len(boots([frame for _, frame in machine.frames])) == 2
        anew = next(place for place, each in enumerate(said) if isinstance(each, f.Ident))
        first = next(each for each in said[anew:] if isinstance(each, f.ReadingFrame))
        assert first.sequence < 5, "it counts anew"


# Sizes -------------------------------------------------------------------------------------------------------------


@BY_NAME
def test_core_and_meter_fit_their_flash_and_ram(kind: Kind, images: Images) -> None:
    """The linker would have refused more; here what it says is shown, and the bounds are those that were promised."""
    said = (images(kind) / "sizes").read_text(encoding="utf-8")
    print(said)
    used = re.findall(r"(flash|ram): +(\d+ \S+) +(\d+ \S+)", said)
    assert {bound for region, _, bound in used if region == "flash"} == {"16 KB"}
    assert ("ram", f"{kind.ram_bytes // 1024} KB") in {(region, bound) for region, _, bound in used}
    size = subprocess.run(
        [kind.compiler[0].replace("gcc", "size"), str(images(kind) / "template.elf")],
        capture_output=True, text=True, check=True,
    ).stdout.split()[6:9]  # fmt: skip
    flash, ram = int(size[0]) + int(size[1]), int(size[1]) + int(size[2])
    assert flash <= 16 * 1024
    assert ram <= kind.ram_bytes


@BY_NAME
def test_the_stack_is_enough_for_the_longest_chain_of_calls(kind: Kind, images: Images) -> None:
    chain = deepest(images(kind), "main")
    print(f"{kind.name}: {chain}")
    assert "extend" in chain, "the way to the integrator was seen"
    assert sum(chain.values()) + INTERRUPT_BYTES <= kind.stack_bytes
