"""``rifl.record``: the completion record in the handler's own transaction (DESIGN §6)."""

from __future__ import annotations

from typing import Any

from rifl.core.record import CompletionRecord
from rifl.core.serving import bounded
from rifl.server.context import CURRENT, Serving

__all__ = ["record", "record_async"]


def record(context: Any, reply: Any, transaction: Any) -> None:
    """Write the call's completion record inside ``transaction``.

    For handlers of methods declared ``atomic``; to be called once, before the
    transaction commits. ``transaction`` is the connection that holds it: a
    ``sqlite3.Connection`` to the method's database, not in autocommit. When it
    commits, ``reply`` (with the trailing metadata set so far) is the answer to
    this and every later attempt; when it rolls back, nothing happened and the
    call stays new. Does nothing for a call without an identity.

    Raises, and then the handler must not commit: ``WrongDatabase`` for another
    database or autocommit; ``StaleRpc`` if a record stands already, the client
    acknowledged the call, or another server owns the store. May be called in any
    thread that holds the handler's context.
    """
    if (serving := _serving(context)) is not None:
        serving.store.record_in(serving.attempt, _record(serving, context, reply), transaction)


async def record_async(context: Any, reply: Any, transaction: Any) -> None:
    """``record`` for asynchronous connections (aiosqlite; sqlite3 works too)."""
    if (serving := _serving(context)) is not None:
        await serving.store.record_in_async(
            serving.attempt, _record(serving, context, reply), transaction
        )


def _serving(context: Any) -> Serving | None:
    serving: Serving | None = getattr(context, "rifl_serving", None)
    return CURRENT.get() if serving is None else serving


def _record(serving: Serving, context: Any, reply: Any) -> CompletionRecord:
    response = reply if serving.serialize is None else serving.serialize(reply)
    completion = CompletionRecord(
        response=response,
        initial_metadata=getattr(context, "noted_initial", ()),
        trailing_metadata=getattr(context, "noted_trailing", ()),
    )
    return bounded(completion, serving.attempt)
