# SPDX-License-Identifier: Apache-2.0
"""Settings: all faults of a file come in one go and say how to mend them; dump and load are inverse."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import SettingsError
from paceline.settings import Bounds, Doc, dump, load, load_table


@dataclass(frozen=True)
class Meter:
    period_s: Annotated[float, Bounds(gt=0, le=10)] = 0.1
    source: Literal["modelled", "ina219"] = "modelled"


@dataclass(frozen=True)
class Board:
    name: Annotated[str, Bounds(ge=1)]
    speed: float = 1.0
    meter: Meter = field(default_factory=Meter)


@dataclass(frozen=True)
class Example:
    rounds: Annotated[int, Bounds(ge=1), Doc("how often models are averaged")]
    seed: int = 7
    quick: bool = False
    label: str | None = None
    folder: Path = Path("runs")
    limits: tuple[int, int] = (0, 1)
    policies: tuple[str, ...] = ("equal",)
    budget: int | tuple[int, ...] = 6000
    meter: Meter = field(default_factory=Meter)
    watts: dict[str, float] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    board: tuple[Board, ...] = ()

    def __post_init__(self) -> None:
        if self.limits[0] > self.limits[1]:
            raise ValueError(f"limits: expected the smaller first, got {self.limits[0]}, {self.limits[1]}; swap them")


def faults(text: str) -> list[str]:
    """Return what `load` has to say about a text."""
    with pytest.raises(SettingsError) as caught:
        load(text, Example, where="x.toml")
    return caught.value.errors


def test_a_full_file_is_read_into_the_types_of_the_dataclass() -> None:
    example = load(
        'rounds = 3\nfolder = "there"\nlimits = [2, 5]\nbudget = [1, 2]\n[meter]\nperiod_s = 1\n'
        '[watts]\n"big board" = 3\n[options]\nhidden = [64]\n[[board]]\nname = "a"\n[[board]]\nname = "b"\nspeed = 2\n'
        '[board.meter]\nsource = "ina219"',
        Example,
    )
    assert example == Example(
        rounds=3,
        folder=Path("there"),
        limits=(2, 5),
        budget=(1, 2),
        meter=Meter(period_s=1.0),
        watts={"big board": 3.0},
        options={"hidden": [64]},
        board=(Board("a"), Board("b", 2.0, Meter(source="ina219"))),
    )
    assert isinstance(example.meter.period_s, float)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(
            "rounds = \n",
            "x.toml, line 1, column 10: not valid TOML: Invalid value; the line is: rounds =",
            id="no value",
        ),
        pytest.param(
            'rounds = 1\nlabel = "open',
            'x.toml, line 2, column 14: not valid TOML: Unterminated string; the line is: label = "open',
            id="end of file",
        ),
        pytest.param(
            "rounds = 1\nrounds = 2\n",
            "x.toml, line 2, column 11: not valid TOML: Cannot overwrite a value; the line is: rounds = 2",
            id="twice",
        ),
    ],
)
def test_bad_toml_is_refused_with_line_and_column(text: str, sentence: str) -> None:
    assert faults(text) == [sentence]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("rounds = 1\nsede = 2", "x.toml, line 2: unknown key sede; did you mean seed?", id="top level"),
        pytest.param(
            "rounds = 1\n[meter]\nperiod = 2",
            "x.toml, line 3: unknown key meter.period; did you mean period_s?",
            id="table",
        ),
        pytest.param(
            'rounds = 1\n[[board]]\nname = "a"\n[[board]]\nname = "b"\nsped = 2',
            "x.toml, line 6: unknown key board #2.sped; did you mean speed?",
            id="array of tables",
        ),
        pytest.param(
            'rounds = 1\n[[board]]\nname = "a"\n[board.meter]\nsorce = "ina219"',
            "x.toml, line 5: unknown key board #1.meter.sorce; did you mean source?",
            id="table in an array",
        ),
        pytest.param(
            "rounds = 1\n[metre]\nperiod_s = 1", "x.toml, line 2: unknown key metre; did you mean meter?", id="header"
        ),
        pytest.param(
            "rounds = 1\n[meter]\nzzz = 1",
            "x.toml, line 3: unknown key meter.zzz; known: period_s, source",
            id="nothing near",
        ),
        pytest.param(
            'rounds = 1\nmeter = { sourc = "ina219" }',
            "x.toml, line 2: unknown key meter.sourc; did you mean source?",
            id="inline table",
        ),
    ],
)
def test_an_unknown_key_is_refused_at_every_level_and_the_nearest_one_named(text: str, sentence: str) -> None:
    assert faults(text) == [sentence]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("seed = 1.5", "seed: expected a whole number, got 1.5"),
        ("seed = true", "seed: expected a whole number, got true"),
        ("quick = 1", "quick: expected true or false, got 1"),
        ("label = 3", "label: expected a string, got 3"),
        ("folder = false", "folder: expected a path, got false"),
        ("policies = 'equal'", 'policies: expected an array, each entry a string, got "equal"'),
        ("policies = ['equal', 2]", "policies #2: expected a string, got 2"),
        ("limits = [1]", "limits: expected an array of exactly 2: a whole number, a whole number, got [1]"),
        ("budget = 'all'", 'budget: expected a whole number or an array, each entry a whole number, got "all"'),
        ("meter = 3", "meter: expected a table, got 3"),
        ("meter.period_s = 1900-01-01", "meter.period_s: expected a number > 0 and <= 10, got a date"),
        ("meter.period_s = nan", "meter.period_s: expected a number > 0 and <= 10, got nan"),
        ("meter.period_s = 0", "meter.period_s: expected a number > 0 and <= 10, got 0"),
        ("meter.period_s = 10.5", "meter.period_s: expected a number > 0 and <= 10, got 10.5"),
        (
            "meter.source = 'ina218'",
            'meter.source: expected one of "modelled", "ina219", got "ina218"; did you mean ina219?',
        ),
        ("watts = { a = 'x' }", 'watts.a: expected a number, got "x"'),
        ("board = [1]", "board #1: expected a table, got 1"),
        ("board = [{ name = '' }]", 'board #1.name: expected a string of length >= 1, got ""'),
        ("board = [{}]", "board #1.name is missing: expected a string of length >= 1"),
        ("limits = [2, 1]", "limits: expected the smaller first, got 2, 1; swap them"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(line: str, sentence: str) -> None:
    (found,) = faults(f"rounds = 1\n{line}")
    assert found.partition(": ")[2] == sentence


def test_a_missing_key_is_named_with_its_meaning() -> None:
    assert faults("") == ["x.toml: rounds is missing: expected a whole number >= 1 (how often models are averaged)"]


def test_all_faults_come_at_once_in_one_error() -> None:
    found = faults(
        'rounds = 0\nquick = "no"\nsede = 1\n[meter]\nperiod_s = -1\nsource = "none"\n[[board]]\nspeed = "fast"'
    )
    assert [fault.partition(": ")[0] for fault in found] == [
        "x.toml, line 3",
        "x.toml, line 1",
        "x.toml, line 2",
        "x.toml, line 5",
        "x.toml, line 6",
        "x.toml, line 7",
        "x.toml, line 8",
    ]


def test_a_file_is_read_and_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("rounds = 2\n", encoding="utf-8")
    assert load(path, Example).rounds == 2
    path.write_bytes(b"rounds = 2 # \xff\n")
    with pytest.raises(SettingsError, match=r"a\.toml: byte 13 is not UTF-8"):
        load(path, Example)
    with pytest.raises(SettingsError, match=r"b\.toml: cannot read it: No such file or directory"):
        load(tmp_path / "b.toml", Example)


def test_a_parsed_table_is_held_to_the_same_rules() -> None:
    assert load_table({"rounds": 4}, Example, where="[task]").rounds == 4
    with pytest.raises(SettingsError, match=r"\[task\]: unknown key ronds; did you mean rounds"):
        load_table({"rounds": 4, "ronds": 4}, Example, where="[task]")


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)
free = st.recursive(
    st.integers(-(2**63), 2**63 - 1) | numbers | st.booleans() | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
meters = st.builds(Meter, st.floats(0.001, 10), st.sampled_from(["modelled", "ina219"]))
boards = st.builds(Board, names.filter(bool), numbers, meters)
examples = st.builds(
    Example,
    rounds=st.integers(1, 10**9),
    seed=st.integers(-(2**63), 2**63 - 1),
    quick=st.booleans(),
    label=st.none() | names,
    folder=names.filter(lambda name: bool(name) and "\0" not in name).map(Path),
    policies=st.lists(names, max_size=3).map(tuple),
    budget=st.integers(0, 10**6) | st.lists(st.integers(0, 10**6), max_size=3).map(tuple),
    meter=meters,
    watts=st.dictionaries(names, numbers, max_size=3),
    options=st.dictionaries(names, free, max_size=4),
    board=st.lists(boards, max_size=3).map(tuple),
)


@given(examples)
def test_dump_and_load_are_inverse(example: Example) -> None:
    assert load(dump(example), Example) == example


@given(st.text(max_size=60))
def test_any_text_gives_settings_or_one_line_a_fault(text: str) -> None:
    found: list[str] = []
    try:
        load("rounds = 1\n" + text, Example)
    except SettingsError as error:
        found = error.errors or ["an error without a fault\n"]
    assert all("\n" not in fault for fault in found)


def test_limits_are_said_to_the_last_digit() -> None:
    assert str(Bounds(ge=1, le=1 << 20)) == ">= 1 and <= 1048576"
    assert str(Bounds(gt=0.5, lt=1 << 63)) == "> 0.5 and < 9223372036854775808"
