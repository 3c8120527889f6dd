# SPDX-License-Identifier: Apache-2.0
"""Shares for scripts that run elsewhere: those of the policy, whoever asks twice, late, or nonsense."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.policies import policy
from paceline_host import operator_wire as w
from paceline_host.planner import make
from paceline_host.scripts import KEPT, Scripts

TERMS = {"policy": "time", "ranks": 3, "budget": 90, "minimum": 2}
PACES_S = (0.1, 0.2, 0.4)


def reports(shares: list[int]) -> list[list[Any]]:
    return [[pace * share, None, share] for pace, share in zip(PACES_S, shares, strict=True)]


def ask(scripts: Scripts, number: int, rows: list[Any], name: str = "mine", **changes: Any) -> w.Message:
    document = {**TERMS, **changes, "reports": rows}
    return scripts.answer("ann", w.Divide(5, w.PROTOCOL, name, number, document=document), 10.0)


def shares(answer: w.Message) -> list[int]:
    assert isinstance(answer, w.Told), answer
    return [int(share) for share in answer.document["shares"]]


@pytest.mark.parametrize("name", ["time", "equal", "static", "ema-batch", "frontier:time"])
def test_shares_are_those_of_a_runs_planner(name: str) -> None:
    scripts, planner = Scripts(), make(policy(name), 3, 90, 2)
    planned = shares(ask(scripts, 1, [], policy=name))
    assert planned == planner.plan(range(3)) == [30, 30, 30]
    for number in (2, 3, 4):
        told = reports(planned)
        for rank, row in enumerate(told):
            planner.observe(rank, *row)
        planned = shares(ask(scripts, number, told, policy=name))
        assert planned == planner.plan(range(3))
    assert sum(planned) == 90
    (known,) = scripts.rows(12.5)
    assert (known["name"], known["by"], known["round"], known["shares"], known["last_s"]) == (
        "mine",
        "ann",
        4,
        planned,
        2.5,
    )


def test_scripts_of_one_name_are_judged_by_their_own_measurements() -> None:
    scripts, alone = Scripts(), Scripts()
    twins = {"a": (0.1, 0.1, 0.3), "b": (0.9, 0.1, 0.1)}
    planned = {life: [30, 30, 30] for life in twins}
    for number in (2, 3, 4):
        for life, paces_s in twins.items():
            told = [[pace * n, None, n] for pace, n in zip(paces_s, planned[life], strict=True)]
            planned[life] = shares(ask(scripts, number, told, life=life))
            assert planned[life] == shares(ask(alone, number, told, life))
    assert [row["shares"] for row in scripts.rows(0.0)] == list(planned.values())


def test_a_question_that_comes_twice_has_one_answer_and_is_learned_from_once() -> None:
    scripts, others = Scripts(), Scripts()
    told = reports([30, 30, 30])
    for one in (scripts, others):
        ask(one, 1, [])
        ask(one, 2, told)
    slower = [[60.0, None, 30], *told[1:]]
    ask(scripts, 3, slower)
    assert shares(ask(scripts, 3, slower)) == shares(ask(others, 3, slower))
    assert shares(ask(scripts, 4, told)) == shares(ask(others, 4, told))


def test_a_host_that_knows_nothing_begins_with_the_reports_at_hand() -> None:
    assert shares(ask(Scripts(), 7, reports([30, 30, 30]))) == [51, 26, 13]


def test_a_rank_that_did_nothing_has_no_report() -> None:
    assert shares(ask(Scripts(), 2, [None, *reports([30, 30, 30])[1:]]))[0] > 0


def test_scripts_that_are_silent_for_longest_are_forgotten() -> None:
    scripts = Scripts()
    for number in range(KEPT + 3):
        ask(scripts, 1, [], f"script-{number}")
    assert [row["name"] for row in scripts.rows(0.0)] == [f"script-{number}" for number in range(3, KEPT + 3)]


@pytest.mark.parametrize(
    ("changes", "rows", "said"),
    [
        ({"policy": "tiem"}, [], "did you mean time"),
        ({"policy": "oort"}, [], "does not divide the rounds of ranks"),
        ({"policy": "gpsl"}, [], "does not divide the rounds of ranks"),
        ({"policy": "ema-batch:every=2"}, [], "does not divide the rounds of ranks"),
        ({"ranks": 0}, [], "0 ranks; expected 1 to"),
        ({"ranks": "many"}, [], "expected whole numbers"),
        ({"budget": 5}, [], "budget = 5 is below 3 boards x 2 samples"),
        ({"life": 5}, [], "life is 5; expected at most 64 characters"),
        ({}, [None], "one of each of 3 ranks"),
        ({}, [None, None, [0.0, None, 1]], "rank 2 reports"),
        ({}, [None, None, [1.0, -1.0, 1]], "rank 2 reports"),
        ({}, [None, ["1", None, 1], None], "rank 1 reports"),
        ({}, [None, [1.0, None, True], None], "rank 1 reports"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_a_sentence(changes: dict[str, Any], rows: list[Any], said: str) -> None:
    answer = ask(Scripts(), 1, rows, **changes)
    assert isinstance(answer, w.Refused)
    assert answer.exit_code == 3
    assert said in answer.document["errors"][0]
