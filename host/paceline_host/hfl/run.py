# SPDX-License-Identifier: Apache-2.0
"""From the silos of an experiment to facts of one run, and what is wrong with them before anything starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise

from paceline.errors import DataError, SettingsError
from paceline.settings import did_you_mean
from paceline.silos import SiloRule
from paceline.tasks import Task
from paceline.wire import MAX_RANGES
from paceline_host.ddp import run as ddp_run
from paceline_host.experiment import Experiment, SiloSettings
from paceline_host.hfl.silos import Silo


def check(
    experiment: Experiment, task: Task, names: Sequence[str], *, final: bool = True
) -> tuple[list[Silo], list[dict[str, object]]]:  # fmt: skip
    """Return the silos, and what their boards are told of their samples. Raises SettingsError with all faults.

    Not `final`: boards that are known now need not be the run's, so one may be in no silo.
    """
    declared = experiment.silo
    faults = [*_who(declared, names), *_what(declared, task)]
    if final:
        faults += _left(declared, names)
    if faults:
        raise SettingsError(faults)
    rules = [_rule(experiment, number) for number in range(len(declared))]
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
        for number, one in enumerate(declared)
    ]
    if faults := [fault for silo in silos for fault in _how_many(silo, experiment)]:
        raise SettingsError(faults)
    return silos, [asdict(rule) for rule in rules]


def budget(experiment: Experiment) -> int:
    """Return the samples of a round, of all silos together."""
    return sum(one.budget for one in experiment.silo)


def _who(silos: Sequence[SiloSettings], names: Sequence[str]) -> Iterator[str]:
    for name, times in Counter(one.name for one in silos).items():
        if times > 1:
            yield f"silo {name!r}: {times} silos have this name; expected a name of its own for each"
    seats: dict[str, list[str]] = {}
    for one in silos:
        if not one.boards:
            yield f"silo {one.name!r}: boards is empty; expected at least one board, or leave the silo out"
        for board in one.boards:
            seats.setdefault(board, []).append(one.name)
            if board not in names:
                yield f"silo {one.name!r}: there is no board {board!r} in the fleet; {did_you_mean(board, list(names))}"
    for board, at in seats.items():
        if len(at) > 1:
            yield f"silo {at[1]!r}: board {board!r} is in silo {at[0]!r} already; a board is in one silo, once"


def _left(silos: Sequence[SiloSettings], names: Sequence[str]) -> Iterator[str]:
    seated = {board for one in silos for board in one.boards}
    if left := [name for name in names if name not in seated]:
        yield f"silos: {', '.join(left)} of the fleet: in no silo; expected each board in one"


def _what(silos: Sequence[SiloSettings], task: Task) -> Iterator[str]:
    kinds = {_kind(one) for one in silos}
    if len(kinds) > 1:
        yield "silos: some name their samples and others not, or in another way; expected one way for all silos"
    ranges = []
    for one in silos:
        if isinstance(one.samples, tuple):
            begin, end = one.samples
            if not 0 <= begin < end <= task.samples:
                yield f"silo {one.name!r}: samples = [{begin}, {end}]: expected 0 <= begin < end <= {task.samples}"
            ranges.append((begin, end, one.name))
    ranges.sort()
    for (_, end, name), (begin, _, other) in pairwise(ranges):
        if begin < end:
            yield f"silo {other!r}: its samples begin at {begin}, those of silo {name!r} end at {end}; none is in two"


def _how_many(silo: Silo, experiment: Experiment) -> Iterator[str]:
    run, boards = experiment.run, len(silo.boards)
    if fault := ddp_run.too_little(run, silo.budget, boards):
        yield f"silo {silo.name!r}: {fault}"
    if silo.budget > (most := (MAX_RANGES - 2) * silo.samples):  # a slice names each epoch that it touches
        text = f"budget = {silo.budget} is more than {MAX_RANGES - 2} times its data"
        yield f"silo {silo.name!r}: {text}; expected at most {most}"


def _kind(one: SiloSettings) -> str:
    return "dealt" if one.samples is None else "own" if isinstance(one.samples, int) else "range"


def _rule(experiment: Experiment, number: int) -> SiloRule:
    one, dealing = experiment.silo[number], asdict(experiment.silos)
    kind = _kind(one)
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
