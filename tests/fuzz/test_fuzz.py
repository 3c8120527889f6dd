# SPDX-License-Identifier: Apache-2.0
"""Foreign bytes: whatever arrives, a decoder takes it or refuses it in the project's own words, and never swells."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz import __main__ as program
from tests.fuzz.mutate import TOKENS, mutate
from tests.fuzz.targets import TARGETS, Target

from paceline.errors import DamagedError
from paceline_host.journal import JOURNAL, SPOOL, Journal
from paceline_host.ledger import Ledger

NAMES = pytest.mark.parametrize("name", TARGETS)
EDIT = st.tuples(st.floats(0, 1), st.integers(0, 8), st.sampled_from(TOKENS) | st.binary(max_size=9))
EDITS = st.lists(EDIT, min_size=1, max_size=4)


def take(name: str, data: bytes) -> bool:
    """Give a decoder its bytes; tell whether it took them."""
    with suppress(*TARGETS[name].refusals):
        TARGETS[name].run(data)
        return True
    return False


@NAMES
def test_what_is_valid_is_taken(name: str) -> None:
    assert [data for data in TARGETS[name].seeds() if not take(name, data)] == []


@NAMES
@settings(max_examples=60)
@given(data=st.data())
def test_nothing_but_the_projects_own_refusals_comes_out(name: str, data: st.DataObject) -> None:
    """Hypothesis, not the mutator: so a failure comes as the smallest change that makes it."""
    content = bytearray(data.draw(st.sampled_from(list(TARGETS[name].seeds()))))
    for place, gone, new in data.draw(EDITS):
        at = int(place * len(content))
        content[at : at + gone] = new
    take(name, bytes(content))


@NAMES
def test_no_input_makes_a_decoder_swell(name: str) -> None:
    """Lengths that lie, depth and repetition: memory stays at what so many bytes can come to."""
    draw, target = random.Random(5), TARGETS[name]
    seeds = list(target.seeds())
    lies = [seed[:at] + token + seed[at:] for seed in seeds[:4] for token in TOKENS for at in {0, 1, len(seed) // 2}]
    inputs = [*lies, *(mutate(draw.choice(seeds), seeds, draw) for _ in range(100))]
    take(name, seeds[0])  # imports and caches are nobody's input
    worst = 0
    tracemalloc.start()
    try:
        for data in random.Random(6).sample(inputs, min(len(inputs), 150 // min(5, target.cost))):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            take(name, data)
            worst = max(worst, tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert worst <= target.most_bytes


# What the fuzzer has found, each as small as it could be made.
_HEADER = msgpack.packb({"kind": "divide", "request": 1, "proto": 1, "name": "mine", "round": 1})
_DIVIDE = len(_HEADER).to_bytes(2, "little") + _HEADER
_TERMS = b'{"policy": "time", "ranks": 1, "budget": 9, "minimum": 1, "reports": [[%s, null, 5]]}'
_HEADS = b"time,t2m,u10\n"
FOUND = [
    (
        "channel-from-trainer",
        msgpack.packb({"kind": "loaded", "manifest_digest": [b"x"]}),
        "a list of what no TOML can hold, told as what came",
    ),
    ("rank-gradient", b"\1" + struct.pack("<f", 1e25), "a gradient after which adam stands still"),
    ("rank-words", b"[" * 3000, "deep JSON of a rank ended the host"),
    ("rank-words", b'{"address": "a", "port": Infinity}', "and so did its infinite port"),
    (
        "operator-to-host",
        _DIVIDE + _TERMS % b"1e999",
        "infinite seconds of a script",
    ),
    ("host-toml", b"a = " + b"[" * 3000, "deep TOML"),
    ("host-toml", b"a." * 3000 + b"a = 1", "deep TOML without brackets"),
    ("host-toml", b"a = " + b"9" * 5000, "a number that Python does not read"),
    ("series", _HEADS + b"2020-01-01T00:00,280," + b"1" * 140_000, "a cell that csv does not read"),
    ("series", _HEADS + b"2020-01-01T00:00,280,1e300", "a number beyond 32 bits"),
    ("series", _HEADS + b"9999-12-31T23:00-14:00,280,1", "an hour of the year 10000"),
]


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, data, _ in FOUND], ids=[why for *_, why in FOUND])
def test_what_was_found_is_refused(name: str, data: bytes) -> None:
    assert not take(name, data)


def test_seconds_that_no_float_holds_are_refused_to_a_script() -> None:
    """It ended the daemon's desk."""
    data = _DIVIDE + _TERMS % (b"9" * 400)
    assert take("operator-to-host", data)  # a message it is; the answer to it is a refusal


def test_a_journal_whose_rows_are_damaged_is_named(tmp_path: Path) -> None:
    """SQLite finds nothing wrong with a text that is no JSON, or with a page whose text is no UTF-8."""
    for number, (old, new) in enumerate([(b"modelled", b"mode\xff\xfeed"), (b"[[0,0,", b"[[0,0}")]):
        (whole,) = TARGETS["journal"].seeds()
        assert old in whole
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / JOURNAL).write_bytes(whole.replace(old, new))
        with pytest.raises(DamagedError, match="is damaged"), Ledger(folder) as ledger:
            ledger.verify()


def test_a_journal_whose_tables_are_damaged_is_not_taken_up(tmp_path: Path) -> None:
    (whole,) = TARGETS["journal"].seeds()
    (tmp_path / JOURNAL).write_bytes(whole.replace(b"update_bytes INTEGER", b"update_bytez INTEGER"))
    (tmp_path / SPOOL).touch()
    with pytest.raises(DamagedError, match="no such column"):
        Journal.open(tmp_path)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"89", b"[]"], ids=["deep", "a number", "an array"])
def test_a_kept_result_that_is_none_is_left(content: bytes) -> None:
    assert take("kept-result", content)


def test_the_fuzzer_finds_a_planted_bug_and_keeps_its_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(data: bytes) -> None:
        found = json.loads(data)  # refusals are ValueErrors; a list has no `get`
        found.get("a")

    monkeypatch.setitem(TARGETS, "planted", Target(run, lambda: [b'{"a": 1}'], (ValueError,)))
    monkeypatch.setattr(program, "FOUND", tmp_path / "found")
    assert program.main(["planted", "serial-frames", "--executions", "5000"]) == 1
    said = capsys.readouterr().out
    assert "planted               CRASH" in said
    assert "AttributeError" in said
    assert "5000 executions" in said
    (kept,) = (tmp_path / "found").iterdir()
    assert not isinstance(json.loads(kept.read_bytes()), dict)
