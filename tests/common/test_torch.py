# SPDX-License-Identifier: Apache-2.0
"""paceline.torch with real gloo processes: the gradient is the sample mean's, whatever the batches; samples; shares."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ranks import ROOT, Ranks

from paceline.errors import CoreError
from paceline.torch import UnevenBatchSampler, scale_loss

EXACT = 1e-13


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    runner = Ranks()
    yield runner
    runner.close()


def worst(result: dict[str, Any]) -> float:
    return float(max(abs(a - b) for a, b in zip(result["ours"], result["alone"], strict=True)))


@pytest.mark.parametrize("how", ["hook", "loss"])
@pytest.mark.parametrize("batches", [[7], [4, 4], [9, 2], [1, 11, 4], [6, 0], [0, 5, 3, 1]], ids=str)
def test_the_gradient_is_that_of_the_mean_over_the_union(ranks: Ranks, batches: list[int], how: str) -> None:
    for result in ranks.run("tests.torch_cases:one_step", len(batches), batches=batches, how=how, buckets=1e-4):
        assert worst(result) < EXACT
        assert how == "hook" or result["loss"] == result["loss"]  # scaled, the mean over nothing is 0, not NaN


def test_the_mean_of_means_is_caught(ranks: Ranks) -> None:
    for result in ranks.run("tests.torch_cases:one_step", 2, batches=[9, 2], how="mean of means"):
        assert worst(result) > 1e-3


def test_scaling_twice_is_found_in_the_first_backward(ranks: Ranks) -> None:
    for result in ranks.run("tests.torch_cases:one_step", 2, batches=[5, 3], how="both"):
        assert "use one of them" in result["error"]


def test_a_model_for_each_way_in_one_process_is_no_fault(ranks: Ranks) -> None:
    assert ranks.run("tests.torch_cases:scaled_then_hook", 2) == [True, True]


def test_a_hook_that_was_not_told_the_batch_says_so(ranks: Ranks) -> None:
    (result,) = ranks.run("tests.torch_cases:hook_without_counts", 1)
    assert "set `counts` before each backward" in result["error"]


@pytest.mark.parametrize("how", ["hook", "loss"])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_shares_change_who_works_and_nothing_else(ranks: Ranks, how: str, clip: float) -> None:
    alone = ranks.run("tests.torch_cases:train", 1, shares=None, how=how, clip=clip)[0]
    for shares in ([20, 20], [33, 7]):
        both = ranks.run("tests.torch_cases:train", 2, shares=shares, how=how, clip=clip)
        union = [sorted(a + b) for a, b in zip(both[0]["taken"], both[1]["taken"], strict=True)]
        assert union == [sorted(batch) for batch in alone["taken"]]
        assert sorted(i for batch in union[:4] for i in batch) == list(range(40))  # each once an epoch
        for mine, theirs in zip(both[0]["losses"], alone["losses"], strict=True):
            assert abs(mine - theirs) < 1e-12
        assert both[0]["weights"] == both[1]["weights"]


def test_a_rank_may_pause_where_that_is_asked_for(ranks: Ranks) -> None:
    alone = ranks.run("tests.torch_cases:train", 1, shares=None, how="hook")[0]
    both = ranks.run("tests.torch_cases:train", 2, shares=[38, 2], how="hook", minimum=0)
    assert [] in both[1]["taken"]
    assert max(abs(a - b) for a, b in zip(both[0]["weights"], alone["weights"], strict=True)) < 1e-12


def test_the_reporter_gives_the_slower_rank_less(ranks: Ranks) -> None:
    first, second = ranks.run("tests.torch_cases:adapt", 2, paces_s=[0.0005, 0.002], rounds=3)
    assert [row["shares"] for row in first] == [row["shares"] for row in second]
    assert first[0]["cv"] > 0.4
    assert first[-1]["shares"][0] > 2 * first[-1]["shares"][1]
    assert first[-1]["cv"] < first[0]["cv"]
    assert first[0]["exposed"][0] > first[0]["exposed"][1]  # the faster one waits


def test_all_forwards_that_lead_to_the_gradients_are_measured_and_no_later_one(ranks: Ranks) -> None:
    for told in ranks.run("tests.torch_cases:looks", 2):
        assert sum(told["shares"]) == 16
        assert 2 * 8 * 0.01 <= told["forward"] <= told["compute"]  # as declared there; more where the machine is busy


def test_a_round_is_what_was_done_of_it(ranks: Ranks) -> None:
    for told in ranks.run("tests.torch_cases:rounds_of", 2, steps=[2, 4, 0, 11]):
        assert "no step was done" in told.pop(2)
        assert all(seen == counted for seen, counted in told)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([], "ZeroDivisionError: my mistake"),
        ([1, 2, 3], "the controller gave 3 shares; expected one for each of 2 ranks"),
    ],
    ids=str,
)
def test_what_rank_0s_controller_does_wrong_ends_all_ranks(ranks: Ranks, shares: list[int], said: str) -> None:
    for told in ranks.run("tests.torch_cases:broken", 2, shares=shares):
        assert told == {"error": f"CoreError: rank 0 got no shares: {said}"}


def test_a_meter_that_raises_makes_its_ranks_joules_unknown_and_leaves_nobody_waiting(ranks: Ranks) -> None:
    first, second = ranks.run("tests.torch_cases:metered", 2, said=[2.5, "no such sensor"])
    assert first == {"shares": [8, 8], "heard": [[0, 2.5], [1, None]], "told": []}
    assert second["shares"] == [8, 8]
    assert second["told"] == ["rank 1: its joules of this round are unknown: OSError: no such sensor"]


def test_one_alone_needs_no_group() -> None:
    import torch

    loss = torch.tensor(2.0, requires_grad=True)
    scale_loss(loss, 3, 4).backward()  # type: ignore[no-untyped-call]
    assert loss.grad is not None
    assert float(loss.grad) == 0.75
    with pytest.raises(CoreError, match="expected 0 to all of them"):
        scale_loss(loss, 5, 4)


def sampler(**changes: Any) -> UnevenBatchSampler:
    return UnevenBatchSampler(**{"samples": 30, "batch": 8, "rank": 1, "world": 3, "seed": 2, **changes})


def test_a_state_goes_on_where_the_round_was() -> None:
    whole, broken, again = sampler(), sampler(), sampler()
    whole.set_shares([12, 10, 8])
    broken.set_shares([12, 10, 8])
    for one in (whole, broken):
        one.set_epoch(2)
    steps = iter(broken)
    done = [next(steps), next(steps)]
    state = broken.state_dict()
    again.load_state_dict(state)
    assert (len(again), again.first_step) == (2, 2)
    assert done + list(again) == list(whole)
    again.load_state_dict({**state, "step": 4})  # the round was over
    assert (again.first_step, again.state_dict()["round"]) == (0, 3)
    with pytest.raises(CoreError, match="the state has batch 8, here it is 9"):
        sampler(batch=9).load_state_dict(state)


def test_a_loop_over_epochs_goes_on_where_a_state_was() -> None:
    whole, again = sampler(), sampler()
    state = whole.state_dict(step=1)
    again.load_state_dict(state)
    trained = []
    for epoch in range(2):  # as the loop of paceline.torch does
        again.set_epoch(epoch)
        assert again.state_dict()["step"] == again.first_step == (1 if epoch == 0 else 0)
        trained.append(list(again))
    assert trained[0] == list(whole)[1:]
    again.set_epoch(1)
    assert list(again) == trained[1], "a round that was trained is trained whole where it is chosen again"
    again.load_state_dict(state)
    again.set_epoch(1)
    assert again.first_step == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": -3}, "the state's step is -3; expected a whole number, at least 0"),
        ({"step": 5}, "the state has step 5, a round has 4"),
        ({"step": 1.5}, "the state's step is 1.5"),
        ({"round": -1}, "the state's round is -1"),
        ({"shares": None}, "shares is None"),
        (None, "is no state"),
        ({}, "is no state"),
    ],
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(changes: Any, said: str) -> None:
    one = sampler()
    before = one.state_dict()
    with pytest.raises(CoreError, match=said):
        one.load_state_dict({**before, **changes} if changes else changes)
    assert one.state_dict() == before


def test_new_shares_leave_the_iteration_under_way_its_own_counts() -> None:
    one = sampler(shares=[10, 10, 10])
    old = [one.counts(step) for step in range(one.steps)]
    for step, batch in enumerate(one):
        one.set_shares([4, 22, 4])
        assert (len(batch), sum(one.counts_of(step, rank) for rank in range(3))) == one.counts(step) == old[step]
    assert one.counts(0) == old[0]  # a loader's workers are ahead: its loop may still be at these
    assert [len(batch) for batch in one] == [one.counts(step)[0] for step in range(one.steps)]
    assert sum(one.counts(step)[0] for step in range(one.steps)) == 22
    one.set_shares([10, 10, 10])
    one.set_epoch(1)
    assert one.counts(0) == old[0]


def test_a_round_shorter_than_an_epoch_goes_on_in_the_stream() -> None:
    three = [sampler(budget=20, rank=rank) for rank in range(3)]
    taken = []
    for number in range(3):
        for one in three:
            one.set_epoch(number)
            taken += [index for batch in one for index in batch]
    assert sorted(taken) == sorted([*range(30), *range(30)])


def test_shares_that_do_not_fit_are_refused_with_what_is_possible() -> None:
    with pytest.raises(CoreError, match="expected 3 with a sum of 30"):
        sampler().set_shares([10, 10])
    with pytest.raises(CoreError, match="allow 3 steps at most"):
        sampler().set_shares([20, 7, 3])
    with pytest.raises(CoreError, match="expected at most 2 steps"):
        sampler(samples=8, batch=1)
    with pytest.raises(CoreError, match="rank 3 of 3"):
        sampler(rank=3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shares": [10.5, 9.5, 10.0]}, "a share is 10.5; expected a whole number"),  # trained 29 of 30 samples
        ({"shares": ["10", "10", "10"]}, "a share is '10'"),
        ({"shares": [-5, 20, 15]}, "a share is -5"),
        ({"samples": 1.5}, "samples is 1.5; expected a whole number, at least 1"),
        ({"batch": 0}, "batch is 0"),
        ({"budget": -5}, "budget is -5; expected a whole number, at least 1"),
        ({"minimum": 11}, "minimum is 11 for each of 3 ranks .* expected at most 10"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**70}, "seed is 1180591620717411303424; expected a whole number, at most 18446744073709551615"),
        (
            {"samples": 10**5000},
            "samples is a number of thousands of digits; expected a whole number, at most 42949672",
        ),
        ({"samples": 1}, "of a budget of 1; expected 0, with which a rank may pause"),
        ({"shares": 51}, "shares is 51; expected the samples of each of 3 ranks"),
    ],
)
def test_what_is_no_count_is_refused_by_its_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CoreError, match=said):
        sampler(**changes)


@pytest.mark.parametrize("epoch", [-1, "a", None, 0.5])
def test_an_epoch_that_is_none_is_refused(epoch: Any) -> None:
    with pytest.raises(CoreError, match=r"the epoch is .*; expected a whole number, at least 0"):
        sampler().set_epoch(epoch)


@pytest.mark.parametrize("epoch", [2**63, 10**30, 2**32])
def test_an_epoch_without_a_permutation_is_refused_before_the_loop(epoch: int) -> None:
    with pytest.raises(CoreError, match=r"the epoch is .*; expected a whole number, at most 4294967295"):
        sampler().set_epoch(epoch)
    with pytest.raises(CoreError, match=r"the state's round is .*; expected a whole number, at most 4294967295"):
        sampler().load_state_dict({**sampler().state_dict(), "round": epoch})


@pytest.mark.parametrize("budget", [7, 30, 77])
def test_the_last_round_that_is_taken_has_all_its_samples(budget: int) -> None:
    last = 2**32 * 30 // budget - 1
    one = sampler(budget=budget, minimum=0)
    one.set_epoch(last)
    assert sum(len(batch) for batch in one) == one.shares[1]
    with pytest.raises(CoreError, match=f"at most {last}"):
        one.set_epoch(last + 1)


def test_what_are_no_shares_is_refused() -> None:
    with pytest.raises(CoreError, match="shares is None; expected the samples of each of 3 ranks"):
        sampler().set_shares(None)  # type: ignore[arg-type]


def test_a_step_that_is_none_has_no_counts() -> None:
    for step in (-1, 4):
        with pytest.raises(CoreError, match=f"there is no step {step}; a round has steps 0 to 3"):
            sampler().counts(step)
        with pytest.raises(CoreError, match=f"there is no step {step}"):
            sampler().counts_of(step, 0)


def test_the_example_runs_under_torchrun(tmp_path: Path) -> None:
    example = ROOT / "experiments" / "uneven_ddp.py"
    code = [line for line in example.read_text(encoding="utf-8").splitlines() if not re.match(r"\s*(#|$)", line)]
    assert len(code) <= 40
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(example)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shares = [eval(line.partition("shares ")[2]) for line in done.stdout.splitlines() if "shares " in line]
    assert len(shares) == 4
    assert all(sum(row) == 2048 for row in shares)
    assert shares[-1][0] < shares[-1][1]  # rank 0 is made slow there
