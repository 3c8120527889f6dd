# SPDX-License-Identifier: Apache-2.0
"""For one test: a wrong scaling, the mean of the ranks' means."""

from typing import Any

TARGET = "paceline.torch.gradients"


def plant(module: Any) -> None:
    """See sitecustomize."""
    module.weight = lambda own, total, world: 1.0
