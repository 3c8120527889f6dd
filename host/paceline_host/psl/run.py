# SPDX-License-Identifier: Apache-2.0
"""From an experiment of split learning to facts of one run: which board holds which clients, how large steps are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from paceline import batches
from paceline.errors import DataError, SettingsError, StorageError
from paceline.policies import Policy
from paceline.split.clients import OWN, Partition, sizes_of
from paceline.split.layout import gradient_manifest, upload_manifest
from paceline.tasks import SplitTask, Task, splittable
from paceline_host import records
from paceline_host.experiment import SplitSettings
from paceline_host.psl.steps import SplitFacts
from paceline_host.run_files import write_whole

PARTITION = "clients.partition"


def check(settings: SplitSettings, task: Task, boards: int, policies: Sequence[Policy]) -> SplitTask:
    """Return the task as one that is cut. Raises SettingsError with all that is wrong with the experiment."""
    split = splittable(task)
    if settings.partition != OWN and settings.clients < boards:
        text = f"split.clients = {settings.clients} is less than the {boards} boards; each board holds one at least"
        raise SettingsError([text])
    if settings.device == "cuda" and not _finds_cuda():
        raise SettingsError(['split.device = "cuda": the torch of this host finds no CUDA device; take "cpu"'])
    if settings.partition != OWN:
        Partition(**_of_partition(settings)).dealt(split)  # what cannot be dealt is said before anything starts
    if settings.partition == OWN and any(policy.name == "central" for policy in policies):
        text = (
            'split.partition = "own": central training needs all data in one place; leave "central" out of run.policies'
        )
        raise SettingsError([text])
    return split


def keep_partition(folder: Path, settings: SplitSettings, task: SplitTask) -> None:
    """Write down, once, who holds which sample; find out when it is another one than the runs here were begun with.

    Raises SettingsError for that, DataError for a damaged file, StorageError.
    """
    if settings.partition == OWN:
        return
    path, dealt = folder / PARTITION, Partition(**_of_partition(settings)).dealt(task)
    if not path.exists():
        write_whole(path, dealt.to_bytes())
        return
    try:
        begun_with = type(dealt).from_bytes(path.read_bytes())
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from None
    except DataError as error:
        raise DataError(f"{path}: {error}; or put it aside to go on with what the experiment says") from None
    if begun_with.to_bytes() != dealt.to_bytes():
        text = "the experiment and the data give another partition than the one that the runs here were begun with"
        raise SettingsError([f"{path}: {text}; restore them, or begin a new run"])


def facts(
    settings: SplitSettings, task: SplitTask, policy: Policy, boards: int, batch: int,
    known: Sequence[records.Board] = (),
) -> SplitFacts:  # fmt: skip
    """Return who holds what. `central` is split learning with one client, on the first board (DECISIONS 28).

    `known`: the boards of a run that is taken up, as its journal has them: data of their own must be what they were.
    """
    plain = _of_partition(settings)
    central, own = policy.name == "central", settings.partition == OWN
    if own:
        common: dict[str, Any] = {**asdict(Partition(**plain)), "smashed": settings.smashed}
        holds, largest = tuple(range(i, i + 1) for i in range(boards)), (batch,) * boards
        sizes = tuple(board.samples or 0 for board in known) or (0,) * boards
        made = _facts(policy, settings, task, sizes, holds, common, largest, own=True)
        return replace(made, data_sha256=tuple(board.data_sha256 for board in known))
    part = Partition(**{**plain, "clients": 1} if central else plain)
    sizes = tuple(sizes_of(part.members(task)))
    if central:
        holds = (range(1), *(range(0) for _ in range(boards - 1)))
    else:
        edges = [i * len(sizes) // boards for i in range(boards + 1)]
        holds = tuple(range(a, b) for a, b in pairwise(edges))
    method = batches.schedule(policy.name, sizes, batch, 0, 0)
    largest = tuple(_largest(method, sizes, batch, held) for held in holds)
    common = {**asdict(part), "smashed": settings.smashed}
    return _facts(policy, settings, task, sizes, holds, common, largest)


def _facts(
    policy: Policy, settings: SplitSettings, task: SplitTask, sizes: tuple[int, ...], holds: tuple[range, ...],
    common: dict[str, Any], largest: tuple[int, ...], *, own: bool = False,
) -> SplitFacts:  # fmt: skip
    dtype = settings.smashed
    return SplitFacts(
        method=policy.name, sizes=sizes, holds=holds, part_bytes=task.client_manifest.nbytes,
        upload_bytes=lambda samples: upload_manifest(task, samples, dtype).nbytes,
        gradient_bytes=lambda samples: gradient_manifest(task, samples, dtype).nbytes,
        common=common, largest=largest, own=own,
    )  # fmt: skip


def _of_partition(settings: SplitSettings) -> dict[str, Any]:
    return {key: value for key, value in asdict(settings).items() if key in Partition.__dataclass_fields__}


def _finds_cuda() -> bool:
    from paceline.split.host import finds_cuda  # torch comes in here, only where somebody asks for it

    return finds_cuda()


def _largest(method: batches.Schedule, sizes: tuple[int, ...], batch: int, held: range) -> int:
    """Return the most samples that one step can ask of a board."""
    if isinstance(method, batches.Fixed):
        return sum(min(method.local[c], sizes[c]) for c in held)
    return min(batch, sum(sizes[c] for c in held))
