"""The newest messages of a stream, read once for all who have read so far (DESIGN-LOG §12, L8).

A read is asked for by who was woken, and all who are woken meanwhile get what it finds. What was
found is kept within a bound: a follower that is further behind reads by itself, and delays none.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sharedlog._core.following import Follower
from sharedlog._core.reading import Committed
from sharedlog._wire.conversions import delivered_of
from sharedlog._wire.methods import REPLY_BYTES
from sharedlog.v1 import log_pb2 as pb

# What is kept of each: about so many bytes, and pieces.
_MOST_BYTES, _MOST_PIECES = 1 << 20, 1000
# Who waits for a read for longer reads by itself.
_PATIENCE_S = 2.0
# What a message takes in a reply beside its envelope.
_MESSAGE_BYTES = 64


class Followed(NamedTuple):
    """What is read together: the same for all who share it.

    ``committed``: False shows what is pending or rolled back, too.
    """

    tags: tuple[str, ...]
    committed: bool


class TailPiece:
    """The messages of one read: all above ``after``, through an LSN."""

    def __init__(self, after: int, through: int, found: Sequence[Committed]) -> None:
        """``found``: in the order in which they are delivered."""
        self.after = after
        self.through = through
        self.bytes = sum(len(each.envelope) + _MESSAGE_BYTES for each in found)
        self._found = found
        self._replies: list[bytes] | None = None

    def replies(self, above: int) -> list[bytes]:
        """Return what a follower is sent who has everything through an LSN."""
        if above > self.after:
            some = [each for each in self._found if each.position.lsn > above]
            return list(replies_of(some, self.through))
        if self._replies is None:
            self._replies = list(replies_of(self._found, self.through))
        return self._replies


class SharedTail:
    """On one event loop."""

    def __init__(self, follower: Follower, read: Callable[[Follower], Awaitable[list[Committed]]]):
        """``follower``: which has returned everything through where it begins.

        ``read``: reads on by it, in a thread.
        """
        self._follower = follower
        self._read_on = read
        self._pieces: deque[TailPiece] = deque()
        self._bytes = 0
        self._begins = self.through = follower.through
        # The reads that have begun, and the one that has not ended.
        self._begun = 0
        self._reading: asyncio.Task[None] | None = None
        # Nothing more is read by it: a read failed, or took too long.
        self.over = False

    def covers(self, lsn: int) -> bool:
        """Whether it has all that follows an LSN."""
        return not self.over and lsn >= self._begins

    async def beyond(self, lsn: int) -> list[TailPiece] | None:
        """Return what is above an LSN; []: nothing is, as of a read that began after the call.

        None: the caller has to read by itself.
        """
        # One that has begun before may have read before what the caller was woken for.
        before = self._begun
        while self.covers(lsn) and self.through <= lsn:
            if self._reading is None:
                self._begun += 1
                self._reading = asyncio.ensure_future(self._read())
            number = self._begun
            # A caller that leaves does not end it for the others.
            await asyncio.shield(self._reading)
            if number > before:
                break
        return self._above(lsn) if self.covers(lsn) else None

    def _above(self, lsn: int) -> list[TailPiece]:
        found: list[TailPiece] = []
        for each in reversed(self._pieces):
            if each.through <= lsn:
                break
            found.append(each)
        found.reverse()
        return found

    async def _read(self) -> None:
        reading = asyncio.ensure_future(self._read_on(self._follower))
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            done, _ = await asyncio.wait((reading,), timeout=_PATIENCE_S)
            if done and reading.exception() is None:
                self._keep(reading.result())
            else:
                # Each follower reads by itself, and gets its own error.
                self.over = True
        finally:
            self._reading = None

    def _keep(self, found: Sequence[Committed]) -> None:
        through = self._follower.through
        if through <= self.through:
            return
        piece = TailPiece(self.through, through, found)
        self.through = through
        self._pieces.append(piece)
        self._bytes += piece.bytes
        while len(self._pieces) > 1 and (
            self._bytes > _MOST_BYTES or len(self._pieces) > _MOST_PIECES
        ):
            oldest = self._pieces.popleft()
            self._bytes -= oldest.bytes
            self._begins = oldest.through


class SharedTails:
    """Those of one server, each as long as it has followers."""

    def __init__(
        self,
        make: Callable[[Followed, int], Follower],
        read: Callable[[Follower], Awaitable[list[Committed]]],
    ) -> None:
        """``make``: a follower that goes on above an LSN; ``read``: see ``SharedTail``."""
        self._make = make
        self._read = read
        self._tails: dict[Followed, SharedTail] = {}
        self._followers: Counter[Followed] = Counter()

    @contextmanager
    def following(self, followed: Followed) -> Iterator[None]:
        """Have one more follower of this while the block runs."""
        self._followers[followed] += 1
        try:
            yield
        finally:
            self._followers[followed] -= 1
            if not self._followers[followed]:
                del self._followers[followed]
                self._tails.pop(followed, None)

    def covers(self, followed: Followed, lsn: int) -> bool:
        """Whether what follows an LSN is there to be shared."""
        tail = self._tails.get(followed)
        return tail is not None and tail.covers(lsn)

    async def beyond(self, followed: Followed, lsn: int) -> list[TailPiece] | None:
        """Return what is above an LSN, where the caller is at the log's end; see ``SharedTail``."""
        tail = self._tails.get(followed)
        if tail is None or tail.over:
            tail = self._tails[followed] = SharedTail(self._make(followed, lsn), self._read)
        return await tail.beyond(lsn)


def replies_of(messages: Sequence[Committed], through: int) -> Iterator[bytes]:
    """Yield replies with messages: the last one says through which LSN these are all."""
    pieces = list(pieces_of(messages))
    for at, some in enumerate(pieces, 1):
        said = through if at == len(pieces) else 0
        reply = pb.FollowReply(messages=map(delivered_of, some), through=said)
        yield reply.SerializeToString()


def pieces_of(messages: Sequence[Committed]) -> Iterator[Sequence[Committed]]:
    """Yield messages as replies have them."""
    first, size = 0, 0
    for at, each in enumerate(messages):
        if size and size + len(each.envelope) > REPLY_BYTES:
            yield messages[first:at]
            first, size = at, 0
        size += len(each.envelope) + _MESSAGE_BYTES
    if size:
        yield messages[first:]
