# SPDX-License-Identifier: Apache-2.0
"""A board on which torch is missing, or ends whoever loads it, beside one that has it: real agents, real training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.data.idx import write_idx
from paceline.data.sources import FILES

from .fleet_tools import Bench, Program, endpoint_of

MISSING = "raise ModuleNotFoundError(\"No module named 'torch'\")"
OF_ANOTHER_PROCESSOR = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)"


def digits(folder: Path) -> Path:
    """Make a folder of small random images."""
    folder.mkdir()
    source = np.random.default_rng(5)
    for (images, labels), count in ((FILES[:2], 256), (FILES[2:], 32)):
        write_idx(folder / images, (count, 6, 5), source.integers(0, 256, count * 30, dtype=np.uint8).tobytes())
        write_idx(folder / labels, (count,), source.integers(0, 10, count, dtype=np.uint8).tobytes())
    return folder


def run(bench: Bench, monkeypatch: pytest.MonkeyPatch, torch: str, **task: object) -> tuple[Program, Program]:
    """Run an experiment to its end, over a board with torch and one on which `torch` stands for it; return host and
    that board.
    """
    data, planted = digits(bench.folder / "digits"), bench.folder / "planted"
    planted.mkdir()
    (planted / "torch.py").write_text(torch, encoding="utf-8")
    bench.make_keys("whole", "bare")
    settings = {"rounds": 2, "budget": 64, "policies": ["equal"], "patience_s": 3.0}
    path = bench.experiment("mixed", settings, task={"name": "mnist", **task}, more=f'[data]\nfolder = "{data}"')
    host = bench.host(path)
    agents = []
    for board in ("whole", "bare"):
        config = bench.write_agent(board, endpoint_of(host))
        config.write_text(f'data_dir = "{data}"\n' + config.read_text(encoding="utf-8"), encoding="utf-8")
        if board == "bare":
            monkeypatch.setenv("PYTHONPATH", str(planted), prepend=":")
        agents.append(bench.start(board, "paceline-agent", "run", "--config", config))
    assert host.ends(120.0) == 0, host.err
    return host, agents[1]


def test_a_board_whose_torch_kills_its_trainer_takes_part_with_numpy(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, bare = run(bench, monkeypatch, OF_ANOTHER_PROCESSOR)
    assert "bare trains with numpy" in host.err
    assert "whole trains with numpy" not in host.err
    assert "the trainer was ended by SIGILL; the next one trains without torch" in bare.err
    assert "every sample counted exactly once" in host.out
    ledger = bench.ledger("mixed-001/equal")
    assert ledger is not None
    with ledger:
        assert {row.board: row.samples for row in ledger.contributions() if row.round == 2} == {0: 32, 1: 32}


def test_a_task_that_it_cannot_do_refuses_that_board_by_name(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _ = run(bench, monkeypatch, MISSING, model="cnn")
    assert (
        "bare: trainer-gone: settings: task.name: this board has no torch that works, and mnist needs it here"
        in host.err
    )
    assert "starting without bare" in host.err
    assert "every sample counted exactly once" in host.out
