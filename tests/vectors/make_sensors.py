# SPDX-License-Identifier: Apache-2.0
"""Vectors of the registers of INA219 and INA3221: values of datasheets and of known faults by hand, then random words.

The replica reads the fields off the datasheets' tables (INA219: SBOS448G; INA3221: SBOS576B) as strings of bits.
"""

from __future__ import annotations

import random
from fractions import Fraction
from math import trunc

from tests.vectors.rows import write

READY, OVERFLOW, SATURATED = 1, 2, 4
INA219, INA3221 = 219, 3221
CONFIG = 0x39FF  # 32 V, +-320 mV
BY_HAND = [
    # chip, config, shunt, bus, shunt_uohm -> shunt_uv, bus_mv, current_ua, power_uw, flags
    (INA219, CONFIG, 0xF9C0, 0x2710, 100_000, -16_000, 5_000, -160_000, -800_000, 0),  # a negative shunt voltage
    (INA219, CONFIG, 0x07D0, 0x2713, 100_000, 20_000, 5_000, 200_000, 1_000_000, READY | OVERFLOW),  # OVF voids neither
    (INA219, CONFIG, 0xFFFF, 0x2712, 100_000, -10, 5_000, -100, -500, READY),  # not 655.35 mV
    (INA219, CONFIG, 0x1770, 0x2712, 1_000_000, 60_000, 5_000, 60_000, 300_000, READY),  # 1 ohm, 60 mV
    (INA219, CONFIG, 0x01EC, 0x23F2, 100_000, 4_920, 4_600, 49_200, 226_320, READY),  # 4.6 V, 4.92 mV: 226.32 mW
    (INA219, CONFIG, 0x8300, 0x2710, 100_000, -320_000, 5_000, -3_200_000, -16_000_000, SATURATED),  # SBOS448G, table 7
    (INA219, CONFIG, 0x7D00, 0x2710, 100_000, 320_000, 5_000, 3_200_000, 16_000_000, SATURATED),
    (INA219, CONFIG, 0x7CFF, 0x2710, 100_000, 319_990, 5_000, 3_199_900, 15_999_500, 0),
    (INA219, 0x199F, 0x3E80, 0x2710, 10_000, 160_000, 5_000, 16_000_000, 80_000_000, 0),  # within +-320 mV ...
    (INA219, 0x119F, 0x3E80, 0x2710, 10_000, 160_000, 5_000, 16_000_000, 80_000_000, SATURATED),  # ... but not +-160 mV
    (INA219, 0x219F, 0x0FA0, 0x2710, 10_000, 40_000, 5_000, 4_000_000, 20_000_000, SATURATED),  # +-40 mV
    (INA219, CONFIG, 0xFFFF, 0xFFFF, 100_000, -10, 32_764, -100, -3_276, READY | OVERFLOW | SATURATED),  # unplugged
    (INA219, CONFIG, 0x0000, 0x0000, 100_000, 0, 0, 0, 0, 0),  # SDA low
    (INA219, 0x1FFF, 0x0001, 0x7D00, 100_000, 10, 16_000, 100, 1_600, SATURATED),  # 4000 counts where 16 V is full
    (INA219, CONFIG, 0x0001, 0x8000, 100_000, 10, 16_384, 100, 1_638, 0),  # a bus word has no sign
    (INA3221, 0, 0xF830, 0x1388, 100_000, -10_000, 5_000, -100_000, -500_000, 0),  # -10 mV, and 5 V unshifted
    (INA3221, 0, 0xFFF8, 0x1388, 100_000, -40, 5_000, -400, -2_000, 0),  # one count down, not 327 640 uV
    (INA3221, 0, 0x7FF8, 0x1388, 100_000, 163_800, 5_000, 1_638_000, 8_190_000, SATURATED),  # full scale of SBOS576B
    (INA3221, 0, 0x8000, 0x1388, 100_000, -163_840, 5_000, -1_638_400, -8_192_000, SATURATED),
    (INA3221, 0, 0x7FF0, 0x1388, 100_000, 163_760, 5_000, 1_637_600, 8_188_000, 0),
    (INA3221, 0, 0x0008, 0xFFF8, 10_000, 40, -8, 4_000, -32, 0),  # a bus below ground
    (INA3221, 0, 0x000F, 0x138F, 10_000, 40, 5_000, 4_000, 20_000, 0),  # bits that are none
]


def field(word: int, high: int, low: int) -> int:
    """Return bits high..low of a word."""
    return int(f"{word:016b}"[15 - high : 16 - low], 2)


def signed(value: int, width: int) -> int:
    return value - (value >> (width - 1) << width)


def decoded(chip: int, config: int, shunt: int, bus: int, shunt_uohm: int) -> tuple[int, int, int, int, int]:
    """Return what the registers say: shunt_uv, bus_mv, current_ua, power_uw, flags."""
    if chip == INA219:
        shunt_uv, bus_mv = signed(shunt, 16) * 10, field(bus, 15, 3) * 4
        full_uv = (40_000, 80_000, 160_000, 320_000)[field(config, 12, 11)]
        saturated = abs(shunt_uv) >= full_uv or bus_mv >= (16_000, 32_000)[field(config, 13, 13)]
        flags = READY * field(bus, 1, 1) | OVERFLOW * field(bus, 0, 0)
    else:
        shunt_uv, bus_mv = signed(field(shunt, 15, 3), 13) * 40, signed(field(bus, 15, 3), 13) * 8
        saturated = {field(shunt, 15, 3), field(bus, 15, 3)} & {0x0FFF, 0x1000} != set()
        flags = 0
    current_a = Fraction(shunt_uv, shunt_uohm)
    power_w = current_a * bus_mv / 1000
    return shunt_uv, bus_mv, trunc(current_a * 10**6), trunc(power_w * 10**6), flags | SATURATED * saturated


def rows() -> list[tuple[object, ...]]:
    """Return all cases; what was worked out by hand must be what the replica finds."""
    dice = random.Random(3221)
    given = [(case[:5], case[5:]) for case in BY_HAND]
    for case, by_hand in given:
        assert decoded(*case) == by_hand, (case, decoded(*case), by_hand)
    shunts = (500, 1_000, 10_000, 20_000, 100_000, 4_294_967_295, 1)
    cases = [case for case, _ in given]
    cases += [
        (chip, dice.getrandbits(16), dice.getrandbits(16), dice.getrandbits(16), dice.choice(shunts))
        for chip in (INA219, INA3221)
        for _ in range(120)
    ]
    split = [(chip, config, divmod(shunt, 256), divmod(bus, 256), uohm) for chip, config, shunt, bus, uohm in cases]
    return [(*parts, decoded(*case)) for parts, case in zip(split, cases, strict=True)]


if __name__ == "__main__":
    write(
        "sensors",
        "chip, config, shunt {high, low}, bus, shunt_uohm, {shunt_uv, bus_mv, current_ua, power_uw, flags}",
        rows(),
    )
