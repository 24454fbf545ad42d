"""The completion record inside a handler's own transaction, of any driver (DESIGN §6)."""

from __future__ import annotations

from typing import Any

from rifl._stores.drivers import DbApiTransaction
from rifl._stores.errors import WrongDatabase
from rifl._stores.shared.requests import Finish, MoveInside, RecordUnclaimed, Written
from rifl._stores.sql.backend import SqlBackend
from rifl._stores.sql.carrying import move_row
from rifl._stores.sql.dialect import Dialect, Failure
from rifl._stores.sql.rows import ALIVE, identity_of, lock_call, write_record
from rifl._stores.sql.session import SqlSession, spelled
from rifl.core._shared.errors import LeaseExpired, StaleRpc
from rifl.core._shared.invariant import InvariantViolated


class LentSession(SqlSession):
    """A handler's own connection, with whatever parameters and rows its driver has."""

    def __init__(self, dialect: Dialect, named: DbApiTransaction) -> None:
        super().__init__(dialect, named.connection)
        self._named = named

    def rows(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Carry out a statement that returns rows."""
        found = super().rows(statement, *arguments)
        # Of a connection whose cursors make dictionaries.
        return [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in found]

    def _execute(self, statement: str, arguments: tuple[Any, ...]) -> Any:
        dialect = self.dialect
        are_bytes = tuple([isinstance(each, bytes) for each in arguments])
        style = self._named.placeholder
        text = spelled(statement, dialect.prefix, dialect.bytes_parameter, are_bytes, style)
        given = [
            dialect.bytes_argument(each) if is_bytes else each
            for each, is_bytes in zip(arguments, are_bytes, strict=True)
        ]
        return self._named.begun(text, given)


def write(sql: LentSession, backend: SqlBackend, finish: Written) -> None:
    """Write the record in the transaction that is open on the connection.

    Locking reads: a REPEATABLE READ transaction sees what was when it began, and these what is.
    Raises ``WrongDatabase``, ``StaleRpc`` or ``LeaseExpired``; the transaction then has to roll
    back.
    """
    if isinstance(finish, RecordUnclaimed):
        raise InvariantViolated("a run without a claim, which this store has none of")
    try:
        _write(sql, backend, finish)
    except Exception as error:
        # Whatever the driver raises.
        if sql.dialect.failure(error) is Failure.MISSING:
            raise WrongDatabase(elsewhere(backend)) from error
        raise


def _write(sql: LentSession, backend: SqlBackend, finish: Finish | MoveInside) -> None:
    store = sql.row(f"SELECT value FROM @.meta WHERE name = %s {sql.dialect.share}", b"store")
    if store is None or bytes(store[0]).decode() != backend.store_id:
        raise WrongDatabase(elsewhere(backend))
    if isinstance(finish, MoveInside):
        if not move_row(sql, *finish.move):
            raise StaleRpc(f"{finish.move.key} moved meanwhile")
        return
    identity = identity_of(finish.call)
    row = lock_call(sql, identity)
    if row is None:
        client = sql.row(
            f"SELECT state FROM @.clients WHERE client_id = %s {sql.dialect.share}", identity[0]
        )
        if client is None or bytes(client[0]).decode() not in ALIVE:
            raise LeaseExpired(f"client id {identity[0]} expired while the call ran")
    if row is None or row.record is not None or row.token != finish.token:
        raise StaleRpc(
            f"{finish.call.rpc_id} is recorded, acknowledged, or taken over by another replica"
        )
    # By this a take-over finds whose transaction it is.
    (session_id,) = sql.row(f"SELECT {sql.dialect.session_id}") or (0,)
    fingerprint = finish.call.fingerprint or b""
    write_record(sql, identity, row, finish.record, fingerprint, row.owner, holder=int(session_id))


def elsewhere(backend: SqlBackend) -> str:
    """Return what is wrong with a transaction in another database."""
    return (
        f"the method's records live in {backend.place}, and the transaction is in another "
        "database, or its user may not use the tables: recovery could not find this record"
    )
