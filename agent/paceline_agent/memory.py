# SPDX-License-Identifier: Apache-2.0
"""How much memory a trainer may still take, and a limit that lets it find out by an error instead of by its death.

Linux promises more memory than there is and kills who uses it. A process that may grow by what is free, and no more, is
refused in the asking, and can do with less. Looks at this machine and at the control groups of this process.
"""

from __future__ import annotations

import re
import resource
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def bound() -> int:
    """Let this process grow by what is free now; return that, in bytes. Where nobody tells, nothing is bound: 0."""
    free = available(Path("/proc"), _GROUPS)
    held = re.search(r"^VmData:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    if free and held:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        limit = int(held[1]) * 1024 + free
        resource.setrlimit(resource.RLIMIT_DATA, (limit if most < 0 else min(limit, most), most))  # -1: infinite
    return free


def available(proc: Path, groups: Path) -> int:
    """Return the bytes that are free on this machine, or left to the group of this process; 0: nobody tells."""
    found = []
    with suppress(OSError):
        told = re.search(r"^MemAvailable:\s+(\d+) kB$", (proc / "meminfo").read_text(encoding="ascii"), re.MULTILINE)
        found += [int(told[1]) * 1024] if told else []
    with suppress(OSError, ValueError, StopIteration):
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
        own = groups / next(line for line in lines if line.startswith("0::/")).removeprefix("0::/")
        for folder in (own, *own.parents):
            with suppress(OSError, ValueError):  # "max": this one has no limit
                most = int((folder / "memory.max").read_text(encoding="ascii"))
                found.append(max(1, most - int((folder / "memory.current").read_text(encoding="ascii"))))
            if folder == groups:
                break
    return min(found, default=0)
