# SPDX-License-Identifier: Apache-2.0
"""The library: who gets how many samples, from measured seconds and joules. Imports neither numpy nor torch."""

from paceline.controller import Controller, Flags
from paceline.core import allocate, batch_schedule, permutation
from paceline.errors import CoreError, PacelineError
from paceline.goals import Goal, OutOfReachError, Pace, Plan, frontier
from paceline.local_draw import LocalDraw
from paceline.sampler import GlobalSampler, Schedule
from paceline.version import VERSION as __version__

__all__ = [
    "Controller",
    "CoreError",
    "Flags",
    "GlobalSampler",
    "Goal",
    "LocalDraw",
    "OutOfReachError",
    "Pace",
    "PacelineError",
    "Plan",
    "Schedule",
    "__version__",
    "allocate",
    "batch_schedule",
    "frontier",
    "permutation",
]
