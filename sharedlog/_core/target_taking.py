"""The taking of deliveries: judged, run, and the index moved with their effects (DESIGN-LOG §15).

A rule is a generator: it yields what is to be done outside (``Fetch``, ``Put``, ``Run``) or said
(``Tell``), the shell does it, and sends the result back in, or throws what it raised.

- ``atomic``: the move of the index is in the handler's own transaction: both or neither.
- ``idempotent``: the handler runs, then the index is moved; of several that came together once.
- ``plain``: ``begun`` is durable before the handler runs, and goes with the move. Found by
  somebody who does not run it, the message is UNKNOWN.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sharedlog._core.errors import LogError
from sharedlog._core.position import Position
from sharedlog._core.target_delivery import Delivery, DeliveryKind, Verdict, judge
from sharedlog._core.target_index import (
    MAX_SKIPPED,
    Connects,
    Feed,
    Index,
    pack_connects,
    pack_index,
    unpack_connects,
    unpack_index,
)
from sharedlog.v1.sharedlog_pb2 import Envelope

_T = TypeVar("_T")
Rule = Generator[Any, Any, _T]
_ATTEMPTS = 10
# Of google.rpc.Code.
INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED = 3, 5, 7
FAILED_PRECONDITION, ABORTED, UNAVAILABLE, DATA_LOSS = 9, 10, 14, 15


class TargetUnavailable(Exception):
    """The target takes nothing at present; nothing of what was asked for stands."""


class MethodRefused(Exception):
    """The message will never run here; ``code`` is a google.rpc.Code."""

    def __init__(self, code: int, message: str) -> None:
        """``message`` says why."""
        super().__init__(code, message)
        self.code = code

    def __str__(self) -> str:
        """The message alone."""
        return str(self.args[1])


class HandlerKind(enum.Enum):
    """What a crash may leave of a handler, as its method is declared."""

    PLAIN = "plain"
    IDEMPOTENT = "idempotent"
    ATOMIC = "atomic"


class Called(NamedTuple):
    """The method that a message is for, its kind, and what is handed to the handler."""

    method: str
    kind: HandlerKind
    content: Envelope


class RowMove(NamedTuple):
    """A row's next value, if it is ``expected`` now."""

    key: str
    expected: bytes | None
    value: bytes


class Fetch(NamedTuple):
    """Read rows: a mapping; raises ``TargetUnavailable``."""

    keys: Sequence[str]


class Put(NamedTuple):
    """Move rows, all or none, durably: whether they were as expected.

    Raises ``TargetUnavailable``, also where nobody can tell.
    """

    moves: Sequence[RowMove]


class Run(NamedTuple):
    """Run a message's handler: an ``Ended``; of an atomic one ``move`` is in its transaction.

    ``more``: another one is at hand, and may share that. Raises ``MethodRefused`` and
    ``TargetUnavailable``: nothing ran.
    """

    delivery: Delivery
    called: Called
    move: RowMove | None
    redelivered: bool
    more: bool


class Ended(NamedTuple):
    """What became of a handler.

    ``committed``: an atomic one's transaction was. ``broken``: it did not come to its end, which
    is not its own doing. ``pending``: nobody can tell whether it committed. ``committing``: its
    transaction, which others share, has yet to commit (``Await``).
    """

    code: int = 0
    details: str = ""
    committed: bool = False
    broken: bool = False
    pending: bool = False
    committing: Any = None


class Await(NamedTuple):
    """Wait for transactions that commit: how many did, from the first on, and why not all."""

    committing: Sequence[Any]


class AnswerKind(enum.Enum):
    """What a player is told; see the protocol."""

    DONE = "done"
    GAP = "gap"
    FAILED = "failed"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    FORKED = "forked"
    UNAVAILABLE = "unavailable"


class Answer(NamedTuple):
    """An answer to a delivery, or to all through its place."""

    kind: AnswerKind
    tag: str
    place: Position
    code: int = 0
    details: str = ""
    found: Index | None = None
    connects: int = 0


class Tell(NamedTuple):
    """Answer the player; nobody waits."""

    answer: Answer


class Confirm(NamedTuple):
    """Skips up to this number are among the dead letters."""

    number: int


class Seat:
    """What this process knows of one substream of a feed. One rule at a time.

    ``row`` and ``durable``: the index as it is in the store, as far as is known; ``flying``: what
    becomes of it by transactions that commit just now; ``admitted``: with what was taken since and
    is in none. ``running``: whose handler runs.
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
        self.running: Position | None = None
        self.failed: Position | None = None

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

    def answer(self, kind: AnswerKind, place: Position, code: int = 0, details: str = "") -> Answer:
        """Return an answer about a place."""
        if kind is AnswerKind.DONE:
            return Answer(kind, self.tag, place)
        connects = self.connects.of(self.durable)
        index = self.durable if self.known else None
        return Answer(kind, self.tag, place, code, details, index, connects)

    def now(self, answer: Answer) -> Answer:
        """Return an answer with the index as it has become."""
        if answer.kind is AnswerKind.DONE or not self.known:
            return answer
        return answer._replace(found=self.durable, connects=self.connects.of(self.durable))


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
    stopped: Answer | None = None
    try:
        yield from _begin(seat)
    except (TargetUnavailable, LogError) as error:
        first = next((each for each in deliveries if isinstance(each, Delivery)), None)
        if first is not None:
            yield Tell(_unavailable(seat, first.place, error))
        return False
    for each in deliveries:
        if isinstance(each, Confirm):
            seat.admitted = seat.admitted.confirming(each.number)
            continue
        try:
            stopped = yield from _take(seat, each, resolve, at_hand)
        except (TargetUnavailable, LogError) as error:
            stopped = _unavailable(seat, each.place, error)
        if stopped is not None:
            break
    behind = yield from _flush(seat)
    # What is not durable comes before what stopped behind it.
    told = behind or (None if stopped is None else seat.now(stopped))
    if told is not None:
        yield Tell(told)
    return told is None


def connect(seats: Sequence[Seat]) -> Rule[list[tuple[Index, int]]]:
    """Count one more connection of a player, durably; where each index is, and how often.

    Of one whose handler runs here, what was begun is known: it is not told.
    """
    keys = [(each.key, each.feed.connects_key(each.tag)) for each in seats]
    for _ in range(_ATTEMPTS):
        rows: Mapping[str, bytes | None] = yield Fetch([key for pair in keys for key in pair])
        found: list[tuple[Index, Connects]] = []
        moves: list[RowMove] = []
        for index_key, connects_key in keys:
            index = unpack_index(rows[index_key])
            counted = rows[connects_key]
            connects = unpack_connects(counted).once_more(index)
            found.append((index, connects))
            moves.append(RowMove(connects_key, counted, pack_connects(connects)))
        if not moves or (yield Put(moves)):
            break
    else:
        raise TargetUnavailable("too many players connect at once")
    told: list[tuple[Index, int]] = []
    for seat, (index, connects) in zip(seats, found, strict=True):
        seat.connects = connects
        seat.stale = True
        if index.begun is not None and (seat.running is not None or seat.owes):
            index = index._replace(begun=None)
        told.append((index, connects.times))
    return told


def settle(seat: Seat) -> Rule[None]:
    """Have the store know what it has to, if it answers now."""
    if seat.owes:
        # Else it is tried again with the next delivery.
        yield from _flush(seat)


def _begin(seat: Seat) -> Rule[None]:
    if not seat.known or (seat.stale and not seat.owes):
        yield from _look(seat)
    elif seat.owes:
        # Of an earlier turn, when the store did not answer.
        stopped = yield from _flush(seat)
        if stopped is not None and stopped.kind is AnswerKind.UNAVAILABLE:
            raise TargetUnavailable(stopped.details)


def _look(seat: Seat) -> Rule[None]:
    counted = seat.feed.connects_key(seat.tag)
    rows = yield Fetch((seat.key, counted))
    seat.found(rows[seat.key])
    seat.connects = unpack_connects(rows[counted])


def _take(
    seat: Seat,
    delivery: Delivery,
    resolve: Callable[[Delivery], Called],
    at_hand: Callable[[], bool],
) -> Rule[Answer | None]:
    """Take one; what it is answered if not DONE."""
    if not seat.known:
        yield from _look(seat)
    verdict = judge(seat.admitted, delivery)
    if verdict not in (Verdict.TAKE, Verdict.DONE):
        # Another replica may have moved it meanwhile.
        stopped = yield from _flush(seat)
        if stopped is not None:
            return stopped
        yield from _look(seat)
        verdict = judge(seat.admitted, delivery)
    if verdict is Verdict.DONE:
        at = seat.durable.at
        if at is not None and delivery.place[:2] <= at[:2]:
            yield Tell(seat.answer(AnswerKind.DONE, delivery.place))
        # Else with what it is at, or before.
        return None
    if verdict is not Verdict.TAKE:
        return _refusal(seat, delivery, verdict)
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
    again = delivery.again or delivery.place == seat.failed
    redelivered = again or seat.connects.of(seat.admitted) > 1
    seat.running = delivery.place
    try:
        ended: Ended = yield Run(delivery, called, move, redelivered, more)
    except Exception:
        seat.running = None
        raise
    seat.running = None
    seat.failed = delivery.place if ended.code else None
    return ended


def _ended(seat: Seat, delivery: Delivery, ended: Ended) -> Answer | None:
    """Judge a handler that commits nothing itself."""
    if ended.broken:
        return seat.answer(AnswerKind.UNAVAILABLE, delivery.place, ended.code, ended.details)
    if ended.code:
        return seat.answer(AnswerKind.FAILED, delivery.place, ended.code, ended.details)
    seat.admitted = seat.admitted.taking(delivery.place)
    return None


def _run_plain(seat: Seat, delivery: Delivery, called: Called) -> Rule[Answer | None]:
    seat.admitted = seat.admitted._replace(begun=delivery.place)
    stopped = yield from _flush(seat)
    if stopped is not None:
        if seat.owes:
            # It is not begun, whatever the store comes to know of those before it.
            seat.admitted = seat.admitted._replace(begun=seat.durable.begun)
        return stopped
    try:
        ended = yield from _run(seat, delivery, called)
    except (MethodRefused, TargetUnavailable):
        # At once: the process may be about to end.
        seat.admitted = seat.admitted._replace(begun=None)
        yield from _flush(seat)
        raise
    if ended.broken:
        text = ended.details or "its handler was cut off"
        return seat.answer(AnswerKind.UNKNOWN, delivery.place, ended.code, text)
    if ended.code:
        seat.admitted = seat.admitted._replace(begun=None)
    return _ended(seat, delivery, ended)


def _run_atomic(
    seat: Seat, delivery: Delivery, called: Called, *, more: bool
) -> Rule[Answer | None]:
    if seat.owes:
        stopped = yield from _flush(seat)
        if stopped is not None:
            return stopped
    row, before = seat.next
    index = before.taking(delivery.place)
    move = RowMove(seat.key, row, pack_index(index))
    ended = yield from _run(seat, delivery, called, move, more=more)
    if ended.committing is not None:
        seat.flying.append((move.value, index, ended.committing))
        seat.admitted = index
        return None
    # What it saw of those before it is durable, or it is nothing.
    stopped = yield from _land(seat)
    if stopped is not None:
        return stopped
    if ended.committed:
        seat.row = move.value
        seat.durable = seat.admitted = index
        yield Tell(seat.answer(AnswerKind.DONE, delivery.place))
        return None
    # It may be that another moved the index, or that this did after all.
    seat.known = False
    if ended.pending:
        return seat.answer(AnswerKind.UNAVAILABLE, delivery.place, UNAVAILABLE, ended.details)
    yield from _look(seat)
    verdict = judge(seat.durable, delivery)
    if verdict is Verdict.DONE:
        yield Tell(seat.answer(AnswerKind.DONE, delivery.place))
        return None
    if verdict is not Verdict.TAKE:
        return _refusal(seat, delivery, verdict)
    kind = AnswerKind.UNAVAILABLE if ended.broken else AnswerKind.FAILED
    return seat.answer(kind, delivery.place, ended.code or ABORTED, ended.details)


def _flush(seat: Seat) -> Rule[Answer | None]:
    """Have the store know the index; what its deliveries are answered if not DONE."""
    stopped = yield from _land(seat)
    if stopped is not None or not seat.owes:
        return stopped
    wanted, before, value = seat.admitted, seat.durable, pack_index(seat.admitted)
    place = wanted.begun or wanted.at
    try:
        moved = yield Put((RowMove(seat.key, seat.row, value),))
        if not moved:
            # Or the reply to this very move was lost.
            rows = yield Fetch((seat.key,))
            seat.found(rows[seat.key])
            moved = seat.row == value
    except (TargetUnavailable, LogError) as error:
        # Skips that were confirmed, and nothing else: told again when a player connects.
        return None if place is None else _unavailable(seat, place, error)
    if moved:
        seat.row, seat.durable = value, wanted
    at = wanted.at
    if at is not None and at != before.at:
        there = seat.durable.at
        if seat.durable.incarnation != wanted.incarnation:
            return seat.answer(AnswerKind.FORKED, at, FAILED_PRECONDITION, "the index moved")
        if there is not None and there[:2] >= at[:2]:
            yield Tell(seat.answer(AnswerKind.DONE, at))
        else:
            return seat.answer(AnswerKind.GAP, at, ABORTED, "the index moved meanwhile")
    if not moved and place is not None and wanted.begun != before.begun:
        return seat.answer(AnswerKind.GAP, place, ABORTED, "the index moved meanwhile")
    return None


def _land(seat: Seat) -> Rule[Answer | None]:
    """Wait for what commits just now; what its deliveries are answered if not DONE."""
    if not seat.flying:
        return None
    flying, seat.flying = seat.flying, []
    committed, why = yield Await([each for _, _, each in flying])
    if committed:
        seat.row, seat.durable, _ = flying[committed - 1]
        yield Tell(seat.answer(AnswerKind.DONE, seat.durable.at))  # type: ignore[arg-type]
    if committed == len(flying):
        return None
    # Nothing behind the first that failed stands; but maybe nobody could tell.
    first, last = flying[committed][1].at, flying[-1][1].at
    seat.known, seat.admitted = False, seat.durable
    try:
        yield from _look(seat)
    except (TargetUnavailable, LogError) as error:
        return _unavailable(seat, first, error)
    if seat.durable.at == last:
        yield Tell(seat.answer(AnswerKind.DONE, last))  # type: ignore[arg-type]
        return None
    return seat.answer(AnswerKind.UNAVAILABLE, first, UNAVAILABLE, why)


def _refusal(seat: Seat, delivery: Delivery, verdict: Verdict) -> Answer:
    at = seat.durable.at
    where = "nothing was taken yet" if at is None else f"the index is at {at}"
    if verdict is Verdict.FORKED:
        text = f"{where}: of another incarnation of the log, or another message"
        return seat.answer(AnswerKind.FORKED, delivery.place, FAILED_PRECONDITION, text)
    if verdict is Verdict.UNKNOWN:
        text = f"{seat.durable.begun} was begun, and nobody knows what became of it"
        return seat.answer(AnswerKind.UNKNOWN, delivery.place, DATA_LOSS, text)
    return seat.answer(AnswerKind.GAP, delivery.place, ABORTED, where)


def _unavailable(seat: Seat, place: Position, error: Exception) -> Answer:
    code = UNAVAILABLE if isinstance(error, TargetUnavailable) else FAILED_PRECONDITION
    return seat.answer(AnswerKind.UNAVAILABLE, place, code, str(error))
