# SPDX-License-Identifier: Apache-2.0
"""Talk: lines for people stay as they are, JSON is one object a line, levels hold, and no reader is needed."""

from __future__ import annotations

import io
import json
import os
import re
import sys

import pytest

from paceline.talk import LEVELS, Talk


def test_people_get_the_programs_name_before_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    Talk("paceline")("one\ntwo")
    assert capsys.readouterr() == ("", "paceline: one\npaceline: two\n")


def test_what_a_peer_has_put_into_a_line_moves_no_screen(capsys: pytest.CaptureFixture[str]) -> None:
    Talk("paceline")("  pi4: \x1b[2J\x1b[1;31mall is well\x07\x9b3J \u202e\u00e9 \u2588")
    assert capsys.readouterr().err == "paceline:   pi4:  [2J [1;31mall is well  3J  \u00e9 \u2588\n"


def test_programs_get_one_object_a_line_with_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    talk = Talk("paceline-agent", as_json=True)
    talk("started")
    talk.board = "pi4"
    talk.warning("two\nlines \u00e9 \x1b[31m", event="meter")
    talk("other", board="pi5")
    lines = capsys.readouterr().err.splitlines()
    said = [json.loads(line) for line in lines]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry.pop("ts")) for entry in said)
    assert said == [
        {"level": "info", "component": "paceline-agent", "text": "started"},
        {"level": "warning", "component": "paceline-agent", "board": "pi4", "event": "meter",
         "text": "two\nlines \u00e9 \x1b[31m"},
        {"level": "info", "component": "paceline-agent", "board": "pi5", "text": "other"},
    ]  # fmt: skip
    assert all(line.isascii() and line.isprintable() for line in lines), "safe to show on any terminal"


@pytest.mark.parametrize("as_json", [False, True], ids=["lines", "JSON"])
@pytest.mark.parametrize("least", LEVELS)
def test_what_is_below_the_level_is_not_said(capsys: pytest.CaptureFixture[str], least: str, as_json: bool) -> None:
    talk = Talk("paceline", least, as_json=as_json)
    for say, text in (
        (talk.debug, "d-1"),
        (talk.info, "i-2"),
        (talk, "i-2b"),
        (talk.warning, "w-3"),
        (talk.error, "e-4"),
    ):
        say(text)
    said = re.findall(r"[a-z]-\w+", capsys.readouterr().err)
    assert said == ["d-1", "i-2", "i-2b", "w-3", "e-4"][{"debug": 0, "info": 1, "warning": 3, "error": 4}[least] :]


def test_lines_go_to_who_has_a_picture_on_the_terminal_and_json_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    for as_json in (False, True):
        talk = Talk("paceline", as_json=as_json)
        talk.lines_to(shown.append)
        talk.error("text")
    assert shown == ["text"]
    assert json.loads(capsys.readouterr().err)["level"] == "error"


@pytest.mark.parametrize("as_json", [False, True], ids=["lines", "JSON"])
def test_that_nobody_can_read_it_ends_nothing(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    closed = io.StringIO()
    closed.close()
    with open(writer, "wb", buffering=0) as raw:
        broken = io.TextIOWrapper(raw, write_through=True)
        for stream in (broken, closed):
            monkeypatch.setattr(sys, "stderr", stream)
            Talk("paceline", as_json=as_json)("text")
        with pytest.raises(BrokenPipeError):
            broken.write("so it was broken")
        broken.detach()
