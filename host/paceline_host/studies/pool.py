# SPDX-License-Identifier: Apache-2.0
"""Cells to worker processes, and each record to its file at once. Knows processes and files; no torch, no figures."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline import foreign
from paceline.errors import DamagedError, RunError, StorageError
from paceline_host.studies.design import Cell

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def read_cells(folder: Path, cells: Iterable[Cell]) -> dict[str, dict[str, Any]]:
    """Return the records that are there already, by their cell's key. Raises DamagedError."""
    found = {}
    for cell in cells:
        path = folder / f"{cell.key()}.json"
        try:
            record = json.loads(foreign.read_text(path, foreign.MOST_RECORD_BYTES))
            if not isinstance(record, dict) or "cell" not in record:
                raise ValueError("it is no record of a cell")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise DamagedError(
                f"{path}: this finished cell cannot be read ({error}); remove it, and it is trained anew"
            ) from None
        found[cell.key()] = record
    return found


def write_cell(folder: Path, cell: Cell, record: dict[str, Any]) -> None:
    """Write a record, whole or not at all. Raises StorageError."""
    path = folder / f"{cell.key()}.json"
    part = path.with_suffix(".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(record), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: the cell cannot be written: {error.strerror}") from None


class Worker:
    """One process and the cell that it trains."""

    def __init__(self) -> None:
        self.cell: Cell | None = None
        self.began_s = 0.0
        self._heard = b""
        environment = os.environ | dict.fromkeys(ONE_THREAD, "1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paceline_host.studies.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=environment,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self.stdout = self.process.stdin, self.process.stdout

    def give(self, cell: Cell, device: str) -> None:
        """Train a cell."""
        self.cell, self.began_s = cell, time.monotonic()
        with suppress(BrokenPipeError):  # it has died; `hear` says so
            self._stdin.write(json.dumps({"cell": asdict(cell), "device": device}).encode() + b"\n")
            self._stdin.flush()

    def hear(self) -> list[dict[str, Any]]:
        """Return what it has said. Raises RunError when it has died."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        if not data:
            status = self.process.wait()
            how = f"signal {-status}" if status < 0 else f"status {status}"
            what = self.cell.setting.text() if self.cell else "no cell"
            raise RunError(
                f"a worker ended with {how} while it trained {what}; what is finished is kept, run it again to go on"
            )
        *lines, self._heard = (self._heard + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """End it now; a cell that it trains is lost."""
        self.process.kill()
        self.process.wait()
        with suppress(BrokenPipeError):
            self._stdin.close()
        self.stdout.close()


def train_cells(
    cells: Sequence[Cell], folder: Path, *, jobs: int, device: str,
    told: Callable[[Cell, dict[str, Any]], object], tick: Callable[[Sequence[tuple[Cell, float]]], object],
) -> None:  # fmt: skip
    """Train cells, `jobs` at a time; each record is in its file before `told` hears of it.

    `tick` hears now and then which cells are under way and for how many seconds. Raises the PacelineError of the first
    cell that cannot be trained at all, KeyboardInterrupt at Ctrl-C; the workers are ended either way.
    """
    left = list(reversed(cells))
    workers: list[Worker] = []
    selector = selectors.DefaultSelector()
    try:
        while left or any(worker.cell for worker in workers):
            while left and len(workers) < jobs:
                workers.append(Worker())
                selector.register(workers[-1].stdout, selectors.EVENT_READ, workers[-1])
            for worker in workers:
                if worker.cell is None and left:
                    worker.give(left.pop(), device)
            for key, _ in selector.select(1.0):
                worker = key.data
                for message in worker.hear():
                    _heed(worker, message, folder, told)
            now_s = time.monotonic()
            tick([(worker.cell, now_s - worker.began_s) for worker in workers if worker.cell])
    finally:
        for worker in workers:
            worker.end()
        selector.close()


def _heed(
    worker: Worker, message: dict[str, Any], folder: Path, told: Callable[[Cell, dict[str, Any]], object]
) -> None:
    cell = worker.cell
    if cell is None:
        raise AssertionError(f"a worker without a cell says {message}")
    if "refused" in message:
        error = RunError(f"{cell.setting.text()}, seed {cell.seed}: {message['refused']}")
        error.exit_code = message["exit_code"]
        raise error
    if "bug" in message:
        raise RuntimeError(f"{cell.setting.text()}, seed {cell.seed}:\n{message['bug']}")
    if "done" in message:
        write_cell(folder, cell, message["done"])
        told(cell, message["done"])
        worker.cell = None
