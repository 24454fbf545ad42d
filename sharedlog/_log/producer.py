"""Producers: who publishes transactions, under a name or without one."""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from contextlib import suppress

from _rifl_ground.forks import refuse_in_children
from _rifl_ground.owned_lock import OwnedLock
from sharedlog._core.arguments import check_whole
from sharedlog._core.catalog import Stream
from sharedlog._core.draft import AppendBounds, Draft, tags_for
from sharedlog._core.envelope import About, Value
from sharedlog._core.errors import InvalidRequest, LogUnavailable, ReentrantUse
from sharedlog._core.fences import Fence, check_given
from sharedlog._core.named import MAX_SEQ, Turn, check_producer_name, check_turn, highest_of
from sharedlog._core.position import Position
from sharedlog._core.publishing import APPEND_BYTES, APPEND_ENTRIES
from sharedlog._core.streams import MAX_TAGS
from sharedlog._log.place import Place, forked
from sharedlog._log.placing import Headers, Placing
from sharedlog._log.resending import not_sent, until_answered
from sharedlog._log.sender import Sender
from sharedlog._log.transaction import Transaction

# How soon a thread that waits for a turn sees that it is over, if it was not notified.
_LOOK_S = 1.0


class _Has:
    """A thread's turn: that of a transaction, by its draft, or to look after one."""

    __slots__ = ("draft", "over", "thread")

    def __init__(self, draft: Draft | None) -> None:
        """It is not over."""
        self.draft = draft
        self.thread = get_ident()
        self.over = allocate_lock()
        self.over.acquire()


class Producer:
    """A publisher of transactions, one at a time; ``Log.producer`` returns it.

    With a name its transactions are numbered: each follows the one before. A seq is committed once
    among all programs, until an operator forgets the name.
    """

    def __init__(
        self, place: Place, placing: Placing, name: str | None, fence: Fence | None
    ) -> None:
        """Use ``Log.producer``."""
        if name is not None:
            check_producer_name(name)
        check_given(fence)
        self.place = place
        self.placing = placing
        self.name = name
        self.fence = fence
        self.sender = Sender(place)
        limits = place.engine.limits
        self._bounds = AppendBounds(
            min(APPEND_ENTRIES, limits.entries),
            min(APPEND_BYTES, limits.append_bytes),
            # One is that of all markers.
            tags_for(limits.operations, MAX_TAGS - 1),
        )
        # Whose turn it is; None: the turn is free.
        self._has: _Has | None = None
        self._gate = OwnedLock(ReentrantUse)
        # The last one was dropped, and no caller was told yet.
        self._dropped = False
        # One of unknown outcome, or not undone yet.
        self._left: Transaction | None = None
        # The name's highest seq, as this producer knows it.
        self._reached: int | None = None
        refuse_in_children(self, forked)

    def publish(
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
        """Publish one message in a transaction of its own; raises as that and ``Log.publish``."""
        with self.transaction(seq=seq, follows=follows) as transaction:
            transaction.publish(stream, value, key, headers, about)
        return transaction.positions[0]

    def transaction(self, *, seq: int | None = None, follows: int | None = None) -> Transaction:
        """Begin a transaction; waits for that of another thread.

        For a named producer: ``seq`` is its number, above ``follows``, the one before it (0:
        none). By default they go on from what this producer knows, first from the log. Committing
        a seq again with the same messages returns the first answer.
        Raises ``LogUnavailable`` while the last transaction's outcome is unknown. Raises
        ``InvalidRequest``, once, if the last one was dropped without an end: it is rolled back.
        """
        draft = Draft(self._bounds)
        mine = _Has(draft)
        try:
            self._take(mine)
            self._clear()
            self._tell_dropped()
            return Transaction(self, draft, self._turn(seq, follows))
        except BaseException:
            self._give(mine)
            raise

    def last(self) -> int:
        """Read the name's highest seq from the log, and go on from it; 0: there is none."""
        if self.name is None:
            raise InvalidRequest("a producer without a name has no seqs to go on from")
        self._reached = self.place.run(highest_of(self.name))
        return self._reached

    def end(self, left: Transaction, draft: Draft) -> bool:
        """End a transaction; ``left`` if its outcome is unknown or it must still be rolled back.

        Waits for no lock. Returns whether it was open; if it was not, does nothing.
        """
        has = self._has
        if has is None or has.draft is not draft:
            return False
        self._left = left if left.unfinished else None
        self._give(has)
        return True

    def dropped(self, left: Transaction, draft: Draft) -> None:
        """Drop one that may be open. Called by its finalizer, in any thread: waits for no lock."""
        has = self._has
        if has is not None and has.draft is draft:
            self._dropped = True
            self.end(left, draft)

    def reached(self, seq: int) -> None:
        """The name's transaction with this seq is committed."""
        self._reached = seq

    def settle(self, transaction: Transaction) -> None:
        """Find out what became of a transaction."""
        mine = _Has(None)
        try:
            self._take(mine)
            if self._left is transaction:
                transaction.finish()
                self._left = None
        except BaseException:
            self._give(mine)
            raise
        self._give(mine)

    def _take(self, mine: _Has) -> None:
        """Wait for one's turn; raises ``InvalidRequest`` in the thread that has it."""
        while True:
            with self._gate:
                has = self._has
                if has is None:
                    self._has = mine
                    return
                if has.thread == mine.thread:
                    raise InvalidRequest("a transaction of this producer is open: end it first")
            # Its transaction's end wakes who waits; one that an interrupt kept from that is seen.
            if has.over.acquire(timeout=_LOOK_S):
                has.over.release()

    def _give(self, has: _Has) -> None:
        """End a turn; again, or of another one: nothing. Takes no lock."""
        if self._has is has:
            self._has = None
        if has.over.locked():
            with suppress(RuntimeError):
                has.over.release()

    def _clear(self) -> None:
        """Leave nothing of an earlier transaction pending, or of unknown outcome."""
        if self._left is None:
            return
        try:
            self._left.finish()
        except LogUnavailable as error:
            raise not_sent(error) from error
        self._left = None

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._dropped = False
            raise InvalidRequest(
                "the transaction before this one was dropped, neither committed nor rolled back: "
                "it is undone, and its messages are not in the log. `with` ends one, or commit(). "
                "The next one begins as ever"
            )

    def _turn(self, seq: int | None, follows: int | None) -> Turn | None:
        if self.name is None:
            if seq is not None or follows is not None:
                raise InvalidRequest("seqs are of named producers: log.producer(name)")
            return None
        name = self.name
        if follows is None:
            if self._reached is None:
                self._reached = until_answered(self.place, lambda: highest_of(name))
            follows = self._reached
        check_whole(follows, "follows", 0, MAX_SEQ)
        if seq is None:
            seq = follows + 1
        turn = Turn(name, seq, follows)
        check_turn(turn)
        return turn
