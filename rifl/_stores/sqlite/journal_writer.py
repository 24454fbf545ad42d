"""The transactions of the journal: a batch of entries written to one file, or not at all."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

from _rifl_ground.log import get_logger
from _rifl_ground.sqlite.failures import Stopped, is_damage, is_failed_sync
from rifl._stores.inspection import NOTES_KEPT, VERDICTS_KEPT_S
from rifl._stores.rows import Move
from rifl._stores.sqlite.file_guard import Guard
from rifl._stores.sqlite.journal_entries import (
    ALONE,
    CLIENT,
    DROP_CALLS,
    DROP_CLIENT,
    DROP_KEYS,
    DROP_LEASE,
    DUE,
    LEASE,
    LIVED,
    OWNER,
    PROBE,
    Acknowledged,
    JournalEntry,
)
from rifl._stores.sqlite.record_row import moving
from rifl._stores.sqlite.statements import (
    FORGET_UNKNOWN,
    MOST_AT_ONCE,
    REMEMBER_UNKNOWN,
    RepeatedStatement,
)

_log = get_logger("rifl.store")
# The rows of these entries have neither the time nor the number of the commit.
_UNDATED = (
    JournalEntry.DELETE,
    JournalEntry.NAMESPACE,
    JournalEntry.MOVE,
    JournalEntry.EXPIRE,
)
# Around moves of which some may have to be undone.
_SAVEPOINT, _BACK, _RELEASE = "SAVEPOINT moves", "ROLLBACK TO moves", "RELEASE moves"


class Superseded(sqlite3.Error):
    """The file has a new owner: this process may not write to it any more."""


class JournalWriter:
    """Writes what one commit makes durable, in one transaction, to a file that is ours.

    A file that another incarnation of the server has opened is not written to: that is
    ``Superseded``. One committer at a time.

    ``stopped``: why nothing is written any more, None if it is. ``stop`` is called with an
    error after which it is unknown what is on the disk, or which file it is, and sets it.
    """

    def __init__(
        self, connection: sqlite3.Connection, guard: Guard, stop: Callable[[Exception], None]
    ) -> None:
        self.stopped: Exception | None = None
        self._connection = connection
        self._guard = guard
        self._stop = stop

    def commit(
        self,
        batch: list[JournalEntry],
        noted: Acknowledged,
        *,
        alone: bool = False,
        probe: bool = False,
    ) -> Exception | None:
        """Write a batch and what is noted; None once that is durable, else why it is not.

        ``alone``: nothing is noted, and ``is_alone`` says so of the batch. ``probe``: write
        something in any case, to see whether that works.
        """
        if self.stopped is not None:
            return self.stopped
        connection = self._connection
        number = self._guard.number()
        now = (int(time.time()), number)
        try:
            if alone and not (probe or self._guard.due):
                self._guard.check_wal()
                self._write_alone(batch, now)
            else:
                self._write(batch, noted, now, probe=probe)
        except sqlite3.Error as error:
            if is_fatal(error):
                self._guard.met(error)
                self._stop(error)
            if connection.in_transaction:
                try:
                    connection.execute("ROLLBACK")
                except sqlite3.Error as rollback_error:
                    _log.warning("store_rollback_failed", error=str(rollback_error))
            return error
        return None

    def _write_alone(self, batch: list[JournalEntry], now: tuple[int, int]) -> None:
        """Write a batch in one step that is its own transaction."""
        first, guard = batch[0], self._guard
        rows = first.rows if len(batch) == 1 else [row for entry in batch for row in entry.rows]
        written = ALONE[first.statement].write_once(self._connection, rows, now, (guard.opening,))
        if written < len(rows):
            # Some records stood already, or nothing was written at all.
            self._check_owner()
            guard.check()
        else:
            guard.committed(now[1])

    def _write(
        self, batch: list[JournalEntry], noted: Acknowledged, now: tuple[int, int], *, probe: bool
    ) -> None:
        """Write a batch, and what is noted, in a transaction of several steps."""
        connection, number = self._connection, now[1]
        rows: dict[RepeatedStatement, list[tuple[Any, ...]]] = {}
        for entry in batch:
            dated = entry.rows
            if entry.statement not in _UNDATED:
                dated = [row + now for row in entry.rows]  # type: ignore[assignment]
            rows.setdefault(entry.statement, []).extend(dated)
        connection.execute("BEGIN IMMEDIATE")
        self._check_owner()
        for statement in (
            JournalEntry.INTENT,
            JournalEntry.RECORD,
            JournalEntry.DELETE,
            JournalEntry.NAMESPACE,
        ):
            if statement in rows:
                statement.write(connection, rows[statement])
        for entry in batch:
            if entry.statement is JournalEntry.MOVE:
                entry.result = self._move(entry, number)
            elif entry.statement is JournalEntry.EXPIRE:
                # By what stands now: of a key that is new again nothing is due.
                entry.result = connection.execute(DUE, entry.rows[0]).fetchall()
                JournalEntry.DELETE.write(connection, entry.result)
        if noted:
            self._write_acknowledged(noted)
        if probe or JournalEntry.OVERWRITE in rows:
            connection.execute(PROBE)
        raised = self._guard.raise_commits(connection, number)
        connection.execute("COMMIT")
        self._guard.committed(number, raised)

    def _move(self, entry: JournalEntry, number: int) -> bool:
        """Move the rows of one entry, all or none; false where one is not as expected."""
        connection, opening = self._connection, self._guard.opening
        several = len(entry.rows) > 1
        if several:
            connection.execute(_SAVEPOINT)
        moved = all(
            connection.execute(*moving(Move(*row), number, opening)).rowcount for row in entry.rows
        )
        if several:
            if not moved:
                connection.execute(_BACK)
            connection.execute(_RELEASE)
        return moved

    def _check_owner(self) -> None:
        if self._connection.execute(OWNER).fetchone() != (self._guard.opening,):
            raise Superseded("another incarnation of the server owns the store")

    def _write_acknowledged(self, noted: Acknowledged) -> None:
        connection = self._connection
        # A deletion and the acknowledgement that allows it are one transaction:
        # else a late duplicate looks new after a restart (DESIGN §4).
        JournalEntry.DELETE.write(connection, noted.calls)
        now = int(time.time())
        clients = [(client_id, *row, now) for client_id, row in noted.clients.items()]
        CLIENT.write(connection, clients)
        if noted.holders:
            connection.executemany(LEASE, noted.holders)
        if noted.dropped:
            for statement in (DROP_KEYS, DROP_CALLS, DROP_CLIENT, DROP_LEASE):
                connection.executemany(statement, noted.dropped)
        if noted.unknown:
            connection.executemany(REMEMBER_UNKNOWN, noted.unknown)
            connection.execute(FORGET_UNKNOWN, (VERDICTS_KEPT_S, NOTES_KEPT))
        if noted.lived_s is not None:
            connection.execute(LIVED, (noted.lived_s,))


def is_alone(batch: list[JournalEntry]) -> bool:
    """Whether a batch can be written in one step that is its own transaction."""
    if not batch or batch[0].statement not in ALONE:
        return False
    if len(batch) == 1:
        return len(batch[0].rows) <= MOST_AT_ONCE
    kind = batch[0].statement
    count = 0
    for entry in batch:
        if entry.statement is not kind:
            return False
        count += len(entry.rows)
    return count <= MOST_AT_ONCE


def is_fatal(error: sqlite3.Error) -> bool:
    """Whether it is unknown what is on the disk now, or the file is another's."""
    return isinstance(error, Superseded | Stopped) or is_damage(error) or is_failed_sync(error)
