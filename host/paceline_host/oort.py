# SPDX-License-Identifier: Apache-2.0
"""Oort's guided selection of participants (OSDI 2021), as its published code has it. Pure; chance depends on the round.

Utility is the root of the mean squared loss times samples, plus a bonus for who was long not chosen, times a penalty
for who is slower than a preferred duration, which a pacer moves. An update carries no loss here, and all boards share
one data set, on which their losses have one distribution; so the first factor is the same for all, and what remains of
utility is nearly speed (DECISIONS 38). What the code does with an index beyond the last board is left out: it fails
where all that were scored are wanted, which with eleven boards happens at once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The defaults of SymbioticLab/Oort."""

    penalty: float = 2.0  # exponent of (preferred / own duration)
    threshold: float = 10.0  # percentile of known durations that is preferred
    pacer_delta: float = 5.0  # percentiles that the pacer moves it by,
    pacer_step: int = 20  # each so many rounds
    explore: float = 0.9  # share of places for boards never tried, in the first round,
    explore_decay: float = 0.95  # from one round to the next,
    explore_least: float = 0.2  # and at least
    clip: float = 0.98  # quantile above which rewards are cut
    cut_off: float = 0.7  # of the score of the first that is not wanted any more: whoever is above it may be chosen


@dataclass
class _Seen:
    reward: float
    duration_s: float
    round: int  # in which it took part last


class Selection:
    """Who takes part. `choose` once a round, `reported` for whoever did."""

    def __init__(self, seed: int, settings: Settings | None = None) -> None:
        self._seed, self._settings = seed, settings or Settings()
        self._seen: dict[int, _Seen] = {}
        self._round = 0
        self._threshold = self._settings.threshold
        self._explore = self._settings.explore
        self._utility: list[float] = []  # of those chosen for their utility, by round

    def reported(self, board: int, duration_s: float, reward: float) -> None:
        """A board has taken part in the present round."""
        self._seen[board] = _Seen(reward, duration_s, self._round)

    def choose(self, present: Sequence[int], wanted: int) -> list[int]:
        """Return `wanted` of the boards, in their order; all, where there are no more."""
        s = self._settings
        self._round += 1
        self._move_threshold()
        self._explore = max(s.explore * s.explore_decay ** (self._round - 1), s.explore_least)
        known = [board for board in present if board in self._seen]
        untried = [board for board in present if board not in self._seen]
        wanted = min(wanted, len(present))
        places = min(len(known), int(wanted * (1 - self._explore)) if untried else wanted)
        draws = random.Random(f"oort/{self._seed}/{self._round}")
        scores = self.scores(known)
        exploited = self._exploit(scores, places, draws)
        chosen = exploited + _sample(dict.fromkeys(untried, 1.0), wanted - len(exploited), draws)
        left = {board: 1.0 for board in present if board not in chosen}
        chosen += _sample(left, wanted - len(chosen), draws)
        self._utility.append(sum(self._seen[board].reward for board in exploited))
        return [board for board in present if board in set(chosen)]

    def scores(self, boards: Sequence[int]) -> dict[int, float]:
        """Return the utility of boards that took part already."""
        if not boards:
            return {}
        s, seen = self._settings, self._seen
        rewards = sorted(seen[board].reward for board in boards)
        most = rewards[min(int(len(rewards) * s.clip), len(rewards) - 1)]
        least = 0.999 * rewards[0]
        span = max(most - least, 1e-4)
        preferred_s = self.preferred_s()
        found = {}
        for board in boards:
            one = seen[board]
            score = (min(one.reward, most) - least) / span
            score += math.sqrt(0.1 * math.log(max(1, self._round)) / one.round)
            if one.duration_s > preferred_s:
                score *= (preferred_s / one.duration_s) ** s.penalty
            found[board] = score
        return found

    def preferred_s(self) -> float:
        """Return the duration above which boards are penalised; infinite while nothing is known, or none is."""
        durations = sorted(one.duration_s for one in self._seen.values())
        if not durations or self._threshold >= 100.0:
            return math.inf
        return durations[min(int(len(durations) * self._threshold / 100.0), len(durations) - 1)]

    def _exploit(self, scores: Mapping[int, float], places: int, draws: random.Random) -> list[int]:
        if not places:
            return []
        ranked = sorted(scores, key=lambda board: (-scores[board], board))
        cut = self._settings.cut_off * scores[ranked[min(places, len(ranked) - 1)]]
        return _sample({board: scores[board] for board in ranked if scores[board] >= cut}, places, draws)

    def _move_threshold(self) -> None:
        """Let slower boards in when utility no longer changes, and fewer when it has risen fivefold."""
        s = self._settings
        past = self._round - 1
        if past < 2 * s.pacer_step or past % s.pacer_step:
            return
        last = sum(self._utility[-2 * s.pacer_step : -s.pacer_step])
        now = sum(self._utility[-s.pacer_step :])
        if abs(now - last) <= 0.1 * last:
            self._threshold = min(100.0, self._threshold + s.pacer_delta)
        elif abs(now - last) >= 5.0 * last:
            self._threshold = max(s.pacer_delta, self._threshold - s.pacer_delta)


def _sample(weights: Mapping[int, float], count: int, draws: random.Random) -> list[int]:
    """Return `count` keys, each drawn in proportion to its weight among those that are left."""
    left = dict(weights)
    chosen: list[int] = []
    while left and len(chosen) < count:
        place, last = draws.random() * sum(left.values()), next(reversed(left))
        for key, weight in left.items():
            place -= weight
            if place <= 0.0 or key == last:  # rounding may leave a crumb behind the last
                chosen.append(key)
                break
        del left[chosen[-1]]
    return chosen
