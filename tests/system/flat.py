# SPDX-License-Identifier: Apache-2.0
"""What host, agent and trainer hold while a long run goes on: `python -m tests.system.flat [ROUNDS]` prints a table.

Three real boards that train next to nothing. 1: memory grew by 5 % or more from the first tenth to the last, or the
fewest descriptors of the last tenth are more than those of the first.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from resource import getpagesize

from .fleet_tools import Bench, Declared, Program, command_line

PARTS = 10
GROWTH = 0.05
LOOK_S = 0.1
KINDS = {"host": "paceline run", "agent": "paceline_agent run", "trainer": "paceline_agent.trainer"}
BOARDS = {name: Declared(speed=1e6) for name in ("a", "b", "c")}
Held = dict[str, tuple[float, int]]  # kind -> MiB of resident memory and descriptors, of the largest of its processes


def look(bench: Bench) -> Held:
    """Return what the bench's processes hold now."""
    found: Held = {}
    for pid in bench.left():
        line = command_line(pid)
        with suppress(OSError):
            kind = next((kind for kind, text in KINDS.items() if text in line), None)
            if kind is not None:
                pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
                one = pages * getpagesize() / (1 << 20), len(os.listdir(f"/proc/{pid}/fd"))
                found[kind] = max(one, found.get(kind, one))
    return found


def watch(bench: Bench, host: Program, rounds: int) -> Iterator[list[Held]]:
    """Yield what was seen in each tenth of a run."""
    part: list[Held] = []
    number = 1
    while host.process.poll() is None:
        ledger = bench.ledger("exp-001/time")
        if ledger is not None:
            with ledger:
                done = len(ledger.rounds())
                over = ledger.run.ended is not None
            if done * PARTS >= number * rounds and part:
                yield part
                part, number = [], number + 1
            if over:
                break
            if done:
                part.append(look(bench))
        time.sleep(LOOK_S)
    assert host.ends() == 0, host.err


def main(argv: list[str]) -> int:
    """Run, and print the table."""
    rounds = int(argv[0]) if argv else 1000
    with tempfile.TemporaryDirectory(prefix="paceline-flat-") as folder, Bench(Path(folder)) as bench:
        run = {"rounds": rounds, "budget": 30, "policies": ["time"], "fsync": False}
        fleet = {"kind": "local", "profile": bench.profile(BOARDS)}
        host = bench.host(bench.experiment("exp", run, task={"ballast": 15_000}, fleet=fleet), "--quiet")
        print(f"{'round':>7}" + "".join(f"{kind + ', MiB':>15}{'descriptors':>13}" for kind in KINDS))
        kept: list[Held] = []
        for part in watch(bench, host, rounds):
            whole = [held for held in part if len(held) == len(KINDS)]
            last = {kind: (max(h[kind][0] for h in whole), min(h[kind][1] for h in whole)) for kind in KINDS}
            kept.append(last)
            row = "".join(f"{last[kind][0]:>15.2f}{last[kind][1]:>13}" for kind in KINDS)
            print(f"{len(kept) * rounds // PARTS:>7}{row}", flush=True)
    grown = {kind: kept[-1][kind][0] / kept[0][kind][0] - 1 for kind in KINDS}
    print(f"{'growth':>7}" + "".join(f"{100 * grown[k]:>13.2f} %{kept[-1][k][1] - kept[0][k][1]:>13}" for k in KINDS))
    return int(any(grown[k] >= GROWTH or kept[-1][k][1] > kept[0][k][1] for k in KINDS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
