"""Snapshots in a log file: chunk by chunk, in force all at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from curp.log import _checks as checks
from curp.log._engine import Snapshot
from curp.log._entries import chunk_checksum, require_chunk
from curp.log._errors import EngineUnavailable, TrimmedLog
from curp.log._sqlite.rows import GroupRow, group_row
from sharedlog._engines.sqlite.file import LogFile

_NEWEST = (
    "SELECT snapshot_id, lsn, chunks FROM curp_snapshot "
    "WHERE group_id=? AND chunks IS NOT NULL ORDER BY snapshot_id DESC LIMIT 1"
)
_BEGIN = "INSERT INTO curp_snapshot (group_id, lsn) VALUES (?, ?)"
_IS_THERE = "SELECT 1 FROM curp_snapshot WHERE snapshot_id=?"
_CHUNK = "SELECT checksum, body FROM curp_chunk WHERE snapshot_id=? AND number=?"


class Snapshots:
    """A group's snapshots in one file."""

    def __init__(self, file: LogFile, group_id: int) -> None:
        self._file = file
        self._group_id = group_id

    def save(self, lsn: int, chunks: Iterable[bytes], configuration: int) -> None:
        """Write the chunks beside the older snapshot, then put them in its place.

        Each step is conditional on the configuration number. What a save that broke
        off leaves behind is removed by the next one.
        """
        with self._file.writing() as connection:
            row = self._require(connection, configuration)
            self._check(connection, lsn, row)
            self._remove(connection, "chunks IS NULL")
            snapshot_id = connection.execute(_BEGIN, (self._group_id, lsn)).lastrowid
        count = 0
        for chunk in chunks:
            checks.check_chunk(chunk)
            with self._file.writing() as connection:
                self._require(connection, configuration)
                self._require_begun(connection, snapshot_id)
                connection.execute(
                    "INSERT INTO curp_chunk VALUES (?, ?, ?, ?)",
                    (snapshot_id, count, chunk_checksum(count, chunk), chunk),
                )
            count += 1
        with self._file.writing() as connection:
            row = self._require(connection, configuration)
            self._require_begun(connection, snapshot_id)
            self._check(connection, lsn, row)
            self._remove(connection, f"snapshot_id <> {snapshot_id}")
            connection.execute(
                "UPDATE curp_snapshot SET chunks=? WHERE snapshot_id=?", (count, snapshot_id)
            )

    def load(self) -> Snapshot | None:
        """Return the newest whole snapshot; its chunks are read when asked for."""
        with self._file.reading() as connection:
            found = connection.execute(_NEWEST, (self._group_id,)).fetchone()
        if found is None:
            return None
        snapshot_id, lsn, count = found
        return Snapshot(lsn, self._chunks(snapshot_id, lsn, count))

    def _chunks(self, snapshot_id: int, lsn: int, count: int) -> Iterator[bytes]:
        for number in range(count):
            with self._file.reading() as connection:
                row = connection.execute(_CHUNK, (snapshot_id, number)).fetchone()
                there = connection.execute(_IS_THERE, (snapshot_id,)).fetchone()
                first = group_row(connection, self._group_id).trimmed + 1
            if not there:
                raise TrimmedLog.with_snapshot(lsn, first)
            checksum, chunk = row or (None, None)
            kept = chunk if isinstance(chunk, bytes) else None
            yield require_chunk(lsn, number, count, checksum, kept)

    def _require(self, connection: sqlite3.Connection, configuration: int) -> GroupRow:
        row = group_row(connection, self._group_id)
        checks.require_configuration(configuration, row.configuration)
        return row

    def _require_begun(self, connection: sqlite3.Connection, snapshot_id: int | None) -> None:
        if connection.execute(_IS_THERE, (snapshot_id,)).fetchone() is None:
            raise EngineUnavailable("another snapshot was begun meanwhile")

    def _check(self, connection: sqlite3.Connection, lsn: int, row: GroupRow) -> None:
        checks.check_snapshot(lsn, newest(connection, self._group_id), row.tail)

    def _remove(self, connection: sqlite3.Connection, which: str) -> None:
        ids = f"SELECT snapshot_id FROM curp_snapshot WHERE group_id=? AND {which}"  # noqa: S608 - our own words
        connection.execute(
            f"DELETE FROM curp_chunk WHERE snapshot_id IN ({ids})",  # noqa: S608 - our own words
            (self._group_id,),
        )
        connection.execute(
            f"DELETE FROM curp_snapshot WHERE snapshot_id IN ({ids})",  # noqa: S608 - our own words
            (self._group_id,),
        )


def newest(connection: sqlite3.Connection, group_id: int) -> int | None:
    """Return the position of the newest whole snapshot."""
    row = connection.execute(_NEWEST, (group_id,)).fetchone()
    return None if row is None else int(row[1])
