"""The row of a completion record, or moves in its place, in a handler's own transaction (§6)."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any, NamedTuple

from _rifl_ground.sqlite.owned import commits_by_itself
from _rifl_ground.system import MAC
from rifl._stores.errors import WrongDatabase
from rifl._stores.rows import Move
from rifl.core._shared.errors import StaleRpc

# Written only where the opening that runs the handler has its mark: a process that lost
# the store cannot commit, nor can one whose connection is to another file of this name.
_RECORD = (
    "INSERT INTO rifl_call SELECT ?, ?, ?, ?, ?, ?, ?, ? WHERE "
    "(SELECT value FROM rifl_meta WHERE name='opening')=?"
)
_PUT = (
    "INSERT INTO rifl_row SELECT ?, ?, ? WHERE "
    "(SELECT value FROM rifl_meta WHERE name='opening')=? ON CONFLICT DO NOTHING"
)
_MOVE = (
    "UPDATE rifl_row SET value=?, commit_number=? WHERE key=? AND value=? AND "
    "(SELECT value FROM rifl_meta WHERE name='opening')=?"
)
_CLIENT = "INSERT INTO rifl_client VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_FILE = (
    "SELECT file, (SELECT synchronous FROM pragma_synchronous) "
    "FROM pragma_database_list WHERE name='main'"
)
if MAC:
    # Without fullfsync no commit waits for the disk.
    _FILE = (
        "SELECT file, (SELECT synchronous * fullfsync FROM pragma_synchronous, pragma_fullfsync) "
        "FROM pragma_database_list WHERE name='main'"
    )
# Below it a commit does not wait for the disk (WAL).
_FULL = 2
# SQL, its parameters, and whether it has to change a row: else the record is ``refused``.
_Statement = tuple[str, tuple[Any, ...], bool]


class RecordRow(NamedTuple):
    """What is written, and the file and the opening of it that it may be written to.

    ``number`` is the commit's. ``client`` is the client's row, None if it is durable
    already; ``call`` holds client id, seq or key, fingerprint, method, the end of its
    retention, and the serialised record.
    """

    path: Path
    opening: int
    number: int
    client: tuple[int, int, bytes] | None
    call: tuple[int, int | bytes, bytes | None, str, float | None, bytes]

    def statements(self) -> tuple[_Statement, ...]:
        """Return what is executed, one after the other."""
        now = int(time.time())
        record = (_RECORD, (*self.call, now, self.number, self.opening), True)
        if self.client is None:
            return (record,)
        return record, (_CLIENT, (*self.client, now), False)

    def refused(self) -> StaleRpc:
        """Return what it means that no row was changed."""
        return StaleRpc(
            "another incarnation of the server owns the store, or the connection is to another "
            "file that has, or had, its name"
        )

    def standing(self) -> StaleRpc:
        """Return what it means that a constraint is in the way."""
        return StaleRpc(f"a record stands for {self.call[0]}/{self.call[1]!r} already")


class MovedRows(NamedTuple):
    """The moves of conditional rows in a record's place; ``path`` to ``number`` as a record's."""

    path: Path
    opening: int
    number: int
    moves: tuple[Move, ...]

    def statements(self) -> tuple[_Statement, ...]:
        """Return what is executed, as ``RecordRow.statements``."""
        return tuple((*moving(move, self.number, self.opening), True) for move in self.moves)

    def refused(self) -> StaleRpc:
        """Return what it means that no row was changed."""
        return self.standing()

    def standing(self) -> StaleRpc:
        """Return what it means that a row is not as expected, or the store has a new owner."""
        return StaleRpc(
            f"{' and '.join(each.key for each in self.moves)} moved meanwhile, or another "
            "incarnation of the server owns the store"
        )


def moving(move: Move, number: int, opening: int) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that moves a row, which changes none where it cannot."""
    if move.expected is None:
        return _PUT, (move.key, move.value, number, opening)
    return _MOVE, (move.value, number, move.key, move.expected, opening)


def write_record(connection: sqlite3.Connection, row: RecordRow | MovedRows) -> bool:
    """Write the row in the transaction open on a sqlite3 connection.

    Returns whether that connection's commits wait for the disk.

    Raises ``WrongDatabase`` for a connection in autocommit or to another file,
    and ``StaleRpc`` when a record stands already or the store has a new owner;
    the handler's transaction then has to roll back.
    """
    _check(connection)
    cursor = connection.cursor()
    try:
        # The handler's factories make of rows what they like.
        cursor.row_factory = None
        cursor.execute(_FILE)
        waits = _waits_for_disk(row, cursor.fetchone())
        write_row(cursor, row)
        return waits
    finally:
        # Before an error leaves: what that holds keeps the locks of a connection that the
        # handler closes.
        cursor.close()


def write_row(cursor: sqlite3.Cursor, row: RecordRow | MovedRows) -> None:
    """Write the row by a cursor of a connection to the file; raises ``StaleRpc``."""
    try:
        for sql, parameters, needed in row.statements():
            cursor.execute(sql, parameters)
            if not cursor.rowcount and needed:
                raise row.refused()
    except sqlite3.IntegrityError as error:
        raise row.standing() from error


async def write_record_async(connection: Any, row: RecordRow | MovedRows) -> bool:
    """The same for an ``aiosqlite`` connection, or one with its methods."""
    _check(connection)
    cursor = await connection.cursor()
    try:
        cursor.row_factory = None
        await cursor.execute(_FILE)
        waits = _waits_for_disk(row, await cursor.fetchone())
        for sql, parameters, needed in row.statements():
            await cursor.execute(sql, parameters)
            if not cursor.rowcount and needed:
                raise row.refused()
        return waits
    except sqlite3.IntegrityError as error:
        raise row.standing() from error
    finally:
        await cursor.close()


def _check(connection: Any) -> None:
    if commits_by_itself(connection):
        raise WrongDatabase(
            "the connection is in autocommit mode: begin a transaction before rifl.record"
        )


def _waits_for_disk(row: RecordRow | MovedRows, found: Any) -> bool:
    """Judge by a connection's ``_FILE``; raises ``WrongDatabase`` where that is another one."""
    file = os.fsdecode(found[0] or "") if found else ""
    # Resolved once, as a rule: SQLite says the same of it. Whether another file has its name by
    # now, the guard looks, and the opening's mark in it says.
    same = file == str(row.path) or (file and Path(file).resolve() == row.path)
    if not same:
        raise WrongDatabase(
            f"the method's records live in {row.path}, and the connection is to "
            f"{file or 'memory'}: recovery could not find this one"
        )
    return bool(found[1] >= _FULL)
