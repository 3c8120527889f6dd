# SPDX-License-Identifier: Apache-2.0
"""The run's ledger on disk: what is promised stands here before anybody is told. One writer, one thread.

SQLite in WAL mode with synchronous=FULL; updates above BLOB_BYTES go to the spool, synced once before the commit that
names them. Knows no lease, link or tensor. Reading and judging a journal is in `ledger`.
"""

from __future__ import annotations

import fcntl
import functools
import json
import operator
import os
import sqlite3
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from paceline.errors import DamagedError, RunError, StorageError
from paceline_host.records import Board, Contribution, Energy, Epoch, Event, Mix, Round, Run, Slice, Step

JOURNAL = "journal.sqlite"
SPOOL = "updates.spool"
BLOB_BYTES = 1 << 16  # larger ones would be written twice, into the WAL and out of it (DECISIONS 43)
BUSY_S = 5.0  # a reader never blocks us; this is for somebody's shell on the same file
APPLICATION_ID = 0x70616365  # "pace"
SCHEMA = 4

Buffer = bytes | bytearray | memoryview

MIX = """CREATE TABLE mix (
        version INTEGER PRIMARY KEY, round INTEGER NOT NULL, slice INTEGER NOT NULL, age INTEGER NOT NULL,
        weight REAL NOT NULL, closed INTEGER NOT NULL, FOREIGN KEY (round, slice) REFERENCES slice (round, slice))
        STRICT"""

TABLES = (
    "CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID",  # values are JSON
    """CREATE TABLE board (
        board INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, public_key TEXT NOT NULL, energy_source TEXT,
        agent_pid INTEGER, trainer_pid INTEGER, agent_version TEXT NOT NULL, present INTEGER NOT NULL,
        idle_uw INTEGER, samples INTEGER, data_sha256 TEXT NOT NULL DEFAULT '') STRICT""",
    """CREATE TABLE round (
        round INTEGER PRIMARY KEY, planned_s REAL NOT NULL, base_sha256 TEXT NOT NULL, allocate_s REAL NOT NULL,
        closed_s REAL, model_sha256 TEXT, evaluation_s REAL, loss REAL, accuracy REAL, metric TEXT NOT NULL,
        flags TEXT NOT NULL) STRICT""",
    """CREATE TABLE slice (
        round INTEGER NOT NULL REFERENCES round, slice INTEGER NOT NULL, board INTEGER NOT NULL REFERENCES board,
        samples INTEGER NOT NULL CHECK (samples > 0), ranges TEXT NOT NULL, redealt_from INTEGER,
        PRIMARY KEY (round, slice), FOREIGN KEY (round, redealt_from) REFERENCES slice (round, slice)) STRICT""",
    """CREATE TABLE contribution (
        round INTEGER NOT NULL, slice INTEGER NOT NULL, attempt INTEGER NOT NULL, lease INTEGER NOT NULL,
        board INTEGER NOT NULL REFERENCES board,
        verdict TEXT NOT NULL CHECK (verdict IN ('accepted', 'rejected', 'stale', 'failed', 'lost')),
        at_s REAL NOT NULL, reason TEXT NOT NULL, samples INTEGER NOT NULL, steps INTEGER NOT NULL,
        compute_us INTEGER NOT NULL, compute_uj INTEGER, compute_bound_uj INTEGER, energy_source TEXT NOT NULL,
        energy_flags INTEGER NOT NULL, overruns INTEGER NOT NULL, late_us INTEGER NOT NULL,
        update_sha256 TEXT NOT NULL, update_norm REAL, update_bytes INTEGER NOT NULL,
        compute_sampling_uj INTEGER, update_blob BLOB, spool_offset INTEGER,
        PRIMARY KEY (round, slice, attempt), FOREIGN KEY (round, slice) REFERENCES slice (round, slice),
        CHECK (update_blob IS NULL OR spool_offset IS NULL)) STRICT""",
    # P2 as a constraint: whatever the host's code does, a slice cannot count twice
    "CREATE UNIQUE INDEX counted_once ON contribution (round, slice) WHERE verdict = 'accepted'",
    """CREATE TABLE energy (
        round INTEGER NOT NULL, board INTEGER NOT NULL REFERENCES board, session TEXT NOT NULL,
        compute_uj INTEGER, wait_uj INTEGER, transfer_uj INTEGER, wasted_uj INTEGER, other_uj INTEGER, total_uj INTEGER,
        span_us INTEGER NOT NULL, covered_us INTEGER NOT NULL, bound_uj INTEGER, source TEXT NOT NULL,
        flags INTEGER NOT NULL, sampling_uj INTEGER, split_uj INTEGER, wait_us INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (round, board, session)) STRICT""",
    """CREATE TABLE epoch (
        round INTEGER PRIMARY KEY REFERENCES round, steps INTEGER NOT NULL, voided INTEGER NOT NULL,
        left INTEGER NOT NULL, sent_bytes INTEGER NOT NULL, received_bytes INTEGER NOT NULL, host_s REAL NOT NULL,
        client_sha256 TEXT NOT NULL, state_sha256 TEXT NOT NULL) STRICT""",
    """CREATE TABLE step (
        round INTEGER NOT NULL REFERENCES round, step INTEGER NOT NULL, redraw INTEGER NOT NULL,
        samples INTEGER NOT NULL, loss REAL NOT NULL, "right" INTEGER NOT NULL, deviation REAL,
        PRIMARY KEY (round, step)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE rank_steps (
        round INTEGER NOT NULL REFERENCES round, board INTEGER NOT NULL REFERENCES board, figures BLOB NOT NULL,
        PRIMARY KEY (round, board)) STRICT""",  # drift, steps; of each step microseconds of forward, compute, exposed
    MIX,
    """CREATE TABLE event (
        id INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, detail TEXT NOT NULL, round INTEGER,
        board INTEGER) STRICT""",
)
# What each schema has added to the one before; a run that is taken up is brought up to date.
ADDED = {
    2: (
        "ALTER TABLE board ADD COLUMN idle_uw INTEGER",
        "ALTER TABLE contribution ADD COLUMN compute_sampling_uj INTEGER",
        "ALTER TABLE energy ADD COLUMN sampling_uj INTEGER",
        "ALTER TABLE energy ADD COLUMN split_uj INTEGER",
        "ALTER TABLE energy ADD COLUMN wait_us INTEGER NOT NULL DEFAULT 0",
    ),
    3: (
        "ALTER TABLE board ADD COLUMN samples INTEGER",
        "ALTER TABLE board ADD COLUMN data_sha256 TEXT NOT NULL DEFAULT ''",
    ),
    4: (MIX,),
}


class Journal:
    """The only writer of one run's folder. Every method is one transaction, unless inside `transaction()`."""

    def __init__(self, folder: Path, spool: int, *, fsync: bool) -> None:
        """Use `create` or `open`."""
        self.folder = folder
        self._fsync = fsync
        self._spool = spool
        self._spool_end = 0
        self._inside = False
        self._dead = ""
        try:
            self._db = connect(folder / JOURNAL, "rwc", fsync=fsync)
        except BaseException:
            os.close(spool)
            raise

    @classmethod
    def create(cls, folder: Path, run: Run, boards: Iterable[Board] = ()) -> Journal:
        """Begin a run: make folder, spool and journal, write who takes part. All of it is on disk on return."""
        if has_journal(folder):
            raise StorageError(f"{folder}: holds a run already; begin the new one in another folder")
        if (folder / "checkpoints").exists() or ((folder / SPOOL).exists() and (folder / SPOOL).stat().st_size):
            raise DamagedError(
                f"{folder}: holds models or updates of a run, but no {JOURNAL} that knows them; restore that file (and "
                f"{JOURNAL}-wal), or remove the folder to begin the run anew"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{folder}: cannot make the run's folder: {error.strerror}") from None
        spool = _hold_spool(folder, create=True)
        for left in folder.glob(f"{JOURNAL}*"):  # of a host that died before its first commit
            left.unlink()
        journal = cls(folder, spool, fsync=run.fsync)
        try:
            with journal.transaction():
                journal._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                journal._db.execute(f"PRAGMA user_version = {SCHEMA}")
                for statement in TABLES:
                    journal._db.execute(statement)
                rows = [(key, _json(value)) for key, value in asdict(run).items()]
                journal._db.executemany("INSERT INTO run VALUES (?, ?)", rows)
                for board in boards:
                    journal.set_board(board)
            with explained(folder / JOURNAL):
                sync_folder(folder)
                sync_folder(folder.parent)
        except BaseException:
            journal.close()
            raise
        return journal

    @classmethod
    def open(cls, folder: Path, *, fsync: bool = True) -> Journal:
        """Go on with a run; bytes in the spool that no committed row names are cut off."""
        if not (folder / JOURNAL).exists():
            raise StorageError(f"{folder}: no {JOURNAL} in it; expected the folder of a run, see `paceline runs`")
        journal = cls(folder, _hold_spool(folder, create=False), fsync=fsync)
        try:
            journal._update(check_schema(journal._db, folder / JOURNAL))
            with explained(folder / JOURNAL):
                try:
                    (end,) = journal._db.execute("SELECT max(spool_offset + update_bytes) FROM contribution").fetchone()
                except sqlite3.OperationalError as error:  # damage has changed what its tables are
                    raise DamagedError(f"{folder / JOURNAL}: is damaged ({error}); restore it from a copy") from error
            journal._spool_end = end or 0
            have = os.fstat(journal._spool).st_size
            if have < journal._spool_end:
                raise DamagedError(
                    f"{folder / SPOOL}: has {have} bytes, the journal names {journal._spool_end}; the file was cut, "
                    "restore it or begin a new run"
                )
            os.ftruncate(journal._spool, journal._spool_end)
        except BaseException:
            journal.close()
            raise
        return journal

    def close(self) -> None:
        """Give files and lock back; nothing is left to be written."""
        self._dead = self._dead or "it is closed"
        self._db.close()
        with suppress(OSError):
            os.close(self._spool)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def transaction(self) -> AbstractContextManager[None]:
        """Make everything inside one commit: all of it is on disk afterwards, or, after an exception, none of it."""
        if self._dead:
            raise StorageError(f"{self.folder / JOURNAL}: cannot be written any more: {self._dead}")
        return _INSIDE if self._inside else self._whole()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        spool_end = self._spool_end
        self._inside = True
        try:
            with explained(self.folder / JOURNAL):
                self._db.execute("BEGIN IMMEDIATE")
                yield
                if self._spool_end > spool_end:
                    self._sync_spool()
                self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            self._spool_end = spool_end  # what lies behind is overwritten by the next update
            raise
        finally:
            self._inside = False

    # Who and what -----------------------------------------------------------------------------------------------------

    def set_board(self, board: Board) -> None:
        """Write or refresh who a board is."""
        self._put("board", board, "board")

    def add_event(self, event: Event) -> None:
        """Write down that something happened."""
        with self.transaction():
            self._db.execute(
                "INSERT INTO event (at_s, kind, detail, round, board) VALUES (?, ?, ?, ?, ?)",
                (event.at_s, event.kind, _json(event.detail), event.round, event.board),
            )

    def set_energy(self, energy: Energy) -> None:
        """Write a board's cumulative split; a later one of the same round and session replaces it."""
        self._put("energy", energy, "round, board, session")

    def take_up(self, event: Event) -> None:
        """Go on with a run that had ended, or whose host was killed."""
        with self.transaction():
            self._db.execute("UPDATE run SET value = 'null' WHERE key = 'ended'")
            self.add_event(event)

    def end(self, *, ok: bool, reason: str, at_s: float) -> None:
        """Write how the run ended."""
        with self.transaction():
            value = _json({"ok": ok, "reason": reason, "at_s": at_s})
            self._db.execute("UPDATE run SET value = ? WHERE key = 'ended'", (value,))

    # A round ----------------------------------------------------------------------------------------------------------

    def add_plan(self, round_: Round, slices: Sequence[Slice]) -> None:
        """Open a round with its slices, in one commit."""
        with self.transaction():
            self._insert("round", round_)
            self.add_slices(slices)

    def add_slices(self, slices: Sequence[Slice]) -> None:
        """Add slices to an open round (those that were dealt out again)."""
        rows = [(s.round, s.index, s.board, s.samples, _json(s.ranges), s.redealt_from) for s in slices]
        with self.transaction():
            self._db.executemany("INSERT INTO slice VALUES (?, ?, ?, ?, ?, ?)", rows)

    def add_contributions(self, batch: Sequence[tuple[Contribution, Buffer | None]]) -> list[bool]:
        """Write verdicts, with the updates of accepted ones, in one commit.

        False: that key was written before, or the slice is counted already; nothing was done for it.
        """
        with self.transaction():
            return [self._add_contribution(row, update) for row, update in batch]

    def close_round(
        self, round_: int, *, closed_s: float, model_sha256: str, evaluation_s: float | None = None,
        loss: float | None = None, accuracy: float | None = None, metric: str = "", flags: str = "", left: int = 0,
    ) -> None:  # fmt: skip
        """Close a round whose checkpoint is on disk. Every planned sample but `left` must have been accepted."""
        with self.transaction():
            (planned,) = self._db.execute(
                "SELECT sum(samples) FROM slice WHERE round = ? AND redealt_from IS NULL", (round_,)
            ).fetchone()
            (counted,) = self._db.execute(
                "SELECT sum(samples) FROM contribution WHERE round = ? AND verdict = 'accepted'", (round_,)
            ).fetchone()
            if planned is None or planned != (counted or 0) + left:
                raise RunError(f"round {round_}: {counted} of {planned} samples were accepted; it cannot be closed yet")
            self._db.execute(
                "UPDATE round SET closed_s = ?, model_sha256 = ?, evaluation_s = ?, loss = ?, accuracy = ?, "
                "metric = ?, flags = ? WHERE round = ?",
                (closed_s, model_sha256, evaluation_s, loss, accuracy, metric, flags, round_),
            )

    def add_epoch(self, epoch: Epoch, steps: Sequence[Step]) -> None:
        """Write what a round of split learning was."""
        with self.transaction():
            self._insert("epoch", epoch)
            self._db.executemany("INSERT INTO step VALUES (?, ?, ?, ?, ?, ?, ?)", [_values(step) for step in steps])

    def add_rank_steps(self, rows: Sequence[tuple[int, int, bytes]]) -> None:
        """Write what ranks measured of a round's steps: (round, board, as it came)."""
        with self.transaction():
            self._db.executemany("INSERT INTO rank_steps VALUES (?, ?, ?)", rows)

    def add_mix(self, row: Mix) -> None:
        """Write that a contribution was mixed into the model."""
        self._insert("mix", row)

    # Below ------------------------------------------------------------------------------------------------------------

    def _add_contribution(self, row: Contribution, update: Buffer | None) -> bool:
        blob, offset = None, None
        if update is not None:
            view = memoryview(update).cast("B")
            if len(view) != row.update_bytes:
                raise ValueError(f"slice {row.slice}: update_bytes {row.update_bytes}, but the buffer has {len(view)}")
            if len(view) <= BLOB_BYTES:
                blob = bytes(view)
            elif self._is_known(row):  # asked before its bytes are written
                return False
            else:
                offset = self._append(view)
        # What is known already conflicts with the table's key, or as a second acceptance with `counted_once`.
        return self._insert("contribution", row, "ON CONFLICT DO NOTHING", update_blob=blob, spool_offset=offset)

    def _is_known(self, row: Contribution) -> bool:
        known = self._db.execute(
            "SELECT attempt, verdict FROM contribution WHERE round = ? AND slice = ?", (row.round, row.slice)
        ).fetchall()
        return any(attempt == row.attempt or verdict == row.verdict == "accepted" for attempt, verdict in known)

    def _append(self, view: memoryview) -> int:
        """Put bytes at the end of the spool; they count once they are synced and the row is committed."""
        offset = self._spool_end
        done = 0
        while done < len(view):
            done += os.pwrite(self._spool, view[done:], offset + done)
        self._spool_end = offset + done
        return offset

    def _sync_spool(self) -> None:
        if not self._fsync:
            return
        try:
            os.fdatasync(self._spool)
        except OSError as error:  # the pages may be marked clean though they never reached the disk: never try again
            self._dead = f"syncing {SPOOL} failed ({error.strerror}); check the disk, then open the run anew"
            raise

    def _insert(self, table: str, row: Any, otherwise: str = "", **more: object) -> bool:
        with self.transaction():
            statement = _insertion(table, row.__class__, tuple(more), otherwise)
            return self._db.execute(statement, (*_values(row), *more.values())).rowcount == 1

    def _update(self, schema: int) -> None:
        if schema == SCHEMA:
            return
        with self.transaction():
            for number in range(schema + 1, SCHEMA + 1):
                for statement in ADDED[number]:
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {SCHEMA}")

    def _put(self, table: str, row: Any, key: str) -> None:
        with self.transaction():
            self._db.execute(_upsert(table, row.__class__, key), _values(row))


_INSIDE: AbstractContextManager[None] = nullcontext()  # of what is part of a commit already


def _values(row: Any) -> tuple[Any, ...]:
    """Return a row's fields; all are plain values, and `astuple` would copy each of them deeply."""
    return tuple(_getter(row.__class__)(row))


@functools.cache
def _getter(cls: Any) -> Callable[[Any], tuple[Any, ...]]:
    return operator.attrgetter(*(f.name for f in fields(cls)))  # all tables have more than one


@functools.cache
def _insertion(table: str, row: Hashable, more: tuple[str, ...], otherwise: str) -> str:
    """Name the columns: those that were added to an older journal stand at its end."""
    names = [f.name for f in fields(row)] + list(more)  # type: ignore[arg-type]
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) {otherwise}"


@functools.cache
def _upsert(table: str, row: Hashable, key: str) -> str:
    names = [f.name for f in fields(row)]  # type: ignore[arg-type]
    changed = ", ".join(f"{name} = excluded.{name}" for name in names)
    return (
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
        f"ON CONFLICT ({key}) DO UPDATE SET {changed}"
    )


def connect(path: Path, mode: str, *, fsync: bool = True) -> sqlite3.Connection:
    """Open the database; "rwc" sets it up for writing, "ro" never changes the file."""
    with explained(path):
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=BUSY_S, isolation_level=None)
        try:
            if mode == "rwc":
                (kept,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
                if kept != "wal":
                    raise StorageError(f"{path}: this file system does not allow WAL; keep runs on a local disk")
                db.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'OFF'}")
                db.execute("PRAGMA foreign_keys = ON")
            else:
                db.execute("PRAGMA query_only = ON")
        except BaseException:
            db.close()
            raise
    return db


def check_schema(db: sqlite3.Connection, path: Path) -> int:
    """Return the schema; refuse what is not a paceline journal of one that this version reads."""
    with explained(path):
        (application,) = db.execute("PRAGMA application_id").fetchone()
        (schema,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise StorageError(f"{path}: an SQLite file, but not a journal of paceline; expected the folder of a run")
    if schema > SCHEMA:
        raise StorageError(
            f"{path}: written by a newer paceline (journal schema {schema}, this one reads up to {SCHEMA}); "
            "use the newer version"
        )
    return int(schema)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite and the disk say into one sentence for the user; our own mistakes pass as they are."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.DatabaseError as error:
        text = str(error)
        code = getattr(error, "sqlite_errorname", "")
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            why = "is locked by another process; end what has it open (a run, an sqlite3 shell) and try again"
        elif code == "SQLITE_FULL":
            why = "the disk is full; make room, the journal itself is whole"
        elif code in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
            why = f"is not a journal of paceline, or is damaged ({text})"
        elif code.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_PERM")):
            why = f"cannot be read or written ({text}); check the folder's permissions and the disk"
        else:
            raise
        raise StorageError(f"{path}: {why}") from error
    except UnicodeDecodeError as error:  # of a name or a text in it, or in what SQLite says about it
        raise StorageError(f"{path}: is not a journal of paceline, or is damaged ({error})") from error
    except OSError as error:
        raise StorageError(f"{path.parent}: cannot write the run's files: {error.strerror}") from error


def sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def has_journal(folder: Path) -> bool:
    """Tell whether a run was begun here. Raises StorageError for a journal that cannot be read."""
    path = folder / JOURNAL
    if not path.exists():
        return False
    db = connect(path, "ro")
    try:
        with explained(path):
            return bool(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    finally:
        db.close()


def is_held(folder: Path) -> bool:
    """Tell whether a process is writing this run at present."""
    try:
        handle = os.open(folder / SPOOL, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _hold_spool(folder: Path, *, create: bool) -> int:
    """Open the spool and hold the run: its lock ends with this process, however that ends."""
    path = folder / SPOOL
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
    except OSError as error:
        raise StorageError(f"{path}: cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise StorageError(
            f"{folder}: is locked by another process, which is writing this run; wait for it to end"
        ) from None
    if create:
        os.fsync(handle)
    return handle


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
