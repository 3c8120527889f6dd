# SPDX-License-Identifier: Apache-2.0
"""Boards that declare nothing: a counter in files gives the joules, the kernel the scarcity; host and run are real."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from paceline.errors import SettingsError
from paceline_agent.quota import Quota, QuotaSettings, own_group

from .fleet_tools import Bench, Declared, endpoint_of, until

RANGE_UJ = 262_143_328_850
STEP_UJ, STEP_S = 100_000, 0.005  # about 20 W


@dataclass(frozen=True)
class Written(Declared):
    """Tables of an agent.toml as they are to stand there."""

    text: tuple[str, ...] = ()

    def tables(self) -> list[str]:
        return list(self.text)


@contextmanager
def powercap(root: Path) -> Iterator[tuple[str, ...]]:
    """Run a package's counter, which wraps soon; yield the table of a meter that reads it."""
    zone = root / "intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    ending = threading.Event()

    def put(count_uj: int) -> None:
        (zone / "new").write_text(f"{count_uj % RANGE_UJ}\n")
        (zone / "new").rename(zone / "energy_uj")

    def run() -> None:
        count_uj = RANGE_UJ - 50 * STEP_UJ
        while not ending.wait(STEP_S):
            count_uj += STEP_UJ
            put(count_uj)

    put(RANGE_UJ - 50 * STEP_UJ)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ("[meter]", 'source = "rapl"', "period_ms = 20", f'rapl_root = "{root}"', "idle_s = 0.5")
    finally:
        ending.set()
        thread.join()


def test_joules_of_a_counter_reach_the_journal_and_the_report(bench: Bench) -> None:
    bench.make_keys("counted", "declared")
    experiment = bench.experiment("counted", {"rounds": 2, "budget": 240, "policies": ["energy"]})
    with powercap(bench.folder / "powercap") as meter:
        host = bench.host(experiment)
        counted = bench.agent("counted", endpoint_of(host), Written(text=(*meter, "[emulation]", "speed = 1.0")))
        bench.agent("declared", endpoint_of(host))
        assert host.ends() == 0, host.err
    ledger = bench.ledger("counted-001/energy")
    assert ledger is not None
    with ledger:
        rows = [row for row in ledger.energy() if row.source == "rapl/package-0"]
        idle = {board.name: board.idle_uw for board in ledger.boards()}
    assert idle["declared"] is None
    assert idle["counted"] is not None
    assert 2e6 < idle["counted"] < 40e6, "20 W, on a busy machine less"
    assert "measuring idle watts, 0 s left" in counted.err or "measuring idle watts, 1 s left" in counted.err
    assert f"idle: {idle['counted'] / 1e6:.3f} W" in counted.err
    assert [row.round for row in rows] == [1, 2]
    for row in rows:
        parts = (row.compute_uj, row.wait_uj, row.transfer_uj, row.wasted_uj, row.other_uj)
        assert None not in parts
        assert row.total_uj == sum(part for part in parts if part is not None)
        assert row.compute_uj is not None
        assert row.compute_uj > 0
        assert row.bound_uj is not None
        assert row.bound_uj > 0
        assert row.sampling_uj == 0, "a counter leaves nothing out"
        assert row.split_uj is not None
        assert row.split_uj > 0
    assert "measured and modelled" in host.out


def test_a_trainer_with_a_quota_is_alone_in_its_group(bench: Bench) -> None:
    try:
        with Quota(QuotaSettings(25.0)):
            pass
    except SettingsError as error:
        pytest.skip(f"needs a control group that may be written (run as root): {error}")
    bench.make_keys("scarce")
    experiment = bench.experiment("scarce", {"rounds": 1, "budget": 1_000_000, "policies": ["equal"]})
    host = bench.host(experiment)
    agent = bench.agent("scarce", endpoint_of(host), Written(text=("[quota]", "cpu_percent = 25.0")))
    home, _ = own_group(Path(f"/proc/{agent.pid}"))
    group = home / f"paceline-trainer-{agent.pid}"
    (trainer,) = until("the trainer is in its group", lambda: processes_in(group))
    assert bench.left()[trainer].find("paceline_agent.trainer") >= 0
    until("the kernel holds it back", lambda: throttled(group) > 0)
    assert processes_in(group) == [trainer], "the agent itself goes free"
    agent.signal(signal.SIGTERM)
    assert agent.ends() == 0
    assert not group.exists()


def processes_in(group: Path) -> list[int]:
    """Return who is in a control group."""
    try:
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    except FileNotFoundError:
        return []


def throttled(group: Path) -> int:
    """Return in how many periods the kernel has stopped a group."""
    lines = (line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(dict(lines)["nr_throttled"])
