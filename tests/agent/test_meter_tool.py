# SPDX-License-Identifier: Apache-2.0
"""`paceline-agent meter` as a user meets it: real commands over trees of files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline_agent.commands import program
from paceline_agent.comparing import compare
from paceline_agent.measuring import Measurement
from paceline_agent.meters import MeterError
from paceline_agent.meters.findings import Finding, Where, scan
from paceline_agent.meters.replay import read_trace

from .trees import battery, ina2xx, ina3221, moving, processor, put

PATIENCE_S = 20.0
Captured = pytest.CaptureFixture[str]


def call(*words: str | Path) -> int:
    """Run `paceline-agent meter` in this process."""
    return program().run(["meter", *map(str, words)])


def measurement(power_w: float | None, bound_j: float = 0.0, sampling_j: float = 0.0) -> Measurement:
    """Return what ten seconds at some watts came to."""
    energy_uj = None if power_w is None else round(power_w * 1e7)
    return Measurement(
        "x", "measured", energy_uj, 0, 10_000_000, 10_000_000, 0, 100, 0, round(bound_j * 1e6),
        round(sampling_j * 1e6), () if energy_uj is not None else ("unknown",),
    )  # fmt: skip


# scan ----------------------------------------------------------------------------------------------------------------


def test_scan_tells_what_to_write_into_agent_toml(tmp_path: Path, capsys: Captured) -> None:
    ina2xx(tmp_path, shunt_uohm=10_000)
    ina3221(tmp_path, ("a", "b", "c"), place="7-0041")
    processor(tmp_path)
    with moving(tmp_path / "class"):
        assert call("scan", "--sysfs-root", tmp_path, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "paceline-scan-1"
    found = {(finding["kind"], finding["name"]): finding for finding in shown["findings"]}
    assert found["meter", "package-0"]["settings"] == {"source": "rapl", "sysfs_root": str(tmp_path)}
    rail = found["rail", "ina3221@7-0041/b"]
    assert (rail["usable"], rail["settings"]) == (
        True, {"source": "hwmon", "labels": ["ina3221@7-0041/b"], "sysfs_root": str(tmp_path)},
    )  # fmt: skip
    assert "name them in meter.labels" in found["meter", "total"]["todo"]
    assert "write its microohms" in found["rail", "ina219@1-0040/ch1"]["todo"]
    assert not found["meter", str(tmp_path / "class" / "power_supply")]["usable"]

    assert call("scan", "--sysfs-root", tmp_path) == 0
    text = capsys.readouterr().out
    assert "[meter]\n" in text
    assert 'labels = ["ina3221@7-0041/b"]\n' in text
    assert f'sysfs_root = "{tmp_path}"\n' in text, "what is pasted must find it again"


def test_scan_shows_paths_whole_and_names_what_is_not_there(tmp_path: Path, capsys: Captured) -> None:
    processor(tmp_path).with_name("max_energy_range_uj").unlink()
    assert call("scan", "--sysfs-root", tmp_path, "--i2c-bus", "99") == 7
    shown = capsys.readouterr().out
    zone = tmp_path / "class" / "powercap" / "intel-rapl:0"
    assert f"{tmp_path}/class/powercap: {zone}/max_energy_range_uj cannot be read" in shown
    assert "99: this is no I2C bus of this machine" in shown
    assert "dtparam" not in shown, "that is no answer to a wrong number"
    assert call("scan", "--sysfs-root", tmp_path / "nope") == 7
    assert f"sysfs_root = '{tmp_path}/nope' is no folder here; the kernel's own tree is /sys" in capsys.readouterr().err


def test_scan_on_a_machine_without_a_sensor_is_status_7(tmp_path: Path, capsys: Captured) -> None:
    assert call("scan", "--sysfs-root", tmp_path) == 7
    shown = capsys.readouterr()
    assert "this kernel has no RAPL" in shown.out
    assert "no driver shows power here" in shown.out
    assert "dtparam=i2c_arm=on" in shown.out
    assert "no meter is usable here" in shown.err


def test_buses_ports_and_the_group_to_join(tmp_path: Path) -> None:
    sysfs, dev = tmp_path / "sys", tmp_path / "dev"
    for number, name in ((1, "bcm2835 (i2c@7e804000)"), (20, "fef04500.i2c")):
        put(sysfs / "class" / "i2c-dev" / f"i2c-{number}" / "name", f"{name}\n")
        put(dev / f"i2c-{number}", "")
    put(sysfs / "bus" / "i2c" / "devices" / "1-0040" / "name", "ina219\n")
    driver = sysfs / "bus" / "i2c" / "drivers" / "ina2xx"
    driver.mkdir(parents=True)
    (sysfs / "bus" / "i2c" / "devices" / "1-0040" / "driver").symlink_to(driver)
    put(dev / "ttyACM0", "")
    put(dev / "ttyUSB1", "")
    (dev / "serial" / "by-id").mkdir(parents=True)
    (dev / "serial" / "by-id" / "usb-meter").symlink_to(dev / "ttyACM0")
    found = [finding for finding in scan(Where(sysfs, dev)) if finding.kind in ("bus", "port")]
    assert [Path(finding.name).name for finding in found] == ["i2c-1", "i2c-20", "usb-meter", "ttyUSB1"]
    assert "0x40 is ina219, owned by the driver ina2xx: use hwmon" in found[0].about
    assert all(finding.usable for finding in found)
    assert [finding.name for finding in scan(Where(sysfs, dev, "/dev/i2c-20")) if finding.kind == "bus"] == [
        str(dev / "i2c-20")
    ]


def test_a_device_that_is_others_names_the_group_or_the_rule(tmp_path: Path) -> None:
    put(tmp_path / "class" / "i2c-dev" / "i2c-1" / "name", "a bus\n")
    finding = next(each for each in scan(Where(tmp_path, tmp_path / "nowhere")) if each.kind == "bus")
    assert not finding.usable
    assert 'SUBSYSTEM=="i2c-dev", GROUP="i2c", MODE="0660"' in finding.todo


def test_buses_without_device_files_need_a_module(tmp_path: Path) -> None:
    (tmp_path / "bus" / "i2c" / "devices" / "i2c-1").mkdir(parents=True)
    (finding,) = (finding for finding in scan(Where(tmp_path)) if finding.kind == "bus")
    assert "sudo modprobe i2c-dev" in finding.todo


def test_what_sees_the_whole_board_comes_first(tmp_path: Path) -> None:
    processor(tmp_path)
    battery(tmp_path, power_now=1_000_000)
    ina2xx(tmp_path)
    with moving(tmp_path / "class"):
        usable: list[Finding] = [each for each in scan(Where(tmp_path)) if each.kind == "meter" and each.usable]
    assert [finding.source for finding in usable] == ["hwmon", "power_supply", "rapl"]


# watch, record, replay -----------------------------------------------------------------------------------------------


def test_watch_shows_rails_and_the_whole(tmp_path: Path, capsys: Captured) -> None:
    ina3221(tmp_path, ("a", "VDD_IN", "c"))
    words = ("watch", "--sysfs-root", tmp_path, "--seconds", "0.3", "--every", "0.1", "--period-ms", "10")
    assert call(*words) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["volts", "amps", "watts", "joules", "coverage"]
    assert rows[0].split()[:4] == ["VDD_IN", "5.000", "0.200", "1.000"]
    assert abs(float(rows[-3].split()[-1]) - float(rows[-2].split()[-2])) < 0.05, "the only rail takes all joules"
    assert rows[-1].startswith("hwmon/ina3221/VDD_IN (measured): 0.")

    assert call(*words, "--json") == 0
    *lines, result = map(json.loads, capsys.readouterr().out.splitlines())
    assert {line["schema"] for line in lines} == {"paceline-watch-1"}
    assert (lines[-1]["period_s"], lines[-1]["period_why"]) == (0.01, "set")
    (rail,) = lines[-1]["rails"]
    assert rail.pop("joules") == pytest.approx(lines[-1]["energy_j"], abs=0.05)
    assert rail == {"name": "VDD_IN", "volts": 5.0, "amps": 0.2, "watts": 1.0}
    assert result["schema"] == "paceline-measurement-1"
    assert result["power_w"] == pytest.approx(1.0)
    assert 0 < result["coverage"] <= 1
    assert result["bound_j"] > 0
    assert result["sampling_j"] == 0.0


def test_watch_takes_the_meter_of_an_agent_toml(tmp_path: Path, capsys: Captured) -> None:
    battery(tmp_path, power_now=3_000_000)
    config = agent_toml(tmp_path, f'source = "power_supply"\nperiod_ms = 10\nsysfs_root = "{tmp_path}"')
    assert call("watch", "--config", config, "--seconds", "0.1", "--json") == 0
    assert '"source": "power_supply/BAT0"' in capsys.readouterr().out


def agent_toml(folder: Path, meter: str) -> Path:
    """Write an agent.toml with this [meter]."""
    folder.mkdir(exist_ok=True)
    config = folder / "agent.toml"
    config.write_text(
        'key_file = "a.key"\nstate_dir = "s"\n[host]\nendpoint = "tcp://127.0.0.1:1"\npublic_key = "a.pub"\n'
        f"[meter]\n{meter}\n",
        encoding="utf-8",
    )
    return config


@pytest.mark.parametrize(
    ("meter", "words", "status", "said"),
    [
        ('source = "hwmon"', ("--rail", "nonsense"), 7, "no rail nonsense is here"),
        ('source = "hwmon"', ("--sysfs-root", "/nope"), 7, "sysfs_root = '/nope' is no folder"),
        ('source = "hwmon"', ("--i2c-bus", "7"), 3, 'meter.bus belongs to source = "ina219" or "ina3221"'),
        ('source = "hwmon"', ("--period-ms", "1"), 3, "period_ms"),
        ('source = "rapl"', ("--rail", "x"), 3, 'meter.labels belongs to source = "hwmon"'),
        ("period_ms = 20", (), 7, "names no [meter] source, so there is nothing to read; name one there, or leave"),
        ('source = "hwmon"', ("--period-ms", "20"), 0, "(set)"),
    ],
    ids=str,
)
def test_what_is_said_beside_an_agent_toml_counts(
    tmp_path: Path, capsys: Captured, meter: str, words: tuple[str, ...], status: int, said: str
) -> None:
    ina2xx(tmp_path)
    config = agent_toml(tmp_path, meter + ('\nsysfs_root = "."' if "source" in meter else ""))
    assert call("watch", "--config", config, "--seconds", "0.3", "--every", "0.1", *words) == status
    assert said in capsys.readouterr().err


def test_relative_paths_of_an_agent_toml_start_at_its_folder(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ina2xx(tmp_path / "there" / "tree")
    monkeypatch.chdir(tmp_path)
    there = Path("there")
    for keys in ('"rapl"\nrapl_root = "no"', '"replay"\ntrace = "no"', '"serial"\nport = "no"'):
        config = agent_toml(there, f"source = {keys}")
        assert call("watch", "--config", config, "--seconds", "0.05") == 7
        assert f"{tmp_path}/there/no" in capsys.readouterr().err
    config = agent_toml(there, 'source = "hwmon"\nsysfs_root = "tree"')
    assert call("watch", "--config", config, "--seconds", "0.05") == 0


def test_what_was_recorded_replays_to_the_same_joules(tmp_path: Path, capsys: Captured) -> None:
    ina2xx(tmp_path)
    trace = tmp_path / "load.trace"
    words = ("--sysfs-root", tmp_path, "--seconds", "0.3", "--period-ms", "10", "--json")
    assert call("record", trace, *words) == 0
    recorded = json.loads(capsys.readouterr().out)
    assert len(read_trace(trace).entries) >= recorded["readings"]

    assert call("replay", trace, "--json") == 0
    replayed = json.loads(capsys.readouterr().out)
    assert replayed["source"] == "replay/hwmon/ina219/ch1"
    assert replayed["power_w"] == pytest.approx(recorded["power_w"])
    assert replayed["seconds"] >= recorded["seconds"]
    assert call("replay", trace, "--begin", "0.05", "--end", "0.15") == 0
    assert "6.000 W" in capsys.readouterr().out

    assert call("watch", "--source", "hwmon", *words, "--rail", "ch1") == 0
    assert call("record", trace, *words) == 10, "what is there is kept"
    assert "name a new file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("watch", "--source", "hwmom"), 3, "did you mean hwmon"),
        (("watch", "--source", "hwmon", "--rail", "x"), 7, "no rail x is here"),
        (("watch",), 7, "no meter is usable here"),
        (("watch", "--seconds", "0"), 2, "expected a number above 0"),
        (("watch", "--source", "rapl", "--rail", "x"), 2, "--rail is for --source hwmon, not for rapl"),
        (("watch", "--rail", "x"), 7, "no rail x is here"),
        (("watch", "--source", "modelled"), 2, "no option tells its idle_w and active_w; write [meter] into an agent"),
        (("watch", "--source", "ina219"), 2, "no option tells its shunt_ohm; write [meter] into an agent.toml"),
        (("watch", "--source", "none"), 7, "name a source, or call open_meter() to have one found"),
        (
            ("selftest", "--source", "hwmon", "--known-w", "1", "--against-rail", "x"),
            2,
            "--against-rail needs --against",
        ),
        (("selftest", "--source", "hwmon"), 2, "one of the arguments --against --known-w is required"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_told(
    tmp_path: Path, capsys: Captured, words: tuple[str, ...], status: int, said: str
) -> None:
    assert call(*words, "--sysfs-root", tmp_path) == status
    assert said in capsys.readouterr().err


def test_a_trace_that_ends_too_early_leaves_the_rest_unknown(tmp_path: Path, capsys: Captured) -> None:
    trace = tmp_path / "t"
    lines = ['{"schema":"paceline-trace-1","source":"x","period_us":100}', '{"t":0,"uj":0,"error":0}']
    trace.write_text("\n".join([*lines, '{"missed":"EIO"}', '{"t":100,"uj":7,"error":0}', ""]), encoding="utf-8")
    assert call("replay", trace, "--json") == 0
    assert (json.loads(capsys.readouterr().out)["energy_j"]) == 7e-6
    assert call("replay", trace, "--end", "1", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["energy_j"], shown["missed"]) == (None, 1)
    for outside in (("--begin", "5"), ("--begin", "5", "--end", "6"), ("--begin", "0.00005", "--end", "0.00005")):
        assert call("replay", trace, *outside) == 7
        assert "--begin must lie before that and before --end" in capsys.readouterr().err


def test_what_a_trace_has_after_its_last_reading_is_part_of_it(tmp_path: Path, capsys: Captured) -> None:
    trace = tmp_path / "t"
    lines = ['{"schema":"paceline-trace-1","source":"x","period_us":100000}']
    lines += [json.dumps({"t0": t, "t1": t, "uw": 5_000_000, "error": 0}) for t in range(0, 1_000_001, 100_000)]
    trace.write_text("\n".join([*lines, '{"missed":"gone","t":4000000}', ""]), encoding="utf-8")
    assert call("replay", trace, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["energy_j"], shown["coverage"], shown["missed"]) == (None, 0.25, 1)


def test_readings_of_a_trace_that_cannot_be_are_told_and_counted(tmp_path: Path, capsys: Captured) -> None:
    trace = tmp_path / "t"
    lines = ['{"schema":"paceline-trace-1","source":"x","period_us":100000}']
    lines += [
        json.dumps({"t0": t, "t1": t, "uw": 10**12 if t == 500_000 else 5_000_000, "error": 0})
        for t in range(0, 1_000_001, 100_000)
    ]
    trace.write_text("\n".join([*lines, ""]), encoding="utf-8")
    assert call("replay", trace, "--json") == 0
    told = capsys.readouterr()
    shown = json.loads(told.out)
    assert (shown["energy_j"], shown["missed"]) == (pytest.approx(5.0), 1)
    assert "1e+06 W, which no board draws" in told.err


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "has no readings (0 missed), so its joules are unknown"),
        (['{"missed":"EIO"}', '{"missed":"EIO"}'], "has no readings (2 missed)"),
        (['{"t":5,"uj":7,"error":0}'], "has readings of one instant only"),
    ],
    ids=["head alone", "misses", "one reading"],
)
def test_a_trace_that_says_nothing_is_told_and_not_0(
    tmp_path: Path, capsys: Captured, lines: list[str], said: str
) -> None:
    trace = tmp_path / "t"
    head = '{"schema":"paceline-trace-1","source":"x","period_us":100}'
    trace.write_text("\n".join([head, *lines, ""]), encoding="utf-8")
    assert call("replay", trace, "--json") == 7
    shown = capsys.readouterr()
    assert (shown.out, said in shown.err) == ("", True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recording_ends_in_order_when_told_to(tmp_path: Path, number: signal.Signals) -> None:
    ina2xx(tmp_path)
    trace = tmp_path / "load.trace"
    command = [sys.executable, "-m", "paceline_agent", "meter", "record", str(trace), "--sysfs-root", str(tmp_path)]
    recording = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end_s = time.monotonic() + PATIENCE_S
    while not (trace.exists() and trace.read_text(encoding="utf-8").count("\n") > 3):
        assert time.monotonic() < end_s
        assert recording.poll() is None, recording.communicate()
        time.sleep(0.02)
    os.kill(recording.pid, number)
    out, err = recording.communicate(timeout=PATIENCE_S)
    assert recording.returncode == 0, err
    assert "hwmon/ina219/ch1 (measured): " in out
    assert "readings, 0 missed" in err
    assert read_trace(trace).entries


def test_a_disk_that_is_full_ends_a_recording_with_a_sentence(tmp_path: Path) -> None:
    ina2xx(tmp_path)
    command = (
        f"ulimit -f 1; exec {sys.executable} -m paceline_agent meter record load.trace --sysfs-root . --period-ms 10"
    )
    done = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; {command}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 10, done.stderr
    assert "load.trace cannot be written: File too large" in done.stderr
    assert read_trace(tmp_path / "load.trace").entries, "what was written can be replayed"


def test_a_recording_of_which_not_even_the_head_fits_leaves_nothing_behind(tmp_path: Path) -> None:
    ina2xx(tmp_path)
    again = f"{sys.executable} -m paceline_agent meter record load.trace --sysfs-root ."
    for _ in range(2):
        done = subprocess.run(
            ["bash", "-c", f"trap '' XFSZ; ulimit -f 0; exec {again}"],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 10, done.stderr
        assert "load.trace cannot be written: File too large; nothing is left of it" in done.stderr


# selftest ------------------------------------------------------------------------------------------------------------


def test_two_rails_that_carry_the_same_load_agree(tmp_path: Path, capsys: Captured) -> None:
    put(ina3221(tmp_path, ("a", "b", "c")) / "curr2_input", 101)
    words = ("selftest", "--sysfs-root", tmp_path, "--source", "hwmon", "--rail", "a", "--seconds", "0.2")
    other = ("--against", "hwmon", "--against-rail", "b", "--period-ms", "10")
    assert call(*words, *other, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ratio"] == pytest.approx(100 / 101, rel=1e-3)
    assert (shown["same"], shown["ok"], len(shown["meters"])) == (True, True, 2)
    assert call(*words, *other, "--within", "0.5") == 7
    assert "further from 1 than --within allows" in capsys.readouterr().out
    assert call(*words, "--known-w", "0.5", "--within", "0.1", "--period-ms", "10") == 0


def test_a_sensor_is_not_compared_with_itself(tmp_path: Path, capsys: Captured) -> None:
    ina2xx(tmp_path)
    words = ("selftest", "--sysfs-root", tmp_path, "--seconds", "0.2", "--against", "hwmon")
    assert call(*words) == 7
    assert "both sensors are the same hwmon/ina219/ch1" in capsys.readouterr().err


def test_a_processor_is_compared_with_its_board(tmp_path: Path, capsys: Captured) -> None:
    processor(tmp_path)
    ina2xx(tmp_path)
    words = ("selftest", "--sysfs-root", tmp_path, "--source", "rapl", "--against", "hwmon", "--seconds", "0.2")
    with moving(tmp_path / "class"):
        assert call(*words, "--period-ms", "10", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["same"], shown["frozen"]) == (False, {})


def test_sensors_whose_value_never_moves_while_the_board_works_and_rests_are_called_frozen(
    tmp_path: Path, capsys: Captured
) -> None:
    processor(tmp_path)
    ina2xx(tmp_path)
    words = ("selftest", "--sysfs-root", tmp_path, "--source", "rapl", "--against", "hwmon", "--seconds", "0.2")
    assert call(*words, "--period-ms", "10", "--json") == 7
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert set(told["frozen"]) == {"hwmon/ina219/ch1", "rapl/package-0"}
    assert (told["ok"], told["meters"][0]["energy_j"]) == (False, None)
    assert shown.err.count("its value has not moved by a bit for ") == 2
    assert "while the board computed and rested 6 times: it is frozen, or does not see this board" in shown.err


def test_scan_tells_of_a_counter_that_stands_still(tmp_path: Path) -> None:
    processor(tmp_path)
    still = next(finding for finding in scan(Where(tmp_path)) if finding.source == "rapl")
    assert "it stands still, which it cannot: frozen" in still.about
    assert not still.usable, "nobody is to take it for a meter"
    with moving(tmp_path / "class"):
        alive = next(finding for finding in scan(Where(tmp_path)) if finding.source == "rapl")
    assert alive.usable


def test_the_ratio_is_judged_by_both_uncertainties() -> None:
    verdict = compare(measurement(5.0, bound_j=1.0, sampling_j=0.5), measurement(5.2, bound_j=0.6))
    assert verdict.ratio == pytest.approx(5 / 5.2)
    assert verdict.high - 1 == pytest.approx((0.15 + 0.06) / 5.2)
    assert verdict.is_same
    assert not compare(measurement(5.0), 5.2).is_same
    with pytest.raises(MeterError, match="measured nothing"):
        compare(measurement(None), 5.0)
    with pytest.raises(MeterError, match="shows no power"):
        compare(measurement(5.0), measurement(0.0))
