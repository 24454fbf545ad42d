"""Transactions that handlers share: many calls' effects and records, one commit (DESIGN §6).

Handlers take turns on one connection, each inside a savepoint, and the transaction is
committed for all of them when no handler waits any more. ``WriteQueue`` has the rules; here is
SQLite.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from _rifl_ground.log import get_logger
from rifl._stores.pending import Pending
from rifl._stores.sqlite.connection_proxy import ConnectionProxy, SharedOwned
from rifl._stores.sqlite.file_guard import Guard
from rifl._stores.sqlite.write_queue import (
    LONGEST_WAIT_S,
    QUIET_S,
    Next,
    SharedTransaction,
    WriteQueue,
)
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RecordPending, StoreUnavailable
from rifl.core._shared.record import CompletionRecord

_log = get_logger("rifl.store")
_COMMIT, _GATHER = Next.COMMIT, Next.GATHER
# For callers that wait for a transaction to fill, and one that begins or commits it.
_THREADS = 4
# So long a statement is interrupted.
_REVOKED_S = 2.0


class SharedTransactions:
    """The transactions of one file, one after the other; see the module.

    ``stopped`` tells why nothing may be written any more. ``stop`` is told of a failed commit
    and returns whether that is for good. ``read`` reads a record. ``guard`` is the file's.
    ``on_commit`` is told each commit's number of handlers, seconds and error. Thread-safe.

    A crash leaves of one transaction all calls' effects and records, or none.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        *,
        stopped: Callable[[], Exception | None],
        stop: Callable[[Exception], bool],
        read: Callable[[Call], CompletionRecord | None],
        guard: Guard,
        on_commit: Callable[[int, float, Exception | None], None] | None = None,
    ) -> None:
        self._connect = connect
        self._on_commit = on_commit
        self._stopped = stopped
        self._stop = stop
        self._guard = guard
        self._lock = threading.Lock()
        self._queue = WriteQueue()
        self._connection: sqlite3.Connection | None = None
        # How long it waits for other connections, as it was told last.
        self._limit_ms = -1
        self._owned = SharedOwned()
        self._closed = False
        self._read = read
        # Held while a call's block is begun: one at a time.
        self.blocks = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        # A handler cannot name it, to release it or go back to it.
        name = f"rifl_{secrets.token_hex(8)}"
        self._savepoint, self._release = f"SAVEPOINT {name}", f"RELEASE {name}"
        self._back = f"ROLLBACK TO {name}"

    # -- the connection: one transaction after the other ---------------------------------

    def released(self) -> None:
        """Give the file to the first that waits."""
        with self._lock:
            waiter = self._queue.released()
        if waiter is not None:
            waiter.succeed()

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction to join; asked by the handler that has the turn."""
        return self._queue.group is not None

    def open_at_once(self) -> bool:
        """Begin a transaction as ``open`` does, unless that would have to wait."""
        if self._connection is None or self._closed or self._stopped() is not None:
            return False
        try:
            self._begin(self._connection, 0)
        except sqlite3.Error:
            return False
        with self._lock:
            self._queue.opened(time.monotonic())
        return True

    def open(self, limit_s: float = LONGEST_WAIT_S) -> None:
        """Begin a transaction, for the turn's handler; block so long for other connections.

        Raises ``StoreUnavailable``, and then the turn has ended.
        """
        try:
            error = self._stopped()
            if error is not None or self._closed:
                raise StoreUnavailable(f"the store cannot be written: {error or 'it is closed'}")
            if self._connection is None:
                connection = self._connect()
                connection.set_authorizer(self._owned)
                self._connection = connection
            self._begin(self._connection, int(limit_s * 1000))
        except BaseException as error:
            self.released()
            if isinstance(error, sqlite3.Error):
                raise StoreUnavailable(f"no transaction can be begun: {error}") from error
            raise
        with self._lock:
            self._queue.opened(time.monotonic())

    def _begin(self, connection: sqlite3.Connection, limit_ms: int) -> None:
        if limit_ms != self._limit_ms:
            connection.execute(f"PRAGMA busy_timeout={limit_ms}")
            self._limit_ms = limit_ms
        connection.execute("BEGIN IMMEDIATE")
        self._owned.lend(connection)

    def _commit(self, group: SharedTransaction) -> None:
        try:
            self._end(group)
        finally:
            self.released()

    def _end(self, group: SharedTransaction) -> None:
        """Commit, and tell the handlers; the file is still whose it was."""
        connection: Any = self._connection
        began = time.perf_counter()
        self._owned.free()
        try:
            if group.error is None:
                group.error = self._stopped()
            if group.error is None and not connection.in_transaction:
                group.error = sqlite3.OperationalError("the transaction was rolled back")
            if group.error is None:
                number = self._guard.number()
                # Not the records': a handler may have undone its own in a savepoint.
                raised = self._guard.raise_commits(connection, number)
                connection.commit()
                self._guard.committed(number, raised)
        except sqlite3.Error as error:
            _log.error("shared_commit_failed", error=str(error), calls=group.handlers)
            # If its outcome is not unknown, it is certainly rolled back: see below.
            group.error, group.unknown = error, True
            group.unknown = self._stop(error)
        finally:
            try:
                if connection.in_transaction:
                    connection.rollback()
            except sqlite3.Error as error:
                _log.warning("store_rollback_failed", error=str(error))
            with self._lock:
                self._queue.closed(group)
            group.done.succeed()
        if self._on_commit is not None:
            self._on_commit(group.handlers, time.perf_counter() - began, group.error)

    # -- for the journal -----------------------------------------------------------------

    def alone(self, limit_s: float) -> bool:
        """Wait for the file, outside any handlers' transaction; ``released`` gives it back.

        False if it did not come in time.
        """
        with self._lock:
            arrival = self._queue.arrive(alone=True)
            group = self._queue.group
        if arrival is _COMMIT and group is not None:
            try:
                self._end(group)
            except BaseException:
                self.released()
                raise
        elif isinstance(arrival, Pending) and not arrival.wait_for(limit_s):
            with self._lock:
                return not self._queue.leave(arrival)
        return True

    # -- for handlers --------------------------------------------------------------------

    def arrive(self, run: object = None) -> Pending | None:
        """Ask for a turn; None: it has come. Else it comes when that is done."""
        with self._lock:
            arrival = self._queue.arrive(alone=False, run=run)
        return None if isinstance(arrival, Next) else arrival

    def leave(self, waiter: Pending, run: Callable[..., Any]) -> None:
        """No longer wait for a turn; ``run`` carries out what may block."""
        with self._lock:
            left = self._queue.leave(waiter)
        if not left:
            self.hand_on(run)

    def enter(self, attempt: Attempt, run: Callable[..., Any]) -> BlockTurn:
        """Begin a handler's turn in the open transaction.

        Raises ``StoreUnavailable``, and then the turn has ended.
        """
        group, connection = self._queue.group, self._connection
        if group is None or connection is None:
            raise StoreUnavailable("no transaction is open")
        try:
            if not connection.in_transaction:
                # A savepoint would begin a transaction of its own.
                raise sqlite3.OperationalError("the transaction was rolled back")
            connection.execute(self._savepoint)
        except sqlite3.Error as error:
            self.hand_on(run)
            raise StoreUnavailable(f"no turn can be begun: {error}") from error
        return BlockTurn(self, group, attempt, ConnectionProxy(connection))

    def exit(
        self,
        turn: BlockTurn,
        run: Callable[..., Any],
        *,
        undo: bool,
        more: bool = False,
        of: object = None,
    ) -> Next | None:
        """End a turn, its effects kept or not; what its handler has to do next.

        COMMIT is being done already, by ``run``. None: the turn had ended, and this is
        another's. ``more``: the next one is about to come; ``of``: of this run of them, for which
        the turn may be KEPT: then ``pass_on`` must be called soon.
        """
        connection: Any = self._connection
        group = turn.group
        if not turn.connection.end():
            return None
        if undo:
            turn.record = None
        try:
            if not connection.in_transaction:
                raise sqlite3.OperationalError("a statement has rolled the transaction back")
            if undo:
                connection.execute(self._back)
            connection.execute(self._release)
        except sqlite3.Error as error:
            # A statement of a handler's has rolled back everything (OR ROLLBACK, or a
            # full disk): no handler may go on in it, and all of it is rolled back.
            _log.error("shared_transaction_lost", error=str(error))
            if group.error is None:
                group.error = error
        with self._lock:
            if group.error is None:
                after, waiter = self._queue.ended(group, time.monotonic(), more=more, run=of)
            else:
                group.handlers += 1
                after, waiter = _COMMIT, None
        if waiter is not None:
            waiter.succeed()
        if after is _COMMIT:
            run(self._commit, group)
        return after

    def pass_on(self, of: object, run: Callable[..., Any]) -> None:
        """Give up a turn that was kept for a run, unless it came; ``run`` does what may block."""
        with self._lock:
            group = self._queue.group
            passed = self._queue.passed_on(group, time.monotonic(), of)
        if passed is None:
            return
        after, waiter = passed
        if waiter is not None:
            waiter.succeed()
        elif after is _COMMIT:
            run(self._commit, group)
        elif after is _GATHER:
            run(self.gather, group)

    def hand_on(self, run: Callable[..., Any]) -> None:
        """Give up a turn that was not used."""
        with self._lock:
            group = self._queue.group
            if group is not None:
                after, waiter = self._queue.handed_on(group, time.monotonic())
        if group is None:
            self.released()
        elif after is _COMMIT:
            run(self._commit, group)
        elif waiter is not None:
            waiter.succeed()

    def gather(self, group: SharedTransaction) -> None:
        """Wait for others to come into an open transaction, then commit it; blocks."""
        while not group.done.wait_for(QUIET_S):
            with self._lock:
                after = self._queue.gathered(group, time.monotonic())
            if after is _COMMIT:
                self._commit(group)
            if after is not _GATHER:
                return

    def in_background(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Have a thread do what may block; the future of it."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(_THREADS, "rifl-transaction")
            executor = self._executor
        return executor.submit(work, *arguments)

    def close(self) -> None:
        """Commit what is open and let the connection go, unless a handler does not end."""
        self._closed = True
        if self.alone(LONGEST_WAIT_S):
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self.released()
        with self._lock:
            # A handler that ends even later gets one anew.
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)

    def outcome(self, turn: BlockTurn) -> CompletionRecord | None:
        """Return the record a turn left, None if none; its transaction has ended.

        Raises ``StoreUnavailable`` if it was not committed, ``RecordPending`` if that
        is unknown.
        """
        error = turn.group.error
        if error is None and not turn.met:
            return turn.record
        if turn.record is not None or turn.met:
            if turn.group.unknown:
                raise RecordPending(f"what became of the shared commit is not known: {error}")
            standing = self._read(turn.attempt.call)
            if standing is not None:
                return standing
        if error is None:
            return None
        raise StoreUnavailable(f"the shared transaction was not committed: {error}")


class BlockTurn(Later):
    """One handler's part in a shared transaction; ``record``: what it recorded there.

    ``write``: writes that, as the turn's last statement: no savepoint of the handler's undoes it.
    ``met``: another record stood there already.

    A caller waits for it to know what became of the turn: it gives the record, or
    None if there is none, or raises as ``SharedTransactions.outcome``.
    """

    record: CompletionRecord | None = None
    write: Callable[[sqlite3.Connection], None] | None = None
    met = False

    def __init__(
        self,
        of: SharedTransactions,
        group: SharedTransaction,
        attempt: Attempt,
        connection: ConnectionProxy,
    ) -> None:
        self._of = of
        self.group = group
        self.attempt = attempt
        self.connection = connection

    def cut_off(self) -> None:
        """Roll back and end a turn that its handler left open: no other code would."""
        of = self._of
        if of.exit(self, of.in_background, undo=True) is _GATHER:
            of.in_background(of.gather, self.group)

    def revoke(self) -> bool:
        """Undo and end the turn of a handler that does not end, unless that has ended.

        Waits for the transaction's end. False: a statement cannot be interrupted.

        SQLite undoes the whole transaction where it interrupts a statement that writes.
        """
        with self.connection.revoked(_REVOKED_S) as mine:
            if not mine:
                return False
            self.cut_off()
        # What others did before it is there then, or is not.
        return self.group.done.wait_for(_REVOKED_S)

    def wait(self) -> CompletionRecord | None:
        """Block until the transaction has ended."""
        self.group.done.wait()
        return self._of.outcome(self)

    def __await__(self) -> Generator[Any, Any, CompletionRecord | None]:
        """Await the same."""
        yield from self.group.done.__await__()
        return self._of.outcome(self)
