# SPDX-License-Identifier: Apache-2.0
"""The rights of the agent's own user on a board: its groups, and how root looks at things with no more than those."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
import sys
from pathlib import Path

GROUPS = ("dialout", "i2c")  # of devices that sensors hang on


def groups_here() -> list[str]:
    """Return those of them that this board has."""
    present = {group.gr_name for group in grp.getgrall()}
    return [name for name in GROUPS if name in present]


def become_owner(path: Path) -> str:
    """As root, take on the rights of the agent that owns a file, for good; return its user, empty: nothing to do."""
    try:
        owner = pwd.getpwuid(path.stat().st_uid)
    except (OSError, KeyError):
        return ""
    if os.geteuid() != 0 or owner.pw_uid == 0:
        return ""
    os.setgroups([grp.getgrnam(name).gr_gid for name in groups_here()])
    os.setgid(owner.pw_gid)
    os.setuid(owner.pw_uid)
    return owner.pw_name


def ask_as(user: str, *words: str) -> str:
    """As root, return what a command of the agent prints when `user` calls it."""
    done = subprocess.run(
        [sys.executable, "-m", "paceline_agent", *words], capture_output=True, text=True, check=False, cwd="/",
        user=user, group=pwd.getpwnam(user).pw_gid, extra_groups=groups_here(),
    )  # fmt: skip
    return done.stdout
