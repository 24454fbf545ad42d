"""A transaction: messages that readers see all at once, or never (DESIGN-LOG §13)."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Protocol, TypeVar

from _rifl_ground.log import get_logger
from sharedlog._core.catalog import Stream, name_of
from sharedlog._core.draft import Draft
from sharedlog._core.envelope import About, Value, called
from sharedlog._core.errors import (
    AppendUnknown,
    InvalidRequest,
    LogError,
    ProducerRetired,
    SpanGone,
)
from sharedlog._core.fences import Fence
from sharedlog._core.named import Turn, placed_by
from sharedlog._core.position import Position
from sharedlog._core.producers import Appended, ProducerId
from sharedlog._core.publishing import Placed, positions
from sharedlog._core.spans import has_pending
from sharedlog._core.steps import Rule
from sharedlog._log.place import Place
from sharedlog._log.placing import Headers, Placing
from sharedlog._log.resending import Unknown
from sharedlog._log.sender import Sender

_T = TypeVar("_T")
_log = get_logger("sharedlog")
# How long what was published waits while something else of the transaction is pending: an append
# is a sign of life, without which a sweeper retires the producer.
SIGN_S = 30.0


class TransactionState(enum.Enum):
    """How far a transaction is."""

    OPEN = "open"
    COMMITTED = "committed"
    UNKNOWN = "of unknown outcome"
    ROLLED_BACK = "rolled back"


class Publishing(Protocol):
    """A producer, as its transactions see it."""

    place: Place
    placing: Placing
    sender: Sender
    fence: Fence | None

    def end(self, left: Transaction, draft: Draft) -> bool:
        """End a transaction; ``left`` if its outcome is unknown or it must still be rolled back.

        Returns whether it was open; if it was not, does nothing.
        """

    def dropped(self, left: Transaction, draft: Draft) -> None:
        """Drop one that may be open. Called by its finalizer, in any thread: waits for no lock."""

    def reached(self, seq: int) -> None:
        """The name's transaction with this seq is committed."""

    def settle(self, transaction: Transaction) -> None:
        """Find out what became of a transaction."""


class Transaction:
    """A transaction of a producer: a context manager, for one thread at a time.

    Leaving it commits; an exception that leaves it rolls it back. If it is dropped without an end,
    its producer rolls it back when it begins the next one, which raises once.
    """

    # Of one that an interrupt kept from being made.
    _state = TransactionState.ROLLED_BACK

    def __init__(self, producer: Publishing, draft: Draft, turn: Turn | None) -> None:
        """Use ``Producer.transaction``."""
        self._producer = producer
        self._draft = draft
        self._turn = turn
        # Where the messages are, once a caller has asked.
        self._positions: list[Position] | None = None
        self._answer: Appended | None = None
        # It is of an earlier append of this turn, whose messages are looked for.
        self._earlier = False
        self._signed_s = time.monotonic()
        # Something of it is pending that must be rolled back.
        self._undoing = False
        self._state = TransactionState.OPEN

    @property
    def unfinished(self) -> bool:
        """Whether its outcome is unknown, or it must still be rolled back."""
        return self._undoing or self._state is TransactionState.UNKNOWN

    @property
    def positions(self) -> list[Position]:
        """The positions of the messages, in the order of publishing; after the commit.

        Raises ``TrimmedLog`` if an earlier program committed a name's seq, and it was trimmed.
        """
        if self._state is not TransactionState.COMMITTED:
            raise InvalidRequest(f"the transaction is {self._state.value}: it has no positions")
        if self._positions is None:
            self._positions = self._found()
        return list(self._positions)

    @property
    def committed(self) -> bool | None:
        """Whether it is committed; None: unknown."""
        return (
            None
            if self._state is TransactionState.UNKNOWN
            else self._state is TransactionState.COMMITTED
        )

    @property
    def seq(self) -> int | None:
        """Its number among those of a named producer."""
        return None if self._turn is None else self._turn.seq

    def publish(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> None:
        """Publish a message with the transaction; its arguments are those of ``Log.publish``.

        If the messages exceed one append, they are written on the way, pending. Raises as
        ``Log.publish``. Raises ``ProducerRetired`` or ``SpanGone`` if the pending messages were
        rolled back: by a sweeper, after a long silence, or by its producer in a full log. After
        any other error only this message is missing: leave the transaction by it, or go on.
        """
        message = self.placed(stream, value, key, headers, about)
        if self.wants_room(message):
            self.pend()
        self.add(message)

    def publish_call(
        self,
        stream: str | Stream,
        method: str,
        request: Value,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        about: About | None = None,
    ) -> None:
        """Publish a call with the transaction; see ``Log.publish_call``."""
        self.publish(stream, request, key, headers, called(method, request, about))

    def placed(
        self,
        stream: str | Stream,
        value: Value,
        key: bytes | str | None,
        headers: Headers | None,
        about: About | None,
    ) -> Placed:
        """Return a message to append; raises if the transaction takes none."""
        self._check_open()
        placing, observers = self._producer.placing, self._producer.place.observers
        named = self._turn is not None
        if observers is None:
            return placing.placed(stream, value, key, headers, about, named=named)
        return observers.published(
            name_of(stream),
            about,
            lambda said: placing.placed(stream, value, key, headers, said, named=named),
        )

    def add(self, message: Placed) -> None:
        """Add a message for which there is room."""
        self._draft.add(message)

    def wants_room(self, message: Placed) -> bool:
        """Whether something must be written before this message can be added."""
        draft = self._draft
        try:
            takes = draft.takes(message)
        except LogError as error:
            self._producer.place.refused(error)
            raise
        if not takes:
            return True
        return draft.travels and draft.waits and time.monotonic() - self._signed_s > SIGN_S

    def pend(self) -> None:
        """Append the waiting messages, pending."""
        try:
            self._producer.sender.settle()
            self._pend()
        except Unknown as error:
            unknown = self._unknown(error)
            self._producer.place.refused(unknown)
            raise unknown from error
        except LogError as error:
            self._producer.place.refused(error)
            raise
        self._signed_s = time.monotonic()

    def commit(self) -> list[Position]:
        """Commit, and return the messages' positions; leaving the transaction does the same.

        Raises ``AppendUnknown`` if the log does not answer in time: ``settle`` finds the outcome,
        and so does the producer's next transaction before it begins. After any other error it is
        rolled back.
        """
        self._conclude()
        return self.positions

    def _conclude(self) -> None:
        """Commit, without looking for positions that no caller may need."""
        self._check_open()
        try:
            self._try_to_commit()
        except BaseException:
            # A signal's, maybe, at any step.
            self.over()
            raise
        self.over()
        if self._earlier:
            # The log tells them, which may be closed when they are asked for.
            self._positions = self._found()

    def over(self) -> None:
        """End it for its producer; idempotent."""
        if self._state is TransactionState.OPEN:
            self._undoing = True
        if self._producer.end(self, self._draft) and self._state is TransactionState.OPEN:
            self._state = TransactionState.ROLLED_BACK

    def _try_to_commit(self) -> None:
        try:
            self._commit()
            if self._undoing:
                with suppress(LogError):
                    self.finish()
        except Unknown as error:
            self._state = TransactionState.UNKNOWN
            unknown = self._unknown(error)
            self._producer.place.refused(unknown)
            raise unknown from error
        except LogError as error:
            self._producer.place.refused(error)
            if isinstance(error, SpanGone | ProducerRetired):
                _log.warning("transaction_lost", log=self._producer.place.name, error=str(error))
            self._roll_back()
            raise
        except BaseException:
            # A signal's, maybe while the commit was on its way.
            if self._state is TransactionState.OPEN:
                self._state = TransactionState.UNKNOWN
            raise

    def roll_back(self) -> None:
        """Roll all of it back, as an exception that leaves the transaction does.

        Does not fail: if the log does not answer, this producer's next transaction or a sweeper
        rolls it back, and readers do not see it meanwhile.
        """
        self._check_open()
        try:
            self._roll_back()
        except BaseException:
            self.over()
            raise
        self.over()

    def settle(self) -> list[Position]:
        """Return the positions after ``AppendUnknown``, or raise why it is not committed."""
        if self._state is TransactionState.UNKNOWN:
            self._producer.settle(self)
        return self.positions

    def __enter__(self) -> Transaction:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commit, or roll back if an exception leaves it."""
        try:
            if self._state is TransactionState.OPEN and kind is None:
                self._conclude()
            elif self._state is TransactionState.OPEN:
                self.roll_back()
        except BaseException:
            self.over()
            raise

    def __del__(self) -> None:
        """Let its producer go on, if it was not ended."""
        if self._state is TransactionState.OPEN:
            # The producer has it from here on, if it is its open one.
            self._state, self._undoing = TransactionState.ROLLED_BACK, True
            # In a forked child it is the parent's.
            with suppress(LogError):
                self._producer.dropped(self, self._draft)

    def finish(self) -> None:
        """Find out its outcome, and leave nothing of it pending; for its producer.

        Raises ``LogUnavailable`` if the log does not answer.
        """
        sender, draft = self._producer.sender, self._draft
        try:
            sender.settle()
        except Unknown:
            raise
        except LogError:
            # Its commit, or a pending append, was refused: what is pending is rolled back.
            pass
        mine = sender.producer
        if draft.travels and draft.producer == mine is not None:
            # After a commit: what an earlier program committed in its place, or this marker did.
            if self._state is not TransactionState.COMMITTED or self._producer.place.run(
                has_pending(mine)
            ):
                # Who was retired, or decided by another marker, has nothing pending of this.
                with suppress(ProducerRetired, SpanGone):
                    sender.append(draft.roll_back, lambda *_: draft.undone())
            draft.undone()
        if self._state is not TransactionState.COMMITTED:
            self._state = TransactionState.ROLLED_BACK
        self._undoing = False

    def _commit(self) -> None:
        sender, draft, turn = self._producer.sender, self._draft, self._turn
        sender.settle()
        if draft.travels:
            self._pend()
        fence = self._producer.fence
        if turn is None and not draft.tags:
            self._state = TransactionState.COMMITTED
        elif turn is not None:
            self._check_granted()
            producer, through = sender.producer, sender.seq
            sender.send(
                lambda: draft.commit_named(turn, producer, through, fence), self._committed_named
            )
        else:
            self._append(
                lambda mine, seq: draft.commit(mine, seq, fence),
                lambda _, found: self._committed(found),
            )

    def _pend(self) -> None:
        if self._draft.waits:
            act = self._draft.pend(self._producer.fence)
            self._append(act.rule, act.done)

    def _append(
        self,
        rule: Callable[[ProducerId, int], Rule[_T]],
        done: Callable[[ProducerId, _T], None],
    ) -> None:
        self._check_granted()
        try:
            self._producer.sender.append(rule, done)
        except ProducerRetired:
            if self._draft.travels:
                raise
            # Nothing of it is in the log, nor will it be: another producer may append it.
            self._producer.sender.append(rule, done)

    def _check_granted(self) -> None:
        draft = self._draft
        if draft.travels and draft.producer != self._producer.sender.producer:
            raise ProducerRetired("the transaction was taken for abandoned, and rolled back")

    def _found(self) -> list[Position]:
        answer, place = self._answer, self._producer.place
        if answer is None or not self._draft.tags:
            return []
        tags, checksum = self._draft.tags, answer.checksum
        if self._earlier and self._turn is not None:
            tags, checksum = place.run(placed_by(self._turn, answer.lsn))
        return positions(tags, answer.lsn, checksum, place.incarnation)

    def _committed(self, found: Appended) -> None:
        self._answer = found
        self._state = TransactionState.COMMITTED

    def _committed_named(self, found: Appended) -> None:
        if self._turn is not None:
            self._producer.reached(self._turn.seq)
            if found.first is None:
                # An earlier program's, maybe, with other turns of the substreams.
                self._earlier = True
                self._undoing = self._draft.travels
        self._committed(found)

    def _roll_back(self) -> None:
        self._undoing = True
        # What the log does not answer is undone before the producer's next transaction.
        with suppress(LogError):
            self.finish()
        self._state = TransactionState.ROLLED_BACK

    def _check_open(self) -> None:
        if self._state is not TransactionState.OPEN:
            raise InvalidRequest(f"the transaction is {self._state.value}")

    def _unknown(self, error: Unknown) -> AppendUnknown:
        return AppendUnknown(
            f"it is not known what became of the transaction: {error}. "
            + (
                "This handle cannot learn it any more: read the log after it is opened again"
                if error.stopped
                else "Ask again by its settle()"
            )
            + "; publishing it again may double it",
            "",
        )
