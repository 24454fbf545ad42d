"""Transactions of an event loop's tasks, over those of ``_log``."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from _rifl_ground.forks import refuse_in_children
from sharedlog._aio.threads import Threads
from sharedlog._core.catalog import Stream
from sharedlog._core.envelope import About, Value, called
from sharedlog._core.errors import InvalidRequest, LogError
from sharedlog._core.position import Position
from sharedlog._log import producer as sync
from sharedlog._log.place import forked
from sharedlog._log.placing import Headers
from sharedlog._log.transaction import Transaction as SyncTransaction

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Producer:
    """As ``sharedlog.Producer``, for tasks: one transaction at a time, others wait."""

    def __init__(self, inner: sync.Producer, threads: Threads) -> None:
        """Use ``Log.producer``."""
        self.inner = inner
        self._threads = threads
        # Held by the task whose transaction is open, and by what it left running.
        self.turn = asyncio.Lock()
        self.entered: weakref.ref[Transaction] | None = None
        refuse_in_children(self, forked)

    @property
    def name(self) -> str | None:
        """Of a named producer."""
        return self.inner.name

    async def publish(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
        *,
        seq: int | None = None,
        follows: int | None = None,
    ) -> Position:
        """Publish one message in a transaction of its own."""
        async with self.transaction(seq=seq, follows=follows) as transaction:
            await transaction.publish(stream, value, key, headers, about)
        return transaction.positions[0]

    def transaction(self, *, seq: int | None = None, follows: int | None = None) -> Transaction:
        """Return a transaction, which begins when it is entered (``async with``)."""
        return Transaction(self, seq, follows)

    async def last(self) -> int:
        """Ask the log for the name's highest seq, and go on from there; 0: there is none."""
        return await self.run(self.inner.last)

    def check_turn(self) -> None:
        """Raise ``InvalidRequest`` in a task that would wait for its own transaction."""
        entered = None if self.entered is None else self.entered()
        if entered is not None and entered.is_of(asyncio.current_task()):
            raise InvalidRequest("a transaction of this producer is open: end it first")

    async def run(self, called: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call what blocks, to its end, whoever is cancelled meanwhile."""
        running = asyncio.ensure_future(self._threads.run(called, *args, **kwargs))
        return await asyncio.shield(running)


class Transaction:
    """As ``sharedlog.Transaction``: an asynchronous context manager, for one task.

    One that is entered by hand, and dropped without an end, is rolled back when its producer begins
    the next one, which says so.
    """

    # Whose event loop's tasks wait for its producer's turn, which it has.
    _entered: asyncio.AbstractEventLoop | None = None
    _task: asyncio.Task[Any] | None = None

    def __init__(self, producer: Producer, seq: int | None, follows: int | None) -> None:
        """Use ``Producer.transaction``."""
        self._producer = producer
        self._seq = seq
        self._follows = follows
        self._begun: SyncTransaction | None = None

    @property
    def positions(self) -> list[Position]:
        """Where the messages are, in the order in which they were published; once committed."""
        return self._inner.positions

    @property
    def committed(self) -> bool | None:
        """Whether it is; None: that is not known."""
        return self._inner.committed

    @property
    def seq(self) -> int | None:
        """Its number among those of a named producer."""
        return self._inner.seq

    async def publish(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> None:
        """Publish a message with the transaction."""
        inner, placing = self._inner, self._producer.inner.placing
        if not placing.knows(stream):
            try:
                await self._producer.run(placing.stream, stream)
            except LogError as error:
                self._producer.inner.place.refused(error)
                raise
        message = inner.placed(stream, value, key, headers, about)
        if inner.wants_room(message):
            await self._producer.run(inner.pend)
        inner.add(message)

    async def publish_call(
        self,
        stream: str | Stream,
        method: str,
        request: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> None:
        """Publish a call with the transaction; see ``Log.publish_call``."""
        await self.publish(stream, request, key, headers, called(method, request, about))

    async def settle(self) -> list[Position]:
        """Return the positions after ``OutcomeUnknown``, or raise why it is not committed."""
        self._producer.check_turn()
        async with self._producer.turn:
            return await self._producer.run(self._inner.settle)

    async def __aenter__(self) -> Transaction:
        """Begin; raises ``InvalidRequest`` in a task that has one open of the same producer."""
        self._producer.check_turn()
        await self._producer.turn.acquire()
        begin = asyncio.ensure_future(
            self._producer.run(
                self._producer.inner.transaction, seq=self._seq, follows=self._follows
            )
        )
        try:
            self._begun = await asyncio.shield(begin)
        except asyncio.CancelledError:
            begin.add_done_callback(self._never_began)
            raise
        except BaseException:
            self._producer.turn.release()
            raise
        self._entered, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._producer.entered = weakref.ref(self)
        return self

    def is_of(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether this task has it open."""
        return self._entered is not None and self._task is task

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, or roll back if an exception leaves it, to its end: the next one waits."""
        inner, self._entered = self._inner, None
        end = asyncio.ensure_future(
            self._producer.run(inner.commit if kind is None else inner.roll_back)
        )
        end.add_done_callback(lambda _: self._producer.turn.release())
        await asyncio.shield(end)

    def __del__(self) -> None:
        """Let its producer go on, if it was not ended. In any thread."""
        loop, self._entered = self._entered, None
        if loop is not None:
            # What it began goes first. On a loop that is closed nobody is next.
            self._begun = None
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._producer.turn.release)

    @property
    def _inner(self) -> SyncTransaction:
        if self._begun is None:
            raise InvalidRequest("a transaction begins when it is entered: async with")
        return self._begun

    def _never_began(self, begin: asyncio.Future[SyncTransaction]) -> None:
        """Its task was cancelled while it began: nothing was published."""
        if not begin.cancelled() and begin.exception() is None:
            begin.result().roll_back()
        self._producer.turn.release()
