"""The measured method: the same small body, guarded in every way compared.

A kind of rifl's (``plain``, ``idempotent``, ``atomic``) is what the method is declared
as; ``shared`` is ``atomic`` in a transaction that calls share, ``unclaimed`` is ``idempotent``
without a claim. The others have no rifl
around them, only what people use in its place:

- ``transaction``: the handler's own transaction, as ``atomic`` has it;
- ``inserted``: the same in PostgreSQL, with what one would write by hand in the message of its
  commit: the caller's row is locked, and the answer inserted under the call's key;
- ``guard``: the usual ``SET key NX`` in Redis, the answer kept under the same key;
- ``powertools``: AWS Powertools' ``idempotent_function`` with its Redis layer;
- ``dbos``: a DBOS workflow of one step, its system database in SQLite.

The last four are told a key of the call's own by the header ``idempotency-key``.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import warnings
from collections.abc import Callable
from typing import Any

import grpc

import rifl
import rifl.aio
from benchmarks.by_hand import InsertedAio, answer_to, inserted, key_of
from rifl._stores.sqlite.address import path_of
from rifl.v1 import rifl_pb2

__all__ = ["OTHERS", "Behavior", "behavior_of"]

Request = rifl_pb2.MetadataEntry
Behavior = Callable[[Request, Any], Any]
OTHERS = ("transaction", "inserted", "guard", "powertools", "dbos")
_KEPT_S = 3600
_IN_PROGRESS = b""


def behavior_of(kind: str, url: str, flavor: str) -> Behavior:
    """Return the method's handler: a coroutine function on ``aio``, if it has such a form.

    ``url``: the database it uses itself, of the kind that it needs.
    """
    aio = flavor == "aio"
    if kind == "shared":
        return (_SharedAioEffects if aio else _SharedEffects)(url).reply
    if kind in ("atomic", "transaction"):
        recorded = kind == "atomic"
        if url.startswith("sqlite:"):
            # A transaction of sqlite3's blocks: in the server's pool, as any plain function.
            return _SqliteEffects(url, recorded).reply
        return _PostgresAioEffects(url, recorded).reply if aio else _postgres(url, recorded)
    if kind == "inserted":
        return InsertedAio(url).reply if aio else inserted(url)
    if kind == "guard":
        return _AioGuard(url).reply if aio else _guard(url)
    if kind == "powertools":
        return _powertools(url)
    if kind == "dbos":
        return _dbos(url)
    return _reply_aio if aio else _reply


def _reply(request: Request, _: Any) -> Request:
    return answer_to(request)


async def _reply_aio(request: Request, _: Any) -> Request:
    return answer_to(request)


class _SqliteEffects:
    """A row of the handler's own, with the call's record or without, in one transaction."""

    def __init__(self, url: str, recorded: bool) -> None:
        self._path = path_of(url)
        self._recorded = recorded
        self._of_thread = threading.local()
        with self._connection() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("CREATE TABLE IF NOT EXISTS effect (value BLOB)")

    def reply(self, request: Request, context: Any) -> Request:
        """Carry out one call."""
        answer = answer_to(request)
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO effect VALUES (?)", (request.value,))
            if self._recorded:
                rifl.record(context, answer, connection)
        return answer

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = self._of_thread.connection = sqlite3.connect(
                self._path, timeout=30.0, isolation_level="IMMEDIATE"
            )
            connection.execute("PRAGMA synchronous=FULL")
        return connection


_INSERT = "INSERT INTO effect VALUES (?)"


class _SharedEffects:
    """The row and the record in a transaction that calls share."""

    def __init__(self, url: str) -> None:
        with sqlite3.connect(path_of(url)) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS effect (value BLOB)")

    def reply(self, request: Request, context: Any) -> Request:
        """Carry out one call."""
        answer = answer_to(request)
        with rifl.transaction(context) as connection:
            connection.execute(_INSERT, (request.value,))
            rifl.record(context, answer, connection)
        return answer


class _SharedAioEffects(_SharedEffects):
    """The same for a coroutine."""

    async def reply(self, request: Request, context: Any) -> Request:  # type: ignore[override]  # awaited
        """Carry out one call."""
        answer = answer_to(request)
        async with rifl.aio.transaction(context) as connection:
            connection.execute(_INSERT, (request.value,))
            await rifl.aio.record(context, answer, connection)
        return answer


def _postgres(url: str, recorded: bool) -> Behavior:
    import psycopg

    of_thread = threading.local()

    def connect() -> psycopg.Connection[Any]:
        connection = of_thread.connection = psycopg.connect(url)
        return connection

    with connect() as first:
        first.execute("CREATE TABLE IF NOT EXISTS effect (value bytea)")

    def reply(request: Request, context: Any) -> Request:
        connection = getattr(of_thread, "connection", None)
        if connection is None or connection.closed:
            connection = connect()
        answer = answer_to(request)
        block: Any = rifl.transaction(context, connection) if recorded else connection.transaction()
        with block:
            connection.execute("INSERT INTO effect VALUES (%s)", (request.value,))
            if recorded:
                rifl.record(context, answer, connection)
        return answer

    return reply


class _PostgresAioEffects:
    """The same on an event loop, with a pool of connections."""

    def __init__(self, url: str, recorded: bool) -> None:
        import psycopg
        import psycopg_pool

        self._recorded = recorded
        self._pool = psycopg_pool.AsyncConnectionPool(url, max_size=16, open=False)
        self._opened = False
        with psycopg.connect(url) as first:
            first.execute("CREATE TABLE IF NOT EXISTS effect (value bytea)")

    async def reply(self, request: Request, context: Any) -> Request:
        """Carry out one call."""
        if not self._opened:
            self._opened = True
            await self._pool.open()
        answer = answer_to(request)
        async with self._pool.connection() as connection:
            block: Any = (
                rifl.aio.transaction(context, connection)
                if self._recorded
                else connection.transaction()
            )
            async with block:
                await connection.execute("INSERT INTO effect VALUES (%s)", (request.value,))
                if self._recorded:
                    await rifl.aio.record(context, answer, connection)
        return answer


def _guard(url: str) -> Behavior:
    import redis

    client = redis.Redis.from_url(url)

    def reply(request: Request, context: Any) -> Request:
        key = key_of(context)
        if not client.set(key, _IN_PROGRESS, nx=True, ex=_KEPT_S):
            return _kept(client.get(key), context)
        answer = answer_to(request)
        client.set(key, answer.SerializeToString(), ex=_KEPT_S)
        return answer

    return reply


class _AioGuard:
    """The hand-written guard on an event loop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None

    async def reply(self, request: Request, context: Any) -> Request:
        """Carry out one call."""
        if self._client is None:
            import redis.asyncio

            self._client = redis.asyncio.Redis.from_url(self._url)
        key = key_of(context)
        if not await self._client.set(key, _IN_PROGRESS, nx=True, ex=_KEPT_S):
            return _kept(await self._client.get(key), context)
        answer = answer_to(request)
        await self._client.set(key, answer.SerializeToString(), ex=_KEPT_S)
        return answer


def _kept(found: Any, context: Any) -> Request:
    if not found:
        # On a grpc.aio context this would be awaited; no call here is ever repeated.
        context.abort(grpc.StatusCode.ABORTED, "it runs")
    return Request.FromString(found)


def _powertools(url: str) -> Behavior:
    import redis
    from aws_lambda_powertools.utilities.idempotency import (
        IdempotencyConfig,
        idempotent_function,
    )
    from aws_lambda_powertools.utilities.idempotency.persistence.redis import (
        RedisCachePersistenceLayer,
    )

    # It wants to know how long a Lambda function may still run, and says so each time.
    warnings.simplefilter("ignore")
    layer = RedisCachePersistenceLayer(client=redis.Redis.from_url(url, decode_responses=True))

    def answered(event: dict[str, str]) -> dict[str, str]:
        return {"account": event["account"], "value": event["value"]}

    body: Any = idempotent_function(
        answered,
        data_keyword_argument="event",
        persistence_store=layer,
        config=IdempotencyConfig(event_key_jmespath="key", expires_after_seconds=_KEPT_S),
    )

    def reply(request: Request, context: Any) -> Request:
        # It keeps JSON.
        event = {"key": key_of(context), "account": request.key, "value": request.value.hex()}
        done = body(event=event)
        return Request(key=done["account"], value=bytes.fromhex(done["value"]))

    return reply


def _dbos(url: str) -> Behavior:
    from dbos import DBOS, SetWorkflowID

    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})

    def answered(account: str, value: bytes) -> tuple[str, bytes]:
        return account, value

    body: Any = DBOS.step()(answered)

    def handled(account: str, value: bytes) -> Any:
        return body(account, value)

    handle: Any = DBOS.workflow()(handled)

    logging.getLogger("dbos").setLevel(logging.ERROR)
    DBOS.launch()

    def reply(request: Request, context: Any) -> Request:
        with SetWorkflowID(key_of(context)):
            account, value = handle(request.key, request.value)
        return Request(key=account, value=value)

    return reply
