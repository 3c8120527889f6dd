# SPDX-License-Identifier: Apache-2.0
"""--log-json, --log-level and `config show` of both programs, over real runs and real files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from paceline import wire

from .fleet_tools import Bench, Declared, Program, endpoint_of
from .raw_peer import RawPeer


def talk_of(program: Program) -> list[dict[str, str]]:
    """Return a program's stderr as the objects that must be all of it."""
    entries = [json.loads(line) for line in program.err.splitlines()]
    assert all({"ts", "level", "component", "text"} <= entry.keys() for entry in entries)
    return entries


def local(bench: Bench) -> Path:
    profile = bench.profile({"one": Declared(speed=4.0), "two": Declared(speed=2.0)})
    return bench.experiment(
        "short", {"rounds": 2, "budget": 64, "policies": ["equal", "time"]}, fleet={"profile": profile}
    )


def test_a_run_with_log_json_tells_its_rounds_and_its_end_and_draws_nothing(bench: Bench) -> None:
    host = bench.host(local(bench), "--log-json")
    assert host.ends() == 0, host.err
    entries = talk_of(host)
    assert {entry["component"] for entry in entries} == {"paceline"}
    rounds = [entry["text"].split(" is over")[0] for entry in entries if entry.get("event") == "round"]
    assert rounds == ["equal: round 1/2", "equal: round 2/2", "time: round 1/2", "time: round 2/2"]
    ends = [(entry["level"], entry["text"]) for entry in entries if entry.get("event") == "run-ended"]
    assert ends == [("info", "equal: finished"), ("info", "time: finished")]
    assert "\x1b" not in host.err


def test_a_level_hides_what_is_below_it_on_either_side_of_the_command(bench: Bench) -> None:
    experiment = local(bench)
    quiet = bench.start(
        "quiet", "paceline", "--log-level", "warning", "run", experiment, "--quiet", "--runs-dir", bench.folder / "a"
    )
    assert (quiet.ends(), quiet.err) == (0, "")
    last = bench.host(experiment, "--log-level", "error", "--set", "run.rounds=0", "--log-json")
    assert last.ends() == 3
    (entry,) = talk_of(last)
    assert (entry["level"], entry["event"]) == ("error", "failed")
    assert entry["text"].startswith("--set run.rounds=0: run.rounds: expected a whole number >= 1")


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_wrong_command_line_is_told_as_json_too(bench: Bench, where: str) -> None:
    words = ["--log-json", "runs", "--no"] if where == "before" else ["runs", "--no", "--log-json"]
    wrong = bench.call("paceline", *words)
    assert wrong.ends() == 2
    (entry,) = talk_of(wrong)
    assert entry["event"] == "usage"
    assert "unrecognized arguments: --no" in entry["text"]


def test_an_agents_json_names_its_board(bench: Bench) -> None:
    bench.make_keys("pi")
    host = bench.host(bench.experiment("one", {"rounds": 1, "budget": 20, "policies": ["equal"]}))
    config = bench.write_agent("pi", endpoint_of(host))
    agent = bench.start("pi", "paceline-agent", "run", "--config", config, "--log-json")
    assert host.ends() == 0, host.err
    agent.process.terminate()
    assert agent.ends() == 0
    assert {(entry["component"], entry["board"]) for entry in talk_of(agent)} == {("paceline-agent", "pi")}
    assert talk_of(agent)[0]["text"].startswith("connecting to tcp://127.0.0.1:")


def test_config_show_is_a_file_of_the_same_run_and_its_waits_are_the_ones_that_boards_are_told(bench: Bench) -> None:
    bench.make_keys("pi")
    experiment = bench.experiment("shown", {"rounds": 1, "budget": 10})
    shown = bench.call("paceline", "config", "show", experiment, "--set", "run.patience_s=9", "--json", "--origin")
    assert shown.ends() == 0, shown.err
    answer = json.loads(shown.out)
    assert answer["schema"] == "paceline-config-1"
    assert answer["settings"]["run"]["patience_s"] == 9.0
    assert answer["settings"]["task"]["learning_rate"] == 0.1, "of the task's defaults"
    assert answer["origins"]["run.patience_s"] == "--set"
    assert answer["origins"]["run.rounds"] == "shown.toml:3"
    assert answer["origins"]["task.learning_rate"] == "default"
    assert answer["origins"].keys() == {
        f"{table}.{key}" for table, content in answer["settings"].items() for key in content
    }

    as_toml = bench.call("paceline", "config", "show", experiment, "--set", "run.patience_s=9", "--origin")
    assert tomllib.loads(as_toml.out) == answer["settings"]
    assert "patience_s = 9.0  # --set\n" in as_toml.out
    assert "rounds = 1  # shown.toml:3\n" in as_toml.out
    again = bench.folder / "again.toml"
    again.write_text(as_toml.out, encoding="utf-8")

    host = bench.host(again)
    with RawPeer(bench.folder, "pi", endpoint_of(host)) as peer:
        welcome = peer.hello()
        assert isinstance(welcome, wire.Welcome)
        derived = answer["derived"]
        assert (welcome.patience_s, welcome.heartbeat_s) == (derived["lost_s"], derived["heartbeat_s"])
    host.process.terminate()
    assert host.ends() == 143


def test_config_show_of_an_agent_shows_paths_of_keys_and_never_a_secret(bench: Bench) -> None:
    bench.make_keys("pi")
    config = bench.write_agent("pi", "tcp://127.0.0.1:1")
    secret = (bench.folder / "pi" / "pi.key").read_text(encoding="ascii").strip()
    shown = bench.call("paceline-agent", "config", "show", "--config", config, "--origin")
    as_json = bench.call("paceline-agent", "config", "show", "--config", config, "--json")
    assert (shown.ends(), as_json.ends()) == (0, 0)
    assert 'key_file = "pi.key"  # agent.toml:1\n' in shown.out
    assert "delay_ms = 5.0  # default\n" in shown.out
    assert tomllib.loads(shown.out) == json.loads(as_json.out)["settings"]
    assert "origins" not in json.loads(as_json.out)
    assert secret not in shown.out + as_json.out + shown.err + as_json.err
    config.write_text('key_file = 1\n[host]\nendpoint = "h"\n', encoding="utf-8")
    wrong = bench.call("paceline-agent", "config", "show", "--config", config)
    assert wrong.ends() == 3
    assert wrong.err.splitlines() == [
        "paceline-agent: agent.toml, line 3: host.endpoint: expected tcp://ADDRESS:PORT, got 'h'",
        "paceline-agent: agent.toml, line 2: host.public_key is missing: expected a string",
        "paceline-agent: agent.toml, line 1: key_file: expected a string, got 1",
        "paceline-agent: agent.toml: state_dir is missing: expected a string",
    ]


def test_a_hosts_own_file_is_shown_too_and_a_wrong_one_refused(tmp_path: Path) -> None:
    (tmp_path / "host.toml").write_text('\nlisten = "tcp://*:6000"\npatience_s = 6.0\n', encoding="utf-8")
    with Bench(tmp_path) as bench:
        shown = bench.call("paceline", "config", "show", "host.toml", "--origin")
        assert shown.ends() == 0, shown.err
        assert 'listen = "tcp://*:6000"  # host.toml:2' in shown.out
        assert "resume = true  # default" in shown.out
        assert "heartbeat_s           1" in shown.out
        (tmp_path / "host.toml").write_text("listen = 5\nresum = true\n", encoding="utf-8")
        wrong = bench.call("paceline", "config", "show", "host.toml")
        assert wrong.ends() == 3
        assert "host.toml, line 1: listen: expected" in wrong.err
        assert "did you mean resume" in wrong.err
