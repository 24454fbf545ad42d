"""The taking of deliveries: judged, run, and the index moved with their effects (DESIGN-LOG §15).

A rule is a generator: it yields what must be done outside (``FetchRows``, ``MoveRows``,
``RunHandler``) or said (``TellPlayer``), the shell does it, and sends the result back in, or throws
what it raised.

- ``atomic``: the move of the index is in the handler's own transaction: both or neither.
- ``idempotent``: the handler runs, then the index is moved; of several that came together once.
- ``plain``: ``begun`` is durable before the handler runs, and goes with the move. If a process
  that does not run it finds ``begun``, the message is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from sharedlog._core.errors import LogError
from sharedlog._core.position import Position
from sharedlog._core.target_delivery import Delivery, DeliveryKind, DeliveryVerdict, judge
from sharedlog._core.target_index import (
    MAX_SKIPPED,
    Index,
    pack_index,
    unpack_index,
)
from sharedlog._core.target_seat import (
    Seat,
    begin,
    check_store,
    count,
    flush,
    land,
    look,
    refusal,
    unavailable,
)
from sharedlog._core.target_steps import (
    ABORTED,
    UNAVAILABLE,
    AnswerKind,
    Called,
    Confirm,
    DeliveryAnswer,
    Ended,
    FetchRows,
    HandlerKind,
    MethodRefused,
    RowMove,
    Rule,
    RunHandler,
    TargetUnavailable,
    TellPlayer,
)


def take(
    seat: Seat,
    deliveries: Iterable[Delivery | Confirm],
    resolve: Callable[[Delivery], Called],
    at_hand: Callable[[], bool] = lambda: False,
) -> Rule[bool]:
    """Take deliveries of one substream in their order; false: the rest was not taken.

    ``resolve`` raises ``MethodRefused`` for what never runs. More may be added to ``deliveries``
    while they are taken; ``at_hand``: whether there is another one.
    """
    stopped: DeliveryAnswer | None = None
    try:
        yield from begin(seat)
    except (TargetUnavailable, LogError) as error:
        first = next((each for each in deliveries if isinstance(each, Delivery)), None)
        if first is not None:
            yield TellPlayer(unavailable(seat, first.place, error))
        return False
    for each in deliveries:
        try:
            if isinstance(each, Confirm):
                yield from _confirm(seat, each)
                continue
            stopped = yield from _take(seat, each, resolve, at_hand)
        except (TargetUnavailable, LogError) as error:
            if isinstance(each, Confirm):
                # It is told again when a player connects.
                continue
            stopped = unavailable(seat, each.place, error)
        if stopped is not None:
            break
    behind = yield from flush(seat)
    # What is not durable comes before what stopped behind it.
    told = behind or (None if stopped is None else seat.now(stopped))
    if told is not None:
        yield TellPlayer(told)
    return told is None


def _confirm(seat: Seat, confirm: Confirm) -> Rule[None]:
    """Forget skips that are among the dead letters; another replica may have skipped them."""
    if confirm.number > seat.admitted.skips and not seat.owes and not seat.flying:
        yield from look(seat)
    seat.admitted = seat.admitted.confirming(confirm.number)


class ToldIndex(NamedTuple):
    """What a player is told of a substream. ``running``: whose handler runs here now."""

    at: Index
    running: Position | None


def connect(seats: Sequence[Seat]) -> Rule[list[ToldIndex]]:
    """Say where each index is; that a player has connected is counted with its first message.

    Of one whose handler runs here, what was begun is known: it is not told.
    """
    rows: Mapping[str, bytes | None] = yield FetchRows([each.key for each in seats])
    told: list[ToldIndex] = []
    for seat in seats:
        index = unpack_index(rows[seat.key])
        seat.connecting = seat.stale = True
        if index.begun is not None and (seat.running is not None or seat.owes):
            index = index._replace(begun=None)
        told.append(ToldIndex(index, seat.running))
    return told


def _take(
    seat: Seat,
    delivery: Delivery,
    resolve: Callable[[Delivery], Called],
    at_hand: Callable[[], bool],
) -> Rule[DeliveryAnswer | None]:
    """Take one; what it is answered if not DONE."""
    if not seat.known:
        yield from look(seat)
    verdict = judge(seat.admitted, delivery)
    if verdict not in (DeliveryVerdict.TAKE, DeliveryVerdict.DONE):
        # Another replica may have moved it meanwhile.
        stopped = yield from flush(seat)
        if stopped is not None:
            return stopped
        yield from look(seat)
        verdict = judge(seat.admitted, delivery)
    if verdict is DeliveryVerdict.DONE:
        at = seat.durable.at
        if at is not None and delivery.place[:2] <= at[:2]:
            yield TellPlayer(seat.answer(AnswerKind.DONE, delivery.place))
        # Else with what it is at, or before.
        return None
    if verdict is not DeliveryVerdict.TAKE:
        return refusal(seat, delivery, verdict)
    if delivery.kind is DeliveryKind.EMPTY:
        seat.admitted = seat.admitted.moving(delivery.place)
        return None
    if delivery.kind is DeliveryKind.SKIP and delivery.skip is not None:
        if len(seat.admitted.skipped) >= MAX_SKIPPED:
            text = f"{MAX_SKIPPED} skips are not confirmed to be among the dead letters"
            return seat.answer(AnswerKind.UNAVAILABLE, delivery.place, UNAVAILABLE, text)
        seat.admitted = seat.admitted.skipping(delivery.skip._replace(place=delivery.place))
        return None
    try:
        called = resolve(delivery)
        if called.kind is HandlerKind.ATOMIC:
            return (yield from _run_atomic(seat, delivery, called, more=at_hand()))
        if called.kind is HandlerKind.PLAIN:
            return (yield from _run_plain(seat, delivery, called))
        # It sees what those before it did.
        stopped = yield from land(seat)
        if stopped is not None:
            return stopped
        return _ended(seat, delivery, (yield from _run(seat, delivery, called)))
    except MethodRefused as error:
        return seat.answer(AnswerKind.REFUSED, delivery.place, error.code, str(error))


def _run(
    seat: Seat,
    delivery: Delivery,
    called: Called,
    move: RowMove | None = None,
    *,
    more: bool = False,
) -> Rule[Ended]:
    yield from count(seat)
    again = delivery.again or delivery.place == seat.failed
    redelivered = again or seat.connects.of(seat.admitted) > 1
    seat.running = delivery.place
    try:
        ended: Ended = yield RunHandler(delivery, called, move, redelivered, more)
    except Exception:
        seat.running = None
        raise
    seat.running = None
    seat.failed = delivery.place if ended.code else None
    return ended


def _ended(seat: Seat, delivery: Delivery, ended: Ended) -> DeliveryAnswer | None:
    """Judge a handler that commits nothing itself."""
    if ended.broken:
        return seat.answer(AnswerKind.UNAVAILABLE, delivery.place, ended.code, ended.details)
    if ended.code:
        return seat.answer(AnswerKind.FAILED, delivery.place, ended.code, ended.details)
    seat.admitted = seat.admitted.taking(delivery.place)
    return None


def _run_plain(seat: Seat, delivery: Delivery, called: Called) -> Rule[DeliveryAnswer | None]:
    before = seat.admitted
    seat.admitted = before._replace(begun=delivery.place)
    stopped = yield from flush(seat)
    if stopped is not None:
        if seat.owes:
            # It is not begun, whatever the store comes to know of those before it.
            seat.admitted = before
        return stopped
    try:
        ended = yield from _run(seat, delivery, called)
    except (MethodRefused, TargetUnavailable):
        # At once: the process may be about to end.
        seat.admitted = seat.admitted._replace(begun=None)
        yield from flush(seat)
        raise
    if ended.broken:
        text = ended.details or "its handler was cut off"
        return seat.answer(AnswerKind.UNKNOWN, delivery.place, ended.code, text)
    if ended.code:
        seat.admitted = seat.admitted._replace(begun=None)
    return _ended(seat, delivery, ended)


def _run_atomic(
    seat: Seat, delivery: Delivery, called: Called, *, more: bool
) -> Rule[DeliveryAnswer | None]:
    if seat.owes:
        stopped = yield from flush(seat)
        if stopped is not None:
            return stopped
    if called.method not in seat.sharing:
        # In a transaction of its own it would not see what those before it did.
        stopped = yield from land(seat)
        if stopped is not None:
            return stopped
    row, before = seat.next
    index = before.taking(delivery.place)
    move = RowMove(seat.key, row, pack_index(index))
    more, shared = more and not seat.single, bool(seat.flying)
    ended = yield from _run(seat, delivery, called, move, more=more)
    if ended.committing is not None:
        seat.sharing.add(called.method)
        seat.flying.append((move.value, index, ended.committing))
        seat.admitted = index
        return None
    if more:
        seat.sharing.discard(called.method)
    # What it saw of those before it is durable, or it is nothing.
    stopped = yield from land(seat)
    if stopped is not None:
        return stopped
    if ended.committed:
        seat.row = move.value
        seat.durable = seat.admitted = index
        seat.single = max(0, seat.single - 1)
        yield TellPlayer(seat.answer(AnswerKind.DONE, delivery.place))
        return None
    if ended.crowded or (shared and seat.single):
        # Once more, by itself: what it failed for may be what was before it in its transaction.
        return (yield from _run_atomic(seat, delivery, called, more=False))
    # It may be that another moved the index, or that this did after all.
    seat.known = False
    if ended.pending:
        return seat.answer(AnswerKind.UNAVAILABLE, delivery.place, UNAVAILABLE, ended.details)
    yield from look(seat)
    verdict = judge(seat.durable, delivery)
    if verdict is DeliveryVerdict.DONE:
        yield TellPlayer(seat.answer(AnswerKind.DONE, delivery.place))
        return None
    if verdict is not DeliveryVerdict.TAKE:
        return refusal(seat, delivery, verdict)
    if ended.broken:
        # The store answers: it is about this message alone.
        return seat.answer(AnswerKind.UNAVAILABLE, delivery.place, ABORTED, ended.details)
    if ended.doubtful:
        yield from check_store(seat)
    return seat.answer(AnswerKind.FAILED, delivery.place, ended.code or ABORTED, ended.details)
