# SPDX-License-Identifier: Apache-2.0
"""From an experiment to a folder of runs: one fleet, one link, one run for each policy. Reads like the events happen.

runs/NAME-001/            a comparison
    experiment.toml       effective settings
    fleet/                keys, agent.toml and log of each emulated board
    POLICY/               a run: run.toml, journal.sqlite, updates.spool, checkpoints/
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paceline import settings
from paceline.errors import SettingsError, StorageError
from paceline.keys import KeyPair, read_boards, read_pair
from paceline.policies import Policy
from paceline.tasks import Task
from paceline.tasks import make as make_task
from paceline.version import VERSION
from paceline.wire import CHUNK_START
from paceline_host import machine as m
from paceline_host import planner, records, regimes
from paceline_host.experiment import Experiment
from paceline_host.fleet import LocalFleet
from paceline_host.link import HostLink
from paceline_host.peers import Peers, Terms
from paceline_host.profile import load_profile
from paceline_host.server import Outcome, Server, TimedPlanner
from paceline_host.store import Store

_PRELOAD = {"mnist": ("torch", "numpy", "paceline.tasks.mnist"), "linear": ("paceline.tasks.linear",)}


@dataclass(frozen=True)
class Watcher:
    """Where talk and progress go. `view` is called from the host's thread."""

    say: Callable[[str], None]
    view: Callable[[str, m.RoundMachine, float], None]
    run_ended: Callable[[Path, Outcome], None]


def new_folder(parent: Path, stem: str) -> Path:
    """Make and return the next free parent/stem-NNN. Raises StorageError."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            folder = parent / f"{stem}-{number:03d}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise StorageError(
            f"cannot make a run folder in {parent}: {error.strerror}; choose one with --runs-dir"
        ) from None
    raise StorageError(f"{parent} holds 9,999 runs of {stem}; remove some")


class Comparison:
    """All runs of an experiment. `run` works through them; `stop`, from a signal handler, ends it in order.

    Making one finds what is wrong with the experiment before any folder is made. Raises PacelineError.
    """

    def __init__(self, experiment: Experiment, watcher: Watcher) -> None:
        self._experiment, self._watcher = experiment, watcher
        self._server: Server | None = None
        self._stopping = ""
        self._data_dir = Path(experiment.data.folder) if experiment.data.folder else None
        self._options = {key: value for key, value in experiment.task.items() if key != "name"}
        fleet = experiment.fleet
        self._profile = load_profile(fleet.profile) if fleet.kind == "local" else None
        names = self._profile.boards if self._profile is not None else read_boards(Path(fleet.keys) / "boards")
        if not names:
            raise SettingsError([f"{fleet.keys}/boards holds no .pub file; copy each board's NAME.pub there"])
        for policy in experiment.policies():
            planner.make(policy, len(names), experiment.run.budget, experiment.run.minimum)
        try:
            self._task = make_task(str(experiment.task["name"]), self._options, experiment.run.seed, self._data_dir)
        except SettingsError as error:
            raise SettingsError([f"[task] of the experiment: {fault}" for fault in error.errors]) from None

    def stop(self, reason: str) -> None:
        """End the present run, and begin no other."""
        self._stopping = reason
        if self._server is not None:
            self._server.stop(reason)

    def run(self, folder: Path) -> bool:
        """Run every policy below `folder`; True when all finished. Raises PacelineError."""
        self._folder, experiment = folder, self._experiment
        (folder / "experiment.toml").write_text(settings.dump(experiment), encoding="utf-8")
        with ExitStack() as life:
            fleet, keys, boards = self._fleet(life)
            link = HostLink(experiment.fleet.listen, keys, boards, self._watcher.say)
            life.callback(link.close)
            patience_s = experiment.run.patience_s
            terms = Terms(
                host_epoch=time.time_ns() // 1_000_000,  # grows with each start; a label, never subtracted
                chunk_bytes=experiment.run.chunk_bytes,
                credit_bytes=_credit(experiment.run.chunk_bytes),
                heartbeat_s=min(2.0, patience_s / 6),
                patience_s=patience_s,
            )
            server = Server(link, Peers(terms), list(boards), fleet, self._watcher.say)
            if fleet is not None:
                self._watcher.say(f"starting {len(boards)} emulated boards (logs in {fleet.folder})")
                fleet.start(link.endpoint, lambda: bool(self._stopping))
            else:
                self._watcher.say(f"listening on {link.endpoint} for {', '.join(boards)}")
            life.callback(server.farewell)
            self._server = server
            life.callback(self._forget_server)  # first of all: a late Ctrl-C must not wake what is closed
            outcomes = [self._one(policy, boards, server) for policy in experiment.policies()]
            return all(outcomes)

    def _forget_server(self) -> None:
        self._server = None

    def _fleet(self, life: ExitStack) -> tuple[LocalFleet | None, KeyPair, Mapping[str, str]]:
        if self._profile is not None:
            home = self._folder / "fleet"
            home.mkdir()
            preload = _PRELOAD.get(str(self._experiment.task["name"]), ())
            fleet = LocalFleet(self._profile, home, self._data_dir, preload)
            life.callback(fleet.close)
            return fleet, fleet.host_keys, fleet.boards
        folder = Path(self._experiment.fleet.keys)
        return None, read_pair(folder / "host.key"), read_boards(folder / "boards")

    def _one(self, policy: Policy, boards: Mapping[str, str], server: Server) -> bool:
        if self._stopping:
            return False
        experiment, task, options = self._experiment, self._task, self._options
        run = experiment.run
        folder = self._folder / policy.name.replace(":", "-")
        row = records.Run(
            run_id=f"{self._folder.name}/{folder.name}", policy=policy.name, regime=run.regime, seed=run.seed,
            budget=run.budget, rounds=run.rounds, samples=task.samples, batch=_batch(task, options),
            task=str(experiment.task["name"]), data_label=task.data_label,
            energy_required=experiment.energy.required, boards=len(boards), fsync=run.fsync,
            started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), options=options,
            machine={"cpu_count": os.cpu_count(), "system": platform.platform()}, versions=_versions(),
            declared=self._declared(),
        )  # fmt: skip
        zero_s = time.monotonic()
        board_rows = [records.Board(i, name, key) for i, (name, key) in enumerate(boards.items())]
        store = Store(folder, row, board_rows, task, lambda: time.monotonic() - zero_s, server.wake)
        (folder / "run.toml").write_text(settings.dump(self._only(policy)), encoding="utf-8")
        facts = m.RunFacts(
            run=row.run_id, regime=run.regime, task=row.task, options=json.dumps(options), seed=run.seed,
            rounds=run.rounds, budget=run.budget, samples=task.samples, batch=row.batch,
            manifest_sha256=task.manifest.digest(), model_bytes=task.manifest.nbytes, patience_s=run.patience_s,
            start_s=experiment.fleet.start_s, chunk_bytes=run.chunk_bytes,
            credit_bytes=_credit(run.chunk_bytes),
            energy_needed=experiment.energy.required and bool(policy.w_energy),
        )  # fmt: skip
        timed = TimedPlanner(planner.make(policy, len(boards), run.budget, run.minimum))
        regime = regimes.make(run.regime, task.samples, run.budget)
        machine = m.RoundMachine(facts, regime, timed, list(boards), store.model_sha256, time.monotonic())
        server.on_view = lambda machine, now_s: self._watcher.view(policy.name, machine, now_s)
        outcome = self._serve(server, machine, timed, store, zero_s)
        self._watcher.run_ended(folder, outcome)
        return outcome.ok

    def _serve(
        self, server: Server, machine: m.RoundMachine, timed: TimedPlanner, store: Store, zero_s: float
    ) -> Outcome:
        """Let the host's thread serve one run while this one stays free for signals."""
        result: list[Outcome | BaseException] = []

        def work() -> None:
            try:
                result.append(server.run(machine, timed, store, zero_s))
            except BaseException as error:
                result.append(error)

        store.start()
        thread = threading.Thread(target=work, name="host", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.2)
        store.finish()
        if isinstance(result[0], BaseException):
            raise result[0]
        return result[0]

    def _declared(self) -> dict[str, object]:
        """Return what an emulated fleet declares, for the report's closed form; nothing that runs reads it."""
        if self._profile is None:
            return {}
        return {
            "profile": self._profile.name,
            "boards": [asdict(board) for board in self._profile.boards],
            "reference_seconds_per_sample": self._task.reference_seconds_per_sample,
        }

    def _only(self, policy: Policy) -> Experiment:
        run = self._experiment.run
        return Experiment(
            run=replace(run, policies=(policy.name,)), task=self._experiment.task,
            fleet=self._experiment.fleet, energy=self._experiment.energy, data=self._experiment.data,
        )  # fmt: skip


def _credit(chunk_bytes: int) -> int:
    """Return what a transfer may have under way before its first grant: on an unknown link one chunk."""
    return min(CHUNK_START, chunk_bytes)


def _batch(task: Task, options: Mapping[str, object]) -> int:
    batch = getattr(getattr(task, "options", None), "batch", options.get("batch", 32))
    return int(batch) if isinstance(batch, int) else 32


def _versions() -> dict[str, str]:
    return {"paceline": VERSION, "python": platform.python_version()}
