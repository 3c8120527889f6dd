# SPDX-License-Identifier: Apache-2.0
"""Which samples each client of split learning holds: one rule that host and boards compute alike, or boards' own data.

Knows no torch; numpy comes in with the partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, cast

from paceline.settings import Bounds
from paceline.tasks import SplitTask

if TYPE_CHECKING:
    from paceline.data import Partition as Dealt

OWN = "own"


@dataclass(frozen=True)
class Partition:
    """How the training set is dealt to clients; "own": it is not, each board is one client with the data it has."""

    clients: Annotated[int, Bounds(ge=1, le=1 << 20)] = 16
    partition: Literal["iid", "mild", "severe", "dirichlet-classes", "dirichlet", "shards", "own"] = "iid"
    classes_per_client: Annotated[int, Bounds(ge=1, le=65_536)] = (
        2  # of dirichlet-classes: 5 is "mild", 2 "severe", with alpha 3
    )
    alpha: Annotated[float, Bounds(gt=0, le=1e6)] = 3.0  # of the two by Dirichlet: small is uneven
    seed: Annotated[int, Bounds(ge=0, lt=1 << 63)] = 1  # of the partition and of each client's own order

    def members(self, task: SplitTask) -> list[Sequence[int]]:
        """Return each client's sample numbers. Raises SettingsError where the data cannot be dealt like that."""
        if self.partition == OWN or self.clients == 1:
            return [range(task.samples)]
        return cast(list[Sequence[int]], self.dealt(task).indices())

    def dealt(self, task: SplitTask) -> Dealt:
        """Return who holds each sample; not for boards' own data. Raises as `members`."""
        from paceline.data import partition

        return partition(
            task.labels(), self.clients, self.partition, classes_per_client=self.classes_per_client, alpha=self.alpha,
            seed=self.seed,
        )  # fmt: skip


@dataclass(frozen=True)
class ClientSettings(Partition):
    """What LOAD tells a board's worker: the partition, and which of the clients are here."""

    first: Annotated[int, Bounds(ge=0)] = 0
    count: Annotated[int, Bounds(ge=0)] = 0
    largest: Annotated[int, Bounds(ge=0, lt=1 << 32)] = 0  # samples that one step asks of this board at most
    smashed: Literal["float32", "float16", "bfloat16", "float64"] = "float32"


def sizes_of(members: Sequence[Sequence[int]]) -> list[int]:
    """Return how many samples each client holds."""
    return [len(one) for one in members]
