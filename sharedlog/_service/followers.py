"""The streams that are followed: read in threads, written as fast as each client reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from sharedlog._core.catalog import Stream, hold_retention_us
from sharedlog._core.errors import (
    InvalidRequest,
    LogError,
    LogStopped,
    LogUnavailable,
    QuotaExceeded,
    TrimmedLog,
)
from sharedlog._core.following import Follower, From, Moment, append_at, read_some
from sharedlog._core.names import check_hold_name
from sharedlog._core.position import MAX_LSN
from sharedlog._core.reading import Committed
from sharedlog._core.steps import Rule
from sharedlog._core.streams import substream_number, tag_of
from sharedlog._log.following import MOST_AT_ONCE, chosen_substreams
from sharedlog._log.place import Place
from sharedlog._service.access import Caller
from sharedlog._service.answers import Answers
from sharedlog._service.quotas import Quotas
from sharedlog._service.settings import ServerLimits
from sharedlog._service.shared_tail import Followed, SharedTails, pieces_of, replies_of
from sharedlog._service.tail import Tail
from sharedlog._wire.conversions import At, delivered_of, held_of, start_of
from sharedlog.v1 import log_pb2 as pb

_T = TypeVar("_T")
# About how much of a stream one follower has in memory here.
_AHEAD_BYTES = 1 << 20
_PIECE = 1000
_ATTEMPTS = 3
# How long a log that does not answer is asked again before the client must ask elsewhere.
_PATIENCE_S, _PAUSE_S = 5.0, 0.25


class Followers:
    """Of one server's log, on one event loop."""

    def __init__(
        self,
        place: Place,
        answers: Answers,
        tail: Tail,
        quotas: Quotas,
        limits: ServerLimits,
        run: Callable[..., Awaitable[Any]],
        run_tail: Callable[..., Awaitable[Any]],
    ) -> None:
        """``run``: calls what blocks in a thread; ``run_tail``: the same, of what is shared."""
        self._place = place
        self._answers = answers
        self._tail = tail
        self._quotas = quotas
        self._stalled_s = limits.stalled_s or None
        self._run_in_thread = run
        self._tails = SharedTails(self._made, partial(self._read_on, run_tail))
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Have every stream end: its client goes on elsewhere."""
        self._stopping.set()
        self._tail.end_waits()

    def begin_anew(self) -> None:
        """Have every stream end that is there now: its client goes on, if it still may."""
        before, self._stopping = self._stopping, asyncio.Event()
        before.set()
        self._tail.end_waits()

    async def read(self, request: pb.ReadRequest, caller: Caller, write: Any) -> None:
        """Answer one read, in pieces."""
        caller.check_follow(request.stream)
        stream = await self._stream(request.stream)
        chosen_substreams(stream, (request.substream,))
        if not 0 < request.limit <= MOST_AT_ONCE:
            raise InvalidRequest(f"a limit of {request.limit}; it is 1 to {MOST_AT_ONCE}")
        tag = tag_of(stream.name, request.substream)
        with self._quotas.calling(caller.name):
            at = await self._at(request.start, stream)
            left = request.limit
            while left > 0:
                piece = min(left, _PIECE)
                found = await self._run(read_some, tag, self._place.incarnation, at, piece)
                for some in pieces_of(found):
                    await self._write(write, pb.ReadReply(messages=map(delivered_of, some)))
                if not found:
                    return
                at, left = found[-1].position, left - len(found)

    async def follow(self, request: pb.FollowRequest, caller: Caller, write: Any) -> None:
        """Answer until the client, or the server, ends."""
        # That of the rights by which the caller was judged.
        stopping = self._stopping
        caller.check_follow(request.stream)
        if request.name:
            check_hold_name(request.name)
            caller.check_name(request.name)
            if request.uncommitted:
                raise InvalidRequest("a hold is of what is committed: no name with uncommitted")
            self._quotas.step(caller.name)
        with self._quotas.following(caller.name):
            follower = await self._begun(request)
            begun = pb.FollowReply(begun=_begun(follower), through=request.through)
            await self._write(write, begun)
            told = request.through
            followed = Followed(tuple(follower.starts), not request.uncommitted)
            with self._tails.following(followed):
                async with aclosing(self._replies(follower, followed, stopping)) as batches:
                    async for replies, through in batches:
                        for each in replies:
                            await self._write(write, each)
                        if through > told and not replies:
                            await self._write(write, pb.FollowReply(through=through))
                        told = max(told, through)

    async def _begun(self, request: pb.FollowRequest) -> Follower:
        stream = await self._stream(request.stream)
        chosen = chosen_substreams(stream, request.substreams or None)
        start: Any = await self._at(request.start, stream)
        if request.starts:
            if request.HasField("start"):
                raise InvalidRequest("one start, or one for each substream")
            start = {}
            for each in request.starts:
                chosen_substreams(stream, (each.substream,))
                at = await self._at(each.start, stream)
                if isinstance(at, Moment):
                    raise InvalidRequest("a time is for all substreams")
                start[tag_of(stream.name, each.substream)] = at
        if request.through > MAX_LSN:
            raise InvalidRequest(f"{request.through} is no LSN")
        follower = Follower(
            [tag_of(stream.name, each) for each in chosen],
            self._place.incarnation,
            start,
            name=request.name or None,
            retention_us=hold_retention_us(stream),
            committed=not request.uncommitted,
            ahead_bytes=_AHEAD_BYTES,
            through=request.through,
            remembers=False,
            held=request.held,
        )
        for attempt in range(_ATTEMPTS):
            try:
                await self._run(follower.begin, _now_us())
            except TrimmedLog:
                # The beginning may be trimmed while it is looked for.
                if not follower.at_beginning or attempt == _ATTEMPTS - 1:
                    raise
            else:
                break
        return follower

    async def _replies(
        self, follower: Follower, followed: Followed, stopping: asyncio.Event
    ) -> AsyncGenerator[tuple[list[bytes], int], None]:
        """Yield what is there, and through which LSN: also each time that there is no more of it.

        At the log's end it is read for all who follow; one that falls behind reads by itself.
        """
        through, shares = follower.through, False
        while not stopping.is_set():
            pieces = await self._tails.beyond(followed, through) if shares else None
            if pieces is not None:
                for each in pieces:
                    replies = each.replies(through)
                    through = each.through
                    if replies:
                        yield replies, through
                ended = True
            else:
                if shares:
                    follower.skip(through)
                found = await self._read(follower, stopping)
                through, ended = follower.through, not found
                if found:
                    yield list(replies_of(found, through)), through
                shares = follower.begun and (ended or self._tails.covers(followed, through))
                if shares:
                    # What it has read ahead is not kept meanwhile.
                    follower.skip(through)
            if ended:
                yield [], through
                if not stopping.is_set():
                    await self._tail.above(through, follower.starts)
        raise _stopping()

    async def _read(self, follower: Follower, stopping: asyncio.Event) -> list[Committed]:
        """Read on; a log that does not answer is asked again for a while."""
        failing_s = 0.0
        while not stopping.is_set():
            try:
                return await self._read_on(self._run_in_thread, follower)
            except TrimmedLog as error:
                raise (await self._run(follower.explain, error)) from error
            except LogStopped:
                raise
            except LogUnavailable:
                if failing_s >= _PATIENCE_S:
                    raise
                failing_s += _PAUSE_S
                await _pause(asyncio.sleep(_PAUSE_S), stopping)
        raise _stopping()

    def _made(self, followed: Followed, lsn: int) -> Follower:
        """Return a follower that goes on above an LSN."""
        return Follower(
            followed.tags,
            self._place.incarnation,
            lsn + 1,
            committed=followed.committed,
            ahead_bytes=_AHEAD_BYTES,
            through=lsn,
            remembers=False,
        )

    async def _read_on(
        self, run: Callable[..., Awaitable[Any]], follower: Follower
    ) -> list[Committed]:
        found: list[Committed] = await run(lambda: self._place.run(follower.read(_now_us())))
        return found

    async def _write(self, write: Any, reply: Any) -> None:
        """Write a reply; raises where its client does not read for too long."""
        try:
            # Not `wait_for`: that of Python 3.11 swallows a cancellation that meets the result,
            # and the follower of a client that left would stay.
            async with asyncio.timeout(self._stalled_s):
                await write(reply)
        except TimeoutError:
            raise QuotaExceeded(
                f"nothing was read for {self._stalled_s:g} s: go on from the last message"
            ) from None

    async def _stream(self, name: str) -> Stream:
        found: Stream = await self._run_in_thread(self._answers.stream, name)
        return found

    async def _at(self, start: pb.Start, stream: Stream) -> At:
        at = self._answers.requests.at(start, stream)
        if isinstance(at, From):
            try:
                found: int = await self._run(append_at, at.lsn)
            except TrimmedLog:
                # A follower that goes on after it, or by a hold, does not read it.
                return at.lsn
            return found
        return at

    async def _run(self, rule: Callable[..., Rule[_T]], *args: Any) -> _T:
        """Carry a rule out in a thread."""
        found: _T = await self._run_in_thread(lambda: self._place.run(rule(*args)))
        return found


async def _pause(waiting: Any, stopping: asyncio.Event) -> None:
    """Wait for this, or until the stream must end."""
    tasks = {asyncio.ensure_future(waiting), asyncio.ensure_future(stopping.wait())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()


def _begun(follower: Follower) -> pb.Begun:
    starts = [
        pb.SubstreamStart(substream=substream_number(tag), start=start_of(at))
        for tag, at in follower.starts.items()
    ]
    return pb.Begun(starts=starts, holds=map(held_of, follower.held.values()))


def _stopping() -> LogError:
    found = LogUnavailable("the server stops: follow on at it after its restart, or at another")
    found.appended, found.told = False, ""
    return found


def _now_us() -> int:
    return time.time_ns() // 1000
