# SPDX-License-Identifier: Apache-2.0
"""The library: who gets how many samples, from measured seconds and joules. Imports neither numpy nor torch."""

from paceline.controller import Controller, Flags
from paceline.core import allocate, permutation
from paceline.errors import CoreError, PacelineError
from paceline.version import VERSION as __version__

__all__ = ["Controller", "CoreError", "Flags", "PacelineError", "__version__", "allocate", "permutation"]
