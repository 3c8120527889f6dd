# SPDX-License-Identifier: Apache-2.0
"""The quota on the kernel's own control groups where we may make one, and where a group is found, on laid out files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from paceline.errors import SettingsError
from paceline_agent.config import load_config
from paceline_agent.quota import PERIOD_US, Quota, QuotaSettings, own_group

AGENT = 'key_file = "b.key"\nstate_dir = "s"\n[host]\nendpoint = "tcp://127.0.0.1:1"\npublic_key = "h.pub"\n'
BUSY = "while True: pass"
MEASURED_S, PATIENCE_S = 1.5, 20.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SLICE_S = 0.005  # what the kernel hands each processor at once, and may be overdrawn


@contextmanager
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that takes all the time it is given."""
    with subprocess.Popen([sys.executable, "-S", "-c", BUSY]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def quarter() -> Iterator[Quota]:
    """Yield a real group with a quarter of a processor."""
    with ExitStack() as life:
        try:
            quota = life.enter_context(Quota(QuotaSettings(25.0)))
        except SettingsError as error:
            pytest.skip(f"needs a control group that may be written (run as root): {error}")
        yield quota


def cpu_s(pid: int) -> float:
    """Return the processor time a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def groups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def throttled(group: Path) -> int:
    """Return in how many periods the kernel has stopped a group."""
    found = re.search(r"^nr_throttled (\d+)$", (group / "cpu.stat").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


# On the kernel --------------------------------------------------------------------------------------------------------


def test_a_quarter_is_a_quarter_beside_a_free_process(quarter: Quota) -> None:
    assert quarter.group is not None
    with busy() as capped, busy() as free:
        quarter.admit(capped.pid)
        begin_s, before = time.monotonic(), (cpu_s(capped.pid), cpu_s(free.pid))
        time.sleep(MEASURED_S)
        capped_s, free_s = cpu_s(capped.pid) - before[0], cpu_s(free.pid) - before[1]
        span_s = time.monotonic() - begin_s
        assert throttled(quarter.group) > 0
    extra_s = 0.25 * PERIOD_US / 1e6 + SLICE_S * (os.cpu_count() or 1) + 2 * TICK_S  # a period begun, slices, rounding
    assert 0 < capped_s <= 0.25 * span_s + extra_s
    assert free_s > capped_s, f"the free process got {free_s:.2f} s, the capped one {capped_s:.2f} s"


def test_only_who_is_admitted_is_limited_and_nothing_is_left(quarter: Quota) -> None:
    group = quarter.group
    assert group is not None
    with busy() as capped:
        quarter.admit(capped.pid)
        quarter.admit(capped.pid)
        assert group.name in groups_of(capped.pid)
        assert group.name not in groups_of(os.getpid())
        quarter.__exit__(None, None, None)  # with a process in it, which goes back to where the agent is
        assert not group.exists()
        assert capped.poll() is None
        assert groups_of(capped.pid) == groups_of(os.getpid())


def test_who_is_dead_already_is_no_trouble(quarter: Quota) -> None:
    with busy() as process:
        process.kill()
        process.wait()
        quarter.admit(process.pid)


def test_without_rights_one_sentence_says_what_is_needed() -> None:
    as_nobody = os.geteuid() == 0
    if as_nobody:
        os.seteuid(65534)
    try:
        with pytest.raises(SettingsError) as caught, Quota(QuotaSettings(25.0)):
            pass
    finally:
        if as_nobody:
            os.seteuid(0)
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert text.startswith("quota.cpu_percent = 25: the trainer cannot be limited: ")
    assert "remove [quota]" in text
    assert "\n" not in text


# On files -------------------------------------------------------------------------------------------------------------


def lay_out(folder: Path, groups: str, mounts: str) -> Path:
    """Lay out what /proc/self tells of control groups; {} in `mounts` is the folder itself."""
    proc = folder / "proc self"
    proc.mkdir()
    (proc / "cgroup").write_text(groups, encoding="utf-8")
    (proc / "mountinfo").write_text(mounts.replace("{}", str(folder)), encoding="utf-8")
    return proc


V1 = "25 22 0:20 / {}/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
V2 = "30 22 0:26 / {}/unified rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("groups", "mounts", "found", "version"),
    [
        ("4:cpu,cpuacct:/a/b\n0::/\n", V2 + V1, "cpu,cpuacct/a/b", 1),
        ("4:cpu,cpuacct:/box/b\n", V1.replace(" / ", " /box "), "cpu,cpuacct/b", 1),
        ("4:cpu,cpuacct:/elsewhere\n", V1.replace(" / ", " /box "), "cpu,cpuacct", 1),
        ("3:cpuset:/x\n0::/mine\n", V1.replace("rw,cpu,cpuacct", "rw,cpuset") + V2, "unified/mine", 2),
        ("0::/mine\n", V2.replace("unified", "uni\\040fied"), "uni fied/mine", 2),
    ],
    ids=["v1 before v2", "inside a container", "outside of what the container sees", "v2", "a space in the path"],
)
def test_a_group_is_found_where_the_kernel_shows_it(
    tmp_path: Path, groups: str, mounts: str, found: str, version: int
) -> None:
    (tmp_path / found).mkdir(parents=True)
    (tmp_path / found / "cgroup.controllers").write_text("memory cpu pids\n", encoding="utf-8")
    assert own_group(lay_out(tmp_path, groups, mounts)) == (tmp_path / found, version)


@pytest.mark.parametrize(("groups", "mounts"), [("", ""), ("0::/mine\n", V2)], ids=["none", "not delegated"])
def test_no_cpu_controller_is_told(tmp_path: Path, groups: str, mounts: str) -> None:
    (tmp_path / "unified" / "mine").mkdir(parents=True)
    (tmp_path / "unified" / "mine" / "cgroup.controllers").write_text("memory pids\n", encoding="utf-8")
    proc = lay_out(tmp_path, groups, mounts)
    with (
        pytest.raises(SettingsError, match="no cpu controller is mounted or delegated here"),
        Quota(QuotaSettings(25.0), proc),
    ):
        pass


def test_a_v2_group_gets_its_share_in_one_line(tmp_path: Path) -> None:
    """The files alone, without a kernel behind them: what is written where."""
    home = tmp_path / "unified" / "mine"
    home.mkdir(parents=True)
    (home / "cgroup.controllers").write_text("cpu\n", encoding="utf-8")
    (home / "cgroup.subtree_control").write_text("\n", encoding="utf-8")
    with Quota(QuotaSettings(12.5), lay_out(tmp_path, "0::/mine\n", V2)) as quota:
        assert quota.group is not None
        quota.admit(4711)
        assert (home / "cgroup.subtree_control").read_text() == "+cpu"
        assert (quota.group / "cpu.max").read_text() == "12500 100000"
        assert (quota.group / "cgroup.procs").read_text() == "4711"
        for file in quota.group.iterdir():  # the kernel's would go with their folder
            file.unlink()
    assert not quota.group.exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[quota]\ncpu_percent = 0.5\n", "cpu_percent"),
        ("[quota]\n", "cpu_percent"),
        ("[quota]\ncpu_percent = 25.0\n[emulation]\nspeed = 1.0\n", r"\[emulation\] declares a pace"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(AGENT + text, encoding="utf-8")
    with pytest.raises(SettingsError, match=says):
        load_config(path)


def test_the_quota_is_a_table_of_agent_toml(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(f"{AGENT}[quota]\ncpu_percent = 25.0\n", encoding="utf-8")
    assert load_config(path).quota == QuotaSettings(25.0)
