# SPDX-License-Identifier: Apache-2.0
"""The C benchmark computes the same on every instruction set, and what the library computes from Python. Times: no."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.arch import targets

from paceline import GlobalSampler, allocate
from paceline.core import PURPOSE_PARTITION, Rng, permutation

SOURCE = targets.CORE / "bench" / "pl_bench.c"
HOSTED = [target for target in targets.TARGETS if not target.bare]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the benchmark for this machine."""
    return build("gcc", (), tmp_path_factory.mktemp("bench"))


def build(compiler: str, flags: Sequence[str], folder: Path) -> Path:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} missing")
    program = folder / "pl_bench"
    command = [compiler, *targets.FLAGS, "-O2", targets.INCLUDE, str(SOURCE), *targets.SOURCES, *flags]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def run(command: Sequence[str | Path], *words: str) -> dict[tuple[str, int], str]:
    """Return the CRC of each row."""
    done = subprocess.run([*command, "--quick", "--json", *words], capture_output=True, text=True, check=True)
    table = json.loads(done.stdout)
    assert table["schema"] == "paceline-core-bench-1"
    assert all(row["least"] <= row["median"] <= row["most"] for row in table["rows"])
    return {(row["name"], row["n"]): row["crc32"] for row in table["rows"]}


@pytest.mark.parametrize("target", HOSTED, ids=lambda target: target.name)
def test_what_is_timed_is_the_same_on(target: targets.Target, here: Path, tmp_path: Path) -> None:
    if reason := targets.missing(target):
        pytest.skip(reason)
    program = build(target.compiler, target.flags, tmp_path)
    found = run([*target.run, program], "--most", "100")
    assert found == run([here], "--most", "100")
    assert len(found) == 8


def crc(words: Sequence[int]) -> str:
    """Return the CRC of 32-bit words, without the usual inversions."""
    data = b"".join(word.to_bytes(4, "little") for word in words)
    return f"{zlib.crc32(data, 0xFFFFFFFF) ^ 0xFFFFFFFF:08x}"


def test_what_is_timed_is_what_the_library_computes(here: Path) -> None:
    found = run([here], "--most", "1000")
    for size in (11, 1000):
        rng = Rng(1, PURPOSE_PARTITION, 0, size)
        costs = []
        for _ in range(size):
            costs.append(0.001 + (0.03 - 0.001) * (rng.word() / 4294967296.0))
            rng.word(), rng.word()  # watts: computing, and waiting
        assert found["allocate", size] == crc(allocate(costs, 100 * size))
    assert found["order of an epoch, a sample", 60000] == crc(list(permutation(1, 0, 60000)))
    for size in (10, 1000):
        rng = Rng(1, PURPOSE_PARTITION, 1, size)
        counts = [1 + rng.below(1 + 2_000_000 // size) for _ in range(size)]
        sampler = GlobalSampler(counts, seed=1, epoch=0)
        ids: Sequence[int] = ()
        for _ in range(min(512, sum(counts) // 128)):
            ids, drawn = sampler.draw(128)
            sampler.commit()
        for tree in ("16-ary", "Fenwick"):
            assert found[f"a draw, {tree} tree", size] == crc([*ids, *drawn])


@pytest.mark.parametrize(
    ("words", "said"),
    [(["sampelr"], "sampelr: expected one of"), (["--most", "-4"], "from 10 to 1000000"), (["--most"], "usage")],
)
def test_a_wrong_word_is_refused(here: Path, words: list[str], said: str) -> None:
    done = subprocess.run([here, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
