"""Statements of many rows (rifl._stores.sqlite; DESIGN §6, group commit)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from rifl._stores.sqlite.journal_entries import JournalEntry
from rifl._stores.sqlite.schema import open_database


@pytest.fixture
def connection(tmp_path: Path) -> sqlite3.Connection:
    """A file with our tables."""
    return open_database(tmp_path / "s.db", None)[0]


def _rows(count: int, record: bytes) -> list[tuple[object, ...]]:
    return [(7, seq, b"f", "/m", None, record, seq, 1) for seq in range(count)]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 63, 64, 65, 150])
def test_any_number_of_rows_is_written_and_deleted(
    connection: sqlite3.Connection, count: int
) -> None:
    """All rows of a batch are written, whatever their number, and only those deleted."""
    JournalEntry.RECORD.write(connection, _rows(count + 1, b"r"))
    read = connection.execute("SELECT * FROM rifl_call ORDER BY identity").fetchall()
    assert read == _rows(count + 1, b"r")
    JournalEntry.DELETE.write(connection, [(7, seq) for seq in range(count)])
    assert connection.execute("SELECT identity FROM rifl_call").fetchall() == [(count,)]


def test_a_record_that_stands_stays_in_a_statement_of_many(connection: sqlite3.Connection) -> None:
    """Of many rows at once, those with a record keep it; intents get theirs (DESIGN §4, step 7)."""
    JournalEntry.RECORD.write(connection, _rows(2, b"first"))
    JournalEntry.INTENT.write(connection, [(7, seq, b"f", "/m", None, 1, 1) for seq in (2, 3)])
    JournalEntry.RECORD.write(connection, _rows(4, b"second"))
    records = connection.execute("SELECT record FROM rifl_call ORDER BY identity").fetchall()
    assert records == [(b"first",), (b"first",), (b"second",), (b"second",)]


@pytest.mark.parametrize("count", [1, 4, 16, 64])
def test_deleting_many_rows_searches_each_by_its_key(
    connection: sqlite3.Connection, count: int
) -> None:
    """No deletion scans the table, however many rows it names."""
    statement = JournalEntry.DELETE
    sql = f"{statement.head} {statement.joint.join([statement.row] * count)}"
    plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", (7, 1) * count).fetchall()
    assert not [step for *_, step in plan if "SCAN" in step]
