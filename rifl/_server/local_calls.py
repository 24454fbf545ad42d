"""Local calls: methods' handlers, run without a gRPC caller (DESIGN §4, §6).

A target of a log's player runs handlers of the server that hosts it. It finds each handler as a
call of its method would, with the interceptors after rifl's, and gives it a context that notes
what it says. It keeps no completion record, but moves conditional rows (``rifl._stores.rows``).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
import threading
import time
from collections.abc import Generator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from types import FrameType
from typing import Any, NamedTuple

import grpc
import grpc.aio

from _rifl_ground.counting import Counts, counts
from _rifl_ground.log import get_logger
from _rifl_ground.loops import tell_loop
from _rifl_ground.refusals import caller_text
from rifl._grpc.audit import CallerAudit
from rifl._server import aio, sync
from rifl._server.call_engine import CallEngine
from rifl._server.context import noted_of
from rifl._server.eager_task import start_task
from rifl._server.interceptors import Hosted, Interceptors, ServerHandlers, is_coroutine
from rifl._server.local_handlers import (
    NotFound,
    Parsed,
    Transport,
    again,
    read_request,
    unary_of,
)
from rifl._stores.errors import UnsupportedStore
from rifl._stores.rows import ConditionalRows, Move, RowCall
from rifl._stores.transactions import Transactions
from rifl.core._serving.answer import Handled, HandlerResult
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.later import Later
from rifl.core._serving.policy import Kind, MethodPolicy, PolicyError
from rifl.core._shared.errors import NotRecorded, RecordPending, RiflError, StoreUnavailable
from rifl.core._shared.record import CompletionRecord

__all__ = [
    "Attempt",
    "Kind",
    "LocalCalls",
    "LocalRun",
    "Move",
    "NotFound",
    "PolicyError",
    "RecordPending",
    "RiflError",
    "RowCall",
    "ServerHandlers",
    "StoreUnavailable",
    "Transport",
    "UnsupportedStore",
    "again",
    "subject_of",
]

_log = get_logger("rifl.server")
# Plain functions on an event loop's server that run at once.
_THREADS = 32
# A loop that answers nothing for so long is told of, and again each time after twice as long.
_TOLD_AFTER_S = 5.0


class LocalRun(NamedTuple):
    """What became of a run.

    ``code`` and ``details``: its status; OK is 0. ``committed``: an atomic handler's transaction
    committed, and the rows moved with it; of any other kind false. ``broken``: it was cancelled,
    and its progress is unknown; or its store failed, and not it. ``pending``: it is unknown
    whether it committed. ``crowded``: it may succeed once those before it have committed.
    ``doubtful``: it is the handler's failure if a row can be moved right after (``counting``).
    ``committing``: of a run behind which ``more`` come, and whose shared transaction has yet to
    commit: gives its record then, or raises why it did not.
    """

    code: int
    details: str
    committed: bool = False
    broken: bool = False
    pending: bool = False
    committing: Later | None = None
    crowded: bool = False
    doubtful: bool = False


class LocalCalls:
    """Runs handlers of the servers of one ``Deduplicator``. Any thread, any loop."""

    def __init__(self, engine: CallEngine, interceptors: Interceptors) -> None:
        self._engine = engine
        self._interceptors = interceptors
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._executing: set[asyncio.Task[Any]] = set()
        self.loops = LoopWatches()

    @property
    def rows(self) -> ConditionalRows:
        """The store's; raises ``UnsupportedStore`` where it has none."""
        if (rows := self._engine.store.rows) is None:
            raise UnsupportedStore("the store has no rows that are moved conditionally")
        return rows

    def host(self, server: grpc.Server | grpc.aio.Server, methods: Mapping[str, Hosted]) -> None:
        """Have these methods of the server answered by handlers that are made for each call.

        They are given the server's handlers: for ``find`` and ``find_async``. Raises
        ``PolicyError`` where the server cannot have our interceptor.
        """
        self._interceptors.require(server, "dedup")
        for method in methods:
            self._engine.policies.add(method, None)
        self._interceptors.host(server, methods)

    @property
    def audit(self) -> CallerAudit:
        """Is told of callers that are not let in."""
        return self._engine.audit

    @property
    def max_message_s(self) -> float:
        """How long a call's message may take (``rifl.Bounds``)."""
        return self._engine.bounds.max_message_s

    def policy(self, method: str) -> MethodPolicy | None:
        """How a method is declared; None: its calls do not happen once."""
        return self._engine.policies.find(method)

    def find(self, handlers: ServerHandlers, method: str, metadata: Any = ()) -> Any:
        """Return a method's handler, as a call of it on a ``grpc.server`` would have it.

        Raises ``NotFound``.
        """
        details = type(handlers.details)(method, tuple(metadata))
        return unary_of(method, handlers.continuation(details))

    async def find_async(self, handlers: ServerHandlers, method: str, metadata: Any = ()) -> Any:
        """The same on a ``grpc.aio.server``."""
        details = type(handlers.details)(method, tuple(metadata))
        return unary_of(method, await again(handlers.continuation)(details))

    def run(
        self, handler: Any, request: bytes, context: Any, call: RowCall, policy: MethodPolicy
    ) -> tuple[LocalRun, Attempt]:
        """Run a handler in this thread; what became of it, and the run, which ``rows.end`` ends.

        Raises ``NotFound`` for a request that is none, or what new calls are refused with: then
        nothing ran.
        """
        message = read_request(handler, request)
        attempt = self._begin(call, policy)
        raised: list[BaseException] = []
        try:
            handled = _sync_run(self._engine, handler)(message, context, attempt, raised)
            steps = self._ended(attempt, handled, raised)
            return _drive(steps), attempt
        except BaseException:
            self.rows.end(attempt)
            raise

    async def run_async(
        self, handler: Any, request: bytes, context: Any, call: RowCall, policy: MethodPolicy
    ) -> tuple[LocalRun, Attempt]:
        """The same on an event loop; a plain function runs in a thread."""
        message = read_request(handler, request)
        attempt = self._begin(call, policy)
        raised: list[BaseException] = []
        try:
            if is_coroutine(handler.unary_unary):
                handled = await _aio_run(self._engine, handler)(message, context, attempt, raised)
            else:
                run = _sync_run(self._engine, handler, aio=True)
                handled = await asyncio.get_running_loop().run_in_executor(
                    self._executor(handler),
                    functools.partial(
                        contextvars.copy_context().run, run, message, context, attempt, raised
                    ),
                )
            steps = self._ended(attempt, handled, raised)
            return await _drive_async(steps), attempt
        except BaseException:
            self.rows.end(attempt)
            raise

    def revoke(self, call: RowCall) -> bool:
        """Roll back the transaction of a run whose handler does not end; it commits nothing more.

        What it was lent refuses. Blocks for some seconds at most. False: its transaction is open
        still, and may hold what others wait for.
        """
        attempt, transactions = self._revoking(call)
        return transactions is None or transactions.revoke(attempt)

    async def revoke_async(self, call: RowCall) -> bool:
        """The same on the event loop that serves."""
        attempt, transactions = self._revoking(call)
        return transactions is None or await transactions.revoke_async(attempt)

    @staticmethod
    def waits(call: RowCall) -> bool:
        """Return whether a run waits for its turn in a transaction that another one is in."""
        return call.begun is not None and call.begun.waits

    def _revoking(self, call: RowCall) -> tuple[Any, Transactions | None]:
        # Who begins looks at this after it has noted that it did.
        call.revoked = True
        return call.begun, None if call.begun is None else self._engine.store.transactions

    def _begin(self, call: RowCall, policy: MethodPolicy) -> Attempt:
        attempt = call.begun = self.rows.begin(call, policy)
        if call.revoked:
            self.rows.end(attempt)
            raise StoreUnavailable("its message was skipped before its handler began")
        return attempt

    def begin_task(self, work: Any) -> asyncio.Task[Any]:
        """Have work done in a task of its own, which no call's end cancels."""
        self.loops.add()
        task = start_task(work)
        if not task.done():
            self._executing.add(task)
            task.add_done_callback(self._executing.discard)
        return task

    def _executor(self, handler: Any) -> Executor:
        # gRPC's own hint for handlers that want a pool of their own.
        own: Executor | None = getattr(handler.unary_unary, "experimental_thread_pool", None)
        if own is not None:
            return own
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, "rifl-local-call")
            return self._threads

    def _ended(
        self, attempt: Attempt, handled: Handled, raised: list[BaseException]
    ) -> Generator[Any, Any, LocalRun]:
        """Find out what a handler left."""
        result = handled if isinstance(handled, HandlerResult) else HandlerResult(handled)
        record = result.record
        call: RowCall = attempt.call  # type: ignore[assignment]  # of runs that are begun here
        if raised and not result.broken:
            _log.error(
                "local_call_raised",
                method=attempt.call.method,
                rpc_id=str(attempt.call.rpc_id),
                exc_info=raised[0],
            )
        if attempt.policy.kind is not Kind.ATOMIC:
            return LocalRun(record.code, record.details, broken=bool(result.broken))
        try:
            standing: Any = self._engine.store.committed(attempt)
            if isinstance(standing, Later):
                if call.more and getattr(standing, "record", None) is not None:
                    return LocalRun(0, "", committing=standing)
                standing = yield standing
        except NotRecorded as error:
            return LocalRun(_ABORTED if not record.code else record.code, str(error))
        except RecordPending as error:
            return LocalRun(_UNAVAILABLE, caller_text(error), pending=True)
        except StoreUnavailable as error:
            return LocalRun(_UNAVAILABLE, caller_text(error), broken=True)
        if isinstance(standing, CompletionRecord):
            # It stands, whatever the handler did then.
            return LocalRun(0, "", committed=True)
        if not record.code and not result.broken:
            return LocalRun(
                _ABORTED,
                f"{attempt.call.method} is atomic, and its handler returned without a committed "
                "record: call rifl.record in its transaction",
            )
        found = counts(raised[0], self._judge) if raised else True
        return LocalRun(
            record.code,
            record.details,
            broken=bool(result.broken) or found is False,
            crowded=attempt.crowded,
            doubtful=found is None,
        )

    def _judge(self, error: BaseException) -> Counts:
        """Say whether an error is the handler's, or passes, by itself."""
        if isinstance(error, StoreUnavailable | RecordPending):
            return False
        return self.rows.judge(error)


# Of google.rpc.Code.
_ABORTED, _UNAVAILABLE = 10, 14


def subject_of(context: Any) -> Any:
    """Return what a handler's local call is about; None for a call of gRPC's."""
    noted = noted_of(context)
    call = None if noted is None else noted.rifl_attempt.call
    return call.subject if isinstance(call, RowCall) else None


def _sync_run(engine: CallEngine, handler: Any, *, aio: bool = False) -> sync.Run:
    parsed = Parsed(handler.unary_unary, None, handler.response_serializer)
    return sync.running(engine.store, parsed, aio=aio)


def _aio_run(engine: CallEngine, handler: Any) -> aio.Run:
    parsed = Parsed(handler.unary_unary, None, handler.response_serializer)
    return aio.running(engine.store, parsed)


def _drive(steps: Generator[Any, Any, LocalRun]) -> LocalRun:
    try:
        step = next(steps)
        while True:
            try:
                value = step.wait()
            except Exception as error:  # noqa: BLE001 - the rule's to judge
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def _drive_async(steps: Generator[Any, Any, LocalRun]) -> LocalRun:
    try:
        step = next(steps)
        while True:
            try:
                value = await step
            except Exception as error:  # noqa: BLE001 - as above
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


class LoopWatch:
    """Of one loop. Made in its thread; another thread looks."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._answered = True
        self._asked_s = 0.0
        self._due_s = _TOLD_AFTER_S

    def look(self, now_s: float) -> None:
        """Ask the loop, or tell of one that has not answered."""
        if self._answered:
            self._answered, self._asked_s, self._due_s = False, now_s, _TOLD_AFTER_S
            tell_loop(self.loop, self._answer)
            return
        seconds = now_s - self._asked_s
        if seconds >= self._due_s and not self.loop.is_closed():
            self._due_s = 2 * seconds
            self._tell(seconds)

    def _answer(self) -> None:
        self._answered = True

    def _tell(self, seconds: float) -> None:
        frame = inner = sys._current_frames().get(self._thread_id)
        while frame is not None and not _runs_handler(frame):
            frame = frame.f_back
        # None: what blocks it is no handler.
        attempt = None if frame is None else frame.f_locals["attempt"]
        if attempt is not None and inner is not None:
            _log.error(
                "handler_blocks_loop",
                method=attempt.call.method,
                rpc_id=str(attempt.call.rpc_id),
                at=f"{inner.f_code.co_filename}:{inner.f_lineno}",
                seconds=round(seconds),
            )


class LoopWatches:
    """The watches of all loops that one ``Deduplicator`` runs handlers of local calls on."""

    def __init__(self) -> None:
        self._watches: list[LoopWatch] = []

    def add(self) -> None:
        """Watch over the loop that runs; at once if it is known."""
        loop = asyncio.get_running_loop()
        if not any(each.loop is loop for each in self._watches):
            kept = [each for each in self._watches if not each.loop.is_closed()]
            self._watches = [*kept, LoopWatch()]

    def look(self) -> None:
        """Look at each; the sweeper's thread does."""
        for each in self._watches:
            each.look(time.monotonic())


def _runs_handler(frame: FrameType) -> bool:
    code = frame.f_code
    is_run = code.co_name == "run" and code.co_filename == aio.__file__
    return is_run and "attempt" in frame.f_locals
