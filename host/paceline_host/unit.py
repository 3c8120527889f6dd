# SPDX-License-Identifier: Apache-2.0
"""The systemd unit of the host daemon: the template beside this module, filled in for one host.toml."""

from __future__ import annotations

import sys
from pathlib import Path

from paceline_host.host_config import HostConfig

TEMPLATE = Path(__file__).with_name("paceline-host.service")


def unit(config_file: Path, config: HostConfig) -> str:
    """Return the text of a unit that serves `config_file`."""
    values = {
        "@PROGRAM@": str(Path(sys.executable).with_name("paceline")),
        "@CONFIG@": str(config_file),
        "@READS@": config.data_dir or str(config_file.parent),
        "@WRITES@": config.runs_dir,
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text
