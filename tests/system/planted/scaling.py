# SPDX-License-Identifier: Apache-2.0
"""For one test: a wrong scaling, the mean of the ranks' means."""

from typing import Any

TARGET = "paceline.torch.gradients"


def plant(module: Any) -> None:
    """See sitecustomize."""
    right = module.SampleMean._reduce

    def wrong(self: Any, bucket: Any) -> Any:
        self.counts = self.counts and (1, module.dist.get_world_size())
        return right(self, bucket)

    module.SampleMean._reduce = wrong
