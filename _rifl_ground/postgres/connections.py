"""Connections whose statements end in time, and the pools that hold them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, TypeVar

import psycopg
import psycopg_pool
from psycopg.rows import TupleRow, tuple_row

from _rifl_ground.postgres.address import PostgresAddress
from _rifl_ground.postgres.settings import SYNCED
from _rifl_ground.servers import Durability

_C = TypeVar("_C", bound=psycopg.Connection[Any])
_Gen = Generator[Any, Any, Any]
# After the server's own timeouts, which leave the connection usable.
_GRACE_S = 1.0
_CLOSE_S = 2.0
# We look again after we waited: each statement has a snapshot of its own.
_ISOLATED = "SET default_transaction_isolation = 'read committed'"
_GONE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time; the connection is of no more use."""


class _Connection(psycopg.Connection[TupleRow]):
    limit_s = math.inf
    # Names of the statements that it knows (``Statement``).
    prepared: set[bytes]

    def wait(self, gen: _Gen, *arguments: Any, **options: Any) -> Any:
        return super().wait(_limited(gen, self.limit_s), *arguments, **options)


class _AsyncConnection(psycopg.AsyncConnection[TupleRow]):
    limit_s = math.inf
    prepared: set[bytes]

    async def wait(self, gen: _Gen, *arguments: Any, **options: Any) -> Any:
        return await super().wait(_limited(gen, self.limit_s), *arguments, **options)


class _AsyncPool(psycopg_pool.AsyncConnectionPool[Any]):
    """A pool whose workers end with their loop.

    One that is cancelled while it connects takes that for a failed attempt and waits for
    the next, and ``asyncio.run`` waits for it: a program that never closed would not end.
    """

    @classmethod
    async def worker(cls, q: Any) -> None:
        """Run what the pool has to do, until it stops or the task was cancelled."""
        await super().worker(_Tasks(q))  # type: ignore[arg-type]  # all of a queue it needs


class _Tasks:
    """A worker's end of the pool's queue: nothing comes out for one that was cancelled."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    async def get(self) -> Any:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return await self._queue.get()


def _limited(gen: _Gen, limit_s: float) -> _Gen:
    """Pass a protocol generator on, but give up when the server stays silent.

    A socket to a suspended server may stay open without end: TCP allows that, and
    libpq has no such timeout.
    """
    end = time.monotonic() + limit_s
    try:
        state = next(gen)
        while True:
            ready = yield state
            # Nothing is ready: psycopg only looks whether to go on waiting.
            if not ready and time.monotonic() > end:
                gen.close()
                raise NoAnswer(f"no answer in {limit_s:g} s")
            state = gen.send(ready)
    except StopIteration as stop:
        return stop.value


class Greeting(NamedTuple):
    """What a new connection is asked, and who looks at the rows; ``judge`` does not raise.

    ``gone``: where there is nothing that could be asked; nor does this. A log's statements say so.
    """

    statement: bytes
    arguments: Callable[[], tuple[Any, ...]]
    judge: Callable[[Any, list[Any]], None]
    gone: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Tell what it means that the statement failed; roles of few rights may not ask."""
        try:
            yield
        except _GONE:
            self.gone()
        except psycopg.ProgrammingError:
            return


def connect(address: PostgresAddress) -> psycopg.Connection[TupleRow]:
    """Connect to listen, or for a user's own statements: all is as the database has it set."""
    return connect_as(psycopg.Connection, address)


def connect_as(kind: type[_C], address: PostgresAddress) -> _C:
    """Connect so by a class of connections."""
    return kind.connect(address.conninfo, autocommit=True, **_parameters(address))


def connect_as_ours(address: PostgresAddress) -> psycopg.Connection[TupleRow]:
    """Connect for our long statements, such as those that make a schema."""
    connection = connect(address)
    try:
        connection.execute(_ISOLATED)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_briefly(address: PostgresAddress) -> psycopg.Connection[TupleRow]:
    """Connect for short statements: ``NoAnswer`` if one has no answer in time.

    Nothing is set: a pool may lend the session to others.
    """
    connection = connect_as(_Connection, address)
    connection.limit_s = address.timeout_s + _GRACE_S
    return connection


class Pools:
    """Makes and keeps the pools: one for threads, one for each event loop.

    Bounded: a burst of calls waits for a connection instead of opening thousands. Safe
    in any thread.
    """

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        # For a signal's handler that closes in the middle of that: each line leaves all whole.
        self._lock = threading.RLock()
        self._setup = _settings_of(address)
        # Asked of every connection before it is used: it may be to another server.
        self.greeting: Greeting | None = None
        self.blocking = psycopg_pool.ConnectionPool(
            connection_class=_Connection, configure=self._configure, **self._options()
        )
        self._awaiting: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Any]] = (
            weakref.WeakKeyDictionary()
        )

    async def awaiting(self) -> psycopg_pool.AsyncConnectionPool[Any]:
        """Return the pool of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            opening = self._awaiting.get(loop)
            if opening is None:
                opening = self._awaiting[loop] = loop.create_task(self._open_awaiting())
        # A caller that is cancelled while the pool opens must not take it from the others.
        pool: psycopg_pool.AsyncConnectionPool[Any] = await asyncio.shield(opening)
        return pool

    def connect(self) -> psycopg.Connection[TupleRow]:
        """Connect outside the pool, set up and looked at as those in it are."""
        connection = _Connection.connect(
            self._address.conninfo, autocommit=True, **_parameters(self._address)
        )
        try:
            self._configure(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close what can be closed from here: other loops' pools on their loops."""
        self.blocking.close(_CLOSE_S)
        with self._lock:
            openings, self._awaiting = list(self._awaiting.items()), weakref.WeakKeyDictionary()
        for loop, opening in openings:
            if loop.is_running():
                loop.call_soon_threadsafe(_close, opening)

    async def _open_awaiting(self) -> psycopg_pool.AsyncConnectionPool[Any]:
        pool = _AsyncPool(
            connection_class=_AsyncConnection, configure=self._configure_async, **self._options()
        )
        await pool.open()
        return pool

    def _options(self) -> dict[str, Any]:
        address = self._address
        return {
            "conninfo": address.conninfo,
            "kwargs": {"autocommit": True, "row_factory": tuple_row, **_parameters(address)},
            "min_size": 1,
            "max_size": address.max_connections,
            "timeout": address.timeout_s,
            "open": False,
            "name": "rifl",
            "reconnect_timeout": 60.0,
        }

    def _configure(self, connection: Any) -> None:
        connection.limit_s, connection.prepared = self._address.timeout_s + _GRACE_S, set()
        connection.execute(self._setup)
        if self.greeting is not None:
            with self.greeting.errors():
                found = connection.execute(self.greeting.statement, self.greeting.arguments())
                self.greeting.judge(connection, found.fetchall())

    async def _configure_async(self, connection: Any) -> None:
        connection.limit_s, connection.prepared = self._address.timeout_s + _GRACE_S, set()
        await connection.execute(self._setup)
        if self.greeting is not None:
            with self.greeting.errors():
                found = await connection.execute(self.greeting.statement, self.greeting.arguments())
                self.greeting.judge(connection, await found.fetchall())


def _close(opening: asyncio.Task[Any]) -> None:
    closing = asyncio.ensure_future(_close_opened(opening))
    _CLOSING.add(closing)
    closing.add_done_callback(_CLOSING.discard)


async def _close_opened(opening: asyncio.Task[Any]) -> None:
    await (await opening).close(_CLOSE_S)


# A task without a reference may be collected before it is done.
_CLOSING: set[Any] = set()


def _parameters(address: PostgresAddress) -> dict[str, Any]:
    """Return libpq's parameters by which a peer that vanished is noticed."""
    given = address.conninfo
    wanted = {
        "connect_timeout": max(2, math.ceil(address.timeout_s)),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
        "application_name": "rifl",
    }
    return {name: value for name, value in wanted.items() if f"{name}=" not in given}


def _settings_of(address: PostgresAddress) -> str:
    """Return what each of our sessions sets, whatever the server's defaults are."""
    milliseconds = int(address.timeout_s * 1000)
    parts = [
        _ISOLATED,
        f"SET statement_timeout = {milliseconds}",
        f"SET lock_timeout = {max(1, milliseconds * 3 // 4)}",
    ]
    if address.durability is Durability.REQUIRE:
        parts.append(SYNCED.format("false"))
    else:
        # What our functions would see to (``durable_1``).
        parts.append("SET rifl.durability = 'warn'")
    return "; ".join(parts)
