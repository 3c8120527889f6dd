# SPDX-License-Identifier: Apache-2.0
"""Weather and reviews for real: emulated boards train on files that the test makes, and the table of it is written."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from paceline.data import reviews, series

from .fleet_tools import Bench, Declared

pytestmark = pytest.mark.in_turn  # each takes long

BOARDS = {"fast": Declared(speed=400.0), "slow": Declared(speed=100.0)}
SILOS = '[[silo]]\nname = "a"\nboards = ["fast"]\nbudget = 40\n[[silo]]\nname = "b"\nboards = ["slow"]\nbudget = 40\n'
REGIMES: dict[str, tuple[dict[str, object], str]] = {
    "pma": ({"budget": 80}, ""),
    "ddp": ({"regime": "ddp", "budget": 80, "steps": 4}, ""),
    "hfl": ({"regime": "hfl", "steps": 4}, SILOS),
}
TASKS: dict[str, dict[str, object]] = {
    "era5": {"name": "era5", "window": 6, "hidden": [4], "batch": 8},
    "imdb": {"name": "imdb", "vocabulary": 20, "width": 2, "batch": 8},
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of data sets."""
    folder = tmp_path_factory.mktemp("prepared")
    begin = datetime(2020, 1, 1, tzinfo=UTC)
    hours = [f"{begin + timedelta(hours=i):%Y-%m-%d %H:00},{280 + 5 * math.sin(i / 4)}" for i in range(1100)]
    (folder / "x.csv").write_text("\n".join(["time,t2m", *hours]))
    for name in ("era5", "imdb"):
        (folder / name).mkdir()
    series.from_file(folder / "x.csv", folder / "era5")
    bad, good = ([f"a {word} film {i}" for i in range(60)] for word in ("bad", "good"))
    reviews.prepare((bad, good), (bad[:9], good[:9]), folder / "imdb")
    return folder


@pytest.mark.parametrize(("regime", "name"), [("pma", "era5"), ("ddp", "imdb"), ("hfl", "era5")])
def test_boards_train_on_them_in_each_regime(bench: Bench, prepared: Path, regime: str, name: str) -> None:
    run, more = REGIMES[regime]
    path = bench.experiment(
        "own", {"rounds": 3, "policies": ["equal", "time"], **run}, task=TASKS[name],
        fleet={"kind": "local", "profile": bench.profile(BOARDS)}, more=f'[data]\nfolder = "{prepared}"\n{more}',
    )  # fmt: skip
    table = bench.folder / "table.toml"
    table.write_text(f'kind = "runs"\ntitle = "own"\nseeds = [5]\n[[rows]]\nname = "own"\nexperiment = "{path.name}"\n')
    done = bench.start("table", "paceline", "experiments", "run", table, "--out", bench.folder / "out", "--json")
    assert done.ends(120.0) == 0, done.err
    (row,) = json.loads(done.out)["rows"]
    assert [line["policy"] for line in row["lines"]] == ["equal", "time"]
    assert row["loss_is"].startswith("rmse in K, persistence" if name == "era5" else "cross-entropy")
    figures = [line["figures"] for line in row["lines"]]
    assert all(one["loss"]["median"] > 0 and one["makespan"]["median"] > 0 for one in figures)
    assert [one["accuracy"] is None for one in figures] == [name == "era5"] * 2
    if regime == "ddp":  # one union batch a step, whoever computes it
        assert figures[0]["loss"]["median"] == pytest.approx(figures[1]["loss"]["median"], rel=1e-3)
    assert (bench.folder / "out" / "table.csv").read_text().count("\n") == 3
    assert sorted(path.suffix for path in (bench.folder / "out").iterdir()) == [".csv", ".md", ".png"]
