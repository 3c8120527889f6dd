# SPDX-License-Identifier: Apache-2.0
"""The names of policies, and what is said of a name that is none."""

from __future__ import annotations

import pytest

from paceline.policies import POLICIES, Policy, fits, policy


@pytest.mark.parametrize(
    ("name", "w_energy"),
    [
        ("time", 0.0),
        ("low-energy", 0.25),
        ("balanced", 0.5),
        ("high-energy", 0.75),
        ("energy", 1.0),
        ("w_energy:0.3", 0.3),
    ],
)
def test_weighted_policies_are_a_weight(name: str, w_energy: float) -> None:
    assert policy(name) == Policy(name, "weighted", w_energy)


@pytest.mark.parametrize("name", ["equal", "static", "oort"])
def test_the_others_have_none(name: str) -> None:
    found = policy(name)
    assert (found.kind, found.w_energy) == (name, None)


def test_ema_batch_may_be_renewed_every_so_many_steps_where_rounds_have_steps() -> None:
    found = policy("ema-batch:every=10")
    assert (found.kind, found.every) == ("ema-batch", 10)
    assert [fits(found, regime) for regime in ("pma", "ddp", "hfl")] == [False, True, True]
    assert fits(policy("ema-batch"), "pma")


def test_the_table_holds_each_under_its_own_name() -> None:
    assert all(policy(name).name == name for name in POLICIES)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("low_energy", "unknown policy 'low_energy'; did you mean low-energy"),
        ("tiem", "did you mean time"),
        (
            "fastest",
            "known: equal, static, ema-batch, oort, time, low-energy, balanced, high-energy, energy, w_",
        ),
        ("w_energy:1.5", "the weight is no number from 0 to 1"),
        ("w_energy:nan", "the weight is no number from 0 to 1"),
        ("ema-batch:every=0", "expected a number of steps from 1 on; for instance ema-batch:every=10"),
        ("ema-batch:every=often", "expected a number of steps from 1 on"),
        ("w_energy:lots", "the weight is no number from 0 to 1; for instance w_energy:0.3"),
    ],
)
def test_a_wrong_name_gets_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        policy(name)
