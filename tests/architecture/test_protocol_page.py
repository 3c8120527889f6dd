# SPDX-License-Identifier: Apache-2.0
"""docs/PROTOCOL.md says what the code does: its tables are compared with the code, its tests are looked up."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from paceline import wire
from paceline.session import NEXT, State
from paceline_agent.meters import serial_frames
from paceline_host import operator_wire

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")
KINDS = {cls.kind: cls for cls in (*wire.FROM_AGENT, *wire.FROM_HOST)}


def table(heading: str) -> list[list[str]]:
    """Return the rows of the table whose first column has this heading."""
    lines = PAGE.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_every_message_is_listed_with_its_ends_and_fields() -> None:
    rows = {kind.strip("`"): (ends, fields) for kind, ends, fields, _ in table("kind")}
    assert rows.keys() == KINDS.keys()
    for kind, (ends, fields) in rows.items():
        cls = KINDS[kind]
        said_by = {(True, True): "both", (True, False): "agent", (False, True): "host"}
        assert ends == said_by[cls in wire.FROM_AGENT, cls in wire.FROM_HOST], kind
        names = re.sub(r"\((?:[^()]|\([^()]*\))*\)| or null", "", fields)
        listed = [name.strip() for name in names.split(",")]
        assert listed == [f.name for f in dataclasses.fields(cls) if f.name != "session"], kind


def moves_of(text: str, state: str) -> dict[str, str]:
    """Return {kind: landing} of a cell of the table of states."""
    moves: dict[str, str] = {}
    for part in filter(None, text.split(";")):
        kinds, _, landing = part.strip().removeprefix("and ").partition(": ")
        if not kinds.startswith("*"):
            stays = landing == "the state stays"
            moves.update({kind.strip(): state if stays else landing for kind in kinds.split(",")})
    return moves


def test_every_state_is_listed_with_its_moves() -> None:
    rows = {name.strip("`*"): moves for name, _, moves in table("state")}
    shared = ("always", "endings")
    assert [name for name in rows if name not in shared] == [state.value for state in State]
    for state, moves in NEXT.items():
        cell = rows[state.value]
        listed = moves_of(cell, state.value)
        for name in shared:
            if f"*{name}*" in cell:
                listed |= moves_of(rows[name], state.value)
        assert listed == {cls.kind: (landing or state).value for cls, landing in moves.items()}, state


def test_every_limit_has_its_value() -> None:
    for name, value, why in table("limit"):
        assert int(value) == getattr(wire, name.strip("`")), name
        assert why


def test_every_code_of_a_refusal_is_explained() -> None:
    sources = (ROOT / "host" / "paceline_host").glob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    codes = set(re.findall(r'(?:_reject\(\s*\w+,|_refuse\(\s*index,)\s*"(\w+)"', text))
    assert len(codes) >= 5
    paragraph = PAGE[PAGE.index("Codes of `reject`") :].split("\n\n")[0]
    assert codes <= set(re.findall(r"`(\w+)` \(", paragraph))


def test_every_option_of_a_socket_is_listed_with_its_reason() -> None:
    listed = {name: why for options, _, _, why in table("option") for name in re.findall(r"`(\w+)`", options)}
    for path, function in (
        ("host/paceline_host/link.py", "_router"),
        ("agent/paceline_agent/link.py", "_dealer"),
        ("host/paceline_host/operator_link.py", "_dealer"),
    ):
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        (made,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function)
        options = {
            node.attr
            for node in ast.walk(made)
            if isinstance(node, ast.Attribute)
            and (isinstance(node.ctx, ast.Store) or (dotted(node).startswith("zmq.") and node.attr != "Socket"))
            and node.attr not in ("ROUTER", "DEALER", "Context")
        }
        assert len(options) >= 14
        assert options <= listed.keys(), options - listed.keys()
        assert all(listed.values())


def dotted(node: ast.Attribute) -> str:
    """Return a.b of such an expression."""
    return f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""


def named_tests() -> list[str]:
    """Return every test that the page names."""
    return sorted(set(re.findall(r"`(\w+/\w+\.py::\w+)`", PAGE)))


@pytest.mark.parametrize("name", named_tests())
def test_every_test_that_is_named_exists(name: str) -> None:
    path, _, test = name.partition("::")
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert test in defined or f"\n{test} = " in (ROOT / "tests" / path).read_text(encoding="utf-8")


def test_every_rule_has_a_test_or_is_called_missing() -> None:
    rows = table("rule")
    missing = [rule for rule, test in rows if test == "missing"]
    assert all(re.search(r"::\w+", test) or test == "missing" for rule, test in rows if not rule.startswith("**"))
    assert missing == [rule for rule, _ in rows[[rule.startswith("**Missing") for rule, _ in rows].index(True) + 1 :]]
    assert len(rows) - len(missing) > 50


def test_every_operator_message_is_listed_with_its_ends_and_fields() -> None:
    rows = {kind.strip("`"): (ends, fields) for kind, ends, fields, _ in table("message")}
    every = {cls.kind: cls for cls in (*operator_wire.FROM_OPERATOR, *operator_wire.TO_OPERATOR)}
    assert rows.keys() == every.keys()
    for kind, (ends, fields) in rows.items():
        cls = every[kind]
        assert ends == ("operator" if cls in operator_wire.FROM_OPERATOR else "host"), kind
        listed = [name.strip() for name in re.sub(r"\([^()]*\)", "", fields).split(",")]
        assert listed == [f.name for f in dataclasses.fields(cls) if f.name != "document"], kind


def test_every_rule_of_the_desk_has_a_test() -> None:
    rows = table("rule of the desk")
    assert rows
    assert all(re.search(r"::\w+", test) for _, test in rows)


def test_every_limit_of_the_serial_line_has_its_value() -> None:
    rows = table("serial limit")
    assert rows
    for name, value, why in rows:
        assert int(value) == getattr(serial_frames, name.strip("`")), name
        assert why


def test_every_rule_of_the_serial_line_has_a_test() -> None:
    rows = table("rule of the serial line")
    assert rows
    assert all(re.search(r"::\w+", test) for _, test in rows)
