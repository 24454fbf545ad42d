"""Opening a store in any SQL database: connected, checked, and known to be the one it was."""

from __future__ import annotations

from _rifl_ground.log import get_logger
from _rifl_ground.servers import Durability, told
from rifl._stores.errors import StoreNotDurable, StoreUnreachable, UnsupportedStore
from rifl._stores.sql.backend import SqlBackend, failed
from rifl._stores.sql.dialect import Dialect, Failure
from rifl._stores.sql.schema import TABLES, StoreNotes, prepare, read_meta
from rifl._stores.sql.session import SqlSession, discard

_log = get_logger("rifl.store")


def open_backend(dialect: Dialect) -> SqlBackend:
    """Connect, check the settings, make the tables; raises a ``StoreError``.

    It begins anew once if the connection is lost: a server may end the transaction of a process
    that was suspended in it.
    """
    for last in (False, True):
        session = None
        try:
            session = SqlSession(dialect, dialect.connect())
            return SqlBackend(dialect, _prepared(session))
        except dialect.errors as error:
            if last or session is None or dialect.failure(error) is not Failure.LOST:
                text = f"{dialect.place} cannot be used: {failed(error)}"
                raise StoreUnreachable(text) from error
        finally:
            if session is not None:
                discard(session)
    raise AssertionError("the last try returns, or raises")


def _prepared(session: SqlSession) -> StoreNotes:
    dialect = session.dialect
    server = dialect.server(session.connection, ())
    if server.refusal:
        raise UnsupportedStore(f"{dialect.place}: {server.refusal}")
    prepared = prepare(session, server.history)
    _check_durability(session)
    return prepared


def _check_durability(session: SqlSession) -> None:
    """Raise ``StoreNotDurable`` for weak settings, or say each in the log."""
    dialect = session.dialect
    found = dialect.server(session.connection, TABLES).weaknesses
    again = "those calls may run again"
    if found and dialect.durability is Durability.REQUIRE:
        raise StoreNotDurable(
            f"{dialect.place}: {told(found)} (?durability=warn opens it all the same); {again}"
        )
    for setting, cost in found:
        _log.warning(
            "store_not_durable", store=dialect.place, setting=setting, cost=f"{cost}: {again}"
        )


def store_id_at(dialect: Dialect) -> str:
    """Return the id of the store that is there, empty if there is none; makes nothing."""
    session = None
    try:
        session = SqlSession(dialect, dialect.connect())
        there = dialect.is_there(session.connection, "meta")
        return read_meta(session).get(b"store", "") if there else ""
    except dialect.errors as error:
        raise StoreUnreachable(f"{dialect.place} cannot be used: {failed(error)}") from error
    finally:
        if session is not None:
            discard(session)
