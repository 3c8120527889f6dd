# SPDX-License-Identifier: Apache-2.0
"""A benchmark beside an earlier one: which figures count as slower, and what is said of those that do not compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import DataError, RunError
from paceline_host import bench
from paceline_host.bench_compare import compared, read_saved, verdicts
from paceline_host.commands import program

HERE = {"cpu": "a", "numpy": "2.0"}


def figure(median: float, least: float, most: float, unit: str = "us", name: str = "plan") -> dict[str, Any]:
    """Return a figure as a benchmark has it."""
    return {"name": name, "unit": unit, "median": median, "least": least, "most": most, "repeats": 9}


def saved(*figures: dict[str, Any], machine: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what --json prints."""
    return {"schema": "paceline-bench-1", "machine": HERE if machine is None else machine, "figures": list(figures)}


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        (figure(10, 9, 11), figure(20, 19, 21), "slower"),
        (figure(10, 9, 11), figure(5, 4, 6), "faster"),
        (figure(10, 9, 11), figure(10.5, 10.4, 10.6), "alike"),  # below a tenth
        (figure(10, 5, 30), figure(20, 19, 21), "alike"),  # it had been so slow before, too
        (figure(10, 9, 11), figure(20, 8, 40), "alike"),  # and it can be as quick now
        (figure(10, 9, 11, "MiB"), figure(20, 19, 21, "MiB"), "larger"),
        (figure(10, 9, 11, "x"), figure(20, 19, 21, "x"), ""),  # nobody knows which way is better
    ],
)
def test_a_figure_has_changed_where_ranges_leave_each_others_median_out(
    then: dict[str, Any], now: dict[str, Any], verdict: str
) -> None:
    (row,) = compared([now], saved(then))
    assert (row["verdict"], row["then"], row["ratio"]) == (verdict, 10, pytest.approx(now["median"] / 10))


def test_what_is_slower_is_said_and_what_cannot_be_compared() -> None:
    before = saved(figure(10, 9, 11), machine={"cpu": "b", "numpy": "2.0"})
    rows = compared([figure(30, 29, 31), figure(1, 1, 1, name="new"), figure(10, 9, 11, "ms")], before)
    assert [row["ratio"] for row in rows] == [3.0, None, None]
    assert verdicts(rows, before, HERE) == [
        "slower than before: plan (3.00x)",
        "without a figure of before: new; plan",
        "taken under other conditions, so the ratios tell of these too: cpu b before, a now",
    ]
    same = compared([figure(10, 9, 11)], saved(figure(10, 9, 11)))
    assert verdicts(same, saved(), HERE) == ["nothing is slower than before"]


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other"}', '{"schema": "paceline-bench-1", "figures": [{}]}'])
def test_another_file_is_refused_with_a_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="is not what `paceline bench --json` prints"):
        read_saved(path)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_saved(tmp_path / "nowhere.json")


def test_the_command_shows_ratios_to_what_it_had_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "before.json"
    assert program().run(["bench", "allocate", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    for row in first["figures"]:  # as if it had been a thousand times quicker
        row |= {key: row[key] / 1000 for key in ("median", "least", "most")}
    path.write_text(json.dumps(first), encoding="utf-8")
    assert program().run(["bench", "allocate", "--compare", str(path)]) == 0
    told = capsys.readouterr()
    assert told.out.count("x slower") == len(first["figures"]) == 2
    assert "slower than before: allocate() for 11 boards (" in told.err
    assert program().run(["bench", "allocate", "--compare", str(path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["figures"]
    assert all(row["ratio"] > 100 for row in rows)
    assert program().run(["bench", "energy", "--compare", str(path)]) == 2


def test_what_was_measured_before_a_benchmark_failed_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(say: object) -> list[dict[str, object]]:
        raise RunError("too few descriptors")

    monkeypatch.setitem(bench.BENCHES, "allocate", lambda say: [bench.figure("one", "us", [1.0])])
    monkeypatch.setitem(bench.BENCHES, "join", fails)
    assert program().run(["bench", "allocate", "join", "agent", "--json"]) == 9
    printed = capsys.readouterr()
    assert [row["name"] for row in json.loads(printed.out)["figures"]] == ["one"]
    assert "too few descriptors" in printed.err
