# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz.guided TARGET [-runs=N ...]`: one decoder's inputs, guided by the coverage of our own code.

Needs atheris (`pip install atheris`), which nothing else here does; the options are libFuzzer's. What it finds, and the
inputs that it goes on from, lie in build/fuzz.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import Any


def main(argv: list[str]) -> int:
    """Fuzz until libFuzzer ends the process."""
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        print("guided fuzzing needs atheris: pip install atheris", file=sys.stderr)
        return 3
    with atheris.instrument_imports(include=["paceline", "paceline_agent", "paceline_host"]):
        from tests.fuzz.targets import ROOT, TARGETS
    if not argv or argv[0] not in TARGETS:
        print(f"expected one of {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    target, found = TARGETS[argv[0]], ROOT / "build" / "fuzz"

    def take(data: bytes) -> None:
        with suppress(*target.refusals):
            target.run(data)

    corpus = found / f"corpus-{argv[0]}"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], *argv[1:], f"-artifact_prefix={found}/{argv[0]}-", str(corpus)], take)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
