# SPDX-License-Identifier: Apache-2.0
"""What metering costs on this machine: each source in a process of its own, over a sensor that answers at once.

`paceline bench meter` runs this. Trees are files in a folder, chips are registers in memory that convert at their
datasheet's pace; so a bus's time, and a kernel's for reading a real sensor, are not in it. Asserts nothing.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIMIT_S = 300.0
CYCLE_US = {"ina219": 68_632, "ina3221": 8_576}
READ_BYTES, WRITE_BYTES = (
    5,
    4,
)  # over the wire, addresses included: S addr reg Sr addr high low P; S addr reg high low P
CALLS = 2_000
COUNTER = "class/powercap/intel-rapl"
BESIDE = Path(__file__).with_name("beside.py")
RIVALS = ("codecarbon", "pyjoules")


class Chip:
    """A bus with one chip: its registers, and a ready flag that each conversion sets. Counts the bytes of transfers."""

    def __init__(self, source: str) -> None:
        self.name = "simulated"
        self.transferred = 0
        self._cycle_us = CYCLE_US[source]
        self._flag, self._bit, self._clearing = (0x02, 2, 0x03) if source == "ina219" else (0x0F, 1, 0x0F)
        self._seen = _now_us() // self._cycle_us
        self._words = {0x01: 0x1388, 0x02: 0x2710}  # 50 mV on the shunt, 5 V
        if source == "ina3221":
            self._words |= {0xFE: 0x5449, 0xFF: 0x3220}

    def claim(self, address: int) -> None:
        """Nothing else drives it."""

    def read(self, address: int, register: int) -> Any:
        """Return a register, as soon as it is asked for."""
        from paceline_agent.meters.bus import Word

        self.transferred += READ_BYTES
        now_us = _now_us()
        word = self._words.get(register, 0)
        if register == self._flag and now_us // self._cycle_us > self._seen:
            word |= self._bit
        if register == self._clearing:
            self._seen = now_us // self._cycle_us
        return Word(word.to_bytes(2, "big"), now_us, now_us)

    def write(self, address: int, register: int, value: int) -> None:
        """Set a register."""
        self.transferred += WRITE_BYTES
        self._words[register] = value

    def close(self) -> None:
        """Nothing is held open."""


def figures(source: str, root: Path, seconds: float) -> dict[str, Any]:
    """Return what one source costs in this process, which must have imported nothing of it before."""
    rss_before = _rss_kib()
    began_s = time.perf_counter()
    from paceline_agent.meters import MeterSettings, open_source
    from paceline_agent.sampled import SampledMeter

    meter: Any
    chip = Chip(source) if source in CYCLE_US else None
    if source == "ina219":
        from paceline_agent.meters.ina219 import Ina219

        settings = MeterSettings(source="ina219", shunt_ohm=0.1)
        meter = Ina219(settings, _now_us(), chip)
    elif source == "ina3221":
        from paceline_agent.meters.ina3221 import Ina3221

        settings = MeterSettings(source="ina3221", shunt_ohm=0.1)
        meter = Ina3221(settings, _now_us(), chip)
    else:
        labels = ("ina219@1-0040/ch1",) if source == "hwmon" else ()
        settings = MeterSettings(source=source, sysfs_root=str(root), labels=labels)  # type: ignore[arg-type]
        meter = open_source(settings, _now_us())
    with SampledMeter(meter, settings) as sampled, sampled.window() as window:
        started_s = time.perf_counter() - began_s
        rss_kib = _rss_kib() - rss_before
        bytes_before, cpu_before_s, began_s = chip.transferred if chip else 0, time.process_time(), time.perf_counter()
        time.sleep(seconds)
        cpu_s, wall_s = time.process_time() - cpu_before_s, time.perf_counter() - began_s
        transferred = chip.transferred - bytes_before if chip else 0
        readings = window.so_far().readings
    found: dict[str, Any] = {
        "source": source, "readings_a_second": readings / wall_s, "cpu_percent": 100 * cpu_s / wall_s,
        "us_a_reading": 1e6 * cpu_s / max(1, readings), "rss_kib": rss_kib, "start_ms": 1000 * started_s,
        "bytes_a_reading": transferred / max(1, readings) if chip else None,
    }  # fmt: skip
    if chip is None:
        found["us_a_measurement"] = _calls_us(meter)
    return found


def _calls_us(meter: Any) -> float:
    """Return the median time of a read alone, in the caller's thread, without any window."""
    times = []
    for call in range(CALLS):
        began_ns = time.perf_counter_ns()
        meter.read(_now_us() + 10_000 * call)  # a counter is asked again when it can have moved only
        times.append((time.perf_counter_ns() - began_ns) / 1000)
    return statistics.median(times)


def lay_out(root: Path) -> None:
    """Make a tree as the kernel shows it: one package's counter, one INA219 behind its driver."""
    package = root / COUNTER / "intel-rapl:0"
    chip = root / "class" / "hwmon" / "hwmon0"
    device = root / "devices" / "1-0040"
    for folder in (package, chip, device):
        folder.mkdir(parents=True)
    for name, text in (("name", "package-0"), ("energy_uj", "123456789"), ("max_energy_range_uj", "262143328850")):
        (package / name).write_text(f"{text}\n", encoding="ascii")
    (package.parent.parent / "intel-rapl:0").symlink_to(package)
    for name, text in (("name", "ina219"), ("in0_input", "120"), ("in1_input", "5000"), ("curr1_input", "1200")):
        (chip / name).write_text(f"{text}\n", encoding="ascii")
    (chip / "shunt_resistor").write_text("100000\n", encoding="ascii")
    (chip / "device").symlink_to(device)


def _child(*arguments: str) -> dict[str, Any]:
    """Run a process and return the object that it prints last; of one that fails, why."""
    try:
        done = subprocess.run([*arguments], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"why_not": f"{arguments[0]} cannot be run: {error.strerror if isinstance(error, OSError) else error}"}
    last = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()[-1:]
    if done.returncode == 0:
        try:
            found = json.loads(last[0]) if last else None
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {"why_not": f"{arguments[0]} is no Python: it printed no figures"}
    return {"why_not": last[0] if last else f"ended with status {done.returncode}"}


def main(arguments: list[str]) -> int:
    """Measure one source where it is named; else read {"seconds", "beside"} from stdin and measure all, one by one."""
    if arguments:
        print(json.dumps(figures(arguments[0], Path(arguments[1]), float(arguments[2]))))
        return 0
    order: Mapping[str, Any] = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        lay_out(Path(folder))
        own = [
            _child(sys.executable, "-m", "paceline_agent.meter_cost", source, folder, str(order["seconds"]))
            | {"source": source}
            for source in ("rapl", "hwmon", "ina219", "ina3221")
        ]
        python = order["beside"] or sys.executable
        beside = [
            _child(python, str(BESIDE), tool, str(Path(folder) / COUNTER), str(order["seconds"])) | {"tool": tool}
            for tool in RIVALS
        ]
    print(json.dumps({"own": own, "beside": beside}))
    return 0


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _rss_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
