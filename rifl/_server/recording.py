"""``rifl.record``: the completion record in the handler's own transaction (DESIGN §6)."""

from __future__ import annotations

from typing import Any

from rifl._server.context import Noted, noted_of
from rifl._server.handler_results import message_bytes
from rifl._stores.errors import TransactionEnded
from rifl.core._serving.answer import bounded
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.sendable import sendable
from rifl.core._shared.errors import StaleRpc
from rifl.core._shared.record import CompletionRecord


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
    and the call stays new. Does nothing for a call without an identity. Within a
    ``rifl.transaction`` it only keeps the answer, which that writes at its end.

    Raises, and then the handler must not commit: ``WrongDatabase`` for another
    database or autocommit; ``TransactionEnded`` after a ``rifl.transaction`` of the
    call raised it; ``StaleRpc`` if a record stands already, the client acknowledged
    the call, or another server owns the store. May be called in any
    thread that holds the handler's context.
    """
    if (noted := noted_of(context)) is None:
        return
    check_not_ended(noted)
    completion = _completion(noted, reply)
    if noted.rifl_held is not None:
        noted.rifl_held.hold(completion, transaction)
        return
    if noted.rifl_undone and not _in_block(noted):
        # The handler's own transaction: its outcome is not visible here.
        noted.rifl_undone = False
    # What commits it is the handler's: it may begin as soon as this returns.
    noted.rifl_attempt.committing = True
    noted.rifl_serving.transactions.record(noted.rifl_attempt, completion, transaction)


async def record_async(context: Any, reply: Any, transaction: Any) -> None:
    """``record`` for asynchronous transactions; blocking ones work too.

    aiosqlite, psycopg's ``AsyncConnection`` and its cursors, asyncpg's connections,
    SQLAlchemy's ``AsyncSession`` and ``AsyncConnection`` over them, pipelines of
    ``redis.asyncio``.
    """
    if (noted := noted_of(context)) is None:
        return
    check_not_ended(noted)
    completion = _completion(noted, reply)
    if noted.rifl_held is not None:
        noted.rifl_held.hold(completion, transaction)
        return
    if noted.rifl_undone and not _in_block(noted):
        # The handler's own transaction: its outcome is not visible here.
        noted.rifl_undone = False
    # What commits it is the handler's: it may begin as soon as this returns.
    noted.rifl_attempt.committing = True
    await noted.rifl_serving.transactions.record_async(noted.rifl_attempt, completion, transaction)


def check_not_revoked(attempt: Attempt) -> None:
    """Raise ``StaleRpc`` where the handler was given up: it commits nothing more."""
    if attempt.revoked:
        raise StaleRpc(
            "the handler did not end, and its message was passed over: nothing of it is committed"
        )


def check_not_ended(noted: Noted) -> None:
    """Raise ``TransactionEnded`` where the call may have committed what it did, without a record.

    Its outcome is unknown by now, for good. Raise ``StaleRpc`` where the handler was given up.
    """
    attempt = noted.rifl_attempt
    if attempt.doubt:
        raise TransactionEnded(f"{attempt.doubt}: there is no other transaction for this call")
    if attempt.revoked:
        check_not_revoked(attempt)


def _in_block(noted: Noted) -> bool:
    blocks = noted.rifl_serving.store.shared_blocks
    return blocks is not None and blocks.has_block(noted.rifl_attempt)


def _completion(noted: Noted, reply: Any) -> CompletionRecord:
    serialize, attempt = noted.rifl_serving.serialize, noted.rifl_attempt
    response = message_bytes(reply if serialize is None else serialize(reply))
    if not noted.spoke:
        return bounded(CompletionRecord(response=response), attempt)
    completion = CompletionRecord(
        response=response,
        initial_metadata=noted.noted_initial,
        trailing_metadata=noted.noted_trailing,
    )
    return bounded(sendable(completion, attempt.policy.max_metadata_bytes), attempt)
