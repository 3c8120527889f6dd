# SPDX-License-Identifier: Apache-2.0
"""One epoch of split learning while clients come and go: how many samples each gives in each step. Pure.

A step is drawn, then committed or voided (DECISIONS 23). What is to come is known at any time, so that clients can be
told ahead; a loss or a return changes what is to come and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from paceline import batches
from paceline.sampler import GlobalSampler

Counts = tuple[int, ...]  # of each client


class _Draws(Protocol):
    """A method's own part: the open step's counts, and those after it."""

    def open(self) -> Counts: ...
    def commit(self) -> None: ...
    def void(self) -> None: ...
    def remove(self, client: int) -> None: ...
    def restore(self, client: int) -> None: ...
    def ahead(self) -> list[Counts]: ...


class EpochPlan:
    """Steps of one epoch over clients of `sizes`: `counts` of step `step`, drawn `redraw` times before."""

    def __init__(
        self, method: str, sizes: Sequence[int], batch: int, seed: int, epoch: int, *, absent: Collection[int] = ()
    ) -> None:
        """`absent`: clients that are not here at the beginning. Raises CoreError and SettingsError as `schedule`."""
        made = batches.schedule(method, sizes, batch, seed, epoch)
        self.sizes = tuple(sizes)
        self.used = [0] * len(sizes)
        self.step = self.redraw = 0
        self._absent: set[int] = set()
        self._draws: _Draws
        if isinstance(made, batches.Fixed):
            self._draws = _FixedDraws(made.local, sizes)
        else:
            self._draws = _GlobalDraws(sizes, batch, seed, epoch)
        for client in absent:
            self.remove(client)
        self._rows: list[Counts] = []
        self._look_ahead()

    @property
    def over(self) -> bool:
        """Nothing is left to be drawn."""
        return not self._rows

    @property
    def steps(self) -> int:
        """How many steps the epoch has, as far as is known."""
        return self.step + len(self._rows)

    @property
    def counts(self) -> Counts:
        """What each client gives in the open step."""
        return self._rows[0]

    @property
    def left(self) -> int:
        """Samples that cannot be reached, as their clients are absent."""
        return sum(self.sizes[client] - self.used[client] for client in self._absent)

    def rows(self, number: int) -> list[Counts]:
        """Return the counts of the open step and of those after it, `number` at most."""
        return self._rows[:number]

    def commit(self) -> None:
        """The open step is done."""
        for client, count in enumerate(self._rows.pop(0)):
            self.used[client] += count
        self._draws.commit()
        self.step, self.redraw = self.step + 1, 0

    def void(self, lost: Collection[int]) -> None:
        """The open step is void for all; without the lost clients it is drawn anew with fresh words."""
        self._draws.void()
        for client in lost:
            self.remove(client)
        self.redraw += 1
        self._look_ahead()

    def remove(self, client: int) -> None:
        """Take a client out, between two steps; call `changed` when all are out."""
        if client not in self._absent:
            self._absent.add(client)
            self._draws.remove(client)

    def restore(self, client: int) -> None:
        """Bring a client back with what it has not given yet, between two steps; call `changed` when all are back."""
        if client in self._absent:
            self._absent.discard(client)
            self._draws.restore(client)

    def changed(self) -> None:
        """Clients came or went between two steps: look ahead anew."""
        self._look_ahead()

    def _look_ahead(self) -> None:
        self._rows = self._draws.ahead()


class _GlobalDraws:
    """`gpsl`, and `central` with its one client: exactly as GlobalSampler draws."""

    def __init__(self, sizes: Sequence[int], batch: int, seed: int, epoch: int) -> None:
        self._sampler = GlobalSampler(sizes, seed=seed, epoch=epoch)
        self._batch = batch

    def open(self) -> Counts:
        return tuple(self._sampler.draw_dense(self._batch))

    def commit(self) -> None:
        self.open()
        self._sampler.commit()

    def void(self) -> None:
        self.open()
        self._sampler.void()

    def remove(self, client: int) -> None:
        self._sampler.remove(client)

    def restore(self, client: int) -> None:
        self._sampler.restore(client)

    def ahead(self) -> list[Counts]:
        copy = GlobalSampler.from_state(self._sampler.state())
        rows = []
        while copy.total:
            rows.append(tuple(copy.draw_dense(self._batch)))
            copy.commit()
        return rows


class _FixedDraws:
    """`fls`, `fpls`: b_k a step until nothing is left."""

    def __init__(self, local: Sequence[int], sizes: Sequence[int]) -> None:
        self._local = tuple(local)
        self._left = list(sizes)
        self._absent: set[int] = set()

    def open(self) -> Counts:
        return self._give(self._left)

    def commit(self) -> None:
        for client, count in enumerate(self.open()):
            self._left[client] -= count

    def void(self) -> None:
        pass

    def remove(self, client: int) -> None:
        self._absent.add(client)

    def restore(self, client: int) -> None:
        self._absent.discard(client)

    def ahead(self) -> list[Counts]:
        left, rows = self._left[:], []
        while any(row := self._give(left)):
            rows.append(row)
            left = [have - count for have, count in zip(left, row, strict=True)]
        return rows

    def _give(self, left: Sequence[int]) -> Counts:
        return tuple(
            0 if client in self._absent else min(most, left[client]) for client, most in enumerate(self._local)
        )
