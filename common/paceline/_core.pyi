# SPDX-License-Identifier: Apache-2.0
"""What type checkers know of the C extension: nothing. paceline.core is where Any ends."""

from typing import Any

ffi: Any
lib: Any
