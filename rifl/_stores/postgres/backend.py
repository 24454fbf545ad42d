"""The backend over PostgreSQL: each request a single statement over our functions (``sql/``)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import psycopg_pool

from _rifl_ground.log import get_logger
from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.connections import NoAnswer, Pools, connect_as_ours
from _rifl_ground.postgres.listener import Listener
from _rifl_ground.servers import Durability
from rifl._stores.base import Unresolved
from rifl._stores.postgres.continuity import Continuity
from rifl._stores.postgres.history import stop
from rifl._stores.postgres.request_statements import Packed, RequestStatements, read_reply
from rifl._stores.postgres.statements import Statement
from rifl._stores.shared.backend import TRIES_TAKE, BackendError, NotCarriedOut, patience
from rifl._stores.shared.requests import Claim, CountBeat
from rifl._stores.shared.stalls import Stalls

_log = get_logger("rifl.store")
_SUBSCRIBE_TIMEOUT_S = 10.0
_LAST_RETRY_S = 1.0
# Each round must be answered within the time of one statement.
_IN_PIPELINE = 100
_LOCKED = "another session of the database holds a lock on the client's row, or the call's"


class PostgresBackend:
    """``Backend`` over PostgreSQL: one statement a request, which is its transaction.

    Every request names the store's id, and a beat what this replica knows to be
    durable; a database that is another, or has lost that, is not served from: all
    requests raise ``WentBackwards`` from then on. Beats, and the history that the server
    writes, are compared on every new connection, too, before it is used: a server that
    was promoted is reached by those.
    """

    def __init__(self, address: PostgresAddress, pools: Pools, store_id: str, history: str) -> None:
        self.store_id = store_id
        self.schema = address.schema
        self.pools = pools
        self.place = str(address)
        self.durable = address.durability is Durability.REQUIRE
        self.statements = RequestStatements(address.schema, store_id)
        self.continuity = Continuity(address, history)
        self.longest_s = TRIES_TAKE * address.timeout_s
        self._address = address
        self._noted_copied: bool | None = None
        self._stalls = Stalls()
        self._closing = threading.Event()
        self._listener: Listener | None = None
        pools.greeting = self.continuity.greeting()

    # -- Backend ------------------------------------------------------------------------

    def ask(self, request: Any, within_s: float | None = None) -> Any:
        """Carry out a request, blocking."""
        return self._read(request, self.rows(*self._pack(request), within_s))

    async def ask_async(self, request: Any) -> Any:
        """Carry out a request on the running event loop."""
        statement, arguments = self._pack(request)
        self.continuity.check()
        try:
            pool = await self.pools.awaiting()
            try:
                rows = await self._fetch_async(pool, statement, arguments)
            except psycopg.errors.LockNotAvailable as error:
                # The first time it was sent: nothing is left of it.
                raise self._locked(statement, arguments) from error
            except psycopg.OperationalError as error:
                if not _was_lost(error):
                    raise
                # The server has restarted: so it is for all that wait in the pool.
                await pool.check()
                try:
                    rows = await self._fetch_async(pool, statement, arguments)
                except NotCarriedOut as refused:
                    raise BackendError(str(refused)) from refused
        except (psycopg.Error, OSError) as error:
            raise failed(error) from error
        return self._read(request, rows)

    def ask_all(self, requests: Sequence[Any], within_s: float | None = None) -> list[Any]:
        """Carry out requests in pipelines: many statements a round trip, each one a transaction.

        In one transaction they would hold each other's rows, and batches of one client's
        could wait for one another in a ring.
        """
        try:
            packed = [self._pack(request) for request in requests]
            self.continuity.check()
            pool = self.pools.blocking
            try:
                found = _fetch_all(pool, packed, self._admit, within_s)
            except psycopg.OperationalError as error:
                if not _was_lost(error):
                    raise
                pool.check()
                found = _fetch_all(pool, packed, self._admit, within_s)
            return [self._read(*each) for each in zip(requests, found, strict=True)]
        except BackendError as error:
            return [error] * len(requests)
        except (psycopg.Error, OSError) as error:
            return [failed(error)] * len(requests)

    async def ask_all_async(self, requests: Sequence[Any]) -> list[Any]:
        """The same on the running event loop."""
        try:
            packed = [self._pack(request) for request in requests]
            self.continuity.check()
            pool = await self.pools.awaiting()
            try:
                found = await _fetch_all_async(pool, packed, self._admit)
            except psycopg.OperationalError as error:
                if not _was_lost(error):
                    raise
                await pool.check()
                found = await _fetch_all_async(pool, packed, self._admit)
            return [self._read(*each) for each in zip(requests, found, strict=True)]
        except BackendError as error:
            return [error] * len(requests)
        except (psycopg.Error, OSError) as error:
            return [failed(error)] * len(requests)

    def expire_keys(self, lost: bytes, limit: int) -> int:
        """Delete keyed calls whose retention has passed; return how many."""
        expired = self.rows(self.statements.expire, (self.store_id, lost, limit))[0][0]
        if expired < 0:
            self.continuity.went_backwards()
        return int(expired)

    def unresolved(self) -> Unresolved:
        """Count what no operator has settled; blocks. Raises ``BackendError``."""
        calls, oldest_s = self.rows(self.statements.unresolved, ())[0]
        return Unresolved(calls, max(0.0, oldest_s))

    def listen(
        self, owner: str, wake: Callable[[bytes], None], resubscribed: Callable[[], None]
    ) -> None:
        """Listen; returns once that is confirmed, so that no wake is missed."""
        self.continuity.owner = owner
        self._listener = Listener(
            self._address,
            f"rifl_{owner}",
            self._closing,
            heard=wake,
            listening=resubscribed,
            lost=lambda error: _log.debug("listener_lost", error=str(error)),
        )
        self._listener.start()
        if not self._listener.begun(_SUBSCRIBE_TIMEOUT_S):
            raise BackendError("no session that listens could be made")

    def close(self) -> None:
        """Stop listening and close the pools."""
        self._closing.set()
        if self._listener is not None:
            # It hears this, and looks whether it is to go on.
            with contextlib.suppress(BackendError):
                self.rows(b"SELECT pg_notify(%s, '')", (self._listener.channel,))
            self._listener.join(_SUBSCRIBE_TIMEOUT_S)
        self.pools.close()

    # -- statements ---------------------------------------------------------------------

    def rows(
        self,
        statement: bytes | Statement,
        arguments: tuple[Any, ...],
        within_s: float | None = None,
    ) -> list[Any]:
        """Carry out one statement, blocking; raises ``BackendError``.

        It is repeated if the connection was lost: repeating must be harmless. ``within_s``: see
        ``patience``, for a connection and for the answer.
        """
        self.continuity.check()
        pool = self.pools.blocking
        try:
            try:
                return self._fetch(pool, statement, arguments, within_s)
            except psycopg.errors.LockNotAvailable as error:
                # The first time it was sent: nothing is left of it.
                raise self._locked(statement, arguments) from error
            except psycopg.OperationalError as error:
                if not _was_lost(error):
                    raise
                pool.check()
                try:
                    return self._fetch(pool, statement, arguments, within_s)
                except NotCarriedOut as refused:
                    # This speaks of the second try; the first may have been carried out.
                    raise BackendError(str(refused)) from refused
        except (psycopg.Error, OSError) as error:
            raise failed(error) from error

    def _fetch(
        self,
        pool: psycopg_pool.ConnectionPool[Any],
        statement: bytes | Statement,
        arguments: tuple[Any, ...],
        within_s: float | None,
    ) -> list[Any]:
        # As pool.connection() does, but for the end of a transaction: there is none.
        connection = pool.getconn(None if within_s is None else patience(within_s, pool.timeout))
        usual_s = connection.limit_s
        if within_s is not None:
            connection.limit_s = patience(within_s, usual_s)
        try:
            self._admit((statement, arguments))
            if isinstance(statement, Statement):
                found: list[Any] = connection.wait(statement.asking(connection, arguments))
                return found
            return connection.execute(statement, arguments, binary=True).fetchall()  # type: ignore[no-any-return]
        except NoAnswer:
            connection.close()
            raise
        finally:
            connection.limit_s = usual_s
            pool.putconn(connection)

    async def _fetch_async(
        self,
        pool: psycopg_pool.AsyncConnectionPool[Any],
        statement: bytes | Statement,
        arguments: tuple[Any, ...],
    ) -> list[Any]:
        connection = await pool.getconn()
        try:
            self._admit((statement, arguments))
            if isinstance(statement, Statement):
                found: list[Any] = await connection.wait(statement.asking(connection, arguments))
                return found
            cursor = await connection.execute(statement, arguments, binary=True)
            return await cursor.fetchall()  # type: ignore[no-any-return]
        except NoAnswer:
            await connection.close()
            raise
        finally:
            await pool.putconn(connection)

    def _pack(self, request: Any) -> Packed:
        return self.statements.pack(request, self.continuity.beats)

    def _read(self, request: Any, rows: list[Any]) -> Any:
        if isinstance(request, CountBeat):
            return self.continuity.beaten(request, rows)
        status, *rest = rows[0]
        if status == "backwards":
            self.continuity.went_backwards()
        if isinstance(request, Claim):
            self._stalls.moved(request.call.client_id)
        return read_reply(request, status, rest)

    def look_again(self) -> str:
        """Keep what the store says of its copies true; see ``Backend``."""
        copied = self.continuity.copied
        if copied is not None and copied != self._noted_copied:
            self.rows(
                f"UPDATE {self.schema}.meta SET value = %s WHERE name = 'copied' "
                "RETURNING name".encode(),
                (str(copied).lower(),),
            )
            self._noted_copied = copied
        return self.continuity.weak

    def _admit(self, *packed: Packed) -> None:
        """Raise for what is only of use if it is durable, where the server is not.

        And for a client whose row is locked, but one claim at a time. With the
        connection at hand: it was looked at, and may be to another server; and the
        thread that waited for it may have heard since.
        """
        self.continuity.check()
        weak = self.continuity.weak
        if weak and any(self.statements.needs_disk(*each) for each in packed):
            raise BackendError(f"the store is not durable: {weak}")
        if self._stalls:
            # All of one client's.
            client_id = self.statements.claimant(*packed[0])
            if client_id is not None and not self._stalls.may_try(client_id):
                raise NotCarriedOut(_LOCKED)

    def _locked(self, statement: bytes | Statement, arguments: tuple[Any, ...]) -> BackendError:
        client_id = self.statements.claimant(statement, arguments)
        if client_id is None:
            return BackendError(_LOCKED)
        self._stalls.stalled(client_id)
        return NotCarriedOut(_LOCKED)

    def seal(self) -> None:
        """Have the store refuse everyone, however often that must be tried."""
        while not self._closing.is_set():
            try:
                with connect_as_ours(self._address) as connection:
                    stop(connection, self._address, self.store_id, self.continuity.stopped)
                return
            except (psycopg.Error, OSError) as error:
                _log.debug("store_not_sealed", error=str(error))
                self._closing.wait(_LAST_RETRY_S)


def failed(error: Exception) -> BackendError:
    """Return the error as a backend's; its text may name hosts, never a credential."""
    lines = str(error).strip().splitlines()
    return BackendError(f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}")


def _fetch_all(
    pool: psycopg_pool.ConnectionPool[Any],
    packed: list[Packed],
    admit: Callable[..., None],
    within_s: float | None,
) -> list[list[Any]]:
    found: list[list[Any]] = []
    with pool.connection(
        None if within_s is None else patience(within_s, pool.timeout)
    ) as connection:
        admit(*packed)
        usual_s = connection.limit_s
        if within_s is not None:
            connection.limit_s = patience(within_s, usual_s)
        try:
            for at in range(0, len(packed), _IN_PIPELINE):
                with connection.pipeline() as pipeline:
                    cursors = []
                    for statement, arguments in packed[at : at + _IN_PIPELINE]:
                        text = _text(statement)
                        cursors.append(connection.execute(text, arguments, binary=True))
                        # The end of its transaction.
                        pipeline.sync()
                    found += [cursor.fetchall() for cursor in cursors]
        except NoAnswer:
            connection.close()
            raise
        finally:
            connection.limit_s = usual_s
    return found


async def _fetch_all_async(
    pool: psycopg_pool.AsyncConnectionPool[Any],
    packed: list[Packed],
    admit: Callable[..., None],
) -> list[list[Any]]:
    found: list[list[Any]] = []
    async with pool.connection() as connection:
        admit(*packed)
        try:
            for at in range(0, len(packed), _IN_PIPELINE):
                async with connection.pipeline() as pipeline:
                    cursors = []
                    for statement, arguments in packed[at : at + _IN_PIPELINE]:
                        text = _text(statement)
                        cursors.append(await connection.execute(text, arguments, binary=True))
                        await pipeline.sync()
                    found += [await cursor.fetchall() for cursor in cursors]
        except NoAnswer:
            await connection.close()
            raise
    return found


def _text(statement: bytes | Statement) -> bytes:
    return statement.text if isinstance(statement, Statement) else statement


def _was_lost(error: psycopg.OperationalError) -> bool:
    """Whether the connection broke, by itself or by the server's shutting down."""
    if isinstance(error, NoAnswer | psycopg_pool.PoolTimeout):
        return False
    return error.sqlstate is None or error.sqlstate.startswith(("57P", "08"))
