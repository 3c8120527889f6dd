# SPDX-License-Identifier: Apache-2.0
"""From an experiment to a folder of runs: one run for each policy, over a server that is there already.

What the folder holds already is gone on with, or left alone where it is finished.

runs/NAME-001/            a comparison
    experiment.toml       effective settings
    clients.partition     split learning: who holds which sample (`paceline data partition NAME --load`)
    fleet/                keys, agent.toml and log of each emulated board
    POLICY/               a run: run.toml, journal.sqlite, updates.spool, checkpoints/
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paceline import settings
from paceline.errors import SettingsError, StorageError
from paceline.keys import read_boards
from paceline.policies import POLICIES, Policy, regime_of
from paceline.tasks import Task, data_sha256
from paceline.tasks import make as make_task
from paceline.version import VERSION
from paceline.wire import CHUNK_START, MAX_RANGES
from paceline_host import machine as m
from paceline_host import planner, records, regimes
from paceline_host.ddp import run as ddp_run
from paceline_host.ddp.machine import RankMachine
from paceline_host.ddp.store import RankStore
from paceline_host.experiment import Experiment, FleetSettings, load_experiment
from paceline_host.hfl import run as hfl_run
from paceline_host.hfl.machine import SiloMachine
from paceline_host.hfl.silos import Silo, as_rows
from paceline_host.hfl.store import SiloStore
from paceline_host.ledger import Ledger
from paceline_host.mixing.law import Mixing
from paceline_host.mixing.machine import MixingMachine
from paceline_host.mixing.store import MixingStore
from paceline_host.muster import Muster
from paceline_host.peers import Terms
from paceline_host.profile import Profile, load_profile
from paceline_host.psl import run as psl_run
from paceline_host.psl.machine import SplitMachine
from paceline_host.psl.store import SplitStore
from paceline_host.recovery import Recovered, Reported, begun, recover, replay
from paceline_host.run_files import EXPERIMENT, write_whole
from paceline_host.server import Outcome, Server, TimedPlanner
from paceline_host.store import Store
from paceline_host.uploads import Uploads

PLANNED_BY = ("minimum", "steps", "min_batch")  # of [run], beside what the journal says


@dataclass(frozen=True)
class Watcher:
    """Where talk and progress go. `view` is called from the host's thread."""

    say: Callable[[str], None]
    view: Callable[[str, Muster, float], None]
    run_ended: Callable[[Path, Outcome], None]


def new_folder(parent: Path, stem: str) -> Path:
    """Make and return the next free parent/stem-NNN. Raises StorageError."""
    check_path(parent)
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


def check_path(path: Path) -> None:
    """Raise StorageError for a path that cannot be written down: it stands in TOML files and in messages."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        raise StorageError(f"{str(path)!r}: is not UTF-8; runs need a folder whose name can be written down") from None


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes from working below a comparison's folder. Raises StorageError while one does."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise StorageError(
            f"{folder}: a process is still working on this comparison; end it, or wait until it has ended"
        ) from None
    finally:
        os.close(handle)


def boards_of(fleet: FleetSettings) -> tuple[Profile | None, list[str]]:
    """Return a fleet's profile, if it is emulated, and its boards' names. Raises PacelineError."""
    if fleet.kind == "local":
        profile = load_profile(fleet.profile)
        return profile, [board.name for board in profile.boards]
    names = list(read_boards(Path(fleet.keys) / "boards", []))
    if not names:
        raise SettingsError([f"{fleet.keys}/boards holds no .pub file; copy each board's NAME.pub there"])
    return None, names


def load_folder(folder: Path) -> tuple[Path, Experiment]:
    """Return the comparison's folder and the experiment of what is to be taken up: a comparison, or one run in it.

    Raises StorageError when there is nothing that was begun, SettingsError for a faulty experiment.toml.
    """
    check_path(folder)
    if (folder / EXPERIMENT).exists():
        return folder, load_experiment(folder / EXPERIMENT)
    parent = folder.resolve().parent
    if left := next(iter(sorted(folder.glob("*/run.toml"))), None):
        raise StorageError(
            f"{folder}: its {EXPERIMENT} is gone; put it back, for instance as a copy of {left} with all policies named"
        )
    if not (parent / EXPERIMENT).exists():
        if (folder / "run.toml").exists():
            raise StorageError(
                f"{folder}: {EXPERIMENT} is gone from the folder above it; put it back there, for instance as a copy "
                f"of {folder / 'run.toml'} with all policies named"
            )
        raise StorageError(f"{folder}: nothing was begun there; expected a folder that `paceline runs` lists")
    experiment = load_experiment(parent / EXPERIMENT)
    names = [policy.name for policy in experiment.policies() if folder_name(policy) == folder.resolve().name]
    if not names:
        known = ", ".join(folder_name(policy) for policy in experiment.policies())
        raise StorageError(f"{folder}: no run of {parent}; its runs are {known}")
    return parent, replace(experiment, run=replace(experiment.run, policies=tuple(names)))


class Comparison:
    """All runs of an experiment. `work` goes through them over a server; `stop`, from any thread, ends it in order.

    Making one finds what is wrong with the experiment before any folder is made. Raises PacelineError.
    """

    def __init__(self, experiment: Experiment, watcher: Watcher, reports: Path | None = None) -> None:
        """`reports`: folder of a comparison whose measurements the policies are to believe instead of their own."""
        self.experiment, self._watcher, self._reports = experiment, watcher, reports
        self._server: Server | None = None
        self._stopping = ""
        self.data_dir = Path(experiment.data.folder) if experiment.data.folder else None
        self._options = {key: value for key, value in experiment.task.items() if key != "name"}
        self._silos: list[Silo] = []
        self._rules: list[dict[str, object]] = []
        self._budget = hfl_run.budget(experiment) or experiment.run.budget  # samples a round, of all boards
        fleet = experiment.fleet
        self.profile, self.names = boards_of(fleet)
        for policy in experiment.policies():
            if reports is not None:
                self._check_reports(reports / folder_name(policy), policy)
            if policy.kind == "mixing":
                Mixing.of(policy.name, experiment.mixing, self._budget, len(self.names))
                if reports is not None:
                    raise SettingsError([f"--replay-reports: policy {policy.name} plans nothing from reports"])
            elif experiment.run.regime == "pma":
                planner.make(policy, len(self.names), experiment.run.budget, experiment.run.minimum)
        budget = self._budget
        try:
            self._task = make_task(str(experiment.task["name"]), self._options, experiment.run.seed, self.data_dir)
        except SettingsError as error:
            raise SettingsError([f"[task] of the experiment: {fault}" for fault in error.errors]) from None
        if experiment.run.regime == "psl":
            self._split_task = psl_run.check(experiment.split, self._task, len(self.names), experiment.policies())
        if experiment.run.regime == "hfl":
            local = self.profile is not None
            self._silos, self._rules = hfl_run.check(experiment, self._task, self.names, final=local)
        if experiment.run.regime in ("ddp", "hfl"):
            self._trainable = ddp_run.check(experiment.run, self._task, 0 if self._silos else len(self.names))
            largest = max((len(silo.boards) for silo in self._silos), default=len(self.names))
            ddp_run.consent(experiment.run, fleet, largest)
            ddp_run.backend(experiment.run, fleet)
            for note in ddp_run.notes(self._trainable):
                watcher.say(note)
        if not self._silos and budget > (
            most := (MAX_RANGES - 2) * self._task.samples
        ):  # a slice names each epoch that it touches
            text = f"run.budget = {budget} is more than {MAX_RANGES - 2} times the data set; expected at most {most}"
            raise SettingsError([text])

    def _check_reports(self, folder: Path, policy: Policy) -> None:
        """Refuse to replay what another experiment has measured, or one that was not completed."""
        run, task = self.experiment.run, self.experiment.task
        with Ledger(folder) as ledger:
            old, done = ledger.run, len([row for row in ledger.rounds() if row.closed_s is not None])
        ours = {
            "policy": policy.name,
            "seed": run.seed,
            "budget": self._budget,
            "task": task["name"],
            "options": self._options,
        }
        faults = [
            f"{key} is {value!r} here and was {getattr(old, key)!r} there"
            for key, value in ours.items()
            if getattr(old, key) != value
        ]
        if done < run.rounds:
            faults.append(f"it has {done} rounds, this experiment {run.rounds}")
        if faults:
            text = "; reports can be replayed only into the same experiment"
            raise SettingsError([f"--replay-reports {folder}: {fault}{text}" for fault in faults])

    @property
    def stopping(self) -> bool:
        """It was told to stop."""
        return bool(self._stopping)

    def left(self, folder: Path) -> list[str]:
        """Return the policies whose runs below `folder` are not finished yet."""
        names = []
        for policy in self.experiment.policies():
            path = folder / folder_name(policy)
            if begun(path):
                with Ledger(path) as ledger:
                    if ledger.run.ended is not None and ledger.run.ended.get("ok"):
                        continue
            names.append(policy.name)
        return names

    def stop(self, reason: str, *, after_round: bool = False) -> None:
        """End the present run, now or when its round is over, and begin no other."""
        self._stopping = reason
        if self._server is not None:
            self._server.stop(reason, after_round=after_round)

    def check(self, folder: Path, boards: Mapping[str, str]) -> None:
        """Refuse to go on with runs below `folder` that were begun otherwise; cheap, before any board is started.

        Raises PacelineError.
        """
        self._folder = folder
        if self._silos:  # who is who by number is known now
            self._silos, self._rules = hfl_run.check(self.experiment, self._task, list(boards))
        for policy in self.experiment.policies():
            if begun(path := folder / folder_name(policy)):
                self._check(path, policy, boards)
        if self.experiment.run.regime == "psl":
            psl_run.keep_partition(folder, self.experiment.split, self._split_task)

    def work(self, folder: Path, server: Server, boards: Mapping[str, str]) -> bool:
        """Run every policy below `folder` over `boards` (name -> public key); True when all finished.

        Raises PacelineError.
        """
        self.check(folder, boards)
        if not (folder / EXPERIMENT).exists():
            write_whole(folder / EXPERIMENT, settings.dump(self.experiment))
        self._server = server
        try:
            outcomes = [self._one(policy, boards, server) for policy in self.experiment.policies()]
            return all(outcomes)
        finally:
            self._server = None  # a late Ctrl-C must not wake what is closed

    def _one(self, policy: Policy, boards: Mapping[str, str], server: Server) -> bool:
        if self._stopping:
            return False
        folder = self._folder / folder_name(policy)
        recovered = None
        if begun(folder):
            recovered = recover(folder, self._task, self._watcher.say)
        if recovered is not None and recovered.finished:
            return True
        row = self._row(policy, folder, len(boards)) if recovered is None else recovered.run
        if recovered is not None:
            self._watcher.say(f"{folder.name}: going on from {_where(recovered)}")
        zero_s = time.monotonic() - (recovered.clock_s if recovered is not None else 0.0)
        board_rows = [records.Board(i, name, key) for i, (name, key) in enumerate(boards.items())]
        store = self._store(folder, row, board_rows, zero_s, server, recovered)
        if not (folder / "run.toml").exists():
            write_whole(folder / "run.toml", settings.dump(self._only(policy)))
        uploads = Uploads(folder / "uploads")
        machine, timed = self._machine(policy, row, list(boards), store, uploads, server.terms, recovered)
        server.on_view = lambda machine, now_s: self._watcher.view(policy.name, machine, now_s)
        store.start()
        try:
            outcome = server.serve(machine, timed, store, uploads, zero_s)
        finally:
            store.finish()
        if outcome.ok:
            uploads.clear()
        self._watcher.run_ended(folder, outcome)
        return outcome.ok

    def _store(
        self, folder: Path, row: records.Run, boards: list[records.Board], zero_s: float, server: Server,
        recovered: Recovered | None,
    ) -> Store:  # fmt: skip
        def clock() -> float:
            return time.monotonic() - zero_s

        if row.regime == "async":
            return MixingStore(folder, row, boards, self._task, clock, server.wake, recovered)
        if row.regime == "hfl":
            return SiloStore(folder, row, boards, self._task, clock, server.wake, recovered)
        if row.regime == "ddp":
            return RankStore(folder, row, boards, self._task, clock, server.wake, recovered)
        if row.regime != "psl":
            return Store(folder, row, boards, self._task, clock, server.wake, recovered)
        split = self.experiment.split
        return SplitStore(
            folder, row, boards, self._split_task, clock, server.wake, recovered, smashed=split.smashed,
            device=split.device,
        )  # fmt: skip

    def _machine(
        self, policy: Policy, row: records.Run, names: list[str], store: Store, uploads: Uploads,
        terms: Terms, recovered: Recovered | None,
    ) -> tuple[Muster, TimedPlanner | None]:  # fmt: skip
        reopened = replace(recovered.machine, parts=uploads.left) if recovered is not None else None
        facts, now_s = self._facts(policy, row, terms), time.monotonic()
        if row.regime == "psl":
            known = recovered.boards if recovered is not None and recovered.machine.round else ()
            split = psl_run.facts(self.experiment.split, self._split_task, policy, len(names), row.batch, known)
            return SplitMachine(facts, split, names, now_s, reopened), None
        folder = self._folder / folder_name(policy) if recovered is not None else None
        if row.regime == "async":
            paces = TimedPlanner(self._planner(POLICIES["equal"], len(names), folder))
            standing = recovered.standing if recovered is not None else None
            mixing = Mixing.read(row.mixing)
            asked = MixingMachine(
                facts, mixing, paces, names, store.model, store.model_sha256, now_s, reopened, standing
            )
            return asked, None
        timed = TimedPlanner(self._planner(policy, len(names), folder))
        if row.regime in ("ddp", "hfl"):
            facts = replace(facts, model_bytes=self._trainable.state_bytes)
            ranks = ddp_run.facts(self.experiment.run, self._trainable)
            if self._silos:
                contents = [board.data_sha256 for board in recovered.boards] if recovered is not None else []
                machine = SiloMachine(
                    facts, ranks, self._silos, self._rules, timed, names, store.model_sha256, now_s, reopened, contents
                )
                return machine, timed
            return RankMachine(facts, ranks, timed, names, store.model_sha256, now_s, reopened), timed
        regime = regimes.make(row.regime, row.samples, row.budget)
        return m.RoundMachine(facts, regime, timed, names, store.model_sha256, now_s, reopened), timed

    def _planner(self, policy: Policy, boards: int, replayed: Path | None) -> planner.Planner:
        """Return the policy's planner; `replayed`: the run's folder whose rounds it is to know already."""
        run = self.experiment.run
        least = ddp_run.least(run) if run.regime in ("ddp", "hfl") else run.minimum
        silos = [(silo.boards, silo.budget) for silo in self._silos]
        made: planner.Planner = planner.make(policy, boards, self._budget, least, silos, seed=run.seed)
        if self._reports is not None:
            made = Reported(made, self._reports / folder_name(policy))
        if replayed is not None:
            replay(made, replayed)
        return made

    def _check(self, folder: Path, policy: Policy, boards: Mapping[str, str]) -> None:
        """Refuse to go on with a run of another experiment than the file beside it, or over other boards."""
        with Ledger(folder) as ledger:
            old, were = ledger.run, [board.name for board in ledger.boards()]
        new = self._row(policy, folder, len(boards))
        keys = ("policy", "regime", "seed", "budget", "rounds", "samples", "batch", "task", "options", "mixing")
        faults = [
            f"{key} is now {getattr(new, key)!r}, the run was begun with {getattr(old, key)!r}"
            for key in keys
            if getattr(new, key) != getattr(old, key)
        ]
        if dict(old.declared) != new.declared:
            faults.append("the fleet's profile is not the one that the run was begun with")
        if list(old.silos) != list(new.silos):
            faults.append("the silos are not those that the run was begun with")
        if old.data_sha256 not in ("", new.data_sha256):
            faults.append("the training data are other ones than those that the run was begun with")
        if were != list(boards):
            faults.append(f"the boards are now {', '.join(boards)}, the run was begun with {', '.join(were)}")
        kept = folder / "run.toml"  # what the journal does not say of the plan
        if kept.exists():
            faults += _other_plan(self.experiment, load_experiment(kept))
        if faults:
            raise SettingsError([f"{folder}: {fault}; restore it, or begin a new run" for fault in faults])

    def _row(self, policy: Policy, folder: Path, boards: int) -> records.Run:
        experiment, task, options = self.experiment, self._task, self._options
        run = experiment.run
        return records.Run(
            run_id=f"{self._folder.name}/{folder.name}", policy=policy.name,
            regime=regime_of(policy, run.regime), seed=run.seed,
            budget=self._budget or task.samples, rounds=run.rounds, samples=task.samples, batch=_batch(task, options),
            task=str(experiment.task["name"]), data_label=task.data_label,
            energy_required=experiment.energy.required, boards=boards, fsync=run.fsync,
            started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), options=options,
            machine={"cpu_count": os.cpu_count(), "system": platform.platform()}, versions=_versions(),
            declared=self._declared(), silos=as_rows(self._silos, self._rules), data_sha256=data_sha256(task),
            mixing=self._mixing(policy, boards),
        )  # fmt: skip

    def _facts(self, policy: Policy, row: records.Run, terms: Terms) -> m.RunFacts:
        experiment, task = self.experiment, self._task
        run = experiment.run
        return m.RunFacts(
            run=row.run_id, regime=row.regime, task=row.task, options=json.dumps(row.options), seed=row.seed,
            rounds=row.rounds, budget=row.budget, samples=row.samples, batch=row.batch,
            manifest_sha256=task.manifest.digest(), model_bytes=task.manifest.nbytes, patience_s=run.patience_s,
            start_s=experiment.fleet.start_s, chunk_bytes=min(run.chunk_bytes, terms.chunk_bytes),
            credit_bytes=terms.credit_bytes,  # what boards were told: a daemon's sessions are older than the run
            energy_needed=experiment.energy.required and bool(policy.w_energy),
            idle_baseline=experiment.energy.idle_baseline, data_sha256=data_sha256(task),
        )  # fmt: skip

    def _mixing(self, policy: Policy, boards: int) -> dict[str, object]:
        settings = self.experiment.mixing
        return Mixing.of(policy.name, settings, self._budget, boards).row() if policy.kind == "mixing" else {}

    def _declared(self) -> dict[str, object]:
        """Return what an emulated fleet declares, for the report's closed form; nothing that runs reads it."""
        if self.profile is None:
            return {}
        return {
            "profile": self.profile.name,
            "boards": [asdict(board) for board in self.profile.boards],
            "reference_seconds_per_sample": self._task.reference_seconds_per_sample,
        }

    def _only(self, policy: Policy) -> Experiment:
        run = self.experiment.run
        return Experiment(
            run=replace(run, policies=(policy.name,)), task=self.experiment.task,
            fleet=self.experiment.fleet, energy=self.experiment.energy, data=self.experiment.data,
            split=self.experiment.split, silo=self.experiment.silo, silos=self.experiment.silos,
            mixing=self.experiment.mixing,
        )  # fmt: skip


def folder_name(policy: Policy) -> str:
    """Return the name of a policy's run folder."""
    return policy.name.replace(":", "-")


def _other_plan(now: Experiment, begun_with: Experiment) -> Iterator[str]:
    """Yield what differs of the settings by which samples are dealt and steps computed; waits and paths may change."""
    tables: list[tuple[str, object, object, tuple[str, ...]]] = [("", now.run, begun_with.run, PLANNED_BY)]
    if now.run.regime == "psl":
        tables.append(("split.", now.split, begun_with.split, tuple(asdict(now.split))))
    for table, new, old, keys in tables:
        for key in keys:
            if getattr(new, key) != getattr(old, key):
                yield f"{table}{key} is now {getattr(new, key)!r}, the run was begun with {getattr(old, key)!r}"


def _where(recovered: Recovered) -> str:
    state = recovered.machine
    if state.closed:
        return f"the end of round {state.round}" if state.round else "its start"
    counted = sum(samples for _, samples in state.done)
    planned = counted + sum(
        item.samples for item in state.open_slices
    )  # of data of boards' own the budget knows nothing
    return f"round {state.round}, in which {counted} of {planned} samples are counted"


def first_credit(chunk_bytes: int) -> int:
    """Return what a transfer may have under way before its first grant: on an unknown link one chunk."""
    return min(CHUNK_START, chunk_bytes)


def _batch(task: Task, options: Mapping[str, object]) -> int:
    batch = getattr(getattr(task, "options", None), "batch", options.get("batch", 32))
    return int(batch) if isinstance(batch, int) else 32


def _versions() -> dict[str, str]:
    return {"paceline": VERSION, "python": platform.python_version()}
