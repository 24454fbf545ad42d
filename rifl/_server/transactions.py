"""``rifl.transaction``: the handler's transaction, the call's record and the commit (DESIGN §6)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from _rifl_ground.counting import noted
from _rifl_ground.drivers import is_asyncpg
from rifl._server.context import Noted, noted_of
from rifl._server.recording import check_not_ended, check_not_revoked
from rifl._stores.drivers import check_blocking, committer, holder
from rifl._stores.errors import TransactionEnded, WrongDatabase
from rifl._stores.rows import RowCall
from rifl._stores.transactions import DriverTransactions, SharedBlocks
from rifl.core._shared.errors import NotRecorded
from rifl.core._shared.record import CompletionRecord

_AIO = "async with rifl.aio.transaction(...)"


def transaction(context: Any, connection: Any = None) -> AbstractContextManager[Any]:
    """Make a block the handler's transaction, for methods declared ``atomic``.

    ::

        with rifl.transaction(context, connection):
            connection.execute(...)
            rifl.record(context, reply, connection)

    The transaction begins and ends with the block, on a connection that has none open
    (psycopg's, in autocommit or not; SQLAlchemy's ``Session`` or ``Connection``; sqlite3's, in
    autocommit begun by hand; a ``DbApiTransaction``). No other code commits it or rolls it back.
    ``rifl.record`` gives the answer, once; it is written at the end, with the commit. Over
    psycopg both take one round trip, and the block sees the commit's own answer, so it reads
    nothing back. Other drivers work as they do without the block. Yields the connection. For
    a call without an identity it is a plain transaction.

    An exception, or a missing ``rifl.record`` (``NotRecorded``), rolls it back: nothing
    happened. At its end it raises what ``rifl.record`` raises, and is rolled back; or an
    error of the driver's, which may leave open whether it committed: the store finds
    that out before the call is answered. Not thread-safe, like the connection.

    Within it, ``commit()``, SQL's COMMIT and their like are refused if that is possible: over
    sqlite3 by an authorizer, which replaces the connection's own. A handler that ends the
    transaction all the same gets ``TransactionEnded`` at the block's end. If something may be
    committed without the record, the call's outcome stays unknown.

    Without ``connection``, on SQLite, the calls of all threads share transactions, one
    commit and one fsync for many of them::

        with rifl.transaction(context) as connection:

    They take turns, in the order they came, each in a savepoint of its own, and see what
    those before them did; a block that takes long blocks all others. It yields an object with
    ``execute``, ``executemany``, ``cursor`` and ``row_factory`` of a ``sqlite3.Connection``,
    until the block ends. Ending the transaction, other databases and settings of the
    connection are refused; foreign keys are enforced on it if the database's URL says
    ``?foreign_keys=on``. Blocks cannot be nested. A block that is still open when the handler
    ends is rolled back.

    On PostgreSQL it is for messages that a player delivers only: the pending messages of a
    substream share a transaction on a psycopg connection of the store's, which it yields.

    Such a block waits at its end until the shared commit is on the disk (for a message that a
    player delivers, the thread that answers the player waits instead). An exception, or a
    missing ``rifl.record``, rolls back the block's own part. Raises
    ``StoreUnavailable`` if the turn did not come within 10 seconds or the call's
    deadline, or the commit failed: nothing happened, also if the handler ignores it;
    ``RecordPending`` if it is unknown whether the commit succeeded; ``StaleRpc`` if
    the call has put its record into a transaction before, or has ended; ``WrongDatabase``
    if it has a block already, the method is not atomic, the store has no such
    transactions, or the call has no identity; and in a coroutine, also for an asynchronous
    connection: it uses ``rifl.aio.transaction``.
    """
    if connection is not None:
        check_blocking(connection, _AIO)
        return _transaction(context, connection)
    if _on_a_loop():
        raise WrongDatabase(f"rifl.transaction blocks the event loop of a coroutine: use `{_AIO}`")
    noted = _identified(context)
    return _blocks_of(noted).block(noted.rifl_attempt, noted.time_remaining())


def transaction_async(context: Any, connection: Any = None) -> AbstractAsyncContextManager[Any]:
    """``transaction`` for asynchronous connections, with ``async with``.

    Without ``connection`` the event loop waits neither for a turn nor for the disk; the
    handler's statements run on it.
    """
    if connection is not None:
        return _transaction_async(context, connection)
    noted = _identified(context)
    return _blocks_of(noted).block_async(noted.rifl_attempt, noted.time_remaining())


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _identified(context: Any) -> Noted:
    noted = noted_of(context)
    if noted is None:
        raise WrongDatabase(
            "the call has no identity: declare the method with required=True, "
            "or use a connection of your own"
        )
    return noted


def _blocks_of(noted: Noted) -> SharedBlocks:
    noted.rifl_undone = True
    if (blocks := noted.rifl_serving.store.shared_blocks) is None:
        raise WrongDatabase("the store has no transactions that calls share: give a connection")
    return blocks


@contextlib.contextmanager
def _transaction(context: Any, connection: Any) -> Iterator[Any]:
    commit = committer(connection)
    noted = noted_of(context)
    if noted is None and hasattr(owner := holder(connection), "pgconn"):
        # psycopg's own, which begins on a connection in autocommit, too.
        with owner.transaction():
            yield connection
        return
    held = HeldTransaction(noted, connection)
    held.transactions.begin(connection)
    try:
        with held:
            yield connection
        if noted is None:
            commit()
        else:
            held.transactions.commit(noted.rifl_attempt, held.completion(), connection)
    except BaseException as error:
        held.raised(error)
        held.in_doubt()
        try:
            held.note(undone=held.transactions.rollback(connection))
        except TransactionEnded as ended:
            held.doubts(ended, error)
        raise


@contextlib.asynccontextmanager
async def _transaction_async(context: Any, connection: Any) -> AsyncIterator[Any]:
    commit = committer(connection)
    noted = noted_of(context)
    owner = holder(connection)
    if noted is None and (hasattr(owner, "pgconn") or is_asyncpg(owner)):
        async with owner.transaction():
            yield connection
        return
    held = HeldTransaction(noted, connection)
    await held.transactions.begin_async(connection)
    try:
        with held:
            yield connection
        if noted is None:
            # A blocking connection is fine on an event loop, too, if its owner thinks so.
            if inspect.isawaitable(done := commit()):
                await done
        else:
            noted.rifl_attempt.committing = True
            await held.transactions.commit_async(noted.rifl_attempt, held.completion(), connection)
    except BaseException as error:
        held.raised(error)
        held.in_doubt()
        try:
            held.note(undone=await held.transactions.rollback_async(connection))
        except TransactionEnded as ended:
            held.doubts(ended, error)
        raise


class HeldTransaction:
    """What ``rifl.record`` is given within a block, until the transaction's end.

    Of a call without an identity nothing is recorded: its ``transactions`` begin and roll back.
    """

    _completion: CompletionRecord | None = None
    # The handler's part of it is over, and did not raise.
    _over = False
    # Whether all else that the handler did is undone.
    _undone = True

    def __init__(self, noted: Noted | None, connection: Any) -> None:
        if noted is not None:
            if noted.rifl_held is not None:
                raise WrongDatabase("rifl.transaction cannot be nested")
            check_not_ended(noted)
            noted.rifl_undone = True
        self.transactions: Any = (
            DriverTransactions() if noted is None else noted.rifl_serving.transactions
        )
        self._noted = noted
        self._connection = connection

    @property
    def attempt(self) -> Any:
        """The attempt that the transaction is of."""
        return self._noted and self._noted.rifl_attempt

    def __enter__(self) -> None:
        noted = self._noted
        if noted is not None:
            noted.rifl_held = self
            attempt = noted.rifl_attempt
            if isinstance(attempt.call, RowCall):
                attempt.lent = self._connection
                self.transactions.note_errors(self._connection)
                # Who revokes looks at what is lent after it has noted that.
                check_not_revoked(attempt)

    def __exit__(self, kind: object, *_: object) -> None:
        self._over = kind is None
        noted = self._noted
        if noted is not None:
            noted.rifl_held = noted.rifl_attempt.lent = None

    def hold(self, completion: CompletionRecord, transaction: Any) -> None:
        """Keep the answer for the end of the block."""
        mine = self._connection
        if transaction is not mine and holder(transaction) is not holder(mine):
            raise WrongDatabase("rifl.record is given another connection than rifl.transaction")
        if self._completion is not None:
            raise WrongDatabase("rifl.record is called once in a transaction")
        self._completion = completion

    def raised(self, error: BaseException) -> None:
        """Mark an error of the end of the block, which is the connection's."""
        if self._over:
            noted(error)

    def in_doubt(self) -> None:
        """Take nothing for rolled back before ``note``: a cancellation may come first."""
        if self._noted is not None:
            self._undone, self._noted.rifl_undone = self._noted.rifl_undone, False

    def note(self, *, undone: bool) -> None:
        """Note whether the transaction is known to have been rolled back."""
        if self._noted is not None:
            self._noted.rifl_undone = self._undone and undone

    def doubts(self, ended: TransactionEnded, error: BaseException) -> None:
        """Have the call's outcome be unknown, for good; raises why in place of an ``Exception``."""
        if self._noted is not None:
            self._noted.rifl_attempt.doubt = str(ended)
        self.note(undone=False)
        if isinstance(error, Exception):
            raise ended from error

    def completion(self) -> CompletionRecord:
        """Return the answer; raises ``NotRecorded`` if there is none."""
        if self._completion is None:
            raise NotRecorded(
                f"{self.attempt.call.method} left its rifl.transaction without rifl.record: it was "
                "rolled back"
            )
        return self._completion
