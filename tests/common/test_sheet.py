# SPDX-License-Identifier: Apache-2.0
"""Where a key of a TOML file stands: whatever the file's style; overrides and defaults are told apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import toml
from paceline.errors import SettingsError
from paceline.sheet import Sheet

STYLES = [
    ("plain", "a = 1\n\n# b = 2\nb = 3\n", {("a",): 1, ("b",): 4}),
    ("tables", "[t]\na = 1\n[t.u]\na = 2\n", {("t",): 1, ("t", "a"): 2, ("t", "u"): 3, ("t", "u", "a"): 4}),
    ("dotted and quoted", 't."a.b".c = 1\n\'d\' = 2\n["e f"]\ng=1', {
        ("t",): 1, ("t", "a.b"): 1, ("t", "a.b", "c"): 1, ("d",): 2, ("e f",): 3, ("e f", "g"): 4}),
    ("inline tables", "t = { a = 1, u = { b = 2 } }\n", {
        ("t",): 1, ("t", "a"): 1, ("t", "u"): 1, ("t", "u", "b"): 1}),
    ("a string that looks like a file",
     's = """\n[t]\na = 1\n"""\n[t]\na = 2\n', {("s",): 1, ("t",): 5, ("t", "a"): 6}),
    ("an array over lines", 'a = [\n  1,  # ]\n  "]",\n]\nb = 2\n', {
        ("a",): 1, ("a", 0): 1, ("a", 1): 1, ("b",): 5}),
    ("arrays of tables", "[[t]]\na = 1\n[[t]]\na = 2\n[t.u]\nb = 3\n[[t.v]]\nc = 4\n", {
        ("t",): 1, ("t", 0): 1, ("t", 0, "a"): 2, ("t", 1): 3, ("t", 1, "a"): 4, ("t", 1, "u"): 5,
        ("t", 1, "u", "b"): 6, ("t", 1, "v"): 7, ("t", 1, "v", 0): 7, ("t", 1, "v", 0, "c"): 8}),
    ("other line ends",
     "a = 1\r\n[t]\r\nb = '''x\r\ny'''\r\nc = 1", {("a",): 1, ("t",): 2, ("t", "b"): 3, ("t", "c"): 5}),
    ("nothing", "# only talk\n", {}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "lines"), [row[1:] for row in STYLES], ids=[row[0] for row in STYLES])
def test_each_key_is_found_on_the_line_where_it_stands(text: str, lines: dict[toml.Keys, int]) -> None:
    assert toml.lines_of(text) == lines


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
values = st.recursive(
    st.integers(-(2**63), 2**63 - 1) | st.booleans() | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(names, values, max_size=5))
def test_a_written_file_is_found_again_key_for_key(table: dict[str, object]) -> None:
    marks: dict[toml.Keys, str] = {}

    def mark(keys: toml.Keys) -> str:
        return marks.setdefault(keys, f"mark {len(marks)}.")

    text = toml.write(table, mark)
    lines, found = text.split("\n"), toml.lines_of(text)
    assert list(marks) == list(toml.keys_of(table))
    for keys, said in marks.items():
        assert lines[found[keys] - 1].endswith(f"  # {said}")


def test_each_value_is_from_a_line_an_override_or_nowhere() -> None:
    sheet = Sheet.read("[run]\nrounds = 2\nbudget = 3\ntable = { inner = 1 }\n", "x.toml")
    sheet.override(" run.rounds = 5 ")
    sheet.override("task.name='linear'")
    assert sheet.table["run"]["rounds"] == 5
    assert sheet.table["task"] == {"name": "linear"}
    origins = {keys: sheet.origin(keys) for keys in [("run", "rounds"), ("run", "budget"), ("run", "seed"),
               ("run", "table", "inner"), ("task", "name"), ("fleet", "kind")]}  # fmt: skip
    assert list(origins.values()) == ["--set", "x.toml:3", "default", "x.toml:4", "--set", "default"]
    assert sheet.place(("run", "seed")) == "x.toml, line 1"
    assert sheet.place(("run", "rounds")) == "--set  run.rounds = 5 "
    assert sheet.place(("fleet",)) == "x.toml"


@pytest.mark.parametrize(
    "text", ["", "run", "run.rounds", "run.rounds=", "rounds=2", "run.=2", "run.a=[", "run.a=1\nb=2"]
)
def test_an_override_that_is_none_is_refused(text: str) -> None:
    sheet = Sheet.read("", "x.toml")
    with pytest.raises(SettingsError, match=r"expected TABLE\.KEY=VALUE with a TOML value"):
        sheet.override(text)
    assert sheet.table == {}


def test_an_override_of_a_table_that_is_none_leaves_the_files_fault_to_be_told() -> None:
    sheet = Sheet.read("run = 3\n", "x.toml")
    sheet.override("run.rounds=2")
    assert sheet.table == {"run": 3}
    assert sheet.at(("run", "rounds")) is None


def test_a_long_array_is_read_line_by_line_once() -> None:
    text = "a = [\n" + "1,\n" * 20_000 + "]\nb = 1\n"
    assert toml.lines_of(text)["b",] == 20_003


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml: cannot read it: No such file"):
        Sheet.read(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\0" * 2_000_000, "\N{REPLACEMENT CHARACTER}" * 120 + "..."),
        ("a = '" + "x" * 500 + "\x1b[31m", "..." + "x" * 110),
        ("[t] " + "y" * 500, "[t] " + "y" * 116 + "..."),
    ],
)
def test_of_a_long_line_that_is_no_toml_the_part_at_fault_is_told(text: str, shown: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Sheet.read(text)
    assert shown in caught.value.errors[0]
    assert len(caught.value.errors[0]) < 260
    assert caught.value.errors[0].isprintable()
