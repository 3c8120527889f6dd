# SPDX-License-Identifier: Apache-2.0
"""Records of cells -> means, t-intervals over seeds, and what became of each expectation. Pure: knows no file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline_host.studies.design import Expectation, Setting, Study, cells

SCALES = {"accuracy": 100.0, "before_depletion": 100.0, "recalibrated": 100.0, "deviation": 1.0}
SEEN, NOT_SEEN, OPEN = "seen", "not seen", "open"


@dataclass(frozen=True)
class Spread:
    """One quantity over seeds."""

    mean: float
    deviation: float  # of the sample; 0 for one value
    half_width: float | None  # of the t-interval of the mean; None below two values
    count: int


@dataclass(frozen=True)
class Row:
    """One setting, over its seeds."""

    setting: Setting
    seeds: int  # finished
    failed: int  # of them: the training diverged, so that they have no accuracy
    accuracy: Spread | None  # points of 100, after the last epoch
    before_depletion: Spread | None
    recalibrated: Spread | None
    deviation: Spread | None  # over that of exact sampling of the same batch sizes
    deviation_before_depletion: Spread | None
    l1: Spread | None  # mean of the last epoch's steps, each counting alike whatever its size
    l1_exact: float | None  # what exact sampling of the first step's batch gives
    steps: Spread  # an epoch
    effective_batch: Spread
    cpu_s: Spread | None  # of one thread, evaluation of each epoch included


@dataclass(frozen=True)
class Finding:
    """What became of an expectation in one setting."""

    setting: Setting
    value: Spread | None  # None: fewer than two seeds have it
    verdict: str


@dataclass(frozen=True)
class Findings:
    """What became of an expectation."""

    expectation: Expectation
    findings: tuple[Finding, ...]

    def count(self, verdict: str) -> int:
        """Return in how many settings that came out."""
        return sum(one.verdict == verdict for one in self.findings)


@dataclass(frozen=True)
class Figures:
    """A study, as far as it is finished."""

    study: Study
    trained: int
    planned: int
    rows: tuple[Row, ...]
    expectations: tuple[Findings, ...]
    records: Mapping[Setting, Mapping[int, Mapping[str, Any]]]  # by setting and seed


def figures(study: Study, records: Mapping[str, Mapping[str, Any]]) -> Figures:
    """Return the figures of a study; `records` by cells' keys, those that are finished."""
    every = cells(study)
    by_setting: dict[Setting, dict[int, Mapping[str, Any]]] = {}
    for cell in every:
        here = by_setting.setdefault(cell.setting, {})
        if cell.key() in records:
            here[cell.seed] = records[cell.key()]
    rows = tuple(_row(setting, found, study.confidence) for setting, found in by_setting.items() if found)
    expectations = tuple(
        Findings(one, tuple(_finding(one, setting, by_setting, study.confidence) for setting in by_setting
                            if _matches(one, setting)))
        for one in study.expect
    )  # fmt: skip
    return Figures(study, len(records), len(every), rows, expectations, by_setting)


def _row(setting: Setting, found: Mapping[int, Mapping[str, Any]], confidence: float) -> Row:
    def over(key: str, scale: float = 1.0) -> Spread | None:
        return known([scale * record[key] for record in found.values() if record.get(key) is not None])

    def known(values: Sequence[float]) -> Spread | None:
        return spread(values, confidence) if values else None

    trained = [record for record in found.values() if record.get("l1")]

    steps, effective = over("steps"), over("effective_batch")
    assert steps is not None
    assert effective is not None
    return Row(
        setting, len(found), sum("failed" in record for record in found.values()), over("accuracy", 100.0),
        over("before_depletion", 100.0), over("recalibrated", 100.0), over("deviation"),
        over("deviation_before_depletion"), known([statistics.fmean(record["l1"]) for record in trained]),
        statistics.fmean(record["l1_expected"][0] for record in trained) if trained else None, steps, effective,
        over("cpu_s"),
    )  # fmt: skip


def _matches(one: Expectation, setting: Setting) -> bool:
    return (
        setting.method == one.method
        and (not one.models or setting.model in one.models)
        and (not one.partitions or setting.partition in one.partitions)
        and (not one.clients or setting.clients in one.clients)
        and (not one.batches or setting.batch in one.batches)
    )


def _finding(
    one: Expectation, setting: Setting, found: Mapping[Setting, Mapping[int, Mapping[str, Any]]], confidence: float
) -> Finding:
    own = _values(found.get(setting, {}), one.metric)
    if one.against:
        other = replace(setting, method=one.against)
        if one.against == "central":
            other = replace(other, partition="", clients=0)
        theirs = _values(found.get(other, {}), one.against_metric or one.metric)
        own = {seed: value - theirs[seed] for seed, value in own.items() if seed in theirs}
    if len(own) < 2:
        return Finding(setting, None, OPEN)
    value = spread(list(own.values()), confidence)
    return Finding(setting, value, verdict(value, one.low, one.high))


def _values(records: Mapping[int, Mapping[str, Any]], metric: str) -> dict[int, float]:
    return {seed: SCALES[metric] * record[metric] for seed, record in records.items() if record.get(metric) is not None}


def verdict(value: Spread, low: float | None, high: float | None) -> str:
    """Return whether an interval lies within limits (SEEN), outside (NOT_SEEN) or across one of them (OPEN)."""
    half = value.half_width or 0.0
    below, above = value.mean - half, value.mean + half
    if (low is None or below >= low) and (high is None or above <= high):
        return SEEN
    return NOT_SEEN if (low is not None and above < low) or (high is not None and below > high) else OPEN


def spread(values: Sequence[float], confidence: float) -> Spread:
    """Return mean, deviation and the half width of the t-interval of the mean."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return Spread(mean, 0.0, None, count)
    deviation = statistics.stdev(values)
    return Spread(mean, deviation, t_quantile(confidence, count - 1) * deviation / math.sqrt(count), count)


def t_quantile(confidence: float, freedom: int) -> float:
    """Return t such that Student's t of so many degrees of freedom lies within -t and t with that probability."""
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Return P(-t <= T <= t), by the finite sums for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 4)."""
    theta = math.atan(t / math.sqrt(freedom))
    squared = math.cos(theta) ** 2
    if freedom % 2:
        if freedom == 1:
            return 2.0 * theta / math.pi
        term, total = math.cos(theta), math.cos(theta)
        for k in range(3, freedom, 2):
            term *= squared * (k - 1) / k
            total += term
        return 2.0 / math.pi * (theta + math.sin(theta) * total)
    term, total = 1.0, 1.0
    for k in range(2, freedom, 2):
        term *= squared * (k - 1) / k
        total += term
    return math.sin(theta) * total
