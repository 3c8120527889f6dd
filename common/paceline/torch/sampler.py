# SPDX-License-Identifier: Apache-2.0
"""Batches of one rank whose share of each step is set from outside; takes the place of DistributedSampler and of the
batch sampler. Knows the group only to ask for its own rank.

A round is `budget` places of the stream permutation(epoch 0), permutation(epoch 1), ...; by default one epoch. All
ranks have the same number of steps, nothing is padded or left out, and a step's union of batches is the same whatever
the shares are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import index
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler, default_collate

from paceline.core import U32_MAX, U64_MAX, permutation
from paceline.errors import CoreError
from paceline.uneven import Deal, equal_shares, steps_of


class UnevenBatchSampler(Sampler[list[int]]):
    """Yields lists of sample numbers; give it to a DataLoader as `batch_sampler`."""

    def __init__(
        self, samples: int, batch: int, *, rank: int | None = None, world: int | None = None, budget: int | None = None,
        shares: Sequence[int] | None = None, minimum: int = 1, seed: int = 0,
    ) -> None:  # fmt: skip
        """`batch`: of all ranks together, at most. `minimum`: samples of each rank in each step; 0: may pause.

        `rank`, `world` None: of the default group; without one, 0 of 1. Raises CoreError when a share is too small.
        """
        grouped = dist.is_available() and dist.is_initialized()
        self.rank = rank if rank is not None else dist.get_rank() if grouped else 0
        self.world = world if world is not None else dist.get_world_size() if grouped else 1
        if not 0 <= _whole("rank", self.rank) < _whole("world", self.world, 1):
            raise CoreError(
                f"UnevenBatchSampler: rank {self.rank} of {self.world}; expected one below the world's size"
            )
        self.samples, self.batch = _whole("samples", samples, 1), _whole("batch", batch, 1, U64_MAX)
        self.minimum, self.seed = _whole("minimum", minimum), _whole("seed", seed, most=U64_MAX)
        self.budget = self.samples if budget is None else _whole("budget", budget, 1)
        if self.world * self.minimum > self.budget:
            most = self.budget // self.world
            raise CoreError(
                f"UnevenBatchSampler: minimum is {minimum} for each of {self.world} ranks in each step, of a budget of "
                f"{self.budget}; expected " + (f"at most {most}" if most else "0, with which a rank may pause")
            )
        self.steps = steps_of(self.budget, self.batch)
        self._round = self._first = self._given = 0
        self._order: tuple[int, Any] = (-1, None)
        self._begun = False  # an iteration, whose loop may still be at it after its last batch was handed out
        self.set_shares(equal_shares(self.budget, self.world, self.steps, minimum) if shares is None else shares)

    @property
    def _last_round(self) -> int:
        """The last round whose places are all in epochs that the core can number."""
        return max(0, (U32_MAX + 1) * self.samples // self.budget - 1)

    @property
    def least_share(self) -> int:
        """The smallest share that gives `minimum` samples in each step; what a Controller takes as its minimum."""
        return self.steps * self.minimum

    @property
    def shares(self) -> list[int]:
        """Samples of each rank in a round."""
        return list(self._deal.shares)

    def set_shares(self, shares: Sequence[int]) -> None:
        """Set the samples of each rank, the same on all ranks, for the next iteration; they sum to the budget.

        An iteration under way goes on as it began, and `counts` stay its own until `set_epoch` or the next one.
        """
        try:
            shares = [_whole("a share", share) for share in shares]
        except TypeError:  # as `in` and `list` know it: of all that cannot be gone through
            raise CoreError(
                f"UnevenBatchSampler: shares is {shares!r:.60}; expected the samples of each of {self.world} ranks"
            ) from None
        if len(shares) != self.world or sum(shares) != self.budget:
            raise CoreError(
                f"UnevenBatchSampler: {len(shares)} shares with a sum of {sum(shares)}; expected {self.world} with a "
                f"sum of {self.budget}"
            )
        self._deal = Deal(shares, self.steps, self.minimum)
        if not self._begun:
            self._dealt = self._deal

    def set_epoch(self, epoch: int) -> None:
        """Choose the round, from 0; with the default budget it is the epoch. A loaded state's goes on at its step."""
        epoch = _whole("the epoch", epoch, most=self._last_round)
        if epoch != self._round:
            self._round, self._first = epoch, 0
        self._given = self._first
        self._begun, self._dealt = False, self._deal

    def counts(self, step: int) -> tuple[int, int]:
        """Return how many samples this rank takes in a step of the round, and how many all take."""
        return self._dealt.counts(self._known(step), self.rank)

    def counts_of(self, step: int, rank: int) -> int:
        """Return how many samples a rank takes in a step of the round."""
        return self._dealt.counts(self._known(step), rank)[0]

    def _known(self, step: int) -> int:
        if not 0 <= step < self.steps:
            raise CoreError(f"UnevenBatchSampler: there is no step {step}; a round has steps 0 to {self.steps - 1}")
        return step

    @property
    def first_step(self) -> int:
        """The step that the next iteration begins with: 0 unless a state was loaded."""
        return self._first

    def __len__(self) -> int:
        """Return the steps of the next iteration."""
        return self.steps - self._first

    def __iter__(self) -> Iterator[list[int]]:
        deal, begin, first = self._deal, self._round * self.budget, self._first
        self._begun, self._dealt = True, deal
        self._first, self._given = 0, first
        for step in range(first, self.steps):
            self._given = step + 1
            yield [self._sample(begin + place) for place in deal.places(step, self.rank)]

    def _sample(self, place: int) -> int:
        epoch, position = divmod(place, self.samples)
        if self._order[0] != epoch:
            self._order = epoch, permutation(self.seed, epoch, self.samples)
        return int(self._order[1][position])

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return where the round stands, the same on every rank.

        `step`: steps done; None: batches handed out, which with a DataLoader's workers runs ahead of them.
        """
        return {
            "round": self._round, "step": self._given if step is None else step, "shares": self.shares,
            "samples": self.samples, "batch": self.batch, "budget": self.budget, "minimum": self.minimum,
            "seed": self.seed,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there: its round, and no other, begins at its step when `set_epoch` chooses it.

        Raises CoreError when it is of other data, batches, budget or number of ranks, or no state at all.
        """
        given: object = state  # whatever was in a file
        if not isinstance(given, Mapping) or not given.keys() >= self.state_dict().keys():
            raise CoreError(f"UnevenBatchSampler: {state!r:.60} is no state; expected what state_dict() returned")
        number = _whole("the state's round", state["round"], most=self._last_round)
        step = _whole("the state's step", state["step"])
        if step > self.steps:
            raise CoreError(f"UnevenBatchSampler: the state has step {step}, a round has {self.steps}")
        for name in ("samples", "batch", "budget", "minimum", "seed"):
            if state[name] != getattr(self, name):
                raise CoreError(
                    f"UnevenBatchSampler: the state has {name} {state[name]}, here it is {getattr(self, name)}"
                )
        self._begun = False
        self.set_shares(state["shares"])
        self._round, self._first = number, step
        if self._first >= self.steps:  # the round was over
            self._round, self._first = self._round + 1, 0
        self._given = self._first


def _whole(name: str, value: Any, least: int = 0, most: int = U32_MAX) -> int:
    """Return a whole number, of whatever type. Raises CoreError for anything else, a fraction too."""
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise CoreError(
            f"UnevenBatchSampler: {name} is {_shown(value)}; expected a whole number, "
            + (f"at least {least}" if number < least else f"at most {most}")
        )
    return number


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.60}"
    except ValueError:  # Python writes no number of thousands of digits
        return "a number of thousands of digits"


def collate_with_empty(
    dataset: Any, collate: Callable[[list[Any]], Any] = default_collate
) -> Callable[[list[Any]], Any]:
    """Return a `collate_fn` that makes an empty batch, of the right shapes, of no samples (minimum=0)."""

    def collated(samples: list[Any]) -> Any:
        return collate(samples) if samples else _emptied(collate([dataset[0]]))

    return collated


def _emptied(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[:0]
    if isinstance(batch, Mapping):
        return {key: _emptied(value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(_emptied(value) for value in batch)
    return batch
