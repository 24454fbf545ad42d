"""The seat of a substream: what a process knows of its index, and what the store is yet to know.

Here the index is moved for deliveries that were taken, and those that were not are refused.
"""

from __future__ import annotations

from typing import Any

from _rifl_ground.texts import one_line
from sharedlog._core.errors import LogError
from sharedlog._core.position import Position
from sharedlog._core.target_delivery import Delivery, DeliveryVerdict
from sharedlog._core.target_index import (
    Connects,
    Feed,
    Index,
    pack_connects,
    pack_index,
    unpack_connects,
    unpack_index,
)
from sharedlog._core.target_steps import (
    ABORTED,
    DATA_LOSS,
    FAILED_PRECONDITION,
    UNAVAILABLE,
    AnswerKind,
    Await,
    DeliveryAnswer,
    FetchRows,
    MoveTargetRows,
    RowMove,
    Rule,
    TargetUnavailable,
    TellPlayer,
)

_ATTEMPTS = 10


class Seat:
    """What this process knows of one substream of a feed. One rule at a time.

    ``row`` and ``durable``: the index in the store, as far as is known; ``flying``: what becomes
    of it by transactions that commit just now; ``admitted``: with what was taken since and is in
    none. ``running``: whose handler runs. ``sharing``: methods whose runs share transactions;
    ``single``: how many runs must commit by themselves, as a transaction of theirs did not.
    """

    def __init__(self, feed: Feed, tag: str) -> None:
        """Nothing is known yet."""
        self.feed = feed
        self.tag = tag
        self.key = feed.index_key(tag)
        self.known = False
        # Another replica may have moved it.
        self.stale = False
        self.row: bytes | None = None
        self.durable = Index()
        self.flying: list[tuple[bytes, Index, Any]] = []
        self.admitted = Index()
        self.connects = Connects()
        # A player has connected, and the store does not know that yet.
        self.connecting = False
        self.running: Position | None = None
        self.failed: Position | None = None
        self.sharing: set[str] = set()
        self.single = 0

    @property
    def owes(self) -> bool:
        """Whether the index is further than the store knows, or is about to."""
        return self.admitted != self.next[1]

    @property
    def next(self) -> tuple[bytes | None, Index]:
        """What the store has, once what commits just now has."""
        if not self.flying:
            return self.row, self.durable
        row, index, _ = self.flying[-1]
        return row, index

    def found(self, row: bytes | None) -> None:
        """Take what the store has."""
        self.durable = self.admitted = unpack_index(row)
        self.row, self.known, self.stale, self.flying = row, True, False, []

    def answer(
        self, kind: AnswerKind, place: Position, code: int = 0, details: str = ""
    ) -> DeliveryAnswer:
        """Return an answer about a place."""
        if kind is AnswerKind.DONE:
            return DeliveryAnswer(kind, self.tag, place)
        index = self.durable if self.known else None
        # Of a handler: it says what it likes, and as much as it likes.
        return DeliveryAnswer(kind, self.tag, place, code, one_line(details), index)

    def now(self, answer: DeliveryAnswer) -> DeliveryAnswer:
        """Return an answer with the index as it has become."""
        if answer.kind is AnswerKind.DONE or not self.known:
            return answer
        return answer._replace(found=self.durable)


def settle(seat: Seat) -> Rule[None]:
    """Have the store know what it has to, if it answers now."""
    if seat.owes:
        # Else it is tried again with the next delivery.
        yield from flush(seat)


def begin(seat: Seat) -> Rule[None]:
    """Know the index, and owe nothing of an earlier turn; raises ``TargetUnavailable``."""
    if not seat.known or (seat.stale and not seat.owes):
        yield from look(seat)
    elif seat.owes:
        # Of an earlier turn, when the store did not answer.
        stopped = yield from flush(seat)
        if stopped is not None and stopped.kind is AnswerKind.UNAVAILABLE:
            raise TargetUnavailable(stopped.details)


def look(seat: Seat) -> Rule[None]:
    """Read the index; what was owed is forgotten."""
    counted = seat.feed.connects_key(seat.tag)
    rows = yield FetchRows((seat.key, counted))
    seat.found(rows[seat.key])
    seat.connects = unpack_connects(rows[counted])


def count(seat: Seat) -> Rule[None]:
    """Have the store know that a player has connected: before a handler runs, and not before.

    A player that only asks where the index is waits for no writer: a handler may hang that has
    the only one. Raises ``TargetUnavailable``.
    """
    key = seat.feed.connects_key(seat.tag)
    for _ in range(_ATTEMPTS):
        # What commits just now is of an earlier connection, and may wait for more to come.
        if not seat.connecting or seat.flying:
            return
        row = (yield FetchRows((key,)))[key]
        connects = unpack_connects(row).once_more(seat.durable)
        if (yield MoveTargetRows((RowMove(key, row, pack_connects(connects)),))):
            seat.connects, seat.connecting = connects, False
            return
    raise TargetUnavailable("too many players connect at once")


def check_store(seat: Seat) -> Rule[None]:
    """Move a row to where it is; raises ``TargetUnavailable`` if the store moves none."""
    key = seat.feed.connects_key(seat.tag)
    row = (yield FetchRows((key,)))[key]
    yield MoveTargetRows((RowMove(key, row, row or pack_connects(seat.connects)),))


def flush(seat: Seat) -> Rule[DeliveryAnswer | None]:
    """Have the store know the index; what its deliveries are answered if not DONE."""
    stopped = yield from land(seat)
    if stopped is not None or not seat.owes:
        return stopped
    wanted, before, value = seat.admitted, seat.durable, pack_index(seat.admitted)
    place = wanted.begun or wanted.at
    try:
        moved = yield MoveTargetRows((RowMove(seat.key, seat.row, value),))
        if not moved:
            # Or the reply to this very move was lost.
            rows = yield FetchRows((seat.key,))
            seat.found(rows[seat.key])
            moved = seat.row == value
    except (TargetUnavailable, LogError) as error:
        # Skips that were confirmed, and nothing else: told again when a player connects.
        return None if place is None else unavailable(seat, place, error)
    if moved:
        seat.row, seat.durable = value, wanted
    at = wanted.at
    if at is not None and at != before.at:
        there = seat.durable.at
        if seat.durable.incarnation != wanted.incarnation:
            return seat.answer(AnswerKind.FORKED, at, FAILED_PRECONDITION, "the index moved")
        if there is not None and there[:2] >= at[:2]:
            yield TellPlayer(seat.answer(AnswerKind.DONE, at))
        else:
            return seat.answer(AnswerKind.GAP, at, ABORTED, "the index moved meanwhile")
    if not moved and place is not None and wanted.begun != before.begun:
        return seat.answer(AnswerKind.GAP, place, ABORTED, "the index moved meanwhile")
    return None


def land(seat: Seat) -> Rule[DeliveryAnswer | None]:
    """Wait for what commits just now; what its deliveries are answered if not DONE."""
    if not seat.flying:
        return None
    flying, seat.flying = seat.flying, []
    committed, why = yield Await([each for _, _, each in flying])
    if committed:
        seat.row, seat.durable, _ = flying[committed - 1]
        yield TellPlayer(seat.answer(AnswerKind.DONE, seat.durable.at))  # type: ignore[arg-type]
    if committed == len(flying):
        return None
    # None after the first that failed is committed, but maybe that is unknown. If one of them
    # cannot be committed, the others must not be retried with it again and again.
    seat.single = len(flying) - committed
    first, last = flying[committed][1].at, flying[-1][1].at
    seat.known, seat.admitted = False, seat.durable
    try:
        yield from look(seat)
    except (TargetUnavailable, LogError) as error:
        return unavailable(seat, first, error)
    if seat.durable.at == last:
        yield TellPlayer(seat.answer(AnswerKind.DONE, last))  # type: ignore[arg-type]
        return None
    return seat.answer(AnswerKind.UNAVAILABLE, first, UNAVAILABLE, why)


def refusal(seat: Seat, delivery: Delivery, verdict: DeliveryVerdict) -> DeliveryAnswer:
    """Return what a delivery is answered that is not taken."""
    at = seat.durable.at
    where = "nothing was taken yet" if at is None else f"the index is at {at}"
    if verdict is DeliveryVerdict.FORKED:
        text = f"{where}: of another incarnation of the log, or another message"
        return seat.answer(AnswerKind.FORKED, delivery.place, FAILED_PRECONDITION, text)
    if verdict is DeliveryVerdict.UNKNOWN:
        text = f"{seat.durable.begun} was begun, and its outcome is unknown"
        return seat.answer(AnswerKind.UNKNOWN, delivery.place, DATA_LOSS, text)
    return seat.answer(AnswerKind.GAP, delivery.place, ABORTED, where)


def unavailable(seat: Seat, place: Position, error: Exception) -> DeliveryAnswer:
    """Return what a delivery is answered where the store is in the way."""
    code = UNAVAILABLE if isinstance(error, TargetUnavailable) else FAILED_PRECONDITION
    return seat.answer(AnswerKind.UNAVAILABLE, place, code, str(error))
