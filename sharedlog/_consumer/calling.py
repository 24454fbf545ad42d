"""The calls of a handler, as it makes them in its transaction (DESIGN-LOG §14, T6)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import grpc

from _rifl_ground.loops import tell_loop
from sharedlog._consumer.lending import handler_ended
from sharedlog._consumer.services import ServiceAnswer, ServiceChannels, read
from sharedlog._consumer.store import StoreLane
from sharedlog._core.consumer.asked import BatchEnds, Died, Failed, line_of
from sharedlog._core.consumer.calls import Calling as Rule
from sharedlog._core.consumer.calls import CallStep, SendCall, ShardCalls, Unanswered, Wanted
from sharedlog._core.errors import CallAfterWrite, CallMismatch, InvalidRequest, LogError
from sharedlog._core.position import Position

# Told of a call that has ended: target, method, seconds, the error's name.
Told = Callable[[str, str, float, str], None]
# Carries a step out: ``SendCall`` is begun, and what is returned ends with the answer.
Act = Callable[[CallStep], Any]


class MessageCalls:
    """The calls that the handler of one message makes. One thread."""

    def __init__(
        self,
        calls: ShardCalls,
        position: Position,
        store: StoreLane,
        act: Act,
        *,
        first: bool,
        told: Told,
    ) -> None:
        """``first``: no other message of the transaction was before it."""
        self._calls = calls
        self._position = position
        self.store = store
        self._carry_out = act
        self._over = False
        self._first = first
        self._told = told
        self._written = store.written()
        self._number = 0
        # Calls that are on their way.
        self._under_way = 0
        self._tasks: list[asyncio.Future[ServiceAnswer]] = []
        # What ends the transaction, whatever the handler makes of it.
        self.ends: BaseException | None = None
        # The handler has ended before a call that it made.
        self._left = False
        # The handler has used the connection.
        self.read = False

    @property
    def made(self) -> bool:
        """Whether the handler calls."""
        return self._number > 0

    def check_connection(self) -> None:
        """Raise ``InvalidRequest`` while others may write, as a service is called."""
        if self._under_way and self._written is not None:
            raise InvalidRequest("the connection is used before a call, or once it is answered")

    def end(self) -> None:
        """The handler has ended: a thread that it left calls nothing, and keeps no answer."""
        self._over = True
        self._left |= self._under_way > 0

    def _act(self, step: CallStep) -> Any:
        if self._over:
            raise handler_ended()
        return self._carry_out(step)

    def check(self) -> None:
        """Raise what keeps the transaction from its commit, once the handler has returned."""
        if self.ends is not None:
            if isinstance(self.ends, BatchEnds) and self.store.written() != self._written:
                raise Failed("the handler has hidden the end of its transaction", counts=True)
            raise self.ends
        if self._left:
            raise Failed("the handler has not awaited a call that it made", counts=True)
        if self._calls.unanswered(self._position):
            raise Failed("a call that the handler made before has no answer", counts=True)

    def call(self, wanted: Wanted) -> ServiceAnswer:
        """Make a call, and return its answer; the thread waits."""
        rule, kept = self._next(wanted)
        with self._making(wanted, kept=kept):
            return read(carry(rule, self._act))

    def soon(self, wanted: Wanted) -> asyncio.Future[ServiceAnswer]:
        """Make a call, whose answer is awaited on the event loop that runs."""
        rule, kept = self._next(wanted)

        async def make() -> ServiceAnswer:
            with self._making(wanted, kept=kept):
                return read(await _carry_soon(rule, self._act))

        task = asyncio.ensure_future(make())
        # What it ends with is noted, also where the handler does not look.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._tasks.append(task)
        return task

    async def leave(self) -> None:
        """Have nothing be on its way any more: the handler has returned."""
        left = [each for each in self._tasks if not each.done()]
        self._left |= bool(left)
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _next(self, wanted: Wanted) -> tuple[Rule[bytes], bool]:
        """Return the rule of the next call, and whether its answer is there."""
        self._number += 1
        kept = self._calls.answer_of(self._position, self._number) is not None
        return self._calls.make(self._position, self._number, wanted), kept

    @contextlib.contextmanager
    def _making(self, wanted: Wanted, *, kept: bool) -> Any:
        """Suspend the transaction, where there is one writer, and judge what a call ends with."""
        if self._over:
            raise handler_ended()
        if self.ends is not None:
            raise self.ends
        try:
            if kept:
                yield
                return
            self._suspend()
            began = time.perf_counter()
            try:
                yield
            except Died:
                raise
            except BaseException as error:
                self._end_told(wanted, began, error)
                self._under_way -= 1
                with contextlib.suppress(LogError, Failed):
                    self._go_on()
                raise
            self._end_told(wanted, began, None)
            self._under_way -= 1
            self._go_on()
        except BaseException as error:
            told = self._judged(error)
            if told is error:
                raise
            raise told from error

    def _end_told(self, wanted: Wanted, began: float, error: BaseException | None) -> None:
        cause = error.cause if isinstance(error, Unanswered) else error
        why = "" if cause is None else type(cause).__name__
        self._told(wanted.target, wanted.method, time.perf_counter() - began, why)

    def _suspend(self) -> None:
        if self._written is not None and not self._under_way:
            if self.store.written() != self._written:
                raise CallAfterWrite(
                    "the handler calls a service, and has written before: all who write the "
                    "database would wait for the service, so calls come first"
                )
            if not self._first:
                raise BatchEnds
            self.store.suspend()
        self._under_way += 1

    def _go_on(self) -> None:
        if self._written is not None and not self._under_way and not self._over:
            self.store.resume(read=self.read)
            self._written = self.store.written()

    def _judged(self, error: BaseException) -> BaseException:
        """Note what becomes of the transaction, the first time; what the handler is told."""
        told = error.cause if isinstance(error, Unanswered) else error
        # A call that the handler left is cancelled: what the handler raised says why, not this.
        if (self.ends is None and not self._over) or isinstance(error, Died):
            self.ends = _end(error)
        return told


def _end(error: BaseException) -> BaseException:
    match error:
        case Unanswered():
            return Failed(line_of(error.cause), counts=not error.away, lasts=error.lasts)
        case CallMismatch():
            return Failed(line_of(error), counts=True, lasts=True)
        case InvalidRequest():
            return Failed(line_of(error), counts=True)
        case LogError() | Failed() | BatchEnds() | Died():
            return error
    return Failed(f"a call was interrupted: {line_of(error)}", counts=False)


def carry(rule: Rule[Any], act: Act) -> Any:
    """Carry a rule out, and wait for services."""
    answer, thrown = None, None
    while True:
        try:
            step = rule.send(answer) if thrown is None else rule.throw(thrown)
        except StopIteration as stop:
            return stop.value
        answer = thrown = None
        try:
            answer = act(step)
            if isinstance(step, SendCall):
                answer = ServiceChannels.answer(answer)
        except Unanswered as error:
            thrown = error


async def _carry_soon(rule: Rule[Any], act: Act) -> Any:
    """Carry a rule out, and await services."""
    answer, thrown = None, None
    while True:
        try:
            step = rule.send(answer) if thrown is None else rule.throw(thrown)
        except StopIteration as stop:
            return stop.value
        answer = thrown = None
        try:
            answer = act(step)
            if isinstance(step, SendCall):
                await _over(answer)
                answer = ServiceChannels.answer(answer)
        except Unanswered as error:
            thrown = error


async def _over(future: grpc.Future) -> None:  # type: ignore[type-arg]
    """Wait until a call is over; where the waiting is cancelled, so is the call."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    # The handler may wait no longer, and the loop be closed.
    future.add_done_callback(lambda _: tell_loop(loop, over.set))
    try:
        await over.wait()
    except BaseException:
        future.cancel()
        raise
