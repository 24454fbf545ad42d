"""A target: what it knows of its substreams, and how the rules are carried out (DESIGN-LOG §15)."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from _rifl_ground.log import get_logger
from _rifl_ground.refusals import caller_text
from _rifl_ground.seldom import SeldomLog
from rifl._server.local_calls import (
    LocalCalls,
    LocalRun,
    Move,
    NotFound,
    RiflError,
    RowCall,
    Transport,
)
from sharedlog._core.errors import LogError, LogUnavailable, OtherStore
from sharedlog._core.position import Position
from sharedlog._core.target_delivery import Delivery, DeliveryKind
from sharedlog._core.target_index import Feed
from sharedlog._core.target_methods import Delivered, Methods
from sharedlog._core.target_seat import (
    Seat,
)
from sharedlog._core.target_steps import (
    ABORTED,
    AnswerKind,
    DeliveryAnswer,
    Ended,
    FetchRows,
    MethodRefused,
    MoveTargetRows,
    RunHandler,
    TargetUnavailable,
)
from sharedlog._target.access import PlayerAccess

_log = get_logger("sharedlog.target")
_causes = SeldomLog(_log)
_Lock = TypeVar("_Lock")
# The most substreams that are remembered while no player delivers to them.
_MOST_SEATS = 65_536
# Runs that hang and were given up.
_MOST_HUNG = 16
_UNKNOWN = 2
# What people have to look into, and what they may want to know.
_SERIOUS = (AnswerKind.UNKNOWN, AnswerKind.FORKED)
_FAILED = (AnswerKind.FAILED, AnswerKind.REFUSED)


class TargetLimits(NamedTuple):
    """How much a target takes on. ``concurrency``: handlers that run at once on an event loop.

    ``queued_bytes``: of one connection; ``most_bytes``: of one message of gRPC's.
    """

    concurrency: int = 256
    queued_bytes: int = 8 << 20
    most_bytes: int = 4 << 20


class ServedTarget:
    """What both kinds of servers have: the store's rows, the handlers, and who may deliver."""

    def __init__(
        self, calls: LocalCalls, methods: Methods, access: PlayerAccess, limits: TargetLimits
    ) -> None:
        """``calls``: of the server's ``Deduplicator``."""
        self.calls = calls
        self.methods = methods
        self.access = access
        self.limits = limits
        self.rows = calls.rows

    def check_store(self, told: str) -> None:
        """Raise ``OtherStore`` if a player's deliveries follow an index of another store."""
        mine = self.rows.store_id
        if told and told != mine:
            raise OtherStore(f"the target's store is {mine}, and deliveries were begun in {told}")

    def beats(self, processes: Sequence[str]) -> list[int]:
        """Return of each process whether it has ended; blocks. See ``ConditionalRows``."""
        others = [each for each in processes if each != self.rows.process]
        try:
            found = dict(zip(others, self.rows.beats(others), strict=True)) if others else {}
        except RiflError as error:
            raise unavailable(error) from error
        return [found.get(each, 1) for each in processes]

    def waits(self, seats: Seats[Any], feed: Feed, tag: str) -> bool:
        """Return whether a substream's handler runs, and waits for another one."""
        run = seats.run_of(feed, tag)
        return run is not None and self.calls.waits(run)

    def fetch(self, step: FetchRows) -> Any:
        """Read rows; blocks."""
        try:
            return self.rows.get(step.keys)
        except RiflError as error:
            raise unavailable(error) from error

    def put(self, step: MoveTargetRows) -> Any:
        """Begin to move rows; the ``Later`` of whether they were."""
        try:
            return self.rows.move([Move(*each) for each in step.moves])
        except RiflError as error:
            raise unavailable(error) from error

    def call_of(self, step: RunHandler) -> RowCall:
        """Return the run of a delivery's handler as rifl knows it."""
        delivery, called = step.delivery, step.called
        return RowCall(
            called.method,
            f"{delivery.tag}@{delivery.place.lsn}.{delivery.place.ordinal}".encode(),
            () if step.move is None else (Move(*step.move),),
            Delivered(delivery, called.content, called.method, step.redelivered),
            more=step.more,
        )

    @staticmethod
    def metadata_of(step: RunHandler) -> tuple[tuple[str, str | bytes], ...]:
        """Return what a handler sees as the metadata of its call: who caused it."""
        delivery, content = step.delivery, step.called.content
        parent, state = delivery.trace_parent, delivery.trace_state
        if not parent:
            parent, state = content.trace_parent, content.trace_state
        if not parent:
            return ()
        found: list[tuple[str, str | bytes]] = [("traceparent", parent)]
        if state:
            found.append(("tracestate", state))
        return tuple(found)

    def transport(self, context: Any, step: RunHandler) -> Transport:
        """Return what a handler sees of the call that brought the delivery."""
        return Transport(context, self.metadata_of(step))

    def note(self, answer: DeliveryAnswer) -> None:
        """Log what people may have to look at."""
        if answer.kind in _SERIOUS:
            _log.error(
                "delivery_stopped",
                answer=answer.kind.value,
                tag=answer.tag,
                place=str(answer.place),
                details=answer.details,
            )
        elif answer.kind in _FAILED:
            _log.warning(
                "delivery_failed",
                answer=answer.kind.value,
                tag=answer.tag,
                place=str(answer.place),
                code=answer.code,
                details=answer.details,
            )


def ended_of(ran: LocalRun) -> Ended:
    """Return what became of a handler as the rules have it."""
    return Ended(*ran)


def unavailable(error: RiflError) -> TargetUnavailable:
    """Return what a player is told of the target's store; the operator is told why."""
    _causes.cause(error)
    return TargetUnavailable(caller_text(error))


def known(error: LogError | TargetUnavailable) -> LogError:
    """Return what a player's call is refused with."""
    if isinstance(error, LogError):
        _causes.cause(error)
        return error
    found = LogUnavailable(str(error))
    # It says what a player may know.
    found.told = ""
    return found


def refused(error: NotFound) -> MethodRefused:
    """Return what a message is refused by whose handler cannot be called."""
    return MethodRefused(error.code, str(error))


def not_revoked() -> TargetUnavailable:
    """Return why a message is not passed over whose run could not be revoked."""
    return TargetUnavailable(
        "its handler runs still, in a transaction that only its own thread can roll back, or in a "
        "statement that cannot be interrupted: it is passed over once that ends. Restart the "
        "target, if it does not"
    )


def not_passed_over(tag: str, place: Position, error: TargetUnavailable) -> DeliveryAnswer:
    """Return what a skip is answered whose message's run cannot be abandoned now."""
    return DeliveryAnswer(AnswerKind.UNAVAILABLE, tag, place, ABORTED, str(error))


def interceptor_failed(error: Exception) -> Ended:
    """Return what it comes to when a user's interceptor raises in the place of a handler."""
    _log.error("delivery_interceptor_raised", exc_info=error)
    return Ended(_UNKNOWN, f"an interceptor raised {type(error).__name__}: {error}")


class Seats(Generic[_Lock]):
    """The substreams that this process knows, each with what lets one rule at a time to it."""

    def __init__(self, make_lock: Callable[[], _Lock]) -> None:
        self._make_lock = make_lock
        self._lock = threading.Lock()
        self._seats: OrderedDict[tuple[Feed, str], tuple[Seat, _Lock]] = OrderedDict()
        self._abandoned: list[Seat] = []
        # The runs of handlers of those that are known, and of no abandoned one.
        self._runs: dict[tuple[Feed, str], RowCall] = {}

    def __len__(self) -> int:
        return len(self._seats)

    def get(self, feed: Feed, tag: str) -> tuple[Seat, _Lock]:
        """Return the seat of a substream; made where there is none."""
        key = (feed, tag)
        with self._lock:
            found = self._seats.get(key)
            if found is None:
                found = self._seats[key] = (Seat(feed, tag), self._make_lock())
                self._forget()
            else:
                self._seats.move_to_end(key)
            return found

    @contextlib.contextmanager
    def running(self, delivery: Delivery, call: RowCall) -> Iterator[None]:
        """Have a delivery's run be known while it lasts."""
        key = (delivery.feed, delivery.tag)
        self._runs[key] = call
        try:
            yield
        finally:
            if self._runs.get(key) is call:
                del self._runs[key]

    def hanging(self, feed: Feed, tag: str, place: Position) -> RowCall | None:
        """Return the run of a message that its player passes over; None: it does not run.

        Raises ``TargetUnavailable`` if it must not be abandoned: each that hangs keeps its
        resources, at least a thread.
        """
        with self._lock:
            found = self._seats.get((feed, tag))
            if found is None or found[0].running != place:
                return None
            self._abandoned = [each for each in self._abandoned if each.running is not None]
            if len(self._abandoned) >= _MOST_HUNG:
                raise TargetUnavailable(
                    f"its handler runs still, and {_MOST_HUNG} that were given up do not end in "
                    "this process: it takes no more. Restart it"
                )
            return self._runs.get((feed, tag))

    def run_of(self, feed: Feed, tag: str) -> RowCall | None:
        """Return the run of a substream's handler, if one runs."""
        return self._runs.get((feed, tag))

    def abandon(self, feed: Feed, tag: str, place: Position) -> None:
        """Have a substream begin anew from the store, whose run was revoked.

        Whatever that does is conditional on where its index was, which the skip moves.
        """
        key = (feed, tag)
        with self._lock:
            found = self._seats.get(key)
            if found is None or found[0].running != place:
                return
            self._abandoned.append(found[0])
            self._seats[key] = (Seat(feed, tag), self._make_lock())
            self._runs.pop(key, None)
        _log.warning("delivery_abandoned", tag=tag, place=str(place), hung=len(self._abandoned))

    def _forget(self) -> None:
        looked = 0
        while len(self._seats) > _MOST_SEATS and looked < len(self._seats):
            key, (seat, lock) = next(iter(self._seats.items()))
            if seat.owes or lock.locked():  # type: ignore[attr-defined]  # both kinds have it
                self._seats.move_to_end(key)
                looked += 1
            else:
                del self._seats[key]


Steps = Generator[Any, Any, Any]


def skipped(items: Iterable[Any]) -> list[Position]:
    """Return the places of messages that must be passed over."""
    return [
        item.place
        for item in items
        if isinstance(item, Delivery) and item.kind is DeliveryKind.SKIP
    ]


def by_tag(items: Sequence[tuple[str, Any, int]]) -> dict[str, list[Any]]:
    """Return what came for each tag, in the order in which tags came first."""
    found: dict[str, list[Any]] = {}
    for tag, item, _ in items:
        found.setdefault(tag, []).append(item)
    return found


def delivery_of(item: Any) -> Delivery | None:
    """Return an item that is a delivery."""
    return item if isinstance(item, Delivery) else None
