"""A transaction of the handler's own that is answered once, as one would write it by hand.

In PostgreSQL: what travels with its commit locks the caller's row, and inserts the answer under
the call's key. So much is what rifl adds in the place of a claim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rifl.v1 import rifl_pb2

__all__ = ["BY_HAND", "InsertedAio", "answer_to", "inserted", "inserting", "key_of"]

Request = rifl_pb2.MetadataEntry
# What it needs.
BY_HAND = (
    "CREATE TABLE IF NOT EXISTS effect (value bytea)",
    "CREATE TABLE IF NOT EXISTS caller (id int PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS answered (key text PRIMARY KEY, answer bytea)",
    "INSERT INTO caller VALUES (1) ON CONFLICT DO NOTHING",
)


def inserting(key: str, answer: Request) -> bytes:
    """Return the last message: without parameters, so that it may be several statements."""
    values = f"'{key}', '\\x{answer.SerializeToString().hex()}'"
    locked = "SELECT FROM caller WHERE id = 1 FOR KEY SHARE"
    return f"{locked}; INSERT INTO answered VALUES ({values}); COMMIT".encode()  # noqa: S608 - ours


def inserted(url: str) -> Callable[[Request, Any], Request]:
    """Return a handler whose last message does so, for a thread."""
    import psycopg

    of_thread = threading.local()
    with psycopg.connect(url) as first:
        for statement in BY_HAND:
            first.execute(statement)

    def reply(request: Request, context: Any) -> Request:
        connection = getattr(of_thread, "connection", None)
        if connection is None:
            connection = of_thread.connection = psycopg.connect(url, autocommit=True)
        answer = answer_to(request)
        connection.execute("BEGIN")
        connection.execute("INSERT INTO effect VALUES (%s)", (request.value,))
        connection.execute(inserting(key_of(context), answer))
        return answer

    return reply


class InsertedAio:
    """The same on an event loop, with a pool of connections."""

    def __init__(self, url: str) -> None:
        import psycopg
        import psycopg_pool

        self._pool = psycopg_pool.AsyncConnectionPool(
            url, max_size=16, open=False, kwargs={"autocommit": True}
        )
        self._opened = False
        with psycopg.connect(url) as first:
            for statement in BY_HAND:
                first.execute(statement)

    async def reply(self, request: Request, context: Any) -> Request:
        """Carry out one call."""
        if not self._opened:
            self._opened = True
            await self._pool.open()
        answer = answer_to(request)
        async with self._pool.connection() as connection:
            await connection.execute("BEGIN")
            await connection.execute("INSERT INTO effect VALUES (%s)", (request.value,))
            await connection.execute(inserting(key_of(context), answer))
        return answer


def key_of(context: Any) -> str:
    """Return the call's ``idempotency-key``."""
    for name, value in context.invocation_metadata():
        if name == "idempotency-key":
            return str(value)
    raise ValueError("the call has no key")


def answer_to(request: Request) -> Request:
    """Return what every handler answers."""
    return Request(key=request.key, value=request.value)
