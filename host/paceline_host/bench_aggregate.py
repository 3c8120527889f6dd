# SPDX-License-Identifier: Apache-2.0
"""What the host does with an update, beside how fast this machine's memory lets anybody read and write as many bytes.

The limit is measured in the same turns: the fastest of four plain streams of numpy over arrays as large, bytes read and
written counted once each (STREAM's way: what a write first fetches is not counted). One thread, and its processor time,
so that others' work beside it shows only in the memory that they take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from paceline.tensors import Manifest
from paceline_host.bench_controller import Row
from paceline_host.reducer import Reducer, mixed

ITEMS = 11_250_000  # float32: 45 MB
TURNS = 7
PARTICIPANTS = (11, 1_000)  # of whom the memory is compared
SMALL = 1_125_000  # float32 of each of their updates
# Bytes that each must read and write, as multiples of the update's: sums are float64.
TRAFFIC = {"verify": 2.0, "add": 5.0, "mix (async)": 3.0}


def measure(say: Callable[[str], None], items: int = ITEMS, turns: int = TURNS) -> Iterator[Row]:
    """Yield (name, unit, values) of each figure."""
    say(f"aggregate: updates of {4 * items / 1e6:g} MB, {turns} turns")
    manifest = Manifest.build([("w", "float32", (items,), "parameter")])
    base = np.random.default_rng(1).standard_normal(items, np.float32)
    update = bytearray(base.tobytes())
    base_bytes, wide, other = base.tobytes(), np.zeros(items), np.ones(items)
    streams: list[tuple[float, Callable[[], object]]] = [  # bytes of an item
        (16.0, lambda: np.copyto(wide, other)), (24.0, lambda: np.add(wide, other, out=wide)),
        (8.0, lambda: np.copyto(wide[: items // 2].view(np.float32), base)), (8.0, lambda: wide.sum()),
    ]  # fmt: skip
    reducer = Reducer(manifest)
    reducer.begin(base_bytes, 1 << 30)
    indices = iter(range(1 << 20))
    work: dict[str, Callable[[], object]] = {
        "verify": lambda: reducer.verify(update, base_bytes, 1, 1, []),
        "add": lambda: reducer.add(next(indices), 1, update),
        "mix (async)": lambda: mixed(manifest, base_bytes, update, 0.6),
    }
    rates: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in work}
    for call in work.values():
        call()
    for _ in range(turns):
        rates.append(max(size * items / _seconds(call) for size, call in streams))
        for name, call in work.items():
            found[name].append(_seconds(call))
    yield "memory, the fastest plain stream", "GB/s", [rate / 1e9 for rate in rates]
    for name, values in found.items():
        limits = [TRAFFIC[name] * 4 * items / rate for rate in rates]
        yield f"{4 * items / 1e6:g} MB update, {name}", "ms", [1e3 * value for value in values]
        yield f"{4 * items / 1e6:g} MB update, {name} / limit", "x", [
            value / limit for value, limit in zip(values, limits, strict=True)
        ]  # fmt: skip


def memory(say: Callable[[str], None], items: int = SMALL) -> Iterator[Row]:
    """Yield how much memory a round holds at most, by the number of participants, whose updates come in order."""
    manifest = Manifest.build([("w", "float32", (items,), "parameter")])
    base = np.random.default_rng(1).standard_normal(items, np.float32).tobytes()
    reducer, held = Reducer(manifest), []
    for participants in PARTICIPANTS:
        say(f"aggregate: a round of {participants:,} participants")
        reducer.begin(base, participants)
        most = 0.0
        for index in range(participants):
            reducer.add(index, 1, bytearray(base))  # each in memory of its own, as it comes off a link
            most = max(most, _resident_mib())
        reducer.finish()
        held.append(most)
        yield f"{4 * items / 1e6:g} MB updates of {participants:,} participants: resident at most", "MiB", [most]
    yield f"the same, {PARTICIPANTS[-1]:,} against {PARTICIPANTS[0]}", "x", [held[-1] / held[0]]


def _seconds(call: Callable[[], Any]) -> float:
    began_s = time.thread_time()
    call()
    return time.thread_time() - began_s


def _resident_mib() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / (1 << 20)
