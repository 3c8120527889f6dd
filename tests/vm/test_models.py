# SPDX-License-Identifier: Apache-2.0
"""The test module's loads and chips, built for this machine: what a guest is measured against must be right itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cffi import FFI  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

MODULE = Path(__file__).with_name("module")
SOURCES = ("load", "ina219", "ina3221")
CONTINUOUS = 7
START_US = 1_000

STEPS = st.lists(
    st.tuples(st.integers(1_000, 2_000_000), st.integers(-5_000_000, 5_000_000), st.integers(0, 26_000)), max_size=8
)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, needs_tool: Callable[[str, str], Path]) -> Any:
    """Return (ffi, library); arithmetic that C leaves undefined ends the process."""
    compiler = needs_tool("gcc", "gcc")
    library = tmp_path_factory.mktemp("models") / "models.so"
    strict = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]
    sources = [str(MODULE / f"{name}.c") for name in SOURCES]
    trap = "-fsanitize-undefined-trap-on-error"
    subprocess.run([compiler, *strict, trap, "-shared", "-fPIC", "-o", library, *sources], check=True, timeout=60)
    ffi = FFI()
    for name in SOURCES:
        text = (MODULE / f"{name}.h").read_text(encoding="utf-8")
        kept = [line for line in text.splitlines() if not re.match(r"#(?!define \w+ +\d)", line)]
        ffi.cdef("\n".join(kept))
    return ffi, ffi.dlopen(str(library))


def load_of(ffi: Any, steps: list[tuple[int, int, int]]) -> Any:
    """Return a load of (us, ua, mv), again and again."""
    load = ffi.new("struct load *")
    load.n_steps = len(steps)
    for place, (us, ua, mv) in enumerate(steps):
        load.steps[place].us, load.steps[place].ua, load.steps[place].mv = us, ua, mv
    return load


def slowly_fj(steps: list[tuple[int, int, int]], us: int) -> int:
    """Return what a load has drawn after so long, counted step by step."""
    total_fj = 0
    while steps and us > 0:
        for length_us, ua, mv in steps:
            lasted_us = max(0, min(us, length_us))
            total_fj += lasted_us * ua * mv
            us -= lasted_us
    return total_fj


@given(first=STEPS, second=STEPS, change_us=st.integers(0, 5_000_000), after_us=st.integers(0, 5_000_000))
def test_joules_of_a_load_are_those_of_its_steps(
    models: Any, first: list[tuple[int, int, int]], second: list[tuple[int, int, int]], change_us: int, after_us: int
) -> None:
    ffi, lib = models
    loads = ffi.new("struct loads *")
    lib.loads_change(loads, START_US, load_of(ffi, first))
    lib.loads_change(loads, START_US + change_us, load_of(ffi, second))

    drawn_fj = slowly_fj(first, change_us)
    assert lib.loads_until(loads, START_US + change_us // 2).fj == slowly_fj(first, change_us // 2)
    assert lib.loads_until(loads, START_US + change_us).fj == drawn_fj
    assert lib.loads_until(loads, START_US + change_us + after_us).fj == drawn_fj + slowly_fj(second, after_us)


# SADC code -> typical time (SBOS448G, table 5); 532 us of the bus voltage are added
@pytest.mark.parametrize(("code", "us"), {0: 84, 1: 148, 3: 532, 8: 532, 9: 1060, 0xC: 8510, 0xF: 68100}.items())
def test_an_ina219_is_ready_after_the_time_of_its_datasheet(models: Any, code: int, us: int) -> None:
    ffi, lib = models
    chip = ina219(ffi, lib, [(1000, 1_000_000, 5_000)])
    lib.ina219_write(chip, 0, 0x3980 | code << 3 | CONTINUOUS, START_US)

    assert not lib.ina219_read(chip, 2, START_US + us + 532 - 1) & 2
    assert lib.ina219_read(chip, 2, START_US + us + 532) & 2
    assert lib.ina219_read(chip, 1, START_US + us + 532) == 10_000


def test_an_ina219_that_averages_sees_all_bursts_and_one_that_does_not_sees_one_phase(models: Any) -> None:
    ffi, lib = models
    bursts = [(1_064, 1_000_000, 5_000), (1_064, 0, 5_000)]  # each as long as a shunt and a bus of 12 bits
    seen = {}
    for config in (0x39FF, 0x399F):  # 128 samples; one
        chip = ina219(ffi, lib, bursts)
        lib.ina219_write(chip, 0, config, START_US)
        seen[config] = {lib.ina219_read(chip, 1, START_US + 100_000 + 1_064 * i) for i in range(200)}
    assert max(abs(word - 5_000) for word in seen[0x39FF]) < 100
    assert seen[0x399F] == {0, 10_000}


# A round's measured joules over its true ones by AVG code: 4 W to 12 W at its beginning, 5 s, cycles of 6.6 ms
@pytest.mark.parametrize(("code", "share"), {1: 0.998, 2: 0.987, 3: 0.945, 4: 0.889, 6: 0.65, 7: 0.53}.items())
def test_the_average_of_an_ina3221_is_a_filter_that_smears(models: Any, code: int, share: float) -> None:
    ffi, lib = models
    chip = ffi.new("struct ina3221 *")
    chip.shunt_uohm, chip.clock_permille = 10_000, 1000
    rail, edge_us, cycle_us = ffi.addressof(chip.channels[0].rail), 99_000_000, 6_600
    lib.loads_change(rail, 0, load_of(ffi, [(1000, 800_000, 5_000)]))
    lib.ina3221_power_on(chip, 0)
    lib.ina3221_write(chip, 0, 0x7127 | code << 9, 0)
    lib.ina3221_advance(chip, edge_us)
    lib.loads_change(rail, edge_us, load_of(ffi, [(1000, 2_400_000, 5_000)]))
    measured_j = 0.0
    for t_us in range(edge_us, edge_us + 5_000_000, cycle_us):
        lib.ina3221_advance(chip, t_us)
        measured_j += chip.channels[0].shunt_nv * 1e-9 / 0.01 * 5.0 * cycle_us * 1e-6
    assert measured_j / 60.0 == pytest.approx(share, abs=0.01)


def test_channels_of_an_ina3221_convert_in_turn(models: Any) -> None:
    ffi, lib = models
    chip = ffi.new("struct ina3221 *")
    chip.shunt_uohm, chip.clock_permille = 100_000, 1000
    for place in range(3):
        lib.loads_change(ffi.addressof(chip.channels[place].rail), 0, load_of(ffi, [(1000, 400_000 * (place + 1), 0)]))
    lib.ina3221_power_on(chip, 0)
    lib.ina3221_write(chip, 0, 0x5007, 0)  # channels 1 and 3, 140 us each for shunt and bus
    seen = [[lib.ina3221_read(chip, 2 * place + 1, t_us) >> 3 for place in range(3)] for t_us in (279, 280, 560)]
    assert seen == [[0, 0, 0], [1000, 0, 0], [1000, 0, 3000]]
    assert [lib.ina3221_read(chip, 0x0F, t_us) & 1 for t_us in (561, 562, 1119, 1120)] == [1, 0, 0, 1]


@given(times=st.lists(st.integers(0, 3_000_000), min_size=3, max_size=6, unique=True))
def test_converted_joules_telescope_and_are_the_delivered_ones_of_a_steady_load(models: Any, times: list[int]) -> None:
    ffi, lib = models
    chip = ina219(ffi, lib, [(1000, 937_300, 5_012)])
    lib.ina219_write(chip, 0, 0x39FF, START_US)
    lib.ina219_advance(chip, START_US + 3_100_000)
    energies = [_converted_fj(ffi, lib, chip, START_US + t_us) for t_us in sorted(times)]

    parts = [b - a for a, b in pairwise(energies)]
    assert sum(parts) == energies[-1] - energies[0]
    for part, (a_us, b_us) in zip(parts, pairwise(sorted(times)), strict=True):
        assert part == (b_us - a_us) * 937_300 * 5_012


def _converted_fj(ffi: Any, lib: Any, chip: Any, t_us: int) -> int:
    energy = ffi.new("int64_t *")
    assert lib.track_until(ffi.addressof(chip.track), t_us, energy)
    return int(energy[0])


def ina219(ffi: Any, lib: Any, steps: list[tuple[int, int, int]]) -> Any:
    """Return a chip at START_US with a shunt of 100 mohm."""
    chip = ffi.new("struct ina219 *")
    chip.shunt_uohm, chip.clock_permille = 100_000, 1000
    lib.loads_change(ffi.addressof(chip.rail), START_US, load_of(ffi, steps))
    lib.ina219_power_on(chip, START_US)
    return chip
