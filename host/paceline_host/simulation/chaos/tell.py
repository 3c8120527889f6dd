# SPDX-License-Identifier: Apache-2.0
"""Runs seeds and says what came of them: in words, with the story of one seed, or as JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from paceline.errors import SettingsError
from paceline.talk import Talk
from paceline_host.simulation.chaos.plan import Plan, drawn
from paceline_host.simulation.chaos.world import Verdict, run

MOST = 1_000_000  # seeds in one call


def seeds(text: str) -> range:
    """Read "7" or "1-500". Raises SettingsError."""
    found = re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", text)
    if found is not None:
        first = int(found[1])
        last = int(found[2] or first)
        if first <= last < first + MOST:
            return range(first, last + 1)
    raise SettingsError([f"--chaos {text!r}: expected a seed or a range of up to {MOST:,}, for instance 7 or 1-500"])


def chaos(
    which: Sequence[int], talk: Talk, stopping: Callable[[], bool] = lambda: False, *, regime: str = "pma",
    as_json: bool, quiet: bool,
) -> int:  # fmt: skip
    """Run seeds under a regime until `stopping`; return the exit status."""
    verdicts: list[Verdict] = []
    for seed in which:
        if stopping():
            talk.warning(f"interrupted; {len(verdicts)} of {len(which)} seeds were run", event="interrupted")
            break
        if len(verdicts) % 50 == 49 and not quiet:
            talk.info(f"{len(verdicts) + 1} of {len(which)} seeds", event="progress")
        verdict = run(drawn(seed, regime))
        verdicts.append(verdict)
        if not as_json and not verdict.ok:
            again = f"paceline simulate --chaos {seed}{'' if regime == 'pma' else f' --regime {regime}'}"
            print(f"seed {seed}: {verdict.broken.rstrip()}\n    to see it again: {again}")
    broken = [verdict for verdict in verdicts if not verdict.ok]
    if as_json:
        facts = {"schema": "paceline-chaos-1", "simulated": True, "seeds": len(verdicts), "broken": len(broken)}
        print(json.dumps({**facts, "runs": [_as_json(verdict) for verdict in verdicts]}, indent=1))
    elif not verdicts:
        pass
    elif len(verdicts) == 1:
        print("\n".join(_story(verdicts[0])))
    else:
        print(_sum(regime, verdicts, broken))
    if broken and not quiet:
        talk.error(f"promises were broken by {len(broken)} of {len(verdicts)} seeds", event="chaos")
    return 9 if broken else 0


def _story(verdict: Verdict) -> Iterator[str]:
    plan = verdict.plan
    yield from _what(plan)
    yield from (f"{when_s:10.3f} s  {text}" for when_s, text in verdict.story)
    if verdict.ok:
        yield f"{verdict.seconds:10.3f} s  all promises were kept ({verdict.checks:,} checks)"


def _what(plan: Plan) -> Iterator[str]:
    yield (
        f"simulated, seed {plan.seed}, {plan.regime}: {plan.boards} boards, {plan.rounds} rounds x {plan.budget} "
        f"samples, policy {plan.policy}, a model of {plan.model_bytes:,} bytes, patience {plan.patience_s:g} s"
    )
    yield f"for {plan.heal_s:.1f} s a fault every {plan.every_s:g} s on average, of: {', '.join(plan.kinds)}"
    if plan.hostile is not None:
        yield f"board-{plan.hostile} is hostile"


def _sum(regime: str, verdicts: Sequence[Verdict], broken: Sequence[Verdict]) -> str:
    faults = sum((verdict.faults for verdict in verdicts), Counter[str]())
    return (
        f"simulated, {regime}: {len(verdicts)} seeds, {len(broken)} broke a promise; {faults.total():,} faults of "
        f"{len(faults)} kinds, {sum(verdict.lives for verdict in verdicts):,} lives of hosts, "
        f"{sum(verdict.seconds for verdict in verdicts) / 3600:.1f} virtual hours, "
        f"{sum(verdict.checks for verdict in verdicts):,} checks"
    )


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "seed": verdict.plan.seed, "ok": verdict.ok, "broken": verdict.broken or None, "lives": verdict.lives,
        "seconds": verdict.seconds, "checks": verdict.checks, "faults": dict(sorted(verdict.faults.items())),
        "ends": verdict.ends, "dropped": dict(sorted(verdict.dropped.items())), "plan": asdict(verdict.plan),
        "story": [{"at_s": when_s, "what": text} for when_s, text in verdict.story],
    }  # fmt: skip
