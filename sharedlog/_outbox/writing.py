"""The writing of an outbox in the transaction of a connection, of sqlite3 or psycopg."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from typing import Any

from _rifl_ground.drivers import unwrapped, unwrapped_aio
from sharedlog._core.outbox import NO_CHAIN, chained
from sharedlog._engines.sqlite.applications import Applications, PlainConnection
from sharedlog._outbox import tables
from sharedlog._outbox.entry import New, OutboxEntry, id_of_a_new_one, judged

_applications = Applications()


def write(given: Any, what: OutboxEntry | New) -> None:
    """Put a message, or make an outbox, in the transaction of a connection."""
    if _lends(given):
        _applications.run(given, _nothing, _sqlite_work(what))
        return
    connection = unwrapped(given)
    if _of_psycopg(connection, "Connection"):
        from sharedlog._outbox import postgres

        postgres.write(connection, what)
    else:
        _applications.run(connection, _nothing, _sqlite_work(what))


async def write_aio(given: Any, what: OutboxEntry | New) -> None:
    """The same for an asynchronous connection, or a blocking one."""
    if not _lends(given):
        given = await unwrapped_aio(given)
        if _of_psycopg(given, "AsyncConnection"):
            from sharedlog._outbox import postgres

            await postgres.write_aio(given, what)
            return
        if _of_psycopg(given, "Connection"):
            write(given, what)
            return
    await _applications.run_aio(given, _nothing, _sqlite_work(what))


def _sqlite_work(what: OutboxEntry | New) -> Callable[[PlainConnection], None]:
    def work(connection: PlainConnection) -> None:
        if isinstance(what, New):
            for statement in tables.SQLITE.create:
                connection.execute(statement)
            made = (what.name, id_of_a_new_one(), what.incarnation, NO_CHAIN)
            connection.execute(tables.INSERT, made)
            connection.execute(tables.INSERT_DONE, (what.name, NO_CHAIN))
            found = connection.execute(tables.FIND, (what.name,)).fetchone()
            if found[0] != what.incarnation:
                raise judged(found, what)
            return
        rows = _next(connection, what)
        if not rows:
            raise judged(connection.execute(tables.FIND, (what.name,)).fetchone(), what)
        seq, chain = rows[0]
        chain = chained(chain, what.content)
        connection.execute(tables.CHAIN, (chain, what.name))
        connection.execute(tables.PUT, (what.name, seq, what.tag, what.envelope, chain))

    return work


def _next(connection: PlainConnection, what: OutboxEntry) -> list[Any]:
    try:
        return connection.execute(tables.NEXT, (what.name, what.incarnation)).fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname == "SQLITE_ERROR":
            # No such table.
            raise judged(None, what) from error
        raise


def _nothing(_: PlainConnection) -> None:
    """Any file is fine."""


def _lends(given: Any) -> bool:
    each = getattr(given, "proxy", given)
    return callable(getattr(each, "within", None))


def _of_psycopg(given: Any, name: str) -> bool:
    kind = getattr(sys.modules.get("psycopg"), name, None)
    return kind is not None and isinstance(given, kind)
