# SPDX-License-Identifier: Apache-2.0
"""Which samples a silo holds, and the one way from places of its stream to them. Loads numpy only to deal a partition.

Places are a silo's own: place p is position p mod n of epoch p div n, where n is what the silo holds. So no place, and
no range, can name a sample of another silo: there is no number for it. Sample numbers of the training set are made here
alone (`SiloIndex`), on the boards, which are told their own silo's rule and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NewType, cast

from paceline.core import permutation
from paceline.errors import DataError
from paceline.settings import Bounds
from paceline.tasks import Task

Dealt = Literal["iid", "mild", "severe", "dirichlet-classes", "dirichlet", "shards"]

SiloIndex = NewType("SiloIndex", int)  # number of a training sample that is this silo's


@dataclass(frozen=True)
class Dealing:
    """How the training set is dealt to silos that do not name their samples: methods of `paceline data partition`."""

    partition: Dealt = "iid"
    classes_per_silo: Annotated[int, Bounds(ge=1, le=65_536)] = 2  # of dirichlet-classes
    alpha: Annotated[float, Bounds(gt=0, le=1e6)] = 3.0  # of the two by Dirichlet: small is uneven
    seed: Annotated[int, Bounds(ge=0, lt=1 << 63)] = 1  # of the partition

    def members(self, task: Task, silos: int) -> list[Sequence[int]]:
        """Return each silo's sample numbers. Raises DataError where the data cannot be dealt like that."""
        from paceline.data import partition

        if not hasattr(task, "labels"):
            raise DataError("this task has no labels, by which its samples could be dealt; give each silo its samples")
        dealt = partition(
            task.labels(), silos, self.partition, classes_per_client=self.classes_per_silo, alpha=self.alpha,
            seed=self.seed,
        )  # fmt: skip
        return cast(list[Sequence[int]], dealt.indices())


@dataclass(frozen=True)
class SiloRule(Dealing):
    """What LOAD tells a board of its silo, and of no other: a range, all that the board holds, or a part of a deal."""

    kind: Literal["range", "own", "dealt"] = "dealt"
    begin: Annotated[int, Bounds(ge=0)] = 0  # of a range
    end: Annotated[int, Bounds(ge=0)] = 0
    silo: Annotated[int, Bounds(ge=0)] = 0  # of a deal: which part
    silos: Annotated[int, Bounds(ge=1)] = 1  # of how many

    def samples(self, task: Task) -> SiloSamples:
        """Return the silo's samples. Raises DataError where the data do not have them."""
        if self.kind == "own":
            return SiloSamples(range(task.samples))
        if self.kind == "dealt":
            return SiloSamples(self.members(task, self.silos)[self.silo])
        if not self.begin < self.end <= task.samples:
            raise DataError(f"the silo's samples are {self.begin} to {self.end - 1}, the data have {task.samples}")
        return SiloSamples(range(self.begin, self.end))


class SiloSamples:
    """The samples of one silo."""

    def __init__(self, members: Sequence[int]) -> None:
        self._members = members

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, index: object) -> bool:
        return index in self._members

    def order(self, seed: int, epoch: int) -> Sequence[SiloIndex]:
        """Return the order in which an epoch goes through them."""
        members = self._members
        return [SiloIndex(int(members[position])) for position in permutation(seed, epoch, len(members))]
