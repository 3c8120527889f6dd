# SPDX-License-Identifier: Apache-2.0
"""What a measurement costs CodeCarbon and pyJoules, for comparison: run by `bench meter` in a Python that has them.

Imports nothing of paceline. Both tools look for RAPL at a fixed place below /sys; here their constant names another
folder, and all else is theirs as installed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

CALLS = 500


def codecarbon(root: str) -> tuple[Callable[[], object], float | None]:
    """Start CodeCarbon's offline tracker; return its measurement, which its timer calls, and how often that is."""
    cpu: Any = importlib.import_module("codecarbon.core.cpu")
    hardware: Any = importlib.import_module("codecarbon.external.hardware")
    trackers: Any = importlib.import_module("codecarbon.emissions_tracker")
    rapl = cpu.IntelRAPL
    cpu.is_rapl_available.__defaults__ = (root,)
    hardware.IntelRAPL = lambda rapl_dir=None, **keys: rapl(rapl_dir=root, **keys)
    logging.disable(logging.CRITICAL)
    tracker = trackers.OfflineEmissionsTracker(
        country_iso_code="FRA", save_to_file=False, log_level="critical", allow_multiple_runs=True
    )
    tracker.start()
    modes = [getattr(each, "_mode", None) for each in tracker._hardware]
    if "intel_rapl" not in modes:
        raise RuntimeError(f"it does not read RAPL here but {modes}")
    return tracker._measure_power_and_energy, float(tracker._measure_power_secs)


def pyjoules(root: str) -> tuple[Callable[[], object], float | None]:
    """Start pyJoules' meter on one package; return its measurement. It has no timer."""
    device: Any = importlib.import_module("pyJoules.device.rapl_device")
    meters: Any = importlib.import_module("pyJoules.energy_meter")
    device.RAPL_API_DIR = root
    rapl = device.RaplDevice()
    rapl.configure([device.RaplPackageDomain(0)])
    meter = meters.EnergyMeter([rapl])
    meter.start()
    return meter.record, None


TOOLS = {"codecarbon": codecarbon, "pyjoules": pyjoules}


def main(tool: str, root: str) -> int:
    """Print one object: what the tool costs, or why it was not measured."""
    try:
        version = importlib.metadata.version(tool)
    except importlib.metadata.PackageNotFoundError:
        print(json.dumps({"why_not": "not installed"}))
        return 0
    rss_kib = _rss_kib()
    began_s = time.perf_counter()
    measure, every_s = TOOLS[tool](root)
    found: dict[str, Any] = {
        "version": version, "start_ms": 1000 * (time.perf_counter() - began_s), "rss_kib": _rss_kib() - rss_kib,
        "every_s": every_s,
    }  # fmt: skip
    times, cpu_s = [], time.process_time()
    for _ in range(CALLS):
        began_ns = time.perf_counter_ns()
        measure()
        times.append((time.perf_counter_ns() - began_ns) / 1000)
    found["us_a_measurement"] = statistics.median(times)
    found["us_a_reading"] = 1e6 * (time.process_time() - cpu_s) / CALLS
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()
    return 0


def _rss_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
