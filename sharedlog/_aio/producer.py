"""Transactions of an event loop's tasks, over those of ``_log``."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.loops import tell_loop
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
# A task that waits for its turn looks so often whether an interrupt kept another from ending its.
_LOOK_S = 1.0


class _Turn:
    """A task's turn at a producer, from the moment from which it waits for it.

    An interrupt or a cancellation can come between any two steps of the task. So the next one does
    not wait to be told: ``over`` is what is so.
    """

    __slots__ = ("_task", "ended", "inner", "told", "works")

    def __init__(self) -> None:
        """It waits."""
        self._task = asyncio.current_task()
        # The task does no more with it.
        self.ended = False
        # What a thread does of it.
        self.works: asyncio.Future[Any] | None = None
        # Set by the thread that began it.
        self.inner: SyncTransaction | None = None
        self.told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def given_up(self) -> bool:
        """Whether its task does nothing with it any more. Any thread."""
        return self.ended or (self._task is not None and self._task.done())

    @property
    def over(self) -> bool:
        """Whether the next one may begin."""
        return self.given_up and (self.works is None or self.works.done())

    def is_of(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether this task has it open."""
        return self._task is task and not self.ended

    def tell(self, _: object = None) -> None:
        """Have those that wait look."""
        if not self.told.done():
            self.told.set_result(None)


class Producer:
    """As ``sharedlog.Producer``, for tasks: one transaction at a time, others wait."""

    def __init__(self, inner: sync.Producer, threads: Threads) -> None:
        """Use ``Log.producer``."""
        self.inner = inner
        self._threads = threads
        # The first one is that of the open transaction, the others wait.
        self._turns: deque[_Turn] = deque()
        # The last turn that was over: an interrupt may have left its transaction open.
        self._left: _Turn | None = None
        # Of the threads that do what turns need.
        self._working = threading.Lock()
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
        """Read the name's highest seq from the log, and go on from it; 0: there is none."""
        return await self.run(self.inner.last)

    async def begin(self, seq: int | None, follows: int | None) -> _Turn:
        """Begin a transaction, in its turn."""

        def begin() -> None:
            if turn.given_up:
                return
            if self._left is not None and self._left.inner is not None:
                self._left.inner.over()
            self._left = None
            turn.inner = self.inner.transaction(seq=seq, follows=follows)

        turn = await self._turn()
        try:
            await self.work(turn, begin)
        except BaseException:
            self.end(turn)
            raise
        return turn

    async def settle(self, unknown: SyncTransaction) -> list[Position]:
        """Find out what became of a transaction, in a turn."""
        turn = await self._turn()
        try:
            return await self.work(turn, unknown.settle)
        finally:
            self.end(turn)

    async def work(self, turn: _Turn, act: Callable[[], _T]) -> _T:
        """Have a thread do a part of a turn to its end, also if the task is cancelled."""
        works = turn.works = self._threads.begin(self._worked, act)
        works.add_done_callback(turn.tell)
        return await asyncio.shield(works)

    def end(self, turn: _Turn) -> None:
        """A task does no more with its turn; the next one begins after what a thread still does."""
        turn.ended = True
        if turn.over:
            turn.tell()

    async def run(self, called: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a blocking call to its end, also when the task that awaits it is cancelled."""
        return await asyncio.shield(self._threads.begin(called, *args, **kwargs))

    async def _turn(self) -> _Turn:
        """Wait for a turn; raises ``InvalidRequest`` in a task that would wait for itself."""
        turns = self._turns
        if turns and turns[0].is_of(asyncio.current_task()):
            raise InvalidRequest("a transaction of this producer is open: end it first")
        mine = _Turn()
        turns.append(mine)
        try:
            while (first := turns[0]) is not mine:
                if first.over:
                    self._left = first if first.inner is not None else self._left
                    turns.popleft()
                else:
                    await asyncio.wait((first.told,), timeout=_LOOK_S)
        except BaseException:
            self.end(mine)
            raise
        return mine

    def _worked(self, act: Callable[[], _T]) -> _T:
        with self._working:
            return act()


class Transaction:
    """As ``sharedlog.Transaction``: an asynchronous context manager, for one task.

    One that is entered by hand, and dropped without an end, is rolled back when its producer begins
    the next one, which says so.
    """

    _turn: _Turn | None = None

    def __init__(self, producer: Producer, seq: int | None, follows: int | None) -> None:
        """Use ``Producer.transaction``."""
        self._producer = producer
        self._seq = seq
        self._follows = follows

    @property
    def positions(self) -> list[Position]:
        """The positions of the messages, in the order of publishing; after the commit."""
        return self._inner.positions

    @property
    def committed(self) -> bool | None:
        """Whether it is committed; None: unknown."""
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
            await self._producer.work(self._begun, inner.pend)
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
        """Return the positions after ``AppendUnknown``, or raise why it is not committed."""
        return await self._producer.settle(self._inner)

    async def __aenter__(self) -> Transaction:
        """Begin; raises ``InvalidRequest`` in a task that has one open of the same producer."""
        self._turn = await self._producer.begin(self._seq, self._follows)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, or roll back if an exception leaves it, to its end: the next one waits."""
        turn, inner = self._begun, self._inner
        # The next task waits only for the thread, not for this task.
        turn.ended = True
        try:
            await self._producer.work(turn, inner.commit if kind is None else inner.roll_back)
        finally:
            self._producer.end(turn)

    def __del__(self) -> None:
        """Let its producer go on, if it was not ended. In any thread."""
        turn = self._turn
        if turn is not None and not turn.ended:
            # What it began goes first.
            turn.inner = None
            turn.ended = True
            tell_loop(turn.told.get_loop(), turn.tell)

    @property
    def _begun(self) -> _Turn:
        if self._turn is None:
            raise InvalidRequest("a transaction begins when it is entered: async with")
        return self._turn

    @property
    def _inner(self) -> SyncTransaction:
        inner = self._begun.inner
        if inner is None:
            raise AssertionError("a turn that was begun has its transaction")
        return inner
