"""A connection to Redis for what calls ask, whose commands are packed here.

redis-py spends more time on a command than Redis does: on its pool, on looking whether the
connection is fit for use, on packing some twenty arguments, on counting. Those who meet
(``combining``) take turns anyway, so a connection of their own needs no pool.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from itertools import chain
from typing import Any

import redis

from rifl._stores.redis.script_calls import Sent
from rifl._stores.shared.backend import patience
from rifl.core._shared.invariant import invariant

_HEAD = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n"
_PART = b"$%d\r\n%b\r\n"


def packed(sent: Sent) -> bytes:
    """Return EVALSHA commands as they travel (RESP): script and what follows it, each."""
    pieces: list[bytes] = []
    for script, parts in sent:
        count = len(parts)
        pieces.append(_HEAD % (2 + count, script.sha_bytes))
        # All parts in one step: there are twenty to a command.
        with_lengths = chain.from_iterable(zip(map(len, parts), parts, strict=True))
        pieces.append(_PART * count % tuple(with_lengths))
    return b"".join(pieces)


class PackedConnection:
    """For threads, one at a time; ``pool`` says how to connect.

    A connection that broke is made anew and the commands sent again, as often as the
    pool's connections would: carrying out a request twice is harmless.

    Invariants:

    1. One caller at a time.
    2. Every reply was to this caller's commands: a connection on which another's were not
       all read, since that one was interrupted, is not used again.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        # How long the caller may wait for replies (see ``patience``); and what was set.
        self.within_s: float | None = None
        self._most_s = self._limit_s = pool.connection_kwargs.get("socket_timeout", math.inf)
        self._pid = 0
        self._connection: Any = None
        self._turn = threading.Lock()
        self._read = True

    def exchange(self, sent: Sent) -> list[Any]:
        """Return the reply to each command, or Redis' error; raises for the connection's."""
        invariant(self._turn.acquire(blocking=False), "two callers on one line")
        try:
            connection, data = self._made(), packed(sent)
            if self._limit_s != self._most_s or self.within_s is not None:
                self._limit(connection)

            def once() -> list[Any]:
                if not self._read:
                    connection.disconnect()
                self._read = False
                connection.send_packed_command([data])
                replies = [_reply(connection) for _ in sent]
                self._read = True
                return replies

            replies: list[Any] = connection.retry.call_with_retry(
                once, lambda _: connection.disconnect()
            )
            return replies
        finally:
            self._turn.release()

    def _limit(self, connection: Any) -> None:
        """Have the connection wait for as long as the caller may, also while it is made anew."""
        limit_s = patience(self.within_s, self._most_s)
        if limit_s != self._limit_s:
            self._limit_s = limit_s
            connection.socket_timeout = connection.socket_connect_timeout = limit_s
            if connection.is_connected:
                connection._sock.settimeout(limit_s)

    def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None and self._pid == os.getpid():
            self._connection.disconnect()

    def _made(self) -> Any:
        if self._pid != os.getpid():
            # Not the parent's, if this process was forked.
            self._connection = self._pool.connection_class(**self._pool.connection_kwargs)
            self._pid, self._read = os.getpid(), True
            self._limit_s = self._most_s
        return self._connection


class AioPackedConnection:
    """The same for the tasks of one event loop."""

    def __init__(self, pool: Any) -> None:
        self._connection: Any = pool.connection_class(**pool.connection_kwargs)
        self._taken = False
        self._read = True

    async def exchange(self, sent: Sent) -> list[Any]:
        """Return the reply to each command, or Redis' error; raises for the connection's."""
        invariant(not self._taken, "two callers on one line")
        self._taken = True
        connection, data = self._connection, packed(sent)

        async def once() -> list[Any]:
            if not self._read:
                await connection.disconnect()
            self._read = False
            await connection.send_packed_command(data)
            replies = [await _reply_async(connection) for _ in sent]
            self._read = True
            return replies

        async def fail(_: Exception) -> None:
            await connection.disconnect()

        try:
            replies: list[Any] = await connection.retry.call_with_retry(once, fail)
            return replies
        finally:
            self._taken = False

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the connection go, on its loop."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(_disconnect, self._connection)


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


async def _reply_async(connection: Any) -> Any:
    try:
        return await connection.read_response()
    except redis.ResponseError as error:
        return error


def _disconnect(connection: Any) -> None:
    closing = asyncio.ensure_future(connection.disconnect())
    _CLOSING.add(closing)
    closing.add_done_callback(_CLOSING.discard)


# A task without a reference may be collected before it is done.
_CLOSING: set[Any] = set()
