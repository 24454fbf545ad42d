"""The shell for ``grpc.server``: one pool thread a call, which blocks."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, Protocol

import grpc

from _rifl_ground.log import get_logger
from _rifl_ground.refusals import Outcome
from rifl._grpc.codes import STATUS_CODES
from rifl._grpc.raw import RawAnswer
from rifl._server.batches import Batch, ItemsContext
from rifl._server.call_engine import CallEngine
from rifl._server.context import CURRENT, HandlerContext, Serving
from rifl._server.handler_results import raised_result, returned
from rifl._server.reply import SentReply, is_bare
from rifl._server.rooms import PoolPlaces, ServerRoom, in_room
from rifl._stores.base import Store
from rifl._stores.pending import Pending
from rifl._wire.envelope import MARK, is_batch
from rifl.core._serving.admission import Fetch, Steps, Wait
from rifl.core._serving.answer import Answer, Handled
from rifl.core._serving.batching import serve_batch
from rifl.core._serving.client_entry import Attempt
from rifl.core._serving.fast_path import claim, end, start
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicy
from rifl.core._serving.room import serve_in_place
from rifl.core._shared.call import Call
from rifl.core._shared.errors import RiflError
from rifl.core._shared.record import CompletionRecord

_Run = Callable[[bytes, Any, Attempt, list[BaseException]], Handled]
_Send = Callable[[Any, SentReply], bytes]


class _Blocking(Later):
    """Work that is done where it is waited for."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def wait(self) -> Any:
        return self._work()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError("a sync shell blocks")


def batched_behavior(
    shell: Any, method: str, policy: MethodPolicy, run: _Run, send: _Send
) -> Callable[[bytes, Any], RawAnswer]:
    """Return the behavior of a unary handler's batches.

    ``run`` runs the handler for one attempt, ``send`` refuses the RPC. The handlers of
    one batch run one after another, in its order, in the RPC's thread.
    """
    engine = shell.engine
    room = engine.rooms.of(policy)

    def run_all(batch: Batch, context: Any, attempts: list[Attempt]) -> list[Handled | None]:
        results: list[Handled | None] = []
        raised: list[BaseException] = []
        for attempt in attempts:
            if batch.gone():
                results.extend([None] * (len(attempts) - len(results)))
                break
            results.append(run(attempt.call.request, context, attempt, raised))  # type: ignore[attr-defined]
            if raised:
                batch.raised(attempt, raised.pop())
        return results

    def fetch_all(calls: list[Call]) -> list[Any]:
        return [engine.store.fetch(call) for call in calls]

    def batched(body: bytes, context: Any) -> RawAnswer:
        began = engine.replies.begin()
        calls: list[Any] = []
        try:
            batch = Batch(engine, method, body, context)
            calls = batch.calls
            # False: it is gone already; on a grpc.aio.server the answer is always None.
            if context.add_callback(batch.leave) is False:
                batch.leave()
            inner = ItemsContext(context)
            with in_room(room, calls[0], context, context.add_callback) as place:
                steps = serve_batch(
                    engine.store,
                    calls,
                    policy,
                    run=lambda attempts: _Blocking(lambda: run_all(batch, inner, attempts)),
                    fetch=lambda wanted: _Blocking(lambda: fetch_all(wanted)),
                    gone=batch.gone,
                    place=place,
                )
                answers = shell.drive(steps, context)
            return RawAnswer(batch.reply(answers, began))
        except RiflError as refusal:
            status = engine.replies.batch_status(method, calls, refusal, began)
            return RawAnswer(send(context, status))

    return batched


_log = get_logger("rifl.server")


class _Made(Protocol):
    """A running handler."""

    def finish(self) -> None:
        """Run it to its end."""


class AbandonedStreams:
    """The running handlers, and a thread for those that no other one may run.

    gRPC drops the answer's generator when the caller is gone, in the thread that ran the
    handler: there it runs on, since what handlers open often belongs to one thread. But
    if a collection closes the generator, that thread may hold any lock, also the store's:
    then a thread of this object runs the rest. Any thread.
    """

    def __init__(self) -> None:
        # Else the collection that closes the generator closes the handler, too.
        self._kept: set[_Made] = set()
        self._left: queue.SimpleQueue[_Made | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def keep(self, made: _Made) -> None:
        """Keep a handler alive; the thread that may run it is there from now."""
        self._kept.add(made)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    weakref.finalize(self, self._left.put, None).atexit = False
                    self._thread = threading.Thread(
                        target=_run, args=(self._left,), name="rifl-run-on", daemon=True
                    )
                    self._thread.start()

    def forget(self, made: _Made) -> None:
        """Keep it no longer: it has ended."""
        self._kept.discard(made)

    def run(self, made: _Made) -> None:
        """Run a handler to its end, here or soon; where a collection calls: without a lock."""
        self._kept.discard(made)
        if _Collecting.thread == threading.get_ident():
            self._left.put(made)
        else:
            made.finish()


class _Collecting:
    """Which thread collects now; the collector runs on one at a time."""

    thread = 0

    @classmethod
    def told(cls, phase: str, _: dict[str, Any]) -> None:
        cls.thread = threading.get_ident() if phase == "start" else 0


gc.callbacks.append(_Collecting.told)


def _run(left: queue.SimpleQueue[_Made | None]) -> None:
    while (made := left.get()) is not None:
        try:
            made.finish()
        except Exception:  # noqa: BLE001 - one of them must not end the others
            _log.exception("running_on_raised")
        del made


_Handler = Callable[[Any, Any], Any]
_EXECUTED = Outcome.EXECUTED


class SyncShell:
    """Drives the rules of ``rifl.core._serving.serving`` by blocking the call's thread."""

    def __init__(self, engine: CallEngine) -> None:
        self.engine = engine
        self.abandoned = AbandonedStreams()
        self._waiting = 0
        self._lock = threading.Lock()
        engine.waiting.append(lambda: self._waiting)

    def drive(
        self,
        steps: Generator[Any, Any, Any],
        context: Any,
        run: Callable[[Attempt], Handled] | None = None,
        value: Any = None,
    ) -> Any:
        """Carry out the steps one by one; returns or raises what the generator does.

        Without ``run`` it stops where a handler is to run and returns the attempt;
        called again with the handler's result as ``value`` it goes on from there.
        """
        error: Exception | None = None
        try:
            while True:
                step = steps.send(value) if error is None else steps.throw(error)
                value, error = None, None
                try:
                    # First, since most steps of most calls are.
                    if isinstance(step, Pending):
                        value = step.wait_for_call(context.time_remaining)
                    elif isinstance(step, Attempt):
                        if run is None:
                            return step
                        value = run(step)
                    elif isinstance(step, Wait):
                        value = self._wait(step.attempt, step.call, context)
                    elif isinstance(step, Fetch):
                        value = self.engine.store.fetch(step.call)
                    else:
                        value = step.wait_for_call(context.time_remaining)
                except Exception as refusal:  # noqa: BLE001 - the rules settle the call first
                    error = refusal
        except StopIteration as stop:
            return stop.value

    def _wait(self, attempt: Attempt, call: Call, context: Any) -> bool:
        """Wait for another arrival's attempt, without starving the thread pool."""
        engine = self.engine
        with self._lock:
            if self._waiting >= engine.max_waiters:
                return False
            self._waiting += 1
            attempt.duplicates += 1
        if attempt.unheard is not None:
            attempt.unheard.duplicate_came()
        try:
            woken = threading.Event()
            if not engine.store.wait(attempt, woken.set):
                return True
            # A caller that went away frees the thread. False: it is gone already;
            # on a grpc.aio.server the answer is always None.
            if context.add_callback(woken.set) is not False:
                woken.wait(engine.wait_limit_s(context.time_remaining()))
            # Before it leaves: that ends a stand-in for an attempt of another replica.
            ended = attempt.ended
            engine.store.leave(attempt, woken.set)
            return ended
        finally:
            with self._lock:
                self._waiting -= 1
                attempt.duplicates -= 1
            if attempt.unheard is not None:
                attempt.unheard.duplicate_left(call, context.time_remaining())


Run = Callable[[bytes, Any, Attempt, list[BaseException]], Handled]


def running(store: Store, handler: Any, *, aio: bool = False) -> Run:
    """Return what runs a unary handler for an attempt, and says what to record of it.

    It is given gRPC's own context, and notes in a list what the handler raised. ``aio``: as for
    ``unary_behavior``.
    """
    behavior: _Handler = handler.unary_unary
    deserialize = handler.request_deserializer
    serialize = handler.response_serializer
    serving = Serving(store, serialize)

    def run(request: bytes, context: Any, attempt: Attempt, raised: list[BaseException]) -> Handled:
        inner = HandlerContext(context, attempt, serving)
        outer = CURRENT.set(inner)
        try:
            message = request if deserialize is None else deserialize(request)
        except BaseException as error:  # noqa: BLE001 - whatever a user's deserializer raises
            inner.rifl_undone = True
            if aio:
                raised.append(error)
            else:
                inner.set_code(grpc.StatusCode.INTERNAL)
                inner.set_details("Exception deserializing request!")
                inner.aborted = True
            return raised_result(inner, error, aio=aio)
        try:
            response = behavior(message, inner)
        except BaseException as error:  # noqa: BLE001 - recorded, and logged
            if not inner.aborted:
                raised.append(error)
            return raised_result(inner, error, aio=aio)
        finally:
            # gRPC's own state of the call holds the context it ran in, and ``inner`` that
            # state: left there, every call were garbage for the collector.
            CURRENT.reset(outer)
        return returned(inner, response, serialize, aio=aio)

    return run


def unary_behavior(
    shell: SyncShell, method: str, policy: MethodPolicy, handler: Any, *, aio: bool = False
) -> _Handler:
    """Return the raw-bytes behavior that deduplicates a unary handler's calls.

    ``aio``: the handler is a plain function on a ``grpc.aio.server``.
    """
    engine = shell.engine
    store = engine.store
    deserialize = handler.request_deserializer

    replies = engine.replies
    observed = replies.observed
    arrive = engine.arrive

    run = running(store, handler, aio=aio)

    # A function of its own: closed over here, it would cost every call cells that few need.
    def drive(steps: Steps, request: bytes, context: Any, raised: list[BaseException]) -> Any:
        return shell.drive(steps, context, lambda attempt: run(request, context, attempt, raised))

    batched = batched_behavior(shell, method, policy, run, send)
    room = engine.rooms.of(policy)
    # Of a pool of its own, or an event loop's server, it is not known how many wait.
    own_pool = aio or hasattr(handler.unary_unary, "experimental_thread_pool")
    queue_size = None if own_pool else engine.pool_queue
    pool = engine.pooled.of(method, policy)

    def placed(
        own: ServerRoom | PoolPlaces,
        call: Call,
        request: bytes,
        context: Any,
        raised: list[BaseException],
    ) -> Any:
        """Serve a call whose handler needs a place."""
        with in_room(own, call, context, context.add_callback) as place:

            def run_there(attempt: Attempt) -> Handled:
                try:
                    return run(request, context, attempt, raised)
                finally:
                    place.leave(ran=True)

            return shell.drive(serve_in_place(store, call, policy, place), context, run_there)

    def deduplicated(request: bytes, context: Any) -> Any:
        if request[:1] == MARK and is_batch(context.invocation_metadata()):
            return batched(request, context)
        call: Call | None = None
        raised: list[BaseException] = []
        began = replies.begin() if observed else 0.0
        try:
            call = arrive(method, request, context, deserialize)
            if room is not None or (queue_size is not None and queue_size()):
                told: Any = placed(room or pool, call, request, context, raised)
                return RawAnswer(send(context, replies.status(method, call, told, began, raised)))
            remaining_s = context.time_remaining
            admitted: Any = claim(store, call, policy, remaining_s)
            if not (
                isinstance(admitted, Attempt)
                or isinstance(admitted := shell.drive(admitted, context), Attempt)
            ):
                told = admitted
            elif isinstance(started := start(store, admitted, remaining_s), Attempt):
                handled = run(request, context, started, raised)
                ended = end(store, started, handled, remaining_s)
                if isinstance(ended, CompletionRecord):
                    # No other party took part, and the handler did not raise: most calls.
                    if not observed and is_bare(ended, call):
                        return RawAnswer(ended.response)  # type: ignore[arg-type]  # OK has one
                    told = Answer(ended, _EXECUTED)
                else:
                    # Served anew, where another replica took it over, it may run once more.
                    told = drive(ended, request, context, raised)
            else:
                told = drive(started, request, context, raised)
            if (
                not (observed or raised)
                and told.outcome is _EXECUTED
                and is_bare(told.record, call)
            ):
                return RawAnswer(told.record.response)
        except RiflError as refusal:
            told = refusal
        return RawAnswer(send(context, replies.status(method, call, told, began, raised)))

    return deduplicated


def send(context: Any, status: SentReply) -> bytes:
    """Put an answer or a refusal on gRPC's context; returns the message to send.

    Nothing is raised, also for an error: interceptors outside, which may make another
    status of any exception, would give different arrivals different answers.
    """
    if status.initial_metadata:
        context.send_initial_metadata(status.initial_metadata)
    if status.trailing_metadata:
        context.set_trailing_metadata(status.trailing_metadata)
    if status.code:
        context.set_code(STATUS_CODES[status.code])
        context.set_details(status.details)
    elif status.details:
        context.set_details(status.details)
    return status.response or b""
