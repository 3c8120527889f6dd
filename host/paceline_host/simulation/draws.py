# SPDX-License-Identifier: Apache-2.0
"""Chance by name: what is drawn depends on the seed and on what it is for, not on what was drawn before.

So two policies meet the same boards with the same noise, and a fault more changes no other draw.
"""

from __future__ import annotations

import math

_MASK = (1 << 64) - 1


def mix(*names: int) -> int:
    """Return 64 well mixed bits of some numbers (splitmix64 over each of them)."""
    value = 0
    for name in names:
        value = (value + name + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value


def uniform(*names: int) -> float:
    """Return a number from above 0 to 1."""
    return ((mix(*names) >> 11) + 1) * 2.0**-53


def normal(*names: int) -> float:
    """Return a standard normal number (Box and Muller)."""
    bits = mix(*names)
    radius = math.sqrt(-2.0 * math.log(((bits >> 32) + 1) * 2.0**-32))
    return radius * math.cos(2.0 * math.pi * (bits & 0xFFFFFFFF) * 2.0**-32)


def around_one(relative_sd: float, *names: int) -> float:
    """Return a log-normal number of mean 1."""
    if relative_sd <= 0.0:
        return 1.0
    variance = math.log(1.0 + relative_sd * relative_sd)
    return math.exp(math.sqrt(variance) * normal(*names) - variance / 2.0)
