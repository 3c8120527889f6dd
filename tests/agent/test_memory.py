# SPDX-License-Identifier: Apache-2.0
"""A trainer with less memory than its batch would take: it goes through the batch in parts, to the same weights."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paceline.data.idx import write_idx
from paceline.data.sources import FILES
from paceline.errors import SettingsError
from paceline.tasks import make
from paceline_agent.memory import available
from paceline_agent.workers.pma import PmaWorker

ROOT = Path(__file__).resolve().parents[2]

SAMPLES, PIXELS, BATCH, HIDDEN = 4096, 900, 4096, 8
MORE = 12 << 20  # bytes by which the process may grow: a batch of floats is 15 MB, and is held some times over
TRAIN = """
import json, re, resource, sys
from pathlib import Path
from tests.agent.test_memory import train
library, options, folder, out = sys.argv[1:]

def narrow():
    held = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (held + MORE,) * 2)

at_once, model = train(library, json.loads(options), Path(folder), narrow)
Path(out).write_bytes(model)
print(at_once)
""".replace("MORE", str(MORE))


def train(library: str, options: dict[str, object], folder: Path, narrow: Callable[[], None]) -> tuple[int, bytes]:
    """Warm a worker up after `narrow`, and train; return how many samples it takes at once, and the model."""
    told = {"batch": BATCH, "hidden": [HIDDEN], **options}
    task = make("mnist", told, 3, folder, has_torch=library == "torch")
    learner = task.learner()
    learner.load(task.initial())
    learner.step(range(256))  # libraries take their own at the first use
    narrow()
    worker = PmaWorker(task, {})
    worker.warm_up(32)
    learner = worker.learner
    learner.load(task.initial())
    for _ in range(3):
        learner.step(range(task.samples))
    model = bytearray(task.manifest.nbytes)
    learner.dump(model)
    return learner.at_once, bytes(model)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    source = np.random.default_rng(5)
    for (pictures, labels), count in ((FILES[:2], SAMPLES), (FILES[2:], 16)):
        write_idx(folder / pictures, (count, 30, 30), source.integers(0, 256, count * PIXELS, dtype=np.uint8).tobytes())
        write_idx(folder / labels, (count,), source.integers(0, 10, count, dtype=np.uint8).tobytes())
    return folder


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("library", "options"),
    [("numpy", {}), ("torch", {}), ("torch", {"train_samples": SAMPLES - 1})],
    ids=["numpy", "torch", "torch, a whole module"],
)
def test_a_batch_that_does_not_fit_is_gone_through_in_parts(
    library: str, options: dict[str, object], images: Path, tmp_path: Path
) -> None:
    at_once, expected = train(library, options, images, lambda: None)
    assert at_once == 0
    command = [sys.executable, "-c", TRAIN, library, json.dumps(options), str(images), str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < BATCH
    assert f"does not fit into memory: {int(done.stdout)} samples at a time" in done.stderr
    got = (tmp_path / "model").read_bytes()
    wide, narrow = (np.frombuffer(model, "<f4") for model in (expected, got))
    assert np.abs(wide - narrow).max() < 1e-5 * np.abs(wide).max()


def test_batch_norm_does_not_work_in_parts(images: Path) -> None:
    learner = make("mnist", {"model": "cnn", "norm": "batch"}, 3, images).learner()
    learner.at_once = 4
    with pytest.raises(SettingsError, match=r'does not fit into the memory, and BatchNorm .* norm = "group"'):
        learner.step(range(8))


def test_what_is_free_is_the_least_of_the_machine_and_of_each_group(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    own = groups / "system.slice" / "agent.service"
    for folder in (proc / "self", own):
        folder.mkdir(parents=True)
    assert available(proc, groups) == 0, "nobody tells"
    (proc / "meminfo").write_text("MemTotal:  512000 kB\nMemAvailable:  300000 kB\n")
    assert available(proc, groups) == 300_000 * 1024
    (proc / "self" / "cgroup").write_text("0::/system.slice/agent.service\n")
    for folder, most, now in ((own, "max", 5), (own.parent, "1000000", 400_000)):
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{now}\n")
    assert available(proc, groups) == 600_000
    (own / "memory.max").write_text("5\n")
    assert available(proc, groups) == 1, "all is taken; 0 would say that nobody tells"
