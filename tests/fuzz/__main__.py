# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz [TARGET ...]`: mutate valid inputs of each decoder; say how many it took and what it refused.

Guided by what a decoder says: an input that is refused in words not seen before, or taken, joins those that are
mutated. Exit status 1 where something else than a refusal came out; the input is then in build/fuzz.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence

from tests.fuzz.mutate import mutate
from tests.fuzz.targets import ROOT, TARGETS, Target

KEPT = 400  # inputs that are mutated on; the first ones are the seeds
FOUND = ROOT / "build" / "fuzz"


class Crash(Exception):
    """An input made a decoder raise what it may not."""

    def __init__(self, data: bytes, text: str) -> None:
        super().__init__(text)
        self.data = data


def fuzz(target: Target, executions: int, seed: int) -> tuple[int, int]:
    """Return how many inputs were taken, and in how many different words others were refused. Raises Crash."""
    draw = random.Random(seed)
    corpus = list(target.seeds())
    seeds = len(corpus)
    words: Counter[str] = Counter()
    for data in corpus:
        target.run(data)  # a seed is taken, whatever it is
    for _ in range(executions):
        data = mutate(draw.choice(corpus), corpus, draw)
        try:
            target.run(data)
            said = "taken"
        except target.refusals as error:
            said = re.sub(r"[\d.]+|'[^']*'|\"[^\"]*\"", "#", str(error))[:60]
        except Exception:
            raise Crash(data, traceback.format_exc()) from None
        words[said] += 1
        if words[said] <= 2 and len(data) < 1 << 14:
            corpus.append(data)
            if len(corpus) > seeds + KEPT:
                del corpus[draw.randrange(seeds, len(corpus))]
    return words["taken"], len(words) - ("taken" in words)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; without: all")
    parser.add_argument("--executions", type=int, default=20_000, metavar="N", help="of each, of slow ones fewer")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    names = options.targets or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no target {unknown[0]}; there are {', '.join(TARGETS)}")
    FOUND.mkdir(parents=True, exist_ok=True)
    status = total = 0
    for name in names:
        target = TARGETS[name]
        executions = options.executions // target.cost
        began_s = time.monotonic()
        try:
            taken, words = fuzz(target, executions, options.seed)
            total += executions
            took_s = time.monotonic() - began_s
            print(
                f"{name:<22}{executions:>10} executions, {taken:>9} taken, {words:>4} refusals, {took_s:>7.1f} s",
                flush=True,
            )
        except Crash as crash:
            path = FOUND / f"{name}-{hashlib.sha256(crash.data).hexdigest()[:12]}"
            path.write_bytes(crash.data)
            print(f"{name:<22}CRASH, input in {path}\n{crash}", flush=True)
            status = 1
    print(f"{total} executions")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
