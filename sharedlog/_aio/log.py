"""``Log`` of asyncio: what ``sharedlog.aio.open`` returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.loops import tell_loop
from sharedlog._aio.following import Following
from sharedlog._aio.producer import Producer
from sharedlog._aio.publisher import Publisher
from sharedlog._aio.rounds import Sweeper, Trimming
from sharedlog._aio.threads import Threads
from sharedlog._core.arguments import check_called
from sharedlog._core.catalog import Stream, name_of
from sharedlog._core.envelope import About, Value, called
from sharedlog._core.errors import AppendUnknown, LogError
from sharedlog._core.fences import Fence
from sharedlog._core.holds import Hold
from sharedlog._core.message import Message
from sharedlog._core.observer import LogObserver
from sharedlog._core.position import Position
from sharedlog._core.sealing import Transform
from sharedlog._core.trim import TrimOutcome
from sharedlog._log.append_in import joining, within
from sharedlog._log.following import AT_ONCE, After
from sharedlog._log.log import Log as SyncLog
from sharedlog._log.log import ticket_of
from sharedlog._log.opening import TIMEOUT, create_log, open_log
from sharedlog._log.place import forked
from sharedlog._log.placing import Headers
from sharedlog._log.sweeper import SILENT


class Log:
    """As ``sharedlog.Log``, for the tasks of one event loop; an asynchronous context manager.

    What blocks runs in a few threads of the log's own. A task that is cancelled leaves what it
    has sent of unknown outcome; it is known before the same producer sends anything else.
    Of one process: in a forked child its methods raise ``LogStopped``.
    """

    def __init__(self, inner: SyncLog, threads: Threads) -> None:
        """Use ``sharedlog.aio.open``."""
        self._inner = inner
        self._threads = threads
        self._publisher = Publisher(inner._place, threads)
        refuse_in_children(self, forked)

    @property
    def incarnation(self) -> str:
        """Which log this is: drawn at its creation, part of every position."""
        return self._inner.incarnation

    @property
    def durability(self) -> str:
        """What the store promises of an append that returned, in a sentence."""
        return self._inner.durability

    async def stream(
        self, name: str, substreams: int | None = None, retention: timedelta | None = None
    ) -> Stream:
        """Create a stream, or find the one that has the name."""
        return await self._threads.run(self._inner.stream, name, substreams, retention)

    async def streams(self) -> list[Stream]:
        """Return the streams of the log, by name."""
        return await self._threads.run(self._inner.streams)

    async def publish(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> Position:
        """Append one message, and return its position once it is committed and durable.

        Messages of tasks that publish at the same time share an append.
        """
        observers = self._inner._place.observers
        if observers is None:
            return await self._publish(stream, value, key, headers, about)
        return await observers.published_aio(
            name_of(stream),
            about,
            lambda said: self._publish(stream, value, key, headers, said),
        )

    async def publish_call(
        self,
        stream: str | Stream,
        method: str,
        request: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> Position:
        """Publish a call: players call ``method`` with ``request`` at each target."""
        return await self.publish(stream, request, key, headers, called(method, request, about))

    async def _publish(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None,
        headers: Headers | None,
        about: About | None,
    ) -> Position:
        placing = self._inner._placing
        if not placing.knows(stream):
            await self._threads.run(placing.stream, stream)
        return await self._publisher.publish(placing.placed(stream, value, key, headers, about))

    async def append_in(
        self,
        connection: Any,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
        *,
        fence: Fence | None = None,
    ) -> None:
        """Append a message in a transaction of the application, which commits it or rolls it back.

        As ``sharedlog.Log.append_in``, for aiosqlite, psycopg's ``AsyncConnection``, SQLAlchemy's
        ``AsyncConnection`` and ``AsyncSession`` over them, and what ``rifl.aio.transaction``
        yields. A blocking connection is used on the event loop.
        """
        placing, place = self._inner._placing, self._inner._place

        async def append(said: About | None) -> None:
            if not placing.knows(stream):
                await self._threads.run(placing.stream, stream)
            placed = placing.placed(stream, value, key, headers, said)
            await joining(place).append_in_aio(connection, within(place, placed, fence))

        if place.observers is None:
            await append(about)
        else:
            await place.observers.published_aio(name_of(stream), about, append)

    async def settle(self, unknown: AppendUnknown) -> Position:
        """Return the position of a message after this log raised ``AppendUnknown`` for it."""
        return await self._publisher.settle(ticket_of(unknown))

    def producer(self, name: str | None = None, *, fence: Fence | None = None) -> Producer:
        """Return a producer of transactions."""
        return Producer(self._inner.producer(name, fence=fence), self._threads)

    async def raise_fence(self, name: str) -> Fence:
        """Raise a fence, and return it: writers with a lower number append nothing more."""
        return await self._threads.run(self._inner.raise_fence, name)

    async def retire(self, producer: int) -> int:
        """End a producer, by its id, and return its highest seq: an operator's decision."""
        return await self._threads.run(self._inner.retire, producer)

    async def forget(self, name: str) -> int:
        """Forget a named producer, and return its highest seq: an operator's decision."""
        return await self._threads.run(self._inner.forget, name)

    def follow(
        self,
        stream: str | Stream,
        substreams: Iterable[int] | None = None,
        after: After = None,
        committed: bool = True,
        name: str | None = None,
    ) -> Following:
        """Follow a stream: an asynchronous iterator, and context manager, of its messages.

        As ``sharedlog.Log.follow``; what that raises this does when it begins.
        """
        return Following(
            partial(self._inner.follow, stream, substreams, after, committed=committed, name=name)
        )

    async def read(
        self, stream: str | Stream, substream: int, after: After = None, limit: int = AT_ONCE
    ) -> list[Message]:
        """Read committed messages of a substream once; an empty list: none follow ``after``."""
        return await self._threads.run(self._inner.read, stream, substream, after, limit)

    async def holds(self, name: str | None = None) -> list[Hold]:
        """Return the holds of all followers, or of one name: what each keeps from being trimmed."""
        return await self._threads.run(self._inner.holds, name)

    async def drop_hold(self, name: str) -> list[Hold]:
        """Drop a name's holds, so that they keep nothing; its follower gets ``TrimmedLog``."""
        return await self._threads.run(self._inner.drop_hold, name)

    async def forget_hold(self, name: str) -> list[Hold]:
        """Remove a name's holds, the dropped ones too: the name begins anew."""
        return await self._threads.run(self._inner.forget_hold, name)

    async def trim(self, retention: timedelta | None = None) -> TrimOutcome:
        """Trim once what is older than the streams' retention, and than ``retention``."""
        return await self._threads.run(self._inner.trim, retention)

    def trim_every(
        self,
        every: timedelta,
        retention: timedelta | None = None,
        told: Callable[[TrimOutcome | LogError], None] | None = None,
    ) -> Trimming:
        """Trim on a schedule, in a thread, until what is returned is closed.

        Of several that were asked, in any processes, one does. ``told`` is called on the event
        loop with what each round did, or with its error.
        """
        if told is None:
            return Trimming(self._inner.trim_every(every, retention))
        check_called(told, "told")
        loop, tell = asyncio.get_running_loop(), told

        def tell_soon(found: TrimOutcome | LogError) -> None:
            tell_loop(loop, tell, found)

        return Trimming(self._inner.trim_every(every, retention, tell_soon))

    def sweeper(self, silent: timedelta = SILENT) -> Sweeper:
        """Return a context manager that rolls back transactions of crashed programs."""
        return Sweeper(self._inner.sweeper(silent))

    async def close(self) -> None:
        """Close files and connections; idempotent."""
        # Not in the pool, whose threads may all wait for what this ends.
        self._inner.close()
        self._threads.close()

    async def __aenter__(self) -> Log:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()


async def create_aio(
    url: str,
    *,
    timeout: timedelta = TIMEOUT,
    observer: LogObserver | Sequence[LogObserver] | None = None,
    seal: Transform | None = None,
    unseal: Transform | None = None,
) -> Log:
    """Make a log where there is none, and open it; see ``sharedlog.create``."""
    threads = Threads()
    made = await threads.run(
        create_log, url, timeout=timeout, observer=observer, seal=seal, unseal=unseal
    )
    return Log(made, threads)


async def open_aio(
    url: str,
    *,
    incarnation: str | None = None,
    timeout: timedelta = TIMEOUT,
    observer: LogObserver | Sequence[LogObserver] | None = None,
    seal: Transform | None = None,
    unseal: Transform | None = None,
) -> Log:
    """Open a log that ``create`` made; see ``sharedlog.open``."""
    threads = Threads()
    found = await threads.run(
        open_log,
        url,
        incarnation=incarnation,
        timeout=timeout,
        observer=observer,
        seal=seal,
        unseal=unseal,
    )
    return Log(found, threads)
