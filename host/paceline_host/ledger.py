# SPDX-License-Identifier: Apache-2.0
"""What a journal says and what it proves. Reads only, from one snapshot; a run may be writing meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from paceline.core import permutation
from paceline.errors import DamagedError, StorageError
from paceline_host.hfl.silos import Silo, of_rows
from paceline_host.journal import JOURNAL, SPOOL, check_schema, connect, explained
from paceline_host.records import Board, Contribution, Energy, Epoch, Event, Mix, Round, Run, Slice, Step

LAPSED = "lapsed"  # kind of the event that says whose budget a round left out
Row = TypeVar("Row", Board, Contribution, Energy, Mix, Round, Epoch, Step)


@dataclass(frozen=True)
class Proof:
    """What `verify` found. No faults: every sample of the closed rounds was counted exactly once, and the sums hold."""

    rounds: int  # closed ones, all of them checked
    samples: int  # counted in them
    energy_rows: int
    faults: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.faults


class Ledger:
    """One run's journal, read-only."""

    def __init__(self, folder: Path) -> None:
        """Open the journal in a run's folder. Raises StorageError."""
        self.folder = folder
        path = folder / JOURNAL
        if not path.exists():
            raise StorageError(f"{folder}: no {JOURNAL} in it; expected the folder of a run, see `paceline runs`")
        self._db = connect(path, "ro")
        try:
            check_schema(self._db, path)
            with _sound(path), explained(path):
                self._db.execute("BEGIN")
                pairs = dict(self._db.execute("SELECT key, value FROM run"))
                known = {f.name for f in fields(Run)}
                self.run = Run(**{key: json.loads(value) for key, value in pairs.items() if key in known})
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Give the file back."""
        self._db.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Rows -------------------------------------------------------------------------------------------------------------

    def boards(self) -> list[Board]:
        """Return the boards by number."""
        return self._rows("board", Board, order="board")

    def rounds(self) -> list[Round]:
        """Return all rounds in order, also one that is still open."""
        return self._rows("round", Round, order="round")

    def slices(self, round_: int | None = None) -> list[Slice]:
        """Return the slices of a round (None: of all), by round and index."""
        where, values = ("WHERE round = ?", [round_]) if round_ is not None else ("", [])
        query = f"SELECT round, slice, board, ranges, redealt_from FROM slice {where} ORDER BY round, slice"
        rows = self._read(query, values)
        with _sound(self.folder / JOURNAL):
            return [Slice(r, s, board, _ranges(text), redealt) for r, s, board, text, redealt in rows]

    def contributions(self, round_: int | None = None, verdict: str | None = None) -> list[Contribution]:
        """Return contributions of a round (None: of all) with a verdict (None: any), by round, slice and attempt."""
        return self._rows("contribution", Contribution, order="round, slice, attempt", round=round_, verdict=verdict)

    def energy(self, board: int | None = None) -> list[Energy]:
        """Return the cumulative splits, by board, session and round."""
        return self._rows("energy", Energy, order="board, session, round", board=board)

    def events(self, kind: str | None = None) -> list[Event]:
        """Return the events in the order in which they were written."""
        where, values = ("WHERE kind = ?", [kind]) if kind is not None else ("", [])
        query = f"SELECT at_s, kind, detail, round, board FROM event {where} ORDER BY id"
        with _sound(self.folder / JOURNAL):
            return [Event(at, what, json.loads(detail), *rest) for at, what, detail, *rest in self._read(query, values)]

    def epochs(self) -> list[Epoch]:
        """Return what rounds of split learning were; of other regimes none."""
        return self._rows("epoch", Epoch, order="round") if self.run.regime in ("psl", "ddp", "hfl") else []

    def rank_steps(self) -> list[tuple[int, int, bytes]]:
        """Return (round, board, figures) of synchronised ranks, by round and board; of other regimes none."""
        if self.run.regime not in ("ddp", "hfl"):
            return []
        return [(r, b, bytes(data)) for r, b, data in self._read("SELECT * FROM rank_steps ORDER BY round, board", [])]

    def steps(self, round_: int | None = None) -> list[Step]:
        """Return the committed steps of split learning of a round (None: of all)."""
        return self._rows("step", Step, order="round, step", round=round_) if self.run.regime == "psl" else []

    def mixes(self) -> list[Mix]:
        """Return what was mixed in, in order; of other regimes nothing."""
        return self._rows("mix", Mix, order="version") if self.run.regime == "async" else []

    def update(self, row: Contribution) -> bytes:
        """Return the update of an accepted contribution, checked against its hash."""
        query = "SELECT update_blob, spool_offset FROM contribution WHERE round = ? AND slice = ? AND attempt = ?"
        blob, offset = next(iter(self._read(query, [row.round, row.slice, row.attempt])), (None, None))
        if blob is None and offset is None:
            raise DamagedError(f"{self.folder}: no update is kept for slice {row.slice} of round {row.round}")
        if blob is None:
            blob = self._spooled(offset, row.update_bytes)
        if hashlib.sha256(blob).hexdigest() != row.update_sha256:
            raise DamagedError(
                f"{self.folder}: the update of slice {row.slice} of round {row.round} is damaged on disk; restore "
                f"{SPOOL} and {JOURNAL} from a copy, or begin a new run"
            )
        return bytes(blob)

    # Proof ------------------------------------------------------------------------------------------------------------

    def counted(self, round_: int) -> Counter[tuple[int, int]]:
        """Return how often each (epoch, sample index) was counted in a round, from the accepted contributions alone.

        Of regime hfl the samples are numbered silo by silo: which of the training set they are, only their boards know.
        """
        found: Counter[tuple[int, int]] = Counter()
        before = 0
        for silo in self.silos():
            orders: dict[int, Any] = {}
            for epoch, begin, end in self._accepted_ranges(round_, silo.boards if silo.name else None):
                order = orders.setdefault(epoch, None)
                if order is None:
                    order = orders[epoch] = permutation(self.run.seed, epoch, silo.samples)
                found.update((epoch, before + int(order[position])) for position in range(begin, end))
            before += silo.samples
        return found

    def silos(self) -> list[Silo]:
        """Return who shares a budget and a stream of samples: silos, or all boards."""
        run = self.run
        everybody = Silo(0, "", tuple(range(run.boards)), run.budget, run.samples)
        return of_rows(run.silos) if run.silos else [everybody]

    def lapsed(self) -> dict[int, dict[str, str]]:
        """Return whose budget lapsed in a round, and why, by round and silo."""
        found: dict[int, dict[str, str]] = defaultdict(dict)
        for event in self.events(LAPSED):
            if event.round is not None:
                found[event.round][event.detail["silo"]] = event.detail["reason"]
        return found

    def verify(self) -> Proof:
        """Check the laws of the ledger over all closed rounds."""
        with _sound(self.folder / JOURNAL):
            return self._verify()

    def _verify(self) -> Proof:
        faults: list[str] = []
        closed = [r for r in self.rounds() if r.closed_s is not None]
        samples, lapsed = 0, self.lapsed()
        for number, row in enumerate(closed, start=1):
            ranges = self._accepted_ranges(row.round)
            if self.run.regime == "psl":
                samples += sum(step.samples for step in self.steps(row.round))
            else:
                samples += sum(end - begin for _, begin, end in ranges)
            faults += self._round_faults(number, row, ranges, lapsed.get(row.round, {}))
        if self.run.regime == "async":  # rounds overlap, so none begins with what another has left
            faults += _mix_faults(self.mixes(), self.contributions(verdict="accepted"))
        for before, after in pairwise(closed if self.run.regime != "async" else ()):
            if before.model_sha256 != after.base_sha256:
                faults.append(f"round {after.round} was not trained from the model that round {before.round} left")
        energy = self.energy()
        faults += _energy_faults(energy)
        return Proof(len(closed), samples, len(energy), tuple(faults))

    def _round_faults(
        self, number: int, row: Round, ranges: Sequence[tuple[int, int, int]], lapsed: Mapping[str, str]
    ) -> Iterator[str]:  # fmt: skip
        if self.run.regime == "psl":
            yield from self._epoch_faults(row)
            return
        if row.round != number:
            yield f"round {number} is missing: round {row.round} follows the one before it"
        sizes = {s.index: s.samples for s in self.slices(row.round)}
        for c in self.contributions(row.round, "accepted"):
            if c.samples != sizes[c.slice]:
                yield f"round {row.round}: slice {c.slice} has {sizes[c.slice]} samples, {c.samples} were accepted"
        for silo in self.silos():
            where = f"round {row.round}, silo {silo.name}" if silo.name else f"round {row.round}"
            own = self._accepted_ranges(row.round, silo.boards) if silo.name else ranges
            if own or silo.name not in lapsed:
                yield from _stretch_faults(where, own, silo, row.round)

    def _epoch_faults(self, row: Round) -> Iterator[str]:
        """Each sample is in one committed step, or its board was gone; and each board has given what the steps took."""
        epochs = [epoch for epoch in self.epochs() if epoch.round == row.round]
        steps = self.steps(row.round)
        given = sum(c.samples for c in self.contributions(row.round, "accepted"))
        planned = sum(s.samples for s in self.slices(row.round))
        taken = sum(step.samples for step in steps)
        if len(epochs) != 1 or [step.step for step in steps] != list(range(epochs[0].steps)):
            yield f"round {row.round}: its steps are not all there"
        elif not taken == given == planned - epochs[0].left:
            yield (
                f"round {row.round}: steps took {taken} samples, boards gave {given}, {epochs[0].left} were out of "
                f"reach, of {planned}"
            )

    def _accepted_ranges(self, round_: int, boards: Sequence[int] | None = None) -> list[tuple[int, int, int]]:
        query = (
            "SELECT slice.board, ranges FROM contribution JOIN slice USING (round, slice) "
            "WHERE round = ? AND verdict = 'accepted' ORDER BY slice"
        )
        rows = [text for board, text in self._read(query, [round_]) if boards is None or board in boards]
        return [piece for text in rows for piece in _ranges(text)]

    # Below ------------------------------------------------------------------------------------------------------------

    def _spooled(self, offset: int, nbytes: int) -> bytes:
        path = self.folder / SPOOL
        try:
            with path.open("rb") as file:
                return os.pread(file.fileno(), nbytes, offset)
        except OSError as error:
            raise DamagedError(
                f"{path}: cannot be read ({error.strerror}), and it holds updates that are counted; restore it from a "
                "copy, or begin a new run"
            ) from None

    def _read(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with _sound(self.folder / JOURNAL), explained(self.folder / JOURNAL):
            return self._db.execute(query, values).fetchall()

    def _rows(self, table: str, kind: type[Row], *, order: str, **equal: object) -> list[Row]:
        there = {column for _, column, *_ in self._read(f"PRAGMA table_info({table})")}  # an older schema has fewer
        known = [f.name for f in fields(kind) if f.name in there]
        names = ", ".join(f'"{name}"' for name in known)
        given = {key: value for key, value in equal.items() if value is not None}
        where = f"WHERE {' AND '.join(f'{key} = ?' for key in given)}" if given else ""
        query = f"SELECT {names} FROM {table} {where} ORDER BY {order}"
        rows = self._read(query, list(given.values()))
        with _sound(self.folder / JOURNAL):
            return [kind(**dict(zip(known, values, strict=True))) for values in rows]


@contextmanager
def _sound(path: Path) -> Iterator[None]:
    """Say what values mean that no paceline can have written: SQLite sees damage to pages, not to what they hold."""
    try:
        yield
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, sqlite3.Error) as error:
        text = f"{path}: is damaged, a value in it makes no sense ({error}); restore it from a copy, or begin a new run"
        raise DamagedError(text) from error


def _ranges(text: str) -> tuple[tuple[int, int, int], ...]:
    return tuple((epoch, begin, end) for epoch, begin, end in json.loads(text))


def _stretch_faults(where: str, ranges: Sequence[tuple[int, int, int]], silo: Silo, round_: int) -> Iterator[str]:
    """Together the ranges must be a round's stretch of the stream."""
    counted = sum(end - begin for _, begin, end in ranges)
    if counted != silo.budget:
        yield f"{where}: {counted} samples counted, the budget is {silo.budget}"
    place = silo.place(round_)
    for epoch, begin, end in sorted(ranges):
        start = epoch * silo.samples + begin
        if not 0 <= begin < end <= silo.samples:
            yield f"{where}: epoch {epoch} has no positions {begin}..{end - 1}"
        if start != place:
            what = "counted twice" if start < place else "not counted"
            low, high = sorted((start, place))
            yield f"{where}: places {low}..{high - 1} of the stream are {what}"
        place = max(place, epoch * silo.samples + end)


def _mix_faults(mixes: Sequence[Mix], accepted: Sequence[Contribution]) -> Iterator[str]:
    """Each accepted contribution was mixed in once, and none was trained from a model that was not there yet."""
    for number, row in enumerate(mixes, start=1):
        if row.version != number or not 0 <= row.age < number:
            yield f"update {row.version} of the model, of age {row.age}, stands in place {number}"
    if sorted((row.round, row.slice) for row in mixes) != sorted((row.round, row.slice) for row in accepted):
        yield f"{len(mixes)} updates were mixed in, {len(accepted)} contributions were accepted: not the same ones"


def _energy_faults(rows: Sequence[Energy]) -> Iterator[str]:
    """The five parts are the total, which is unknown exactly when one of them is, and a session's total never falls."""
    last: dict[tuple[int, str], int] = defaultdict(int)
    for row in rows:
        where = f"energy of board {row.board}, round {row.round}"
        known = [part for part in row.parts_uj if part is not None]
        if row.total_uj is None or len(known) < len(row.parts_uj):
            if row.total_uj is not None or len(known) == len(row.parts_uj):
                yield f"{where}: the total is known and a part is not, or the reverse"
            continue
        if sum(known) != row.total_uj:
            yield f"{where}: the five parts sum to {sum(known)} uJ, the total is {row.total_uj} uJ"
        if row.total_uj < last[row.board, row.session]:
            yield f"{where}: {row.total_uj} uJ in all, after {last[row.board, row.session]} uJ before"
        last[row.board, row.session] = row.total_uj
