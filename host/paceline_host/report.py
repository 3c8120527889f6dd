# SPDX-License-Identifier: Apache-2.0
"""Runs side by side: one table for people, the same as JSON. Computes nothing but differences; see `figures`.

What is unknown reads "unknown", never 0 and never blank. Percentages stand only where both runs did the whole work,
held their declared pace and, for joules, know all boards.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline_host.ddp.figures import RankFigures
from paceline_host.figures import RoundFigures, RunFigures, SplitFigures, figures
from paceline_host.hfl.figures import SiloFigures
from paceline_host.journal import JOURNAL
from paceline_host.mixing.figures import MixFigures
from paceline_host.records import PARTS
from paceline_host.run_files import EXPERIMENT
from paceline_host.runs import run_folders
from paceline_host.target import Target

SCHEMA = "paceline-report-1"
TARGET = "to the target"
_A_SETTING = re.compile(r"\bset [\w.]+ = ")  # in the reason of a run that stops again unless that is done
REFERENCE = "equal"  # the policy that others are compared with
UNKNOWN = "unknown"
WIDTH = 100


@dataclass(frozen=True)
class Change:
    """Against the reference, relative: -0.25 is a quarter less. None: not to be stated, and why."""

    makespan: float | None
    joules: float | None
    why_not: str = ""


@dataclass(frozen=True)
class Report:
    """A comparison, or a single run."""

    name: str
    runs: tuple[RunFigures, ...]
    beside: tuple[RunFigures, ...] = ()  # runs of the same comparison that are not shown, only compared with
    target: Target | None = None  # until which time and joules are counted

    def change(self, run: RunFigures) -> Change | None:
        """Compare a run with the reference; None when there is none, or the run is it."""
        reference = next((r for r in (*self.runs, *self.beside) if r.run.policy == REFERENCE), None)
        if reference is None or run.run.policy == REFERENCE:
            return None
        for one in (reference, run):
            if one.late:
                return Change(None, None, f"pace not held in {one.run.policy}")
            if not one.complete:
                return Change(None, None, f"{one.run.policy} is not complete")
            if one.resumed:
                return Change(None, None, f"{one.run.policy} was interrupted")
        if run.samples != reference.samples:
            return Change(None, None, "not the same number of samples")
        known = run.joules.complete and reference.joules.complete
        return Change(
            _relative(run.makespan_s, reference.makespan_s),
            _relative(run.joules.total_j, reference.joules.total_j) if known else None,
            "" if known else "none for joules, which are unknown on some boards",
        )

    def as_json(self) -> dict[str, Any]:
        """Return the report as one JSON object; unknown values are null."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "reference": REFERENCE if any(run.split is None for run in self.runs) else None,
            "runs": [self._entry(r) for r in self.runs],
        }

    def _entry(self, run: RunFigures) -> dict[str, Any]:
        entry = asdict(run)
        facts = entry.pop("run")
        change = self.change(run)
        return {
            **{key: facts[key] for key in ("run_id", "policy", "regime", "task", "data_label", "seed", "budget")},
            "rounds_asked": facts["rounds"], "rounds_done": len(run.rounds), "started": facts["started"],
            **entry,
            "pace_held": not run.late, "counted_exactly_once": not run.faults and bool(run.rounds),
            "against_equal": None if change is None else asdict(change),
            **({} if self.target is None else {"target": asdict(self.target), "to_target": self._to_target(run)}),
        }  # fmt: skip

    def _to_target(self, run: RunFigures) -> dict[str, Any] | None:
        first = None if self.target is None else self.target.first(run.rounds)
        return None if first is None else {"round": first.round, "seconds": first.end_s, "joules": first.joules}


def load_report(folder: Path) -> Report:
    """Read all runs of a comparison's folder, or the one run that the folder is, in the order in which they ran."""
    runs = [figures(path) for path in run_folders(folder)]
    beside: tuple[RunFigures, ...] = ()
    sibling = folder.resolve().parent / REFERENCE
    if (folder / JOURNAL).exists() and sibling != folder.resolve() and (sibling / JOURNAL).exists():
        reference = figures(sibling)
        if _comparison(reference) == _comparison(runs[0]):
            beside = (reference,)
    return Report(folder.resolve().name, tuple(sorted(runs, key=lambda run: run.run.started)), beside)


def _comparison(run: RunFigures) -> str:
    return run.run.run_id.rpartition("/")[0]


Cell = Callable[[Report, RunFigures], str]

# The table ------------------------------------------------------------------------------------------------------------


def render(report: Report) -> str:
    """Return the report as text: one column a run, one row a figure."""
    runs = report.runs
    rows: list[tuple[str, list[str]]] = [("", [run.run.policy for run in runs])]
    rows += [(name, [cell(report, run) for run in runs]) for name, cell in rows_of(report)]
    left = max(len(name) for name, _ in rows)
    widths = [max(len(cells[i]) for _, cells in rows) for i in range(len(runs))]
    lines = [
        "  ".join([name.ljust(left), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))]).rstrip()
        for name, cells in rows
    ]
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join([*_title(report), "", *lines, *_wrapped(notes(report))])


def _title(report: Report) -> list[str]:
    run = report.runs[0].run
    boards = len(report.runs[0].boards)
    data = sorted({r.run.data_label for r in report.runs})
    text = (
        f"{report.name}: {run.regime}, {run.task}, {run.rounds} rounds x {run.budget} samples, {boards} boards, "
        f"seed {run.seed}"
    )
    return [text, f"data: {'; '.join(data)}"]


def rows_of(report: Report) -> list[tuple[str, Cell]]:
    """Return the rows that say anything of these runs, those of silos at the end."""
    names = dict.fromkeys(silo.name for run in report.runs for silo in run.silos)
    silos = [row for name in names for row in _silo_rows(name)]
    return [(name, cell) for name, cell in ROWS if wanted(report, name)] + silos


def _silo_rows(name: str) -> list[tuple[str, Cell]]:
    def cell(figure: Callable[[SiloFigures], str]) -> Cell:
        def found(report: Report, run: RunFigures) -> str:
            return next((figure(silo) for silo in run.silos if silo.name == name), UNKNOWN)

        return found

    return [
        (f"silo {name}: makespan, median of rounds >= 2", cell(lambda silo: _seconds(silo.makespan_s))),
        ("  then waits for the other silos", cell(lambda silo: _seconds(silo.waited_s))),
        ("  CV of forward times of a step", cell(lambda s: _percent(s.ranks.forward_step_cv if s.ranks else None))),
        ("  CV of forward times of a round", cell(lambda s: _percent(s.ranks.forward_round_cv if s.ranks else None))),
    ]


def wanted(report: Report, name: str) -> bool:
    """Return whether a row of ROWS says anything of these runs."""
    if name.lstrip().startswith("against"):
        return any(report.change(run) is not None for run in report.runs)
    if name.lstrip().startswith("closed form"):
        return any(run.run.declared and run.run.regime == "pma" for run in report.runs)
    if name.endswith(TARGET):
        return report.target is not None
    if name.startswith("controller"):
        return any(run.split is None for run in report.runs)
    if name in SPLIT_ROWS:
        return any(run.split is not None for run in report.runs)
    if name.lstrip().startswith(("instrument", "sampling")):
        return any(run.joules.label not in ("modelled", "unknown") for run in report.runs)
    if name in RANK_ROWS:
        return any(run.ranks is not None for run in report.runs)
    if name in MIX_ROWS:
        return any(run.mixing is not None for run in report.runs)
    return True


def _seconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms"


def _percent(value: float | None, digits: int = 1) -> str:
    return UNKNOWN if value is None else f"{100 * value:.{digits}f} %"


def _total(run: RunFigures) -> str:
    return UNKNOWN if run.joules.total_j is None else f"{_at_least(run)}{run.joules.total_j:.1f} J"


def _either_way(joules: float | None, run: RunFigures) -> str:
    if run.joules.label == "modelled":
        return "none"  # a model has neither
    return UNKNOWN if joules is None else f"+-{joules:.3g} J"


def _at_least(run: RunFigures) -> str:
    return "" if run.joules.complete else ">= "


def _part(name: str) -> Callable[[Report, RunFigures], str]:
    def cell(report: Report, run: RunFigures) -> str:
        return UNKNOWN if run.joules.parts_j is None else f"{_at_least(run)}{run.joules.parts_j[name]:.1f} J"

    return cell


def _against(which: str) -> Callable[[Report, RunFigures], str]:
    def cell(report: Report, run: RunFigures) -> str:
        change = report.change(run)
        if change is None:
            return "" if run.run.policy != REFERENCE else "reference"
        value: float | None = getattr(change, which)
        return "not stated" if value is None else f"{100 * value:+.1f} %"

    return cell


def _accuracy(report: Report, run: RunFigures) -> str:
    if run.rounds and run.accuracy is None and run.loss is not None:
        return "none"  # the task has no such thing
    return _percent(run.accuracy, 2)


def _until(report: Report, run: RunFigures, figure: Callable[[RoundFigures], str]) -> str:
    """Return a figure of the round that reached the target first."""
    target = report.target
    if target is None or not target.is_known(run.rounds):
        return "none"  # the task has no such thing
    first = target.first(run.rounds)
    return "not reached" if first is None else figure(first)


def _joules_so_far(run: RunFigures, joules: float | None) -> str:
    return UNKNOWN if joules is None else f"{_at_least(run)}{joules:.1f} J"


def _loss(report: Report, run: RunFigures) -> str:
    return UNKNOWN if run.loss is None else f"{run.loss:.4f}" if run.loss < 1000 else f"{run.loss:.3g}"


def _split(figure: Callable[[SplitFigures], str]) -> Callable[[Report, RunFigures], str]:
    def cell(report: Report, run: RunFigures) -> str:
        return UNKNOWN if run.split is None else figure(run.split)

    return cell


def _ranks(figure: Callable[[RankFigures], str]) -> Callable[[Report, RunFigures], str]:
    def cell(report: Report, run: RunFigures) -> str:
        return UNKNOWN if run.ranks is None else figure(run.ranks)

    return cell


def _mixing(figure: Callable[[MixFigures], str]) -> Callable[[Report, RunFigures], str]:
    def cell(report: Report, run: RunFigures) -> str:
        return "" if run.mixing is None else figure(run.mixing)

    return cell


def _amount(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


def _work(report: Report, run: RunFigures) -> str:
    return f"{len(run.rounds)}/{run.run.rounds}, {run.samples}"


def _proof(report: Report, run: RunFigures) -> str:
    if run.faults:
        return "NO"
    return f"none twice, {run.left_out:,} left out" if run.left_out else "yes" if run.rounds else UNKNOWN


ROWS: list[tuple[str, Cell]] = [
    ("makespan, whole run", lambda _, run: _seconds(run.makespan_s)),
    ("  against equal", _against("makespan")),
    ("  closed form predicts", lambda _, run: _seconds(run.predicted_s)),
    ("makespan, median of rounds >= 2", lambda _, run: _seconds(run.makespan_median_s)),
    ("  closed form predicts", lambda _, run: _seconds(run.predicted_median_s)),
    ("joules, total", lambda _, run: _total(run)),
    ("  against equal", _against("joules")),
    *[(f"  {name}", _part(name)) for name in PARTS],
    ("  instrument, at most", lambda _, run: _either_way(run.joules.bound_j, run)),
    ("  sampling, 95 %", lambda _, run: _either_way(run.joules.sampling_j, run)),
    ("  joules are", lambda _, run: run.joules.label),
    ("CV of compute times, median of rounds >= 2", lambda _, run: _percent(run.compute_cv)),
    ("CV of forward times of a step", _ranks(lambda ranks: _percent(ranks.forward_step_cv))),
    ("CV of forward times of a round", _ranks(lambda ranks: _percent(ranks.forward_round_cv))),
    ("slowest rank of each step, ideal is 1", _ranks(lambda r: UNKNOWN if r.slowest is None else f"{r.slowest:.3f}")),
    ("waiting in collectives, a rank and round", _ranks(lambda ranks: _seconds(ranks.exposed_s))),
    ("drift found at rounds' begins", _ranks(lambda r: "not compared" if r.drift is None else f"{r.drift:.1g}")),
    ("accuracy at the end", _accuracy),
    (f"time {TARGET}", lambda report, run: _until(report, run, lambda one: _seconds(one.end_s))),
    (f"joules {TARGET}", lambda report, run: _until(report, run, lambda one: _joules_so_far(run, one.joules))),
    ("loss at the end", _loss),
    ("controller, share of the rounds' time", lambda _, run: _percent(run.controller_fraction, 4)),
    ("steps an epoch", _split(lambda split: f"{split.steps:,.0f}")),
    ("samples a step, median", _split(lambda split: f"{split.batch:,.0f}")),
    ("label deviation of a step, mean L1", _split(lambda s: UNKNOWN if s.deviation is None else f"{s.deviation:.3f}")),
    ("tensors an epoch, to boards", _split(lambda split: _amount(split.sent_bytes))),
    ("tensors an epoch, from boards", _split(lambda split: _amount(split.received_bytes))),
    ("host's computing an epoch", _split(lambda split: _seconds(split.host_s))),
    ("rest of a step: link, waits for others", _split(lambda split: _seconds(split.rest_s))),
    ("updates mixed in", _mixing(lambda mix: f"{mix.updates:,}")),
    ("  their age in updates, median", _mixing(lambda mix: f"{mix.age:g}")),
    ("  their weight, mean", _mixing(lambda mix: f"{mix.weight:.3g}")),
    ("rounds, samples", _work),
    ("every sample counted exactly once", _proof),
]


RANK_ROWS = {name for name, _ in ROWS if name.startswith(("CV of forward", "slowest", "waiting in", "drift"))}
MIX_ROWS = {name for name, _ in ROWS if name.startswith(("updates mixed", "  their age", "  their weight"))}
SPLIT_ROWS = {
    name for name, _ in ROWS if name.startswith(("steps an", "samples a", "label dev", "tensors", "host's", "rest of"))
}


def notes(report: Report) -> list[str]:
    """Return what must be known to read the table rightly, a sentence each."""
    found = []
    for run in report.runs:
        name = run.run.policy
        change = report.change(run)
        if run.late:
            worst, share = max(run.late.items(), key=lambda item: item[1])
            found.append(
                f"{name}: pace not held: {len(run.late)} of {len(run.boards)} boards were late in more than 5 % of "
                f"their steps ({worst}: {100 * share:.1f} %); the machine is too slow or too busy for this fleet"
            )
        if change is not None and change.why_not:
            found.append(f"{name}: no percentages: {change.why_not}")
        if run.state != "finished":
            first = f"set that in {Path(run.folder).parent / EXPERIMENT}, then " if _A_SETTING.search(run.state) else ""
            then = "" if run.state == "running" else f"; to go on: {first}paceline resume {run.folder}"
            found.append(f"{name}: {run.state} after {len(run.rounds)} of {run.run.rounds} rounds{then}")
        found += [f"{name}: {text}" for text in run.notes]
        if run.resumed:
            numbers = ", ".join(map(str, run.resumed))
            found.append(
                f"{name}: interrupted in round {numbers} and taken up again; the makespan of such a round holds the "
                "restart, and its joules only what the boards' present lives have seen"
            )
        if run.joules.unknown:
            found.append(f"{name}: joules unknown, wholly or for a time, on {', '.join(run.joules.unknown)}")
        if run.split is not None and (run.split.voided or run.split.left):
            found.append(
                f"{name}: {run.split.voided} steps were void, as a board was lost inside; {run.split.left} samples "
                "were left out of epochs that ended without their board"
            )
        if run.joules.estimated:
            found.append(
                f"{name}: joules by purpose are an estimate on {', '.join(run.joules.estimated)}: the instants at "
                "which computing begins and ends lie so far from a reading that they may hide more than 10 % of the "
                "compute joules; the total holds"
            )
        found += [f"{name}: readings of {board}: {', '.join(said)}" for board, said in run.joules.flags.items()]
        if run.ranks is not None and run.ranks.voided:
            found.append(f"{name}: {run.ranks.voided} groups ended before their round; their steps in flight were void")
        if run.ranks is not None and run.ranks.waited:
            times = ", ".join(f"{board} ({count} times)" for board, count in run.ranks.waited.items())
            found.append(f"{name}: groups ended as the others waited a whole patience for the step of {times}")
        if run.mixing is not None:
            ages = ", ".join(f"{ages}: {count:,}" for ages, count in run.mixing.by_octave.items())
            found.append(f"{name}: updates by the number of others mixed in since their model was handed out: {ages}")
        for silo in run.silos:
            if silo.lapsed:
                numbers = ", ".join(map(str, silo.lapsed))
                found.append(
                    f"{name}: silo {silo.name} took no part in round {numbers}; its {silo.budget} samples lapsed"
                )
        if run.barred:
            found.append(
                f"{name}: no more work was given to {', '.join(run.barred)} after failures in a row; the events on "
                "the page say which"
            )
        if run.voided:
            found.append(
                f"{name}: {run.voided} leases ended without a counted result; their samples were dealt out again"
            )
        found += [f"{name}: FAULT in the ledger: {fault}" for fault in run.faults]
    if report.target is not None and not all(report.target.is_known(run.rounds) for run in report.runs):
        found.append(f"{report.runs[0].run.task} has no {report.target.what} to reach; expected: --target loss=X")
    if len(report.runs) > 1:
        found.append("one seed: accuracies that differ by a fraction of a point do not differ")
    return list(dict.fromkeys(found))


def _wrapped(sentences: Sequence[str]) -> list[str]:
    lines = []
    for sentence in sentences:
        lines += textwrap.wrap(sentence, WIDTH, initial_indent="- ", subsequent_indent="  ")
    return ["", *lines] if lines else []


def _relative(value: float | None, reference: float | None) -> float | None:
    return None if value is None or not reference else value / reference - 1


def policies(runs: Sequence[RunFigures]) -> list[str]:
    """Return the names by which runs are told apart in a picture."""
    names = [run.run.policy for run in runs]
    return [name if names.count(name) == 1 else run.run.run_id for name, run in zip(names, runs, strict=True)]
