# SPDX-License-Identifier: Apache-2.0
"""For one test: a machine whose wall clock is wrong by PACELINE_CLOCK_OFF seconds; its monotonic one is right."""

import os
import time
from typing import Any

TARGET = "paceline.version"  # what every program of ours imports first of all


def plant(module: Any) -> None:
    """See sitecustomize."""
    off_s = int(os.environ["PACELINE_CLOCK_OFF"])
    now, now_ns, gmtime, localtime = time.time, time.time_ns, time.gmtime, time.localtime
    time.time = lambda: now() + off_s
    time.time_ns = lambda: now_ns() + off_s * 10**9
    time.gmtime = lambda seconds=None: gmtime(time.time() if seconds is None else seconds)
    time.localtime = lambda seconds=None: localtime(time.time() if seconds is None else seconds)
