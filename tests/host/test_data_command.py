# SPDX-License-Identifier: Apache-2.0
"""`paceline data partition` from its command line: table, JSON, picture, saved file, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.data import Partition, open_dataset
from paceline.data.idx import write_idx
from paceline.data.sources import FILES
from paceline_host.commands import program


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    folder.mkdir()
    for place, count in ((0, 200), (2, 10)):
        write_idx(folder / FILES[place], (count, 3, 2), bytes(count * 6))
        write_idx(folder / FILES[place + 1], (count,), bytes(i % 10 for i in range(count)))
    return folder


def partition(folder: Path, *arguments: str) -> int:
    return program().run(["data", "partition", "mnist", "--folder", str(folder), *arguments])


def test_the_table_and_its_json_say_who_holds_what(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--clients", "6", "--method", "severe", "--seed", "5")
    assert partition(digits, *asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mnist, 6 clients: dirichlet-classes (classes per client 2, alpha 3), seed 5"
    assert lines[-1].split() == ["all", "200", *["20"] * 10]
    assert partition(digits, *asked, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    rows = [line.replace("-", "0").split() for line in lines[5:-2]]
    assert [[str(c["client"]), str(c["samples"]), *map(str, c["classes"])] for c in told["clients"]] == rows
    assert (told["method"], told["options"], told["seed"]) == (
        "dirichlet-classes", {"classes_per_client": 2, "alpha": 3.0}, 5
    )  # fmt: skip


def test_a_saved_partition_fits_the_data(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "clients.partition"
    assert partition(digits, "--clients", "4", "--samples", "120", "--save", str(saved)) == 0
    capsys.readouterr()
    labels = open_dataset("mnist", digits).train.head(120).labels()
    assert Partition.from_bytes(saved.read_bytes(), labels).sizes() == [30] * 4


def test_a_saved_partition_is_shown_as_it_was_when_it_was_dealt(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = str(tmp_path / "clients.partition")
    asked = ("--clients", "5", "--method", "severe", "--samples", "150", "--seed", "9", "--json")
    assert partition(digits, *asked, "--save", saved) == 0
    dealt = json.loads(capsys.readouterr().out)
    assert partition(digits, "--load", saved, "--json") == 0
    assert json.loads(capsys.readouterr().out) == dealt


@pytest.mark.parametrize(("name", "begins"), [("who.svg", b"<?xml"), ("who.PNG", b"\x89PNG")])
def test_a_picture_is_drawn_the_same_each_time(
    digits: Path, tmp_path: Path, name: str, begins: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = []
    for turn in ("a", "b"):
        (tmp_path / turn).mkdir()
        path = tmp_path / turn / name
        assert partition(digits, "--clients", "30", "--method", "shards", "--picture", str(path)) == 0
        pictures.append(path.read_bytes())
    capsys.readouterr()
    assert pictures[0].startswith(begins)
    assert pictures[0] == pictures[1]


def test_a_column_gives_natural_clients(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    column = tmp_path / "writer.txt"
    column.write_text("".join(f"writer {i // 50}\n" for i in range(200)), encoding="utf-8")
    assert partition(digits, "--method", "natural", "--column", str(column), "--json") == 0
    assert [client["samples"] for client in json.loads(capsys.readouterr().out)["clients"]] == [50] * 4


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--clients", "3", "--method", "sever"), 3, "did you mean severe?"),
        (("--method", "iid"), 3, "--clients is missing"),
        (("--clients", "3", "--seed", "-1"), 3, "expected a whole number from 0 to 2^64 - 1"),
        (("--clients", "3", "--picture", "who.gif"), 3, "a picture ends in .svg or .png"),
        (("--clients", "3", "--save", "nowhere/file"), 10, "cannot be written"),
        (("--load", "nowhere"), 3, "--load nowhere: cannot be read"),
        (("--load", "nowhere", "--clients", "3"), 3, "--clients is for dealing"),
        (("--load", "nowhere", "--seed", "0"), 3, "--seed is for dealing"),
        (("--load", "nowhere", "--picture", "who.txt"), 3, "a picture ends in .svg or .png"),
        (("--load", "/dev/null"), 3, "--load /dev/null: cannot be read: it is no regular file"),
        (("--load", "/proc/version"), 3, "--load /proc/version: the partition is damaged"),
        (("--method", "natural", "--column", "nowhere.txt"), 3, "--column nowhere.txt: cannot be read as text"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    digits: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, said: str
) -> None:
    assert partition(digits, *arguments) == status
    assert said in capsys.readouterr().err
