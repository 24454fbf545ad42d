"""A session of a consumer's PostgreSQL database: what is asked of it before it is used."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from _rifl_ground.log import get_logger
from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.connections import connect_as
from _rifl_ground.postgres.lent import LentConnection
from _rifl_ground.postgres.marked import send
from _rifl_ground.postgres.owned import OF_SESSIONS, settings_of
from _rifl_ground.postgres.settings import SYNCED, SYNCHRONOUS, Tables, check_durability
from _rifl_ground.servers import Durability
from sharedlog._consumer.call_rows import CALLS
from sharedlog._consumer.configuring import Configure, configure_by, refuse_settings
from sharedlog._consumer.tables import TABLE
from sharedlog._core.errors import InvalidRequest, LogError, NotDurable, StoreAway

_log = get_logger("sharedlog")
_LOOK_EVERY_S = 2.0
_TABLES = Tables("", (TABLE, CALLS))
_LOOK = (
    "SELECT pg_backend_pid(), pid || ' ' || backend_start, "
    "(SELECT setting::bigint FROM pg_settings WHERE name = 'statement_timeout'), "
    "(SELECT setting::bigint FROM pg_settings WHERE name = 'lock_timeout') "
    "FROM pg_stat_activity WHERE pid = pg_backend_pid()"
)
# Has a transaction wait for the disk.
_SYNCED = SYNCED.format("true").encode()
# Of a statement's time, a wait for a lock: what a statement does before it waits has the rest.
_OF_STATEMENT = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class _Address(PostgresAddress):
    """The user's database: its schemas are the user's, and there is one session."""

    OPTIONS: ClassVar[Mapping[str, Callable[[str], Any]]] = {"durability": Durability}
    INVALID: ClassVar[type[Exception]] = InvalidRequest


class NotedConnection(psycopg.Connection[Any]):
    """A connection that tells of all that its session raises, whatever of psycopg's asked it."""

    raised: Callable[[BaseException], None] | None = None

    def wait(self, *given: Any, **named: Any) -> Any:
        try:
            return super().wait(*given, **named)
        except BaseException as error:
            if self.raised is not None:
                self.raised(error)
            raise


class StoreSession(NamedTuple):
    """A connection, and what the server calls its session.

    ``name``: empty behind a pooler, which lends the session to others, too. ``pooled``: the next
    transaction may have another one, and each is told by itself to wait for the disk.
    ``settings``: the first values of what handlers may change. ``beginning``: what each
    transaction of a pooled one begins with. ``look``: called with the connection before each use.
    """

    connection: NotedConnection
    name: str
    pooled: bool
    look: Callable[[psycopg.Connection[Any]], None]
    settings: tuple[tuple[str, bytes], ...] = ()
    beginning: bytes = b""


class Looks:
    """Looks now and then at a server while its session is open: does it keep what it commits?"""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._at = time.monotonic() + _LOOK_EVERY_S

    def again(self, connection: psycopg.Connection[Any]) -> None:
        """Raise ``StoreAway`` while it may forget; asked between transactions."""
        idle = connection.info.transaction_status == TransactionStatus.IDLE
        if idle and time.monotonic() >= self._at:
            check_durability(connection, self._address, _TABLES, StoreAway)
            self._at = time.monotonic() + _LOOK_EVERY_S


def opened(
    url: str,
    refused: type[LogError] = NotDurable,
    configure: Configure | None = None,
    waits_ms: int = 0,
) -> StoreSession:
    """Open a session; raises psycopg's errors, and ``refused`` for a server that may forget.

    ``configure``: called with the connection. What it sets holds for all handlers. ``waits_ms``:
    how long a statement waits for a lock, at most; 0: as the server says.
    """
    address = _Address.parse(url, schema="public")
    look = Looks(address).again
    connection = connect_as(NotedConnection, address)
    try:
        for weak in check_durability(connection, address, _TABLES, refused):
            # It is overridden below.
            if weak is not SYNCHRONOUS:
                _log.warning(
                    "store_not_durable", store=address.place, setting=weak.setting, cost=weak.cost
                )
        if configure is not None:
            _configured(connection, configure)
        with connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(_LOOK).fetchone()
            if row is None:
                return StoreSession(connection, "", True, look, beginning=_SYNCED)
            pid, name, statement_ms, lock_ms = row
            pooled = connection.info.backend_pid != pid
            if pooled:
                # What one transaction prepares is not there in the next one.
                connection.prepare_threshold = None
            else:
                # What is committed is on the server's disk before the log is told.
                cursor.execute(SYNCED.format("false").encode())
                if waits := _lock_timeout(statement_ms, lock_ms, waits_ms):
                    cursor.execute(waits)
        shown = "; ".join(f"SHOW {each}" for each in OF_SESSIONS).encode()
        settings = settings_of(OF_SESSIONS, send(connection, shown))
    except BaseException:
        connection.close()
        raise
    if not pooled:
        return StoreSession(connection, str(name), pooled, look, settings)
    waits = _lock_timeout(statement_ms, lock_ms, waits_ms).replace(b"SET ", b"SET LOCAL ")
    return StoreSession(connection, "", pooled, look, settings, _SYNCED + b"; " + waits)


def _lock_timeout(statement_ms: int, lock_ms: int, waits_ms: int) -> bytes:
    """Return what has a wait for a lock end after a time, where nothing has it end as soon.

    And before its statement does, which would not say why.
    """
    bounds = [each for each in (statement_ms, waits_ms) if each]
    if not bounds or 0 < lock_ms < min(bounds):
        return b""
    ends_ms = [each for each in (int(statement_ms * _OF_STATEMENT), waits_ms) if each]
    return b"SET lock_timeout = %d" % min(ends_ms, default=1)


def _configured(connection: psycopg.Connection[Any], configure: Configure) -> None:
    before = connection.autocommit
    configure_by(configure, lambda loan: LentConnection(connection, loan), psycopg.Error)
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise refuse_settings("left a transaction open (connection.commit() ends it)")
    if connection.autocommit != before or connection.read_only:
        raise refuse_settings("changed autocommit or read_only")
