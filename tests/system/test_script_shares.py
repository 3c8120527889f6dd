# SPDX-License-Identifier: Apache-2.0
"""A training script under torchrun, two real ranks, whose shares come from a running host daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_host.host_controller import HostController

from .fleet_tools import Bench
from .test_daemon import Daemon

pytestmark = pytest.mark.in_turn  # each takes long

EXAMPLE = Path(__file__).resolve().parents[2] / "experiments" / "uneven_ddp.py"


def torchrun(host: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(EXAMPLE)],
        capture_output=True, text=True, check=False, timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PACELINE_HOST": str(host)},
    )  # fmt: skip


def test_a_script_under_torchrun_has_its_shares_from_a_host(bench: Bench) -> None:
    daemon = Daemon(bench)
    daemon.start()
    done = torchrun(daemon.home)
    assert done.returncode == 0, done.stderr
    printed = [line.partition("shares ")[2] for line in done.stdout.splitlines() if "shares " in line]
    (script,) = daemon.status()["scripts"]
    assert (script["name"], script["round"], script["policy"]) == ("uneven-ddp", 5, "time")
    assert str(script["shares"]) == printed[-1]
    assert script["shares"][0] < script["shares"][1], "rank 0 is made slow there"
    assert f"script   uneven-ddp of {script['by']}, time: round 5, shares" in daemon.ask("status").out


def test_two_scripts_of_one_name_have_a_life_each(bench: Bench) -> None:
    daemon = Daemon(bench)
    daemon.start()
    shares = [[500, 500], [500, 500]]
    twins = [HostController("twin", 2, 1000, host=str(daemon.home)) for _ in shares]
    for _ in range(2):
        for number, (twin, paces_s) in enumerate(zip(twins, ((1e-3, 3e-3), (9e-3, 1e-3)), strict=True)):
            for rank, pace in enumerate(paces_s):
                twin.observe(rank, pace * shares[number][rank], None, shares[number][rank])
            shares[number] = twin.allocate()
    assert shares == [[750, 250], [100, 900]]


def test_without_the_host_both_ranks_end_with_its_sentence(bench: Bench) -> None:
    daemon = Daemon(bench)
    done = torchrun(daemon.home)
    assert done.returncode == 1
    said = f"rank 0 got no shares: nothing listens at {daemon.endpoint}"
    assert done.stderr.count(f"CoreError: {said}") == 2, done.stderr
