# SPDX-License-Identifier: Apache-2.0
"""What runs in the guest, as root: asks the kernel, smbus2 and the agent's meters, and writes down what they say.

Judges nothing: the tests on the host compare. A check that breaks leaves its traceback as its answer, and the next one
goes on.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from smbus2 import SMBus, i2c_msg

from .bench import BENCH, Rail, bus_number, fault
from .metered import METERED, metered, refused

INA219, INA3221, HWMON_INA219, HWMON_INA3221 = 0x40, 0x41, 0x44, 0x42
ABSENT = 0x48
BOUND = {HWMON_INA219: "ina219", HWMON_INA3221: "ina3221"}
SETTLE_S = 20.0  # for what takes milliseconds


class Chip:
    """One chip over /dev/i2c, in combined transfers, the most significant byte first."""

    def __init__(self, bus: SMBus, address: int) -> None:
        self._bus = bus
        self._address = address

    def read(self, register: int) -> int:
        """Return one register."""
        pointer, data = i2c_msg.write(self._address, [register]), i2c_msg.read(self._address, 2)
        self._bus.i2c_rdwr(pointer, data)
        return int.from_bytes(bytes(data), "big")

    def write(self, register: int, word: int) -> None:
        """Write one register."""
        self._bus.i2c_rdwr(i2c_msg.write(self._address, [register, *word.to_bytes(2, "big")]))

    def error(self) -> int | None:
        """Return the errno of reading register 0, None when there is none."""
        return errno_of(lambda: self.read(0))

    def wait(self, register: int, mask: int) -> int:
        """Return a register once one of its bits is set."""
        until = time.monotonic() + SETTLE_S
        while not (word := self.read(register)) & mask:
            if time.monotonic() > until:
                raise TimeoutError(f"register {register:#x} of {self._address:#x}: {word:#06x} has none of {mask:#06x}")
        return word


def errno_of(action: Callable[[], object]) -> int | None:
    """Return the errno that an action fails with."""
    try:
        action()
    except OSError as error:
        return error.errno
    return None


def kernel() -> dict[str, object]:
    """Tell where this runs."""
    return {"version": Path("/proc/version").read_text(encoding="ascii").strip(), "python": sys.version.split()[0]}


def ways_to_read() -> dict[str, object]:
    """Read one register in each way that smbus2 knows."""
    with SMBus(bus_number()) as bus:
        chip = Chip(bus, INA219)
        chip.write(0, 0x8000)
        chip.write(5, 0x1234)
        bus.write_byte(INA219, 5)  # sets the pointer, and stays
        alone = i2c_msg.read(INA219, 2)
        bus.i2c_rdwr(alone)
        return {
            "combined": chip.read(5),
            "pointer first": int.from_bytes(bytes(alone), "big"),
            "word": bus.read_word_data(INA219, 5),
            "block": bus.read_i2c_block_data(INA219, 5, 2),
            "absent": errno_of(lambda: bus.read_byte(ABSENT)),
            "absent, combined": Chip(bus, ABSENT).error(),
        }


def ina219() -> dict[str, object]:
    """Lead an INA219 through its registers and flags."""
    rail = Rail(f"{INA219:02x}")
    found: dict[str, object] = {}
    with SMBus(bus_number()) as bus:
        chip = Chip(bus, INA219)
        chip.write(0, 0x8000)
        found["power-on"] = [chip.read(0), chip.read(5)]
        for what, ua, mv, config, calibration in (
            ("1 A at 5 V", 1_000_000, 5_000, 0x3FFF, 4096),
            ("-160 mA", -160_000, 5_000, 0x3FFF, 4096),
            ("beyond the range", 4_000_000, 5_000, 0x399F, 4096),
            ("beyond a gain of 1", 500_000, 5_000, 0x219F, 4096),
            ("beyond the arithmetic", 2_000_000, 5_000, 0x399F, 8192),
            ("20 V", 100_000, 20_000, 0x399F, 4096),
            ("20 V in the range of 16 V", 100_000, 20_000, 0x199F, 4096),
            ("lost calibration", 1_000_000, 5_000, 0x3FFF, 0),
        ):
            rail.load([(1_000_000, ua, mv)])
            chip.write(0, config)
            chip.write(5, calibration)
            bus_word = chip.wait(2, 2)
            found[what] = [chip.read(1), bus_word, chip.read(4), chip.read(3), chip.read(0)]
        fault(INA219, "clock_permille", 4000)  # half a second a conversion, so that none ends unasked
        chip.write(0, 0x3FFF)
        found["flag while converting"] = chip.read(2) & 2
        chip.wait(2, 2)
        found["flag after reading 02"] = chip.read(2) & 2
        chip.read(3)
        found["flag after reading 03"] = chip.read(2) & 2
        fault(INA219, "clock_permille", 1000)
        chip.write(0, 0x399B)  # one conversion of both
        chip.wait(2, 2)
        chip.read(3)
        rail.load([(1_000_000, 2_000_000, 5_000)])
        found["flag after the only conversion"] = chip.read(2) & 2
        found["shunt after the only conversion"] = chip.read(1)
        chip.write(0, 0x399F)
        chip.wait(2, 2)
        fault(INA219, "stuck", 1)
        rail.load([(1_000_000, 500_000, 5_000)])
        chip.read(3)
        chip.wait(2, 2)
        found["shunt while stuck"] = chip.read(1)
        fault(INA219, "stuck", 0)
        chip.write(5, 4096)
        fault(INA219, "reset", 1)
        found["after a reset"] = [chip.read(0), chip.read(5)]
    return found


def ina3221() -> dict[str, object]:
    """Lead an INA3221 through its registers and flags."""
    found: dict[str, object] = {}
    rails = [Rail(f"{INA3221:02x}", str(i)) for i in (1, 2, 3)]
    with SMBus(bus_number()) as bus:
        chip = Chip(bus, INA3221)
        chip.write(0, 0x8000)
        found["power-on"] = [chip.read(r) for r in (0x00, 0x07, 0x08, 0x0C, 0x0E, 0x10, 0x11, 0xFE, 0xFF)]
        for rail, ua, mv in zip(rails, (1_000_000, -400, 2_000_000), (5_000, 3_304, 12_000), strict=True):
            rail.load([(1_000_000, ua, mv)])
        chip.write(0, 0x7007)  # 140 us each, all three
        chip.write(0x0F, 0x6000)  # channels 1 and 2 enter the sum
        chip.wait(0x0F, 1)
        found["rails"] = [chip.read(r) for r in range(1, 7)]
        found["sum"] = chip.read(0x0D)
        fault(INA3221, "clock_permille", 30_000)  # half a second a conversion, so that none ends unasked
        chip.write(0, 0x4FFF)  # channel 1 alone, averaged over 1024
        rails[1].load([(1_000_000, 1_000_000, 5_000)])
        found["flag while converting"] = chip.read(0x0F) & 1
        chip.wait(0x0F, 1)
        fault(INA3221, "clock_permille", 1000)
        found["disabled channel"] = chip.read(3)
        chip.write(0, 0x4004)
        chip.read(0x0F)
        found["flag while powered down"] = chip.read(0x0F) & 1
        fault(INA3221, "die", 0x2260)
        found["another die"] = chip.read(0xFF)
        fault(INA3221, "die", 0x3220)
    return found


def faults() -> dict[str, object]:
    """Switch each fault on and off."""
    found: dict[str, object] = {}
    with SMBus(bus_number()) as bus:
        chip = Chip(bus, INA219)
        fault(INA219, "nack", 2)
        found["two of three fail"] = [chip.error() for _ in range(3)]
        fault(INA219, "errno", 121)
        fault(INA219, "nack", 1)
        found["another errno"] = chip.error()
        fault(INA219, "errno", 6)
        for word in (0xFFFF, 0x0000):
            fault(INA219, "forced", word)
            found[f"forced {word:#06x}"] = [chip.read(1), chip.read(2)]
        fault(INA219, "forced", 0x10000)
        fault(INA219, "slow_us", 30_000)
        began = time.monotonic()
        chip.read(0)
        found["slow bus, seconds"] = time.monotonic() - began
        fault(INA219, "slow_us", 0)
        found["at the end"] = chip.error()
    return found


def hwmon() -> dict[str, object]:
    """Bind the kernel's drivers to the second pair of chips and read what they show."""
    number = bus_number()
    Rail(f"{HWMON_INA219:02x}").load([(1_000_000, 1_200_000, 5_000)])
    for i, ua in enumerate((300_000, -800_000, 2_000_000), 1):
        Rail(f"{HWMON_INA3221:02x}", str(i)).load([(1_000_000, ua, 1_000 * i)])
    found: dict[str, object] = {}
    for address, name in BOUND.items():
        Path(f"/sys/bus/i2c/devices/i2c-{number}/new_device").write_text(f"{name} {address:#x}", encoding="ascii")
        (place,) = Path(f"/sys/bus/i2c/devices/{number}-{address:04x}/hwmon").iterdir()
        time.sleep(0.3)  # the drivers do not wait for a conversion; each of theirs takes up to 70 ms
        files = sorted(path for path in place.iterdir() if path.name == "name" or path.name.endswith("_input"))
        found[name] = {path.name: path.read_text(encoding="ascii").strip() for path in files}
        fault(address, "nack", 0xFFFFFFFF)
        found[f"{name}, NACK"] = errno_of((place / "curr1_input").read_text)
        fault(address, "nack", 0)
        found[f"{name}, then"] = int((place / "curr1_input").read_text(encoding="ascii"))
    with SMBus(number) as bus:
        found["bound chip over /dev/i2c"] = errno_of(lambda: bus.read_byte_data(HWMON_INA219, 0))
    return found


def powercap() -> dict[str, object]:
    """Read the zones as files."""
    root = Path("/sys/class/powercap")
    zones = sorted(path for path in root.iterdir() if ":" in path.name)
    Rail("package-0").load([(1_000_000, 4_000_000, 5_000)])
    found: dict[str, object] = {}
    for zone in zones:
        files = ("name", "max_energy_range_uj", "energy_uj")
        found[zone.name] = [(zone / name).read_text(encoding="ascii").strip() for name in files]
    counter = root / "intel-rapl:0" / "energy_uj"
    found["mode"] = counter.stat().st_mode & 0o777
    counts, times = [], []
    for pause_s in (0.3, 0.0):
        times.append(time.monotonic())
        counts.append(int(counter.read_text(encoding="ascii")))
        times.append(time.monotonic())
        time.sleep(pause_s)
    found["joules"] = (counts[1] - counts[0]) * 1e-6
    found["seconds, at least and at most"] = [times[2] - times[1], times[3] - times[0]]
    counter.write_text("0", encoding="ascii")
    found["around a reset"] = [counts[1], int(counter.read_text(encoding="ascii"))]
    Rail("package-0").load([])
    return found


ON_I2C = [name for name, what in METERED.items() if what.chip is not None]
CHECKS: dict[str, Callable[[], object]] = {
    "kernel": kernel,
    "ways to read": ways_to_read,
    "ina219": ina219,
    "ina3221": ina3221,
    "faults": faults,
    "hwmon": hwmon,
    "powercap": powercap,
    "refused": refused,
    "metered": metered,
}


CHIPS: dict[str, Callable[[], object]] = {  # where the kernel has neither powercap nor drivers for the chips
    **{name: check for name, check in CHECKS.items() if name not in ("hwmon", "powercap")},
    "refused": lambda: refused(ON_I2C),
    "metered": lambda: metered(ON_I2C),
}


def main(only: str = "") -> None:
    """Run all checks and answer with one JSON object: name -> what was found, how long it took, or what broke.

    only: "chips" leaves out what is not a chip on the I2C adapter.
    """
    assert BENCH.is_dir(), f"{BENCH}: the test module is not loaded"
    answers = {}
    for name, check in (CHIPS if only == "chips" else CHECKS).items():
        began = time.monotonic()
        try:
            answers[name] = {"found": check()}
        except Exception:
            answers[name] = {"broke": traceback.format_exc()}
        answers[name]["seconds"] = round(time.monotonic() - began, 2)
    (port,) = (
        p.parent.name for p in Path("/sys/class/virtio-ports").glob("*/name") if p.read_text().strip() == "answer"
    )
    with Path("/dev", port).open("r+b", buffering=0) as out:
        left = json.dumps(answers).encode()
        while left:
            left = left[out.write(left) or 0 :]


if __name__ == "__main__":
    main(*sys.argv[1:])
