# SPDX-License-Identifier: Apache-2.0
"""The exceptions of all layers. A PacelineError is for the user and reads as one sentence; any other exception is a
bug. What a program's exit status means stands here too, once for both programs, their help and the README.
"""

from __future__ import annotations

EXITS = {
    0: "ok",
    1: "a bug of paceline",
    2: "usage",
    3: "configuration or data",
    4: "connection",
    5: "keys",
    6: "version",
    7: "meter",
    8: "some boards failed",
    9: "the run failed",
    10: "storage",
    130: "Ctrl-C",
    143: "SIGTERM",
}


class PacelineError(Exception):
    """Something the user can act on: the text says what, where, what was expected and what to do."""

    exit_code = 1


class CoreError(PacelineError, ValueError):
    """The C core refused its input (its status code is in the text)."""

    exit_code = 2


class SettingsError(PacelineError):
    """A configuration is wrong. `errors` holds one sentence for each fault found."""

    exit_code = 3

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


class DataError(PacelineError):
    """A data set is missing, damaged or not what it should be."""

    exit_code = 3


class LinkError(PacelineError):
    """The other side cannot be reached or does not answer."""

    exit_code = 4


class KeyFileError(PacelineError):
    """A key file is missing, readable by others, malformed, or not the one the other side knows."""

    exit_code = 5


class RunError(PacelineError):
    """A run cannot begin or go on."""

    exit_code = 9


class StorageError(PacelineError):
    """A file of the run cannot be read or written."""

    exit_code = 10


class DamagedError(StorageError):
    """A file of the run is damaged, or gone: nothing that is tried again will help."""


class LocalProtocolError(Exception):
    """Our own code broke the rules of the protocol: a bug here."""


class RemoteProtocolError(Exception):
    """The peer broke the rules of the protocol; its message is dropped and counted."""
