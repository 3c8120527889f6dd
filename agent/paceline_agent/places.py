# SPDX-License-Identifier: Apache-2.0
"""Where an installed agent lives on its board: programs, configuration, state, unit. Names places; touches none."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import StorageError

UNIT = "paceline-agent.service"
USER = "paceline-agent"  # of the unit, and of nobody else
PRIVATE = "~/.local/paceline"


@dataclass(frozen=True)
class Places:
    """`prefix` holds releases of the program and `current`, a link to one. `unit` None: of one user, without root."""

    prefix: Path
    etc: Path
    state: Path
    unit: Path | None

    @property
    def config(self) -> Path:
        return self.etc / "agent.toml"

    @property
    def program(self) -> Path:
        """The agent's program, of whatever release is current; where there are none, the one that runs this."""
        current = self.prefix / "current" / "bin" / "paceline-agent"
        return current if current.exists() else Path(sys.executable).with_name("paceline-agent")


SYSTEM = Places(
    Path("/opt/paceline"), Path("/etc/paceline"), Path("/var/lib/paceline-agent"), Path("/etc/systemd/system") / UNIT
)


def places(prefix: Path | None) -> Places:
    """Return the system's places, for root; with a prefix those below it. Raises StorageError."""
    if prefix is not None:
        home = prefix.expanduser().absolute()
        return Places(home, home / "etc", home / "state", None)
    if os.geteuid() != 0:
        raise StorageError(f"only root may install for the whole board: use sudo, or name a folder: --prefix {PRIVATE}")
    return SYSTEM
