"""The methods of a target on ``grpc.server``: batches, each in its call's thread (§15, P8)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from rifl._grpc.entrance import (
    LARGE,
    ServiceThreads,
    entrance_of,
    found,
)
from rifl._grpc.pool import pool_of, pool_size
from rifl._server.local_calls import Attempt, NotFound, RiflError, ServerHandlers
from sharedlog._core.errors import LogError
from sharedlog._core.position import Position
from sharedlog._core.target_index import Feed
from sharedlog._core.target_seat import (
    settle,
)
from sharedlog._core.target_steps import (
    UNAVAILABLE,
    AnswerKind,
    Await,
    DeliveryAnswer,
    FetchRows,
    HandlerKind,
    MoveTargetRows,
    RunHandler,
    TargetUnavailable,
    TellPlayer,
)
from sharedlog._core.target_taking import (
    connect,
    take,
)
from sharedlog._target.requests import (
    SERVICE,
    answers_to_wire,
    connecting,
    index_to_wire,
    items_of,
    origin_of,
    parsed,
    passed_over_of,
)
from sharedlog._target.target import (
    Seats,
    ServedTarget,
    Steps,
    by_tag,
    delivery_of,
    ended_of,
    interceptor_failed,
    known,
    not_passed_over,
    not_revoked,
    refused,
    skipped,
    unavailable,
)
from sharedlog._wire.refusals import refusal_of
from sharedlog.v1 import target_pb2 as pb

# For another batch's handler of the same substream, where the call has no deadline.
_LONGEST_WAIT_S = 30.0
# Where the server's pool cannot be found.
_THREADS = 16
_Behavior = Callable[[bytes, Any], bytes]


class SyncTarget:
    """Answers ``Connect`` and ``DeliverBatch``; a stream would hold a thread of the pool."""

    def __init__(self, target: ServedTarget, server: Any) -> None:
        self._target = target
        self._seats: Seats[Any] = Seats(threading.Lock)
        self._entrance = entrance_of(server)
        # Handlers run where those of other calls do: the application has prepared these threads.
        self._threads = ServiceThreads(
            "sharedlog-target", pool_size(server) or _THREADS, pool_of(server)
        )

    def methods(self) -> dict[str, Callable[[ServerHandlers], Any]]:
        """Return what makes the handler of each method, of what finds others'."""
        target = self._target
        return {
            f"/{SERVICE}/Connect": lambda _: self._handler(
                self._connect, target.calls.max_message_s
            ),
            f"/{SERVICE}/DeliverBatch": lambda handlers: self._handler(
                lambda data, context: self._deliver(data, context, handlers),
                LARGE * target.calls.max_message_s,
            ),
        }

    def _handler(self, answer: _Behavior, message_s: float) -> Any:
        behavior = self._guarded(answer)
        return found(self._entrance.handler(behavior, self._threads, message_s=message_s))

    def _guarded(self, answer: _Behavior) -> _Behavior:
        def behavior(data: bytes, context: Any) -> bytes:
            try:
                self._target.access.check(context)
                return answer(data, context)
            except (LogError, TargetUnavailable) as error:
                self._target.calls.audit.refused(error, context.peer)
                refusal = refusal_of(known(error))
                context.set_trailing_metadata(refusal.trailing_metadata)
                context.set_code(refusal.code)
                context.set_details(refusal.details)
                return b""

        return behavior

    def _connect(self, data: bytes, context: Any) -> bytes:
        request = parsed(pb.ConnectRequest, data)
        feed, tags = connecting(request)
        for tag in tags:
            self._target.methods.check_tag(tag)
        for tag, place in passed_over_of(request):
            # Else it is answered when the message is skipped.
            with suppress(TargetUnavailable):
                self._abandon(feed, tag, place)
        held = [self._seats.get(feed, tag) for tag in tags]
        for seat, lock in held:
            if seat.owes and lock.acquire(blocking=False):
                try:
                    self._drive(settle(seat), context, None, [])
                finally:
                    lock.release()
        told = self._drive(connect([seat for seat, _ in held]), context, None, [])
        return pb.ConnectReply(
            store=self._target.rows.store_id,
            indexes=[
                index_to_wire(tag, *each, waits=self._target.waits(self._seats, feed, tag))
                for tag, each in zip(tags, told, strict=True)
            ],
            streams=False,
            most_bytes=self._target.limits.most_bytes,
            process=self._target.rows.process,
            beats=self._target.beats(request.processes),
        ).SerializeToString()

    def _deliver(self, data: bytes, context: Any, handlers: ServerHandlers | None) -> bytes:
        message = parsed(pb.Deliveries, data)
        origin = origin_of(message)
        self._target.check_store(message.store)
        answers: list[DeliveryAnswer] = []
        for tag, items in by_tag(list(items_of(message, origin))).items():
            self._target.methods.check_tag(tag)
            try:
                for place in skipped(items):
                    self._abandon(origin.feed, tag, place)
            except TargetUnavailable as error:
                answers.append(not_passed_over(tag, place, error))
                continue
            seat, lock = self._seats.get(origin.feed, tag)
            if lock.acquire(timeout=_patience_s(context.time_remaining())):
                try:
                    waiting = deque(items)
                    rule = take(
                        seat,
                        iter(partial(_next, waiting), None),
                        self._target.methods.resolve,
                        partial(bool, waiting),
                    )
                    self._drive(rule, context, handlers, answers)
                finally:
                    lock.release()
            elif (first := next(filter(None, map(delivery_of, items)), None)) is not None:
                text = "a handler of this substream runs"
                kind = AnswerKind.UNAVAILABLE
                answers.append(DeliveryAnswer(kind, tag, first.place, UNAVAILABLE, text))
        return answers_to_wire(origin.term, answers)

    def _abandon(self, feed: Feed, tag: str, place: Position) -> None:
        """Revoke the run of a message that its player passes over, if it runs; then abandon it."""
        call = self._seats.hanging(feed, tag, place)
        if call is not None:
            if not self._target.calls.revoke(call):
                raise not_revoked()
            self._seats.abandon(feed, tag, place)

    def _drive(
        self,
        rule: Steps,
        context: Any,
        handlers: ServerHandlers | None,
        answers: list[DeliveryAnswer],
    ) -> Any:
        target = self._target
        # Runs of plain handlers, which go on until the index says that they have ended.
        runs: list[Attempt] = []
        value: Any = None
        error: Exception | None = None
        try:
            while True:
                step = rule.send(value) if error is None else rule.throw(error)
                value, error = None, None
                try:
                    if isinstance(step, RunHandler):
                        value = self._run(step, context, handlers, runs)
                    elif isinstance(step, MoveTargetRows):
                        value = _wait(target.put(step))
                        self._end(runs)
                    elif isinstance(step, Await):
                        value = _committed(step)
                        self._end(runs)
                    elif isinstance(step, FetchRows):
                        value = target.fetch(step)
                    elif isinstance(step, TellPlayer):
                        target.note(step.answer)
                        answers.append(step.answer)
                except Exception as failed:  # noqa: BLE001 - the rule's to judge
                    error = failed
        except StopIteration as stop:
            return stop.value
        finally:
            self._end(runs)

    def _run(self, step: RunHandler, context: Any, handlers: Any, runs: list[Attempt]) -> Any:
        target, called = self._target, step.called
        policy: Any = target.calls.policy(called.method)
        call = target.call_of(step)
        with self._seats.running(step.delivery, call):
            try:
                handler = target.calls.find(handlers, called.method, target.metadata_of(step))
            except NotFound as error:
                raise refused(error) from error
            except Exception as error:  # noqa: BLE001 - whatever a user's interceptor raises
                return interceptor_failed(error)
            try:
                transport = target.transport(context, step)
                body = called.content.body
                ran, attempt = target.calls.run(handler, body, transport, call, policy)
            except NotFound as error:
                raise refused(error) from error
            except RiflError as error:
                raise unavailable(error) from error
        runs.append(attempt)
        # Of a plain one the index has to say so first; of one that commits, whatever it comes to.
        if called.kind is not HandlerKind.PLAIN and ran.committing is None:
            self._end(runs)
        return ended_of(ran)

    def _end(self, runs: list[Attempt]) -> None:
        while runs:
            self._target.rows.end(runs.pop())


def _patience_s(left_s: float | None) -> float:
    # Of a call without a deadline gRPC says some hundred years.
    if left_s is None or left_s > threading.TIMEOUT_MAX:
        return _LONGEST_WAIT_S
    return max(0.0, left_s)


def _next(waiting: deque[Any]) -> Any:
    return waiting.popleft() if waiting else None


def _wait(later: Any) -> Any:
    try:
        return later.wait()
    except RiflError as error:
        raise unavailable(error) from error


def _committed(step: Await) -> tuple[int, str]:
    for at, each in enumerate(step.committing):
        try:
            if each.wait() is None:
                return at, "the transaction was rolled back"
        except RiflError as error:
            return at, str(error)
    return len(step.committing), ""
