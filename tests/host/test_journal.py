# SPDX-License-Identifier: Apache-2.0
"""The journal on real files: what is committed survives SIGKILL, what is not leaves no trace, errors are sentences."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import RunError, StorageError
from paceline_host.journal import ADDED, BLOB_BYTES, JOURNAL, SPOOL, Journal, is_held
from paceline_host.ledger import Ledger
from paceline_host.records import Contribution, Energy, Event, Round
from paceline_host.regimes.pma import Pma

from .run_folder import Story, boards_of, model_hash, run_row

HERE = Path(__file__).resolve().parent


def accepted(slice_: int, update: bytes = b"", **changes: object) -> Contribution:
    sha256 = hashlib.sha256(update).hexdigest()
    row = Contribution(
        1, slice_, 0, lease=slice_ + 1, board=slice_ % 3, verdict="accepted", at_s=1.0, steps=4, compute_us=1000,
        samples=(34, 33, 33)[slice_ % 3], update_sha256=sha256, update_bytes=len(update),
    )  # fmt: skip
    return replace(row, **changes)  # type: ignore[arg-type]


def planned(folder: Path) -> Journal:
    """Return a journal whose first round is planned."""
    journal = Journal.create(folder, run_row(), boards_of(3))
    journal.add_plan(Round(1, 0.0, model_hash(0), 1e-5), Pma(70, 100).plan(1, [(0, 34), (1, 33), (2, 33)]))
    return journal


def test_a_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    run = run_row(options={"model": "mlp", "hidden": [64]}, versions={"paceline": "0"})
    with Journal.create(tmp_path / "r", run, boards_of(3)) as journal:
        journal.set_board(replace(boards_of(3)[1], agent_pid=11, trainer_pid=12, present=False))
        journal.add_event(Event(0.5, "lost", {"why": "no sign of life"}, 1, 2))
        journal.end(ok=False, reason="stopped", at_s=2.0)
    with Ledger(tmp_path / "r") as ledger:
        assert replace(ledger.run, ended=None) == run
        assert ledger.run.ended == {"ok": False, "reason": "stopped", "at_s": 2.0}
        assert [b.name for b in ledger.boards()] == ["board-0", "board-1", "board-2"]
        assert (ledger.boards()[1].trainer_pid, ledger.boards()[1].present) == (12, 0)
        assert ledger.events("lost") == [Event(0.5, "lost", {"why": "no sign of life"}, 1, 2)]
        assert ledger.events("other") == []


def test_a_run_that_is_being_written_is_told_from_one_whose_host_died(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "r")
    with planned(tmp_path / "r"):
        assert is_held(tmp_path / "r")
    assert not is_held(tmp_path / "r")


def test_every_sample_of_a_told_run_is_counted_exactly_once(tmp_path: Path) -> None:
    Story().tell(tmp_path / "r")
    with Ledger(tmp_path / "r") as ledger:
        proof = ledger.verify()
        assert (proof.ok, proof.rounds, proof.samples, proof.faults) == (True, 3, 300, ())
        counts = ledger.counted(1) + ledger.counted(2) + ledger.counted(3)
    whole_epochs = {(epoch, index) for epoch in range(4) for index in range(70)}  # 300 = 4 epochs of 70, and 20
    assert set(counts.values()) == {1}
    assert whole_epochs < set(counts)
    assert len(counts) == 300


def test_a_redealt_slice_leaves_each_sample_counted_once(tmp_path: Path) -> None:
    regime = Pma(70, 100)
    with planned(tmp_path / "r") as journal:
        lost = regime.plan(1, [(0, 34), (1, 33), (2, 33)])[1]
        assert journal.add_contributions([(accepted(1, verdict="lost", samples=0), None)]) == [True]
        fresh = regime.on_lost(lost, [(0, 13), (2, 20)], 3)
        journal.add_slices(fresh)
        rest = [accepted(0), accepted(2), accepted(3, samples=13), accepted(4, samples=20, board=2)]
        assert journal.add_contributions([(row, None) for row in rest]) == [True] * 4
        journal.close_round(1, closed_s=3.0, model_sha256=model_hash(1))
    with Ledger(tmp_path / "r") as ledger:
        assert ledger.verify().ok
        assert set(ledger.counted(1).values()) == {1}
        assert ledger.counted(1).total() == 100
        assert [s.redealt_from for s in ledger.slices(1)] == [None, None, None, 1, 1]


def test_a_key_counts_once_and_the_second_time_is_said(tmp_path: Path) -> None:
    with planned(tmp_path / "r") as journal:
        assert journal.add_contributions([(accepted(0, b"x"), b"x"), (accepted(0, b"x"), b"x")]) == [True, False]
        assert journal.add_contributions([(accepted(0, b"y", attempt=1), b"y")]) == [False]
        assert journal.add_contributions([(accepted(0, attempt=1, verdict="stale"), None)]) == [True]
    with Ledger(tmp_path / "r") as ledger:
        assert [(c.attempt, c.verdict) for c in ledger.contributions(1)] == [(0, "accepted"), (1, "stale")]
        assert ledger.update(ledger.contributions(1)[0]) == b"x"


@pytest.mark.parametrize("size", [1, BLOB_BYTES, BLOB_BYTES + 1, 5 * BLOB_BYTES])
def test_updates_come_back_whole(tmp_path: Path, size: int) -> None:
    updates = [os.urandom(size) for _ in range(3)]
    with planned(tmp_path / "r") as journal:
        journal.add_contributions([(accepted(i, updates[i]), bytearray(updates[i])) for i in range(3)])
    assert (tmp_path / "r" / SPOOL).stat().st_size == (3 * size if size > BLOB_BYTES else 0)
    with Ledger(tmp_path / "r") as ledger:
        assert [ledger.update(row) for row in ledger.contributions()] == updates


def test_a_damaged_update_is_noticed(tmp_path: Path) -> None:
    update = os.urandom(BLOB_BYTES + 9)
    with planned(tmp_path / "r") as journal:
        journal.add_contributions([(accepted(0, update), update)])
    with (tmp_path / "r" / SPOOL).open("r+b") as spool:
        spool.seek(77)
        spool.write(bytes([update[77] ^ 1]))
    with Ledger(tmp_path / "r") as ledger, pytest.raises(StorageError, match="slice 0 of round 1 is damaged"):
        ledger.update(ledger.contributions()[0])


def test_a_failed_transaction_leaves_nothing_and_the_journal_goes_on(tmp_path: Path) -> None:
    update = os.urandom(BLOB_BYTES + 1)
    with planned(tmp_path / "r") as journal:
        with pytest.raises(ValueError, match="buffer has 1"), journal.transaction():
            journal.add_contributions([(accepted(0, update), update), (accepted(1, update), b"x")])
        with pytest.raises(sqlite3.IntegrityError):  # a slice that was never planned: a fault of ours
            journal.add_contributions([(accepted(1, update), update), (accepted(2, slice=9), None)])
        assert journal.add_contributions([(accepted(2, update), update)]) == [True]
    with Ledger(tmp_path / "r") as ledger:
        (row,) = ledger.contributions()
        assert (row.slice, ledger.update(row)) == (2, update)


def test_a_disk_that_takes_no_more_leaves_the_journal_usable(tmp_path: Path) -> None:
    update = os.urandom(4 * BLOB_BYTES)
    with planned(tmp_path / "r") as journal:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * BLOB_BYTES, hard))
        try:
            with pytest.raises(StorageError, match="cannot write the run's files: File too large"):
                journal.add_contributions([(accepted(0, update), update)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert journal.add_contributions([(accepted(0, update), update)]) == [True]
    with Ledger(tmp_path / "r") as ledger:
        assert ledger.update(ledger.contributions()[0]) == update


def test_a_round_closes_only_when_all_its_samples_are_there(tmp_path: Path) -> None:
    with planned(tmp_path / "r") as journal:
        journal.add_contributions([(accepted(0), None), (accepted(1), None)])
        with pytest.raises(RunError, match="round 1: 67 of 100 samples"):
            journal.close_round(1, closed_s=1.0, model_sha256=model_hash(1))
        journal.add_contributions([(accepted(2), None)])
        journal.close_round(1, closed_s=1.0, model_sha256=model_hash(1))


# What the proof must notice -------------------------------------------------------------------------------------------

BREAKS = [
    ("a sample counted twice", "slice SET ranges = '[[0,0,45]]', samples = 45 WHERE slice = 0 AND round = 1",
     "counted twice"),
    ("a stretch not counted", "slice SET ranges = '[[0,1,40]]' WHERE slice = 0 AND round = 1", "not counted"),
    ("a contribution gone", "contribution SET verdict = 'stale' WHERE slice = 2 AND round = 2",
     "80 samples counted, the budget is 100"),
    ("another count than dealt", "contribution SET samples = 39 WHERE slice = 0 AND round = 1", "39 were accepted"),
    ("another epoch", "slice SET ranges = '[[9,0,40]]' WHERE slice = 0 AND round = 1", "not counted"),
    ("positions outside", "slice SET ranges = '[[0,0,80]]' WHERE slice = 0 AND round = 1", "no positions 0..79"),
    ("another base", "round SET base_sha256 = 'ff' WHERE round = 2", "not trained from the model that round 1"),
    ("joules that do not add up", "energy SET wait_uj = wait_uj + 1 WHERE round = 2 AND board = 0", "parts sum to"),
    ("a part unknown", "energy SET other_uj = NULL WHERE round = 2 AND board = 0", "a part is not"),
    ("a total that falls",
     "energy SET compute_uj = compute_uj - total_uj, total_uj = 0 WHERE round = 3 AND board = 0", "0 uJ in all, after"),
    ("a round missing", "round SET closed_s = NULL WHERE round = 2", "round 2 is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "fault"), [b[1:] for b in BREAKS], ids=[b[0] for b in BREAKS])
def test_the_proof_finds(tmp_path: Path, change: str, fault: str) -> None:
    Story().tell(tmp_path / "r")
    db = sqlite3.connect(tmp_path / "r" / JOURNAL)
    db.execute(f"UPDATE {change}")
    db.commit()
    db.close()
    with Ledger(tmp_path / "r") as ledger:
        proof = ledger.verify()
    assert not proof.ok
    assert any(fault in text for text in proof.faults), proof.faults


def test_unknown_energy_is_no_fault_and_stays_unknown(tmp_path: Path) -> None:
    Story(active_w=(5.0, None, 3.0)).tell(tmp_path / "r")
    with Ledger(tmp_path / "r") as ledger:
        assert ledger.verify().ok
        assert {e.total_uj for e in ledger.energy(board=1)} == {None}
        assert None in {c.compute_uj for c in ledger.contributions(1)}


def test_a_later_split_of_the_same_round_replaces_the_earlier(tmp_path: Path) -> None:
    with planned(tmp_path / "r") as journal:
        for total in (5, 9):
            journal.set_energy(Energy(1, 0, "s0", total, 0, 0, 0, 0, total, 10, 10, 1, "modelled"))
    with Ledger(tmp_path / "r") as ledger:
        assert [e.total_uj for e in ledger.energy()] == [9]


# Killed, locked, foreign ----------------------------------------------------------------------------------------------

WRITER = """
import os, sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[2])))
from tests.host.test_journal import accepted, planned
from paceline_host.journal import BLOB_BYTES

journal = planned(Path(sys.argv[1]))
update = b"a" * (BLOB_BYTES + 5)
journal.add_contributions([(accepted(0, update), update)])
with journal.transaction():
    journal.add_contributions([(accepted(1, update), update)])
    print("inside", flush=True)
    sys.stdin.read()
"""


def test_a_writer_killed_inside_a_transaction_leaves_the_state_before_it(tmp_path: Path, root: Path) -> None:
    folder = tmp_path / "r"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "inside\n"
        with pytest.raises(StorageError, match="locked by another process"):
            Journal.open(folder)
        with Ledger(folder) as ledger:  # reading is allowed meanwhile
            assert len(ledger.contributions()) == 1
        writer.send_signal(signal.SIGKILL)
    assert (folder / SPOOL).stat().st_size == 2 * (BLOB_BYTES + 5)
    with Journal.open(folder) as journal:
        assert (folder / SPOOL).stat().st_size == BLOB_BYTES + 5  # what no row names is gone
        update = b"b" * (BLOB_BYTES + 1)
        assert journal.add_contributions([(accepted(1, update), update), (accepted(2), None)]) == [True, True]
        journal.close_round(1, closed_s=2.0, model_sha256=model_hash(1))
    with Ledger(folder) as ledger:
        assert ledger.verify().ok
        assert [ledger.update(c)[:1] for c in ledger.contributions()[:2]] == [b"a", b"b"]


def test_the_spool_must_hold_what_the_journal_names(tmp_path: Path) -> None:
    update = os.urandom(BLOB_BYTES + 1)
    with planned(tmp_path / "r") as journal:
        journal.add_contributions([(accepted(0, update), update)])
    os.truncate(tmp_path / "r" / SPOOL, 10)
    with pytest.raises(StorageError, match="the file was cut"):
        Journal.open(tmp_path / "r")


def test_somebody_elses_write_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline_host.journal.BUSY_S", 0.01)
    with planned(tmp_path / "r") as journal:
        shell = sqlite3.connect(tmp_path / "r" / JOURNAL, isolation_level=None)
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match="locked by another process"):
            journal.add_event(Event(0.0, "x"))
        shell.execute("ROLLBACK")
        shell.close()
        journal.add_event(Event(0.0, "x"))


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    for face in (Journal.open, Ledger):
        with pytest.raises(StorageError, match=r"no journal\.sqlite in it"):
            face(tmp_path)


@pytest.mark.parametrize("content", [b"", b"plain text that is no database\n" * 40], ids=["empty", "text"])
def test_what_is_no_journal_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / JOURNAL).write_bytes(content)
    (tmp_path / SPOOL).touch()
    for face in (Ledger, Journal.open):
        with pytest.raises(StorageError, match=r"not a journal of paceline"):
            face(tmp_path)


def test_a_journal_of_the_first_schema_is_read_and_taken_up(tmp_path: Path) -> None:
    """The columns that came later are what is not known, and a run that goes on has them."""
    planned(tmp_path / "r").close()
    db = sqlite3.connect(tmp_path / "r" / JOURNAL)
    for statement in (*ADDED[2], *ADDED[3]):
        table, column = re.findall(r"TABLE (\w+) ADD COLUMN (\w+)", statement)[0]
        db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    db.execute("DROP TABLE mix")
    db.execute("INSERT INTO energy VALUES (1, 0, 's0', 5, 0, 0, 0, 0, 5, 10, 10, 1, 'modelled', 0)")
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    with Ledger(tmp_path / "r") as ledger:
        assert [(row.total_uj, row.sampling_uj, row.wait_us) for row in ledger.energy()] == [(5, None, 0)]
        assert {(board.idle_uw, board.samples, board.data_sha256) for board in ledger.boards()} == {(None, None, "")}
    with Journal.open(tmp_path / "r") as journal:
        journal.set_energy(Energy(1, 0, "s0", 6, 0, 0, 0, 0, 6, 10, 10, 1, "modelled", 0, 3, 2, 7))
    with Ledger(tmp_path / "r") as ledger:
        assert [(row.total_uj, row.sampling_uj, row.wait_us) for row in ledger.energy()] == [(6, 3, 7)]
    Journal.open(tmp_path / "r").close()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    planned(tmp_path / "r").close()
    db = sqlite3.connect(tmp_path / "r" / JOURNAL)
    db.execute("PRAGMA user_version = 99")
    db.close()
    for face in (Ledger, Journal.open):
        with pytest.raises(StorageError, match="newer paceline"):
            face(tmp_path / "r")


def test_a_run_is_never_begun_over_another(tmp_path: Path) -> None:
    planned(tmp_path / "r").close()
    with pytest.raises(StorageError, match="holds a run already"):
        Journal.create(tmp_path / "r", run_row())


def test_the_disk_gets_what_was_promised(tmp_path: Path) -> None:
    with planned(tmp_path / "r") as journal:
        assert journal._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert journal._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_a_closed_journal_says_so(tmp_path: Path) -> None:
    journal = planned(tmp_path / "r")
    journal.close()
    with pytest.raises(StorageError, match="it is closed"):
        journal.add_event(Event(0.0, "x"))
