"""``rifl.record`` and ``rifl.commit``: the record in the handler's own transaction (§6)."""

from __future__ import annotations

import inspect
from typing import Any

from rifl.core.record import CompletionRecord
from rifl.core.serving import bounded
from rifl.server.context import CURRENT, Noted
from rifl.stores.transactions import committer

__all__ = ["commit", "commit_async", "record", "record_async"]


def record(context: Any, reply: Any, transaction: Any) -> None:
    """Write the call's completion record inside ``transaction``.

    For handlers of methods declared ``atomic``; to be called once, before the
    transaction commits. ``transaction`` is what holds it, in the method's database
    and not in autocommit: a connection or cursor of sqlite3 or psycopg, a SQLAlchemy
    ``Session`` or ``Connection`` over one of them, any other DB-API connection named by
    ``rifl.DbApiTransaction``; or a redis-py pipeline of the store's Redis, still empty
    (WATCH and read first, then record, then queue the effects; the record's result
    comes first). When it commits, ``reply`` (with the trailing metadata set so far) is
    the answer to this and every later attempt; when it rolls back, nothing happened
    and the call stays new. Does nothing for a call without an identity.

    Raises, and then the handler must not commit: ``WrongDatabase`` for another
    database or autocommit; ``StaleRpc`` if a record stands already, the client
    acknowledged the call, or another server owns the store. May be called in any
    thread that holds the handler's context.
    """
    if (noted := _noted(context)) is not None:
        store = noted.rifl_serving.store
        store.record_in(noted.rifl_attempt, _completion(noted, reply), transaction)


async def record_async(context: Any, reply: Any, transaction: Any) -> None:
    """``record`` for asynchronous transactions; blocking ones work too.

    aiosqlite, psycopg's ``AsyncConnection`` and its cursors, SQLAlchemy's
    ``AsyncSession`` and ``AsyncConnection`` over them, pipelines of ``redis.asyncio``.
    """
    if (noted := _noted(context)) is not None:
        store = noted.rifl_serving.store
        await store.record_in_async(noted.rifl_attempt, _completion(noted, reply), transaction)


def commit(context: Any, reply: Any, transaction: Any) -> None:
    """Write the call's completion record inside ``transaction``, and commit that.

    For handlers of methods declared ``atomic``: ``record``, then the transaction's own
    ``commit``, in one call, the last of the transaction. Over a psycopg connection or
    cursor both take one round trip, and since the answer to the commit is seen here,
    nothing is read back after the handler; everywhere else it is the same as the two.
    Not within a block that commits at its end (psycopg's ``connection.transaction()``):
    ``record`` there. Redis pipelines have ``record`` only. For a call without an
    identity the transaction is committed all the same.

    Raises what ``record`` raises, and then the handler has to roll back, as after any
    error in the transaction: nothing was committed. An error of the driver's may leave
    that open, as with any commit: the store finds out what became of it.
    """
    if (noted := _noted(context)) is None:
        committer(transaction)()
        return
    store = noted.rifl_serving.store
    store.commit_in(noted.rifl_attempt, _completion(noted, reply), transaction)


async def commit_async(context: Any, reply: Any, transaction: Any) -> None:
    """``commit`` for asynchronous transactions; blocking ones work too."""
    if (noted := _noted(context)) is None:
        if inspect.isawaitable(done := committer(transaction)()):
            await done
        return
    store = noted.rifl_serving.store
    await store.commit_in_async(noted.rifl_attempt, _completion(noted, reply), transaction)


def _noted(context: Any) -> Noted | None:
    # Another interceptor may have wrapped the context once more.
    return context if isinstance(context, Noted) else CURRENT.get()


def _completion(noted: Noted, reply: Any) -> CompletionRecord:
    serialize = noted.rifl_serving.serialize
    completion = CompletionRecord(
        response=reply if serialize is None else serialize(reply),
        initial_metadata=noted.noted_initial,
        trailing_metadata=noted.noted_trailing,
    )
    return bounded(completion, noted.rifl_attempt)
