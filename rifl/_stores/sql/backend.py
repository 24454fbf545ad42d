"""The generic backend: each request a transaction that reads, decides by our rules, and writes."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from _rifl_ground.log import get_logger
from _rifl_ground.threads import in_thread
from rifl._stores.base import Unresolved
from rifl._stores.shared.backend import (
    TRIES_TAKE,
    BackendError,
    NotCarriedOut,
    ask_in_turn,
    patience,
)
from rifl._stores.shared.requests import (
    Abandon,
    Claim,
    Claimed,
    CountBeat,
    Finish,
    Found,
    GetRows,
    Look,
    LookAtClient,
    MoveRows,
    TakeBack,
)
from rifl._stores.shared.stalls import Stalls
from rifl._stores.sql import carrying
from rifl._stores.sql.carrying import Changed, HeldByHandler, NotMoved
from rifl._stores.sql.continuity import SqlContinuity
from rifl._stores.sql.dialect import Dialect, Failure
from rifl._stores.sql.expiry import expire_keys
from rifl._stores.sql.rows import Identity, WrongStore, end_client, identity_of, unresolved
from rifl._stores.sql.schema import StoreNotes, stop
from rifl._stores.sql.session import Pool, RetryPause, SqlSession, discard

_log = get_logger("rifl.store")
_T = TypeVar("_T")
_LOCKED = "another session of the database holds a lock on the client's row, or the call's"
# How often a transaction begins anew for the sake of others.
_TRIES = 20
_LAST_RETRY_S = 1.0
# Of a batch: how much a transaction does, which holds the client's row all the while.
_TOGETHER = 64
_POLL_S = 0.03
# After so long a waiting call is asked for by itself, and is watched again if it still runs.
_MOST_S = 60.0
_AT_ONCE = 100


class SqlBackend:
    """``Backend`` over any SQL database: locking reads, and rules in Python.

    Every request compares the store's id, and a beat what this replica knows to be durable; a
    database that is another, or has lost that, is not served from: all requests raise
    ``WentBackwards`` from then on. So is each new connection's server, before it is used.

    An event loop's requests run in threads.
    """

    def __init__(self, dialect: Dialect, prepared: StoreNotes) -> None:
        self.dialect = dialect
        self.longest_s = TRIES_TAKE * dialect.timeout_s
        self.store_id = prepared.store_id
        self.place = dialect.place
        self.continuity = SqlContinuity(dialect, prepared.history)
        self.pool = Pool(dialect, self.continuity.greet)
        self._stalls = Stalls()
        self._closing = threading.Event()
        self._watching: Watching | None = None
        self._owner = ""

    # -- Backend ------------------------------------------------------------------------

    def ask(self, request: Any, within_s: float | None = None) -> Any:
        """Carry out a request, blocking."""
        self._admit(request)
        tries = 2 if isinstance(request, Claim) and request.take_over else 1
        while True:
            try:
                reply = self._asked(request, within_s)
                break
            except HeldByHandler as held:
                tries -= 1
                if not tries or not self._end_holder(held.identity):
                    # Unchanged: it cannot be taken over just now.
                    return Claimed(Found.RUNNING, request.take_over, kind=request.kind)
        return self._read(request, reply)

    async def ask_async(self, request: Any) -> Any:
        """Carry out a request in a thread."""
        return await in_thread(self.ask, request)

    def ask_all(self, requests: Sequence[Any], within_s: float | None = None) -> list[Any]:
        """Carry out requests of one client's, many in a transaction.

        Claims lock the client's row first, so no two batches wait for each other in a ring.
        """
        parts = [requests[at : at + _TOGETHER] for at in range(0, len(requests), _TOGETHER)]
        limit_s = self.dialect.timeout_s
        replies = ask_in_turn(self._ask_some, parts, within_s, limit_s)
        return [
            reply
            for part, found in zip(parts, replies, strict=True)
            for reply in ([found] * len(part) if isinstance(found, BackendError) else found)
        ]

    async def ask_all_async(self, requests: Sequence[Any]) -> list[Any]:
        """The same in a thread."""
        return await in_thread(self.ask_all, requests)

    def _ask_some(self, requests: Sequence[Any], within_s: float | None) -> list[Any]:
        until = math.inf if within_s is None else time.monotonic() + within_s
        try:
            for request in requests:
                self._admit(request)
            if len(requests) > 1 and not any(isinstance(each, MoveRows) for each in requests):
                replies = self.transact(
                    lambda sql: [self._carry(sql, each) for each in requests], within_s=within_s
                )
                return [self._read(*each) for each in zip(requests, replies, strict=True)]
        except (HeldByHandler, BackendError):
            # One of them may block the others: each by itself.
            pass
        left_s = None if within_s is None else until - time.monotonic()
        return ask_in_turn(self.ask, requests, left_s, self.dialect.timeout_s)

    def expire_keys(self, lost: bytes, limit: int) -> int:
        """Delete keyed calls whose retention has passed; return how many."""
        return expire_keys(self.transact, self.store_id, lost, limit)

    def unresolved(self) -> Unresolved:
        """Count what no operator has settled; blocks. Raises ``BackendError``."""
        return self.transact(unresolved)

    def look_again(self) -> str:
        """See ``Backend``: what the last beat found."""
        return self.continuity.weak

    def seal(self) -> None:
        """Have the store refuse everyone, however often that must be tried."""
        while not self._closing.is_set():
            session = None
            try:
                # Outside the pool, which refuses what went backwards.
                session = SqlSession(self.dialect, self.dialect.connect())
                stop(session, self.store_id, self.continuity.stopped)
                session.connection.commit()
                return
            except self.dialect.errors as error:
                _log.debug("store_not_sealed", error=str(error))
                self._closing.wait(_LAST_RETRY_S)
            finally:
                if session is not None:
                    discard(session)

    def listen(
        self, owner: str, wake: Callable[[bytes], None], resubscribed: Callable[[], None]
    ) -> None:
        """From now on watch over the attempts of others that calls wait for."""
        self._owner = self.continuity.owner = owner
        self._watching = Watching(self._running, wake, self._closing)
        self._watching.start()

    def close(self) -> None:
        """Watch no more, and close the connections."""
        self._closing.set()
        if self._watching is not None:
            self._watching.stop()
        self.pool.close()

    # -- transactions -------------------------------------------------------------------

    def transact(
        self,
        work: Callable[[SqlSession], _T],
        *,
        repeats: bool = True,
        within_s: float | None = None,
    ) -> _T:
        """Carry out a transaction, blocking; raises ``BackendError``, and what ``work`` raises.

        It begins anew where it was rolled back for another's sake, and if the connection was
        lost; also where the answer to its COMMIT was, if it ``repeats``: that must be harmless.
        ``within_s``: see ``patience``, for a free connection and for each reply but the COMMIT's.
        """
        pause, lost, doubted = RetryPause(0.1), False, False
        for last in [False] * (_TRIES - 1) + [True]:
            committing = False
            self.continuity.check()
            try:
                with self.pool.session(within_s) as session:
                    self.continuity.check()
                    with self._bounded(session, within_s):
                        done = work(session)
                    committing = True
                    session.connection.commit()
                    return done
            except Changed:
                if last:
                    raise BackendError("the rows change too often") from None
                continue
            except WrongStore:
                self.continuity.went_backwards()
            except NotCarriedOut as error:
                raise BackendError(str(error)) if doubted else error from None
            except self.dialect.errors as error:
                how = self.dialect.failure(error)
                doubted = doubted or (committing and how in (Failure.LOST, Failure.SILENT))
                again = how is Failure.AGAIN or (how is Failure.LOST and not lost)
                if how is Failure.LOST:
                    lost = True
                    # The server has restarted: so it is for all that wait in the pool.
                    self.pool.drop_idle()
                if last or not again or (doubted and not repeats):
                    raise self._failed(error, how, doubted=doubted) from error
            pause.wait()
        raise AssertionError("the last try raises, or returns")

    @contextlib.contextmanager
    def _bounded(self, session: SqlSession, within_s: float | None) -> Iterator[None]:
        """Have the block's replies be waited for no longer than that; a COMMIT is none of them."""
        if within_s is None:
            yield
            return
        limit_s = self.dialect.timeout_s
        self.dialect.wait_at_most(session.connection, patience(within_s, limit_s))
        try:
            yield
        finally:
            self.dialect.wait_at_most(session.connection, limit_s)

    def _failed(self, error: Exception, how: Failure, *, doubted: bool) -> BackendError:
        if how is Failure.LOCKED:
            return BackendError(_LOCKED) if doubted else NotCarriedOut(_LOCKED)
        return failed(error)

    # -- requests -----------------------------------------------------------------------

    def _asked(self, request: Any, within_s: float | None) -> Any:
        try:
            reply = self.transact(
                lambda sql: self._carry(sql, request),
                repeats=not isinstance(request, MoveRows),
                within_s=within_s,
            )
        except NotMoved:
            return False
        except NotCarriedOut as error:
            if isinstance(request, Claim) and str(error) == _LOCKED:
                self._stalls.stalled(request.call.client_id)
            raise
        return reply

    def _carry(self, sql: SqlSession, request: Any) -> Any:
        """Carry out a request in a transaction; the reply is true once that has committed."""
        store_id = self.store_id
        if isinstance(request, Claim):
            return carrying.claim(sql, request, store_id)
        if isinstance(request, Finish):
            done = carrying.finish(sql, request, store_id)
            return done, carrying.is_over(sql, request)
        if isinstance(request, Abandon):
            return carrying.abandon(sql, request, store_id), carrying.is_over(sql, request)
        if isinstance(request, TakeBack):
            return carrying.take_back(sql, request, store_id), carrying.is_over(sql, request)
        if isinstance(request, Look):
            return carrying.look_at(sql, request, store_id)
        if isinstance(request, CountBeat):
            self.continuity.look_again(sql)
            return carrying.beat(sql, request, store_id, self.continuity.beats)
        if isinstance(request, LookAtClient):
            return carrying.look_at_client(sql, request, store_id)
        if isinstance(request, GetRows):
            return carrying.get_rows(sql, request, store_id)
        if isinstance(request, MoveRows):
            return carrying.move_rows(sql, request, store_id)
        raise TypeError(f"not a request: {request!r}")

    def _read(self, request: Any, reply: Any) -> Any:
        if isinstance(request, CountBeat):
            if reply is None:
                self.continuity.went_backwards()
            self.continuity.beats = reply.beats.get(request.owner, self.continuity.beats)
        elif isinstance(request, Claim):
            self._stalls.moved(request.call.client_id)
            if reply.found is Found.RUNNING and reply.owner != self._owner and self._watching:
                self._watching.note(reply.token, identity_of(request.call))
        elif isinstance(request, Finish | Abandon | TakeBack):
            reply, is_over = reply
            if is_over:
                self.transact(lambda sql: end_client(sql, request.call.client_id))
        return reply

    def _admit(self, request: Any) -> None:
        """Raise for what is only of use if it is durable, where the server is not.

        And for a client whose row another session has locked, but one claim at a time.
        """
        self.continuity.check()
        weak = self.continuity.weak
        if weak and _needs_disk(request):
            raise BackendError(f"the store is not durable: {weak}")
        if isinstance(request, Claim) and not self._stalls.may_try(request.call.client_id):
            raise NotCarriedOut(_LOCKED)

    def _running(self, calls: list[Identity]) -> set[bytes]:
        which = " OR ".join(["client_id = %s AND seq = %s AND call_key = %s"] * len(calls))
        given = [each for identity in calls for each in identity]
        statement = f"SELECT token FROM @.calls WHERE record IS NULL AND ({which})"
        return self.transact(lambda sql: {bytes(row[0]) for row in sql.rows(statement, *given)})

    def _end_holder(self, identity: Identity) -> bool:
        """End the session of a handler that holds a call's row: nothing of it may commit."""
        try:
            with self.pool.session() as session:
                ended = self.dialect.end_holder(session.connection, identity)
                session.connection.rollback()
        except self.dialect.errors as error:
            _log.debug("holder_not_ended", error=str(error))
            return False
        return ended


class _Watched(NamedTuple):
    identity: Identity
    since: float


class Watching:
    """Tells when attempts of other replicas have ended, in a thread of its own.

    ``running`` returns which of these calls run, by their attempts' tokens. Nothing is asked
    while no caller waits.
    """

    def __init__(
        self,
        running: Callable[[list[Identity]], set[bytes]],
        wake: Callable[[bytes], None],
        closing: threading.Event,
    ) -> None:
        self._running = running
        self._wake = wake
        self._closing = closing
        self._lock = threading.Lock()
        self._watched: dict[bytes, _Watched] = {}
        self._some = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rifl-watching", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, after ``closing`` was set."""
        self._some.set()
        self._thread.join()

    def note(self, token: bytes, identity: Identity) -> None:
        """Watch over an attempt that ran a moment ago."""
        with self._lock:
            self._watched.setdefault(token, _Watched(identity, time.monotonic()))
        self._some.set()

    def _run(self) -> None:
        while True:
            self._some.wait()
            if self._closing.wait(_POLL_S):
                return
            with self._lock:
                watched = dict(self._watched)
                if not watched:
                    self._some.clear()
                    # By ``stop``, which may have set what was just cleared.
                    if self._closing.is_set():
                        return
                    continue
            try:
                ended = self._ended(watched)
            except BackendError as error:
                _log.debug("not_watched", error=str(error))
                continue
            with self._lock:
                for token in ended:
                    self._watched.pop(token, None)
            for token in ended:
                self._wake(token)

    def _ended(self, watched: dict[bytes, _Watched]) -> Iterable[bytes]:
        calls = [each.identity for each in watched.values()]
        running: set[bytes] = set()
        for at in range(0, len(calls), _AT_ONCE):
            running |= self._running(calls[at : at + _AT_ONCE])
        old = time.monotonic() - _MOST_S
        return [
            token for token, each in watched.items() if token not in running or each.since < old
        ]


def failed(error: Exception) -> BackendError:
    """Return the error as a backend's; its text may name hosts, never a credential."""
    lines = str(error).strip().splitlines()
    return BackendError(f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}")


def _needs_disk(request: Any) -> bool:
    if isinstance(request, Finish):
        return request.how == "finish"
    return isinstance(request, MoveRows) or (isinstance(request, Claim) and not request.refusing)
