# SPDX-License-Identifier: Apache-2.0
"""Small files of a run's folder: written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.errors import StorageError

EXPERIMENT = "experiment.toml"  # in the folder of an experiment's runs: what they go on with


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a small file, whole or not at all. Raises StorageError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from None
