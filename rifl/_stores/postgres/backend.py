"""The backend over PostgreSQL: each request a single statement over our functions (``sql/``)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import psycopg_pool

from rifl._log import get_logger
from rifl._stores.postgres.address import Durability, Pooler, PostgresAddress
from rifl._stores.postgres.connections import Greeting, NoAnswer, Pools
from rifl._stores.postgres.history import breaks, stop
from rifl._stores.postgres.poolers import is_pooled
from rifl._stores.postgres.settings import weakness
from rifl._stores.postgres.stalls import Stalls
from rifl._stores.postgres.statements import Statement
from rifl._stores.shared.backend import BackendError, NotCarriedOut, WentBackwards
from rifl._stores.shared.requests import (
    Abandon,
    Beat,
    Beats,
    Claim,
    Claimed,
    Ending,
    Finish,
    Finished,
    Found,
    Look,
    TakeBack,
)
from rifl.core._serving.policy import Kind
from rifl.core._shared.call import Call
from rifl.core._shared.identity import MAX_SEQ

_log = get_logger("rifl.store")
_SUBSCRIBE_TIMEOUT_S = 10.0
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0
_POLL_S = 0.5
# Each round has to be answered within the time of one statement.
_IN_PIPELINE = 100
_LOST = (
    "the database is another than it was, or has lost what it acknowledged (it was restored, "
    "or a stale standby was promoted)"
)
_LOCKED = "another session of the database holds a lock on the client's row, or the call's"
_Packed = tuple[bytes | Statement, tuple[Any, ...]]


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
        self._address = address
        self._history = history
        # Whether commits wait for a standby; None as long as nobody looked.
        self._copied: bool | None = None
        self._noted_copied: bool | None = None
        self.schema = address.schema
        self.pools = pools
        self.place = str(address)
        self.durable = address.durability is Durability.REQUIRE
        self._beats = 0
        self._stopped = ""
        self._stalls = Stalls()
        self._owner = ""
        self._closing = threading.Event()
        self._listener: threading.Thread | None = None
        self._claim = Statement(address.schema, "claim_2", _CLAIM_TYPES, _CLAIM_RESULTS)
        self._finish = Statement(address.schema, "finish_1", _FINISH_TYPES, "text bytea")
        self._expire = _statement(address.schema, "expire_1", "text bytea int8")
        self._take_back = _statement(address.schema, "finish_1", _FINISH_TYPES, f"ending, {_NOW}")
        self._weak = ""
        looked = f"{_NOW}, {address.schema}.copied_1(), {_SETTINGS}"
        self._beat = _statement(address.schema, "beat_2", _BEAT_TYPES, f"*, {looked}")
        # With what is known before it is asked: the beats go on meanwhile.
        behind = f"SELECT beats < %s::int8 FROM {address.schema}.replicas WHERE owner = %s"
        pools.greeting = Greeting(
            f"SELECT ({behind}), {address.schema}.history_1(), {_SETTINGS}".encode(),
            lambda: (self._beats, self._owner),
            self._greeted,
        )

    # -- Backend ------------------------------------------------------------------------

    def ask(self, request: Any) -> Any:
        """Carry out a request, blocking."""
        return self._read(request, self.rows(*self._pack(request)))

    async def ask_async(self, request: Any) -> Any:
        """Carry out a request on the running event loop."""
        statement, arguments = self._pack(request)
        self._check()
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

    def ask_all(self, requests: Sequence[Any]) -> list[Any]:
        """Carry out requests in pipelines: many statements a round trip, each one a transaction.

        In one transaction they would hold each other's rows, and batches of one client's
        could wait for one another in a ring.
        """
        try:
            packed = [self._pack(request) for request in requests]
            self._check()
            pool = self.pools.blocking
            try:
                found = _fetch_all(pool, packed, self._admit)
            except psycopg.OperationalError as error:
                if not _was_lost(error):
                    raise
                pool.check()
                found = _fetch_all(pool, packed, self._admit)
            return [self._read(*each) for each in zip(requests, found, strict=True)]
        except BackendError as error:
            return [error] * len(requests)
        except (psycopg.Error, OSError) as error:
            return [failed(error)] * len(requests)

    async def ask_all_async(self, requests: Sequence[Any]) -> list[Any]:
        """The same on the running event loop."""
        try:
            packed = [self._pack(request) for request in requests]
            self._check()
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
        """Let go of keyed calls whose retention is over; how many."""
        expired = self.rows(self._expire, (self.store_id, lost, limit))[0][0]
        if expired < 0:
            self._went_backwards()
        return int(expired)

    def listen(
        self, owner: str, wake: Callable[[bytes], None], resubscribed: Callable[[], None]
    ) -> None:
        """Listen; returns once that is confirmed, so that no wake is missed."""
        subscribed = threading.Event()
        self._owner = owner
        self._listener = threading.Thread(
            target=self._listen,
            args=(f'LISTEN "rifl_{owner}"'.encode(), wake, resubscribed, subscribed),
            name="rifl-listener",
            daemon=True,
        )
        self._listener.start()
        if not subscribed.wait(_SUBSCRIBE_TIMEOUT_S):
            raise BackendError("no session that listens could be made")

    def close(self) -> None:
        """Stop listening and close the pools."""
        self._closing.set()
        if self._listener is not None:
            # It hears this, and looks whether it is to go on.
            with contextlib.suppress(BackendError):
                self.rows(b"SELECT pg_notify(%s, '')", (f"rifl_{self._owner}",))
            self._listener.join(_SUBSCRIBE_TIMEOUT_S)
        self.pools.close()

    # -- statements ---------------------------------------------------------------------

    def rows(self, statement: bytes | Statement, arguments: tuple[Any, ...]) -> list[Any]:
        """Carry out one statement, blocking; raises ``BackendError``.

        It is repeated if the connection was lost: repeating must be harmless.
        """
        self._check()
        pool = self.pools.blocking
        try:
            try:
                return self._fetch(pool, statement, arguments)
            except psycopg.errors.LockNotAvailable as error:
                # The first time it was sent: nothing is left of it.
                raise self._locked(statement, arguments) from error
            except psycopg.OperationalError as error:
                if not _was_lost(error):
                    raise
                pool.check()
                try:
                    return self._fetch(pool, statement, arguments)
                except NotCarriedOut as refused:
                    # Of the second time; the first may have been carried out.
                    raise BackendError(str(refused)) from refused
        except (psycopg.Error, OSError) as error:
            raise failed(error) from error

    def _fetch(
        self,
        pool: psycopg_pool.ConnectionPool[Any],
        statement: bytes | Statement,
        arguments: tuple[Any, ...],
    ) -> list[Any]:
        # As pool.connection() does, but for the end of a transaction: there is none.
        connection = pool.getconn()
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

    def _check(self) -> None:
        if self._stopped:
            raise WentBackwards(self._stopped)

    # -- requests -----------------------------------------------------------------------

    def _pack(self, request: Any) -> _Packed:
        if isinstance(request, Claim):
            return self._claim, (self.store_id, *_claim_arguments(request))
        if isinstance(request, Finish | Abandon | Look):
            record = request.record if isinstance(request, Finish) else None
            arguments = (*identity_of(request.call), request.token.decode(), record)
            fingerprint = request.call.fingerprint or b""
            how = request.how if isinstance(request, Finish) else _ENDS[type(request)]
            return self._finish, (self.store_id, *arguments, how, fingerprint)
        if isinstance(request, TakeBack):
            taken = (*identity_of(request.call), request.token.decode(), None, "abandon", b"")
            return self._take_back, (self.store_id, *taken)
        if isinstance(request, Beat):
            owners = [owner for owner, _ in request.dead]
            beats = [count for _, count in request.dead]
            return self._beat, (
                self.store_id,
                request.owner,
                self._beats,
                request.leaving,
                owners,
                beats,
                request.reading_s,
            )
        raise TypeError(f"not a request: {request!r}")

    def _read(self, request: Any, rows: list[Any]) -> Any:
        if isinstance(request, Beat):
            beats = {owner: count for owner, count, *_ in rows}
            if "" in beats:
                self._went_backwards()
            # Beats are carried out one after the other.
            self._beats = beats.get(request.owner, self._beats)
            if rows:
                self._copied = rows[0][3]
                self._judge(rows[0][4:])
            return Beats(beats, rows[0][2] if rows else 0.0)
        status, *rest = rows[0]
        if status == "backwards":
            self._went_backwards()
        if isinstance(request, TakeBack):
            return rest[0]
        if isinstance(request, Claim):
            self._stalls.moved(request.call.client_id)
            noted = status != "recording"
            found = Found(status) if noted else Found.RUNNING
            if found is Found.RUNNING:
                token, owner, kind = rest[:3]
                return Claimed(found, token.encode(), owner, Kind(kind), noted=noted)
            if found is Found.COMPLETED:
                return Claimed(found, record=rest[3], verified=rest[4])
            return Claimed(found)
        ending = Ending(status)
        return Finished(ending, rest[0] if ending is Ending.STANDS else b"")

    def _greeted(self, connection: Any, rows: list[Any]) -> None:
        behind, history, *settings = rows[0]
        self._judge(settings)
        if self._address.pooler is Pooler.NONE and is_pooled(connection, settings[-1]):
            self._weak = self._weak or "a pooler stands between, which may be in transaction mode"
        # Without a row, others took this replica for dead: that says nothing.
        if behind:
            self._note_lost(_LOST)
        elif broken := breaks(self._history, history, copied=bool(self._copied)):
            if self.durable:
                self._note_lost(broken)
            else:
                _log.critical("store_may_have_lost", store=self.place, reason=broken)
                self._history = history
        elif history and history != self._history:
            _log.warning("store_failed_over", store=self.place, was=self._history, now=history)
            self._history = history

    def _went_backwards(self) -> None:
        self._note_lost(_LOST)
        raise WentBackwards(self._stopped)

    def _note_lost(self, reason: str) -> None:
        if not self._stopped:
            self._stopped = f"{reason}: calls may not be run again"
            _log.critical("store_went_backwards", error=self._stopped)

    def look_again(self) -> str:
        """Keep what the store says of its copies true; see ``Backend``."""
        if self._copied is not None and self._copied != self._noted_copied:
            self.rows(
                f"UPDATE {self.schema}.meta SET value = %s WHERE name = 'copied' "
                "RETURNING name".encode(),
                (str(self._copied).lower(),),
            )
            self._noted_copied = self._copied
        return self._weak

    def _judge(self, settings: Sequence[Any]) -> None:
        if self.durable:
            self._weak = weakness(dict(zip(("fsync", "full_page_writes"), settings, strict=False)))

    def _admit(self, *packed: _Packed) -> None:
        """Raise for what is only of use if it is durable, where the server is not.

        And for a client whose row is locked, but one claim at a time. With the
        connection at hand: it was looked at, and may be to another server; and whoever
        waited for it may have heard since.
        """
        self._check()
        if self._weak and any(self._needs_disk(*each) for each in packed):
            raise BackendError(f"the store is not durable: {self._weak}")
        # All of one client's.
        statement, arguments = packed[0]
        claims = bool(self._stalls) and statement is self._claim
        if claims and not self._stalls.may_try(arguments[_CLIENT]):
            raise NotCarriedOut(_LOCKED)

    def _needs_disk(self, statement: bytes | Statement, arguments: tuple[Any, ...]) -> bool:
        if statement is self._finish:
            return bool(arguments[_ENDING] == "finish")
        return statement is self._claim and not arguments[_REFUSING]

    def _locked(self, statement: bytes | Statement, arguments: tuple[Any, ...]) -> BackendError:
        if statement is not self._claim:
            return BackendError(_LOCKED)
        self._stalls.stalled(arguments[_CLIENT])
        return NotCarriedOut(_LOCKED)

    def seal(self) -> None:
        """Have the store refuse everyone, however often that has to be tried."""
        while not self._closing.is_set():
            try:
                with self.pools.listener() as connection:
                    stop(connection, self._address, self.store_id, self._stopped)
                return
            except (psycopg.Error, OSError) as error:
                _log.debug("store_not_sealed", error=str(error))
                self._closing.wait(_LAST_RETRY_S)

    # -- messages -----------------------------------------------------------------------

    def _listen(
        self,
        statement: bytes,
        wake: Callable[[bytes], None],
        resubscribed: Callable[[], None],
        subscribed: threading.Event,
    ) -> None:
        delay_s = _FIRST_RETRY_S
        while not self._closing.is_set():
            try:
                with self.pools.listener() as connection:
                    connection.execute(statement)
                    resubscribed()
                    subscribed.set()
                    delay_s = _FIRST_RETRY_S
                    while not self._closing.is_set():
                        for message in connection.notifies(timeout=_POLL_S, stop_after=1):
                            wake(message.payload.encode())
            except (psycopg.Error, OSError) as error:
                _log.debug("listener_lost", error=str(error))
                self._closing.wait(delay_s)
                delay_s = min(2 * delay_s, _LAST_RETRY_S)


def identity_of(call: Call) -> tuple[int, int, bytes]:
    """Return what a call is filed under: client id, seq (0 for a key), key."""
    return call.client_id, call.seq or 0, call.key or b""


def failed(error: Exception) -> BackendError:
    """Return the error as a backend's; its text may name hosts, never a credential."""
    lines = str(error).strip().splitlines()
    return BackendError(f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}")


def _statement(schema: str, function: str, types: str, wanted: str = "*") -> bytes:
    parameters = ", ".join(f"%s::{name}" for name in types.split())
    return f"SELECT {wanted} FROM {schema}.{function}({parameters})".encode()


_NOW = "extract(epoch FROM clock_timestamp())::float8"


# Of the server, and of the session: by its process a pooler shows.
_SETTINGS = "current_setting('fsync'), current_setting('full_page_writes'), pg_backend_pid()"
# Where these are among the arguments.
_CLIENT, _ENDING, _REFUSING = 1, 6, 11
_CLAIM_TYPES = (
    "text int8 int8 bytea int8 int8multirange bytea text text text text bool int8 int8 int8 "
    "text bytea float8 float8"
)
_CLAIM_RESULTS = "text text text text bytea bool"
_FINISH_TYPES = "text int8 int8 bytea text bytea text bytea"
_BEAT_TYPES = "text text int8 bool text[] int8[] float8"
_ENDS = {Abandon: "abandon", Look: "look"}


def _claim_arguments(request: Claim) -> tuple[Any, ...]:
    call = request.call
    # The last seq of all has no successor to end a range with.
    ranges = ",".join(
        f"[{first},{'' if last == MAX_SEQ else last + 1})" for first, last in call.completed
    )
    return (
        *identity_of(call),
        call.first_incomplete,
        f"{{{ranges}}}",
        call.fingerprint or b"",
        call.method,
        request.kind.value,
        request.token.decode(),
        request.owner,
        request.refusing,
        request.window,
        request.max_keys,
        request.max_key_bytes,
        request.take_over.decode(),
        request.lost,
        request.retention_s,
        request.until_s,
    )


def _fetch_all(
    pool: psycopg_pool.ConnectionPool[Any],
    packed: list[_Packed],
    admit: Callable[..., None],
) -> list[list[Any]]:
    found: list[list[Any]] = []
    with pool.connection() as connection:
        admit(*packed)
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
    return found


async def _fetch_all_async(
    pool: psycopg_pool.AsyncConnectionPool[Any],
    packed: list[_Packed],
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
