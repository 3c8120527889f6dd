# SPDX-License-Identifier: Apache-2.0
"""Parallel split learning, one step at a time and without a network: clients hold the first part of a model and their
data, the host the rest and both optimisers.

`layout` says what travels, `client` and `host` compute (and load torch), `inprocess` joins them in one process.
Importing this package loads neither numpy nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import RunError

WIRE_DTYPES = ("float32", "float16", "bfloat16", "float64")  # of smashed tensors and their gradients


class SplitError(RunError):
    """What a client handed over does not fit the step; `client` says whose it is, None: the step's as a whole."""

    def __init__(self, client: int | None, text: str) -> None:
        super().__init__(text if client is None else f"client {client}: {text}")
        self.client, self.text = client, text


@dataclass(frozen=True)
class Upload:
    """What a client handed over for a step. `dtype` and `shape`: what it says of its smashed tensor, if it says so."""

    client: int
    samples: int
    data: bytes | bytearray | memoryview
    dtype: str = ""
    shape: tuple[int, ...] = ()
