# SPDX-License-Identifier: Apache-2.0
"""From the silos of an experiment to facts of one run, and what is wrong with them before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from paceline.errors import DataError, SettingsError
from paceline.silos import SiloRule
from paceline.tasks import Task
from paceline.wire import MAX_RANGES
from paceline_host.experiment import Experiment, SiloSettings
from paceline_host.hfl import declared
from paceline_host.hfl.silos import Silo


def check(
    experiment: Experiment, task: Task, names: Sequence[str], *, final: bool = True
) -> tuple[list[Silo], list[dict[str, object]]]:  # fmt: skip
    """Return the silos, and what their boards are told of their samples. Raises SettingsError with all faults.

    Not `final`: boards that are known now need not be the run's, so one may be in no silo.
    """
    tables = experiment.silo
    found = declared.faults(dict(enumerate(tables)), experiment.run, names, final=final)
    if faults := [*(text for _, text in found), *_beyond(tables, task)]:
        raise SettingsError(faults)
    rules = [_rule(experiment, number) for number in range(len(tables))]
    try:
        sizes = _sizes(experiment, task, rules)
    except DataError as error:
        text, dealing = f"silos: {error}", experiment.silos
        if "client" in text:  # the words of `paceline data partition`
            keys = f'silos.partition = "{dealing.partition}", silos.classes_per_silo = {dealing.classes_per_silo}'
            text += f"; the clients are the silos here: {keys}"
        raise SettingsError([text]) from None
    silos = [
        Silo(number, one.name, tuple(sorted(names.index(b) for b in one.boards)), one.budget, sizes[number])
        for number, one in enumerate(tables)
    ]
    if faults := [fault for silo in silos for fault in _too_much(silo)]:
        raise SettingsError(faults)
    return silos, [asdict(rule) for rule in rules]


def budget(experiment: Experiment) -> int:
    """Return the samples of a round, of all silos together."""
    return sum(one.budget for one in experiment.silo)


def _beyond(silos: Sequence[SiloSettings], task: Task) -> Iterator[str]:
    for one in silos:
        if isinstance(one.samples, tuple) and one.samples[1] > task.samples:
            text = f"samples = {list(one.samples)}: expected 0 <= begin < end <= {task.samples}"
            yield f"silo {one.name!r}: {text}"


def _too_much(silo: Silo) -> Iterator[str]:
    if silo.budget > (most := (MAX_RANGES - 2) * silo.samples):  # a slice names each epoch that it touches
        text = f"budget = {silo.budget} is more than {MAX_RANGES - 2} times its data"
        yield f"silo {silo.name!r}: {text}; expected at most {most}"


def _rule(experiment: Experiment, number: int) -> SiloRule:
    one, dealing = experiment.silo[number], asdict(experiment.silos)
    kind = declared.kind(one)
    if kind == "dealt":
        return SiloRule(**dealing, kind="dealt", silo=number, silos=len(experiment.silo))
    if isinstance(one.samples, tuple):
        return SiloRule(kind="range", begin=one.samples[0], end=one.samples[1])
    return SiloRule(kind="own")


def _sizes(experiment: Experiment, task: Task, rules: Sequence[SiloRule]) -> list[int]:
    if rules[0].kind == "dealt":
        return [len(members) for members in experiment.silos.members(task, len(rules))]
    return [
        one.samples if isinstance(one.samples, int) else len(rule.samples(task))
        for one, rule in zip(experiment.silo, rules, strict=True)
    ]
