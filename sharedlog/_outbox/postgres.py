"""The writing of an outbox in a transaction of psycopg."""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from _rifl_ground.postgres.riders import ride, takes_riders
from sharedlog._core.errors import LogFull, LogUnavailable, WrongTransaction
from sharedlog._core.outbox import CHAIN_BYTES, NO_CHAIN
from sharedlog._engines.postgres.applications import check_begun, literal
from sharedlog._outbox import tables
from sharedlog._outbox.entry import New, OutboxEntry, id_of_a_new_one, judged

_JOINED = "coalesce(current_setting('sharedlog.joined', true), '')"
# As SQL: the outbox is there, and it is noted that a message of this name is announced. A rollback
# to a savepoint forgets that.
_JOIN = (
    "SELECT incarnation, current_setting('search_path'), "
    "set_config('sharedlog.joined', {joined} || '{token},', true) "
    "FROM sharedlog_outbox WHERE name = {name}"
)
# The head is locked by the first part, and what follows has its row.
_PUT = (
    "WITH head AS (UPDATE sharedlog_outbox SET seq = seq + 1, "
    "chain = substring(sha256(chain || {content}) FROM 1 FOR {size}) "
    "WHERE name = {name} AND incarnation = {incarnation} AND {announced} "
    "RETURNING name, seq, chain), "
    "put AS (INSERT INTO sharedlog_outbox_message SELECT name, seq, {tag}, {envelope}, chain "
    "FROM head RETURNING seq) SELECT pg_notify('{channel}', ''), seq FROM put"
)
# Of the message that travels with the commit: whatever the handler has set since.
_PATH = "SELECT set_config('search_path', convert_from({path}, 'UTF8'), true); "
_NO_TABLE = "42P01"
_FAILED = ("25P02", "25006", "42501")
_DISK_FULL = "53100"


def write(connection: psycopg.Connection[Any], what: OutboxEntry | New) -> None:
    """Put a message, or make an outbox; in a ``rifl.transaction`` it travels with the commit."""
    check_begun(connection)
    try:
        with connection.cursor(row_factory=tuple_row) as cursor:
            if isinstance(what, New):
                for statement, arguments in _making(what):
                    cursor.execute(statement, arguments)
                _checked(cursor.fetchone(), what)
                return
            put = _Put(what, secrets.token_hex(8) if takes_riders(connection) else "")
            cursor.execute(put.first)
            found = cursor.fetchone()
            if put.token:
                ride(connection, put._replace(path=_checked(found, what)[1]))
            elif found is None:
                cursor.execute(tables.POSTGRES.of(tables.FIND).encode(), (what.name,))
                raise judged(cursor.fetchone(), what)
    except psycopg.Error as error:
        raise _meaning(error, what) or error from error


async def write_aio(connection: psycopg.AsyncConnection[Any], what: OutboxEntry | New) -> None:
    """The same for an asynchronous connection."""
    check_begun(connection)
    try:
        async with connection.cursor(row_factory=tuple_row) as cursor:
            if isinstance(what, New):
                for statement, arguments in _making(what):
                    await cursor.execute(statement, arguments)
                _checked(await cursor.fetchone(), what)
                return
            put = _Put(what, secrets.token_hex(8) if takes_riders(connection) else "")
            await cursor.execute(put.first)
            found = await cursor.fetchone()
            if put.token:
                ride(connection, put._replace(path=_checked(found, what)[1]))
            elif found is None:
                await cursor.execute(tables.POSTGRES.of(tables.FIND).encode(), (what.name,))
                raise judged(await cursor.fetchone(), what)
    except psycopg.Error as error:
        raise _meaning(error, what) or error from error


class _Put(NamedTuple):
    """A message, as SQL without parameters."""

    entry: OutboxEntry
    # What the end of the transaction knows it by; empty: it is put at once.
    token: str
    # Where the outbox is.
    path: str = ""

    @property
    def first(self) -> bytes:
        """What is sent now."""
        if not self.token:
            return self.statement.encode()
        name = literal(self.entry.name)
        return _JOIN.format(joined=_JOINED, token=self.token, name=name).encode()

    @property
    def statement(self) -> str:
        """The message is put."""
        entry = self.entry
        announced = f"position('{self.token},' IN {_JOINED}) > 0" if self.token else "true"
        path = _PATH.format(path=literal(self.path.encode())) if self.path else ""
        return path + _PUT.format(
            content=literal(entry.content),
            size=CHAIN_BYTES,
            name=literal(entry.name),
            incarnation=literal(entry.incarnation),
            announced=announced,
            tag=literal(entry.tag),
            envelope=literal(entry.envelope),
            channel=tables.CHANNEL,
        )

    def meaning(self, error: psycopg.Error) -> Exception | None:
        """Return nothing: what fails at the end is the database's affair, and the driver's."""
        return None


def _making(what: New) -> list[tuple[bytes, tuple[Any, ...]]]:
    dialect = tables.POSTGRES
    made = (what.name, id_of_a_new_one(), what.incarnation, NO_CHAIN)
    return [
        # Of two who make the tables at once, one waits.
        (b"SELECT pg_advisory_xact_lock(hashtextextended('sharedlog_outbox', 0))", ()),
        *((each.encode(), ()) for each in dialect.create),
        (dialect.of(tables.INSERT).encode(), made),
        (dialect.of(tables.INSERT_DONE).encode(), (what.name, NO_CHAIN)),
        (dialect.of(tables.FIND).encode(), (what.name,)),
    ]


def _checked(found: Any, what: OutboxEntry | New) -> Any:
    if found is None or found[0] != what.incarnation:
        raise judged(found, what)
    return found


def _meaning(error: psycopg.Error, what: OutboxEntry | New) -> Exception | None:
    if error.sqlstate == _NO_TABLE:
        return judged(None, what)
    if error.sqlstate in _FAILED:
        return WrongTransaction(str(error))
    if isinstance(error, psycopg.OperationalError) and not isinstance(
        error, psycopg.errors.SerializationFailure | psycopg.errors.DeadlockDetected
    ):
        kind = LogFull if error.sqlstate == _DISK_FULL else LogUnavailable
        found = kind(f"the outbox's database: {error}")
        found.appended = False
        return found
    # To be tried again, as the driver says.
    return None
