# SPDX-License-Identifier: Apache-2.0
"""Why a board got its samples: a round's decision, made again from the journal, in numbers and in words.

What a policy knew is replayed as a resume does it. Numbers first (`explain`); `words` says the same in sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from paceline import Controller, allocate
from paceline.errors import RunError, StorageError
from paceline.goals import cost, frontier
from paceline.policies import Policy, policy
from paceline_host import left_out, planner, recovery
from paceline_host.experiment import load_experiment
from paceline_host.hfl.silos import of_rows
from paceline_host.ledger import Ledger
from paceline_host.mixing import explain as mixing
from paceline_host.psl import explain as split
from paceline_host.records import Run, as_reported
from paceline_host.runs import run_folders

SCHEMA = "paceline-explain-1"
DEADBAND = 0.05  # of planners: the controller's default

Facts = dict[str, Any]


def one_run(folder: Path) -> Path:
    """Return the run that a folder is, or the only one in it. Raises StorageError."""
    runs = run_folders(folder)
    if len(runs) > 1:
        names = ", ".join(str(run) for run in sorted(runs))
        raise StorageError(f"{folder} holds {len(runs)} runs; name one of them: {names}")
    return runs[0]


def planner_of(run: Run, folder: Path, name: str) -> planner.Measured:
    """Return a fresh planner of a policy for a run."""
    silos = [(silo.boards, silo.budget) for silo in of_rows(run.silos)]
    return planner.make(policy(name), run.boards, run.budget, minimum_of(folder), silos, seed=run.seed)


def minimum_of(folder: Path) -> int:
    """Return the fewest samples of a board in a run; its journal says so only where it was simulated."""
    kept = folder / "run.toml"
    if kept.exists():
        settings = load_experiment(kept).run
        return max(settings.minimum, settings.steps * settings.min_batch)
    with Ledger(folder) as ledger:
        return int(ledger.run.options.get("minimum", 1))


def explain(folder: Path, round_: int) -> Facts:
    """Return what decided a round: the plan's own facts, and `boards`, one entry for each that took part."""
    with Ledger(folder) as ledger:
        run, names = ledger.run, {board.board: board.name for board in ledger.boards()}
        silos = ledger.silos()
        rounds = [row.round for row in ledger.rounds()]
        idle = left_out.read(ledger.events(left_out.KIND)).get(round_, [])
        shares = {s.board: s.samples for s in ledger.slices(round_) if s.redealt_from is None}
        before = {s.board: s.samples for s in ledger.slices(round_ - 1) if s.redealt_from is None}
        heard = as_reported(ledger.contributions(round_ - 1, "accepted")) if round_ > 1 else []
        last = {c.board: c for c in heard}
        done = sorted(ledger.contributions(round_, "accepted"), key=lambda c: c.lease)
    if run.regime == "async":
        return {"schema": SCHEMA, **mixing.explain(folder, round_)}
    if run.regime == "psl":
        return {"schema": SCHEMA, **split.explain(folder, round_)}
    if round_ not in rounds:
        raise RunError(f"{folder}: there is no round {round_}; rounds 1 to {max(rounds, default=0)} were planned")
    made = planner_of(run, folder, run.policy)
    recovery.replay(made, folder, before=round_)
    controller, present = made.controller, sorted(shares)
    facts: Facts = {
        "schema": SCHEMA, "run": run.run_id, "policy": run.policy, "round": round_, "budget": run.budget,
        "equal_share": run.budget / len(present),
    }  # fmt: skip
    entries = [
        {
            "board": names[i], "samples": shares[i], "samples_before": before.get(i, 0),
            "minimum": controller.limits(i)[0],
            "capacity": controller.limits(i)[1], "seconds_per_sample": made.seconds_per_sample(i),
            "energy_per_sample_j": controller.energy_per_sample_j[i], **_report(last.get(i)),
            "slices": [c.samples for c in done if c.board == i],
            "flags": sorted(name for name, on in vars(controller.flags(i)).items() if on and name != "present"),
        }
        for i in present
    ]  # fmt: skip
    kind = policy(run.policy)
    if kind.kind == "frontier":
        facts |= _frontier(made, controller, present, entries)
    each: list[Facts] = []
    for silo in silos:
        own = [entry for i, entry in zip(present, entries, strict=True) if i in silo.boards]
        for entry in own if silo.name else ():
            entry["silo"] = silo.name
        here = [i for i in present if i in silo.boards]
        found = _weighted(kind, controller, here, own, silo.budget) if kind.kind == "weighted" and own else {}
        said = {"silo": silo.name, "budget": silo.budget, "equal_share": silo.budget / max(1, len(own))}
        each.append({**said, **found} if silo.name else found)
    facts |= {"silos": each} if run.silos else each[0]
    if kind.kind == "oort":
        facts |= {"kind": "oort", "left_out": [names[i] for i in idle]}
    if kind.kind == "ema-batch":
        facts |= {"kind": "ema-batch", "every": kind.every}
    return {**facts, "boards": entries}


def _report(row: Any) -> Facts:
    if row is None:
        return {"reported_seconds_per_sample": None, "reported_energy_per_sample_j": None}
    joules = None if row.compute_uj is None else row.compute_uj * 1e-6 / row.samples
    return {
        "reported_seconds_per_sample": row.compute_us * 1e-6 / row.samples,
        "reported_energy_per_sample_j": joules,
    }


def _weighted(
    kind: Policy, controller: Controller, present: Sequence[int], entries: Sequence[Facts], budget: int
) -> Facts:
    for i in range(len(controller)):
        (controller.restore if i in present else controller.remove)(i)
    costs = controller.costs
    seconds = [e["seconds_per_sample"] for e in entries if e["seconds_per_sample"]]
    joules = [
        e["energy_per_sample_j"] for i, e in zip(present, entries, strict=True)
        if e["energy_per_sample_j"] and not controller.flags(i).energy_unknown
    ]  # fmt: skip
    limits = [controller.limits(i) for i in present]
    most = [0xFFFFFFFF if capacity is None else capacity for _, capacity in limits]
    plan = allocate([costs[i] for i in present], budget, [least for least, _ in limits], most)
    free = sum(1 / costs[i] for i in present)
    for i, entry, share in zip(present, entries, plan, strict=True):
        entry["cost"] = costs[i]
        entry["unlimited_share"] = budget / costs[i] / free
        entry["new_share"] = share
        entry["at_limit"] = "minimum" if share == entry["minimum"] else "capacity" if share == entry["capacity"] else ""
    now = max(entry["cost"] * entry["samples_before"] for entry in entries)
    then = max(entry["cost"] * entry["new_share"] for entry in entries)
    same = all(entry["samples"] == entry["samples_before"] for entry in entries)
    return {
        "kind": "weighted", "w_energy": kind.w_energy, "w_time": 1.0 - (kind.w_energy or 0.0),
        "median_seconds_per_sample": median(seconds) if seconds else None,
        "median_energy_per_sample_j": median(joules) if joules else None,
        "deadband": DEADBAND,
        "predicted_gain": now / then - 1 if then and any(entry["samples_before"] for entry in entries) else None,
        "kept": same and any(entry["new_share"] != entry["samples_before"] for entry in entries),
    }  # fmt: skip


def _frontier(
    made: planner.Measured, controller: Controller, present: Sequence[int], entries: Sequence[Facts]
) -> Facts:
    made.plan(present)
    loop = controller.loop
    assert loop is not None
    models, facts = controller.models, {"kind": "frontier", "hysteresis": loop.hysteresis, "kept": loop.kept}
    for i, entry in zip(present, entries, strict=True):
        model = models[i]
        if model is not None:
            entry |= {
                "fixed_seconds": model.fixed_seconds, "model_seconds_per_sample": model.seconds_per_sample,
                "seconds_from": model.seconds_from, "active_w": model.active_w, "wait_w": model.wait_w,
                "wait_from": model.wait_from, "affine": list(model.affine), "proportional": list(model.proportional),
            }  # fmt: skip
    if loop.plan is None:
        return {**facts, "notes": ["nothing is known of costs yet, so all get the same"]}
    for entry, pace, share in zip(entries, loop.paces, loop.plan.shares, strict=True):
        entry |= {
            "marginal_j": pace.energy_per_sample_j - pace.wait_w * pace.seconds_per_sample, "floor": pace.minimum,
            "new_share": share, "ends_s": pace.seconds(entry["samples"]),
        }  # fmt: skip
    lots = [0] * len(controller.budgets)
    for entry, pace in zip(entries, loop.paces, strict=True):
        lots[pace.group] += entry["samples"]
    seconds, joules = cost(loop.paces, [entry["samples"] for entry in entries], len(lots))
    shortest = frontier("frontier:time", loop.paces, lots)
    return {
        **facts, "notes": list(loop.notes), "predicted_seconds": seconds, "predicted_j": joules,
        "new_seconds": loop.plan.seconds, "new_j": loop.plan.energy_j, "bound_j": loop.plan.real_j,
        "shortest_seconds": shortest.seconds, "shortest_j": shortest.energy_j,
    }  # fmt: skip


# In words -------------------------------------------------------------------------------------------------------------


def words(facts: Facts, board: str | None = None) -> list[str]:
    """Return a round's decision as sentences; `board`: of that one only. Raises RunError when it took no part."""
    entries = [entry for entry in facts["boards"] if board is None or entry["board"] == board]
    if not entries:
        known = ", ".join(entry["board"] for entry in facts["boards"])
        if board in facts.get("holding_none", ()):
            raise RunError(f"board {board!r} held no samples in epoch {facts['round']}; there were: {known}")
        raise RunError(f"round {facts['round']} had no board {board!r}; there were: {known}")
    if facts.get("kind") == "async":
        return mixing.words(facts, entries)
    if facts.get("kind") == "psl":
        return split.words(facts, entries)
    lines = [f"{facts['run']}, round {facts['round']}: {facts['budget']} samples by policy {facts['policy']}"]
    groups = facts.get("silos", [facts])
    if "kind" in facts:
        lines += _plan_words(facts)
    elif not any("kind" in group for group in groups):
        lines.append("shares do not follow costs: all get the same, or what round 1 measured")
    for group in groups:
        own = [entry for entry in entries if entry.get("silo") == group.get("silo")]
        if own and "silo" in group:
            lines += ["", f"silo {group['silo']}: {group['budget']} samples, which are dealt in it alone"]
            lines += [f"  {text}" for text in _plan_words(group)] if "kind" in group else []
        for entry in own:
            lines += ["", f"{entry['board']}: {_versus(entry['samples'], group['equal_share'])}"]
            lines += [f"  {text}" for text in _board_words(facts, entry)]
    return lines


def _plan_words(facts: Facts) -> list[str]:
    if facts["kind"] == "oort":
        left = ", ".join(facts["left_out"]) or "nobody"
        return [f"oort selects boards by speed, by how long they were left out, and by chance; left out: {left}"]
    if facts["kind"] == "ema-batch":
        when = f"every {facts['every']} steps, by these" if facts["every"] else "each round, by the one before"
        return [f"shares follow throughput alone, no joules, no dead-band: half of what was known, half new {when}"]
    if facts["kind"] == "weighted":
        lines = [
            f"cost = {facts['w_time']:g} x seconds / median ({_ms(facts['median_seconds_per_sample'])} a sample)"
            f" + {facts['w_energy']:g} x joules / median ({_mj(facts['median_energy_per_sample_j'])} a sample)"
        ]
        gain = facts["predicted_gain"]
        if facts["kept"]:
            lines.append(
                f"the shares of before stay: new ones were foretold to gain {100 * gain:.1f} %, not more than "
                f"the dead-band of {100 * facts['deadband']:g} %"
            )
        elif gain is not None:
            lines.append(f"new shares, foretold to gain {100 * gain:.1f} %")
        return lines
    lines = list(facts["notes"])
    if "new_j" in facts:
        lines.append(
            f"foretold {facts['predicted_seconds']:.4g} s and {facts['predicted_j']:.4g} J a round; the shortest plan "
            f"would take {facts['shortest_seconds']:.4g} s and {facts['shortest_j']:.4g} J"
        )
        if facts["kept"]:
            lines.append(
                f"the plan of before stays: the best one now, {facts['new_seconds']:.4g} s and {facts['new_j']:.4g} J, "
                f"gains less than {100 * facts['hysteresis']:g} %"
            )
    return lines


def _board_words(facts: Facts, entry: Facts) -> list[str]:
    lines = []
    if entry["reported_seconds_per_sample"] is not None:
        lines.append(
            f"last report: {_ms(entry['reported_seconds_per_sample'])}, {_mj(entry['reported_energy_per_sample_j'])} a "
            f"sample; smoothed: {_ms(entry['seconds_per_sample'])}, {_mj(entry['energy_per_sample_j'])}"
        )
    elif entry["seconds_per_sample"] is None:
        lines.append("it has reported nothing yet; the median of the others stands for its costs")
    if len(entry["slices"]) > 1:
        parts = " + ".join(str(samples) for samples in entry["slices"])
        lines.append(f"the round was dealt anew in its course; it did {parts} = {sum(entry['slices'])} samples")
    if "cost" in entry:
        lines.append(f"cost {entry['cost']:.4g} (1 is typical), which alone would make {entry['unlimited_share']:.1f}")
        if entry["at_limit"]:
            lines.append(f"held by its {entry['at_limit']} of {entry[entry['at_limit']]}")
    if "active_w" in entry:
        lines.append(
            f"model: {_ms(entry['fixed_seconds'])} fixed and {_ms(entry['model_seconds_per_sample'])} a sample "
            f"({entry['seconds_from']}); {_watts(entry['active_w'])} at work, {_watts(entry['wait_w'])} waiting "
            f"({entry['wait_from']})"
        )
    if "marginal_j" in entry:
        order = sorted(other["marginal_j"] for other in facts["boards"])
        lines.append(
            f"a sample adds {_mj(entry['marginal_j'])} above waiting, place {order.index(entry['marginal_j']) + 1} "
            f"of {len(order)}; it ends after {entry['ends_s']:.4g} s"
        )
        if entry["new_share"] == entry["floor"]:
            lines.append(f"held at its floor of {entry['floor']}: others do it for less")
    lines += [FLAG_WORDS[flag] for flag in entry["flags"] if flag in FLAG_WORDS]
    return lines


FLAG_WORDS = {
    "energy_held": "its last joules are missing; an older estimate stands in",
    "energy_unknown": "its joules are unknown, so its energy term equals its time term",
    "report_held": "its last report was 100 times off, and waits for a second one like it",
}


def _versus(samples: int, equal: float) -> str:
    return f"{samples} samples, {samples / equal:.2f} times an equal share ({equal:.0f})"


def _ms(seconds: float | None) -> str:
    return "unknown time" if seconds is None else f"{seconds * 1e3:.4g} ms"


def _mj(joules: float | None) -> str:
    return "unknown joules" if joules is None else f"{joules * 1e3:.4g} mJ"


def _watts(watts: float | None) -> str:
    return "unknown watts" if watts is None else f"{watts:.3g} W"
