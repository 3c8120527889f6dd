# SPDX-License-Identifier: Apache-2.0
"""For one test: a board whose trainer dies whenever it is to load."""

import os
from typing import Any

TARGET = "paceline_agent.workers.pma"


def plant(module: Any) -> None:
    """See sitecustomize."""
    os._exit(3)
