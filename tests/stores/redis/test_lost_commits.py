"""Redis' connection lost at EXEC, sync and async, through a real Toxiproxy (DESIGN §6)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.retry
import redis.backoff
import redis.retry

import rifl
import rifl.aio
from tests.stores.lost_commits import agrees, served, toxic

_NAMES = itertools.count()
_NEVER = redis.backoff.NoBackoff()


def _by_pipeline(port: int, effect: str, losing: Any) -> Any:
    def handler(request: bytes, context: Any) -> bytes:
        losing.ready()
        with (
            redis.Redis(port=port, retry=redis.retry.Retry(_NEVER, 0)) as books,
            books.pipeline() as transaction,
        ):
            rifl.record(context, b"done", transaction)
            transaction.incr(effect)
            losing.strike()
            transaction.execute()
        return b"done"

    return handler


def _by_async_pipeline(port: int, effect: str, losing: Any) -> Any:
    async def handler(request: bytes, context: Any) -> bytes:
        losing.ready()
        async with (
            redis.asyncio.Redis(port=port, retry=redis.asyncio.retry.Retry(_NEVER, 0)) as books,
            books.pipeline() as transaction,
        ):
            await rifl.aio.record(context, b"done", transaction)
            transaction.incr(effect)
            losing.strike()
            await transaction.execute()
        return b"done"

    return handler


@pytest.mark.parametrize("what", ["answer lost", "commit lost"])
@pytest.mark.parametrize(
    ("driver", "aio"),
    [(_by_pipeline, False), (_by_async_pipeline, True)],
    ids=["pipeline", "async pipeline"],
)
def test_effects_and_what_is_told_agree(shared_server, url, tmp_path, driver, aio, what):
    """The store is asked what became of EXEC, and its word is told (DESIGN §4, §6)."""
    effect = f"effect-{next(_NAMES)}"

    def effects():
        with shared_server.client() as client:
            return int(client.get(effect) or 0)

    # They may come before EXEC has arrived.
    before = len(b"+OK\r\n+QUEUED\r\n+QUEUED\r\n")
    with toxic(tmp_path, shared_server.port, before=before) as losing:
        handler = driver(losing.port, effect, losing)
        with served(url, handler, aio=aio) as target:
            agrees(target, losing, effects, what)
