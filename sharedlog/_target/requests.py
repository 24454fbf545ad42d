"""Deliveries and answers as they travel, and as the rules have them (DESIGN-LOG §15)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from _rifl_ground.parsing import parse
from sharedlog._core.envelope import MAX_TEXT_BYTES, is_trace_parent
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.position import Position
from sharedlog._core.target_delivery import Delivery, DeliveryKind
from sharedlog._core.target_index import Feed, Index, SkippedMessage, check_tag
from sharedlog._core.target_steps import (
    AnswerKind,
    Confirm,
    DeliveryAnswer,
)
from sharedlog._wire.conversions import place_of, position_of
from sharedlog._wire.methods import MOST_ASKED
from sharedlog.v1 import target_pb2 as pb
from sharedlog.v1.log_pb2 import Place

SERVICE = "sharedlog.v1.Target"
# Of one message.
MOST_DELIVERIES = 10_000
_MOST_FIELDS = 16 * MOST_DELIVERIES
_MOST_NAME = 200
# Of a delivery that waits, beside its envelope; its player counts as much.
_DELIVERY_BYTES = 96
_KINDS = {
    pb.Delivery.MESSAGE: DeliveryKind.MESSAGE,
    pb.Delivery.EMPTY: DeliveryKind.EMPTY,
    pb.Delivery.SKIP: DeliveryKind.SKIP,
}
_ANSWERS = {kind: pb.DeliveryAnswer.Kind.Value(kind.name) for kind in AnswerKind}


class Origin(NamedTuple):
    """Where deliveries come from: the index's feed, the log's incarnation, the connection."""

    feed: Feed
    incarnation: str
    term: int


def passed_over_of(request: pb.ConnectRequest) -> list[tuple[str, Position]]:
    """Return the messages that a player passes over; raises ``InvalidRequest``."""
    if len(request.passed_over) > MOST_ASKED:
        raise InvalidRequest(f"a player passes {MOST_ASKED} messages over at once")
    for each in request.passed_over:
        check_tag(each.tag)
    return [
        (each.tag, position_of(each.place, request.incarnation)) for each in request.passed_over
    ]


def parsed(kind: Any, data: bytes) -> Any:
    """Return the message that came; raises ``InvalidRequest`` for what is none."""
    try:
        return parse(kind, data, _MOST_FIELDS)
    except DecodeError:
        raise InvalidRequest(f"the request is no {kind.DESCRIPTOR.full_name}") from None


def feed_of(feed: pb.Feed) -> Feed:
    """Return the feed that came; raises ``InvalidRequest``."""
    found = Feed(feed.log, feed.number)
    found.check()
    return found


def origin_of(message: pb.Deliveries) -> Origin:
    """Return where the first message of a stream, or a batch, says that it is from."""
    _check_incarnation(message.incarnation)
    return Origin(feed_of(message.feed), message.incarnation, message.term)


def connecting(request: pb.ConnectRequest) -> tuple[Feed, list[str]]:
    """Return the feed and the tags that a player asks about; raises ``InvalidRequest``."""
    feed = feed_of(request.feed)
    _check_incarnation(request.incarnation)
    tags = list(request.tags)
    if len(tags) > MOST_ASKED or len(set(tags)) < len(tags):
        raise InvalidRequest(f"a player asks about {MOST_ASKED} different substreams at once")
    for tag in tags:
        check_tag(tag)
    if len(request.processes) > MOST_ASKED:
        raise InvalidRequest(f"a player asks about {MOST_ASKED} processes at once")
    return feed, tags


def items_of(
    message: pb.Deliveries, origin: Origin
) -> Iterator[tuple[str, Delivery | Confirm, int]]:
    """Yield what came for each tag, with its bytes; raises ``InvalidRequest`` before any of it."""
    if len(message.deliveries) + len(message.confirmed) > MOST_DELIVERIES:
        raise InvalidRequest(f"one message has {MOST_DELIVERIES} deliveries at most")
    if message.HasField("feed") and feed_of(message.feed) != origin.feed:
        raise InvalidRequest("a stream is of one feed")
    if message.incarnation not in ("", origin.incarnation):
        raise InvalidRequest("a stream is of one incarnation of the log")
    found: list[tuple[str, Delivery | Confirm, int]] = []
    for confirmed in message.confirmed:
        check_tag(confirmed.tag)
        found.append((confirmed.tag, Confirm(confirmed.number), _DELIVERY_BYTES))
    for each in message.deliveries:
        delivery = _delivery(each, origin)
        delivery.check()
        found.append((each.tag, delivery, len(each.envelope) + _DELIVERY_BYTES))
    return iter(found)


def index_to_wire(
    tag: str, index: Index, running: Position | None = None, *, waits: bool = False
) -> pb.Index:
    """Return an index as it travels."""
    found = pb.Index(
        tag=tag,
        waits=waits and running is not None,
        incarnation=index.incarnation,
        taken=index.taken,
        skipped=[
            pb.Skipped(
                place=place_of(each.place),
                number=each.number,
                reason=each.reason,
                by=each.by,
                at_us=each.at_us,
            )
            for each in index.skipped
        ],
    )
    if index.at is not None:
        found.at.CopyFrom(place_of(index.at))
    if index.begun is not None:
        found.begun.CopyFrom(place_of(index.begun))
    if running is not None:
        found.running.CopyFrom(place_of(running))
    return found


def answers_to_wire(term: int, answers: Iterable[DeliveryAnswer]) -> bytes:
    """Return answers as they travel."""
    found = pb.DeliveryAnswers(term=term)
    for kind, tag, place, code, details, index in answers:
        added = found.answers.add(kind=_ANSWERS[kind], tag=tag, place=place_of(place), code=code)
        if details:
            added.details = details
        if index is not None:
            added.index.CopyFrom(index_to_wire(tag, index))
    return found.SerializeToString()


def _delivery(each: pb.Delivery, origin: Origin) -> Delivery:
    kind = _KINDS.get(each.kind)
    if kind is None:
        raise InvalidRequest(f"{each.kind} is no kind of delivery")
    place = _position(each.place, origin)
    skip = None
    if kind is DeliveryKind.SKIP:
        said = each.skip
        skip = SkippedMessage(place, 0, said.reason, said.by, said.at_us)
    return Delivery(
        origin.feed,
        kind,
        each.tag,
        place,
        _position(each.follows, origin) if each.HasField("follows") else None,
        each.envelope,
        each.append_time_us,
        each.more,
        each.again,
        skip,
        *_trace(each),
    )


def _trace(each: pb.Delivery) -> tuple[str, str]:
    """Return the player's trace context; none for what is none: it is no reason to refuse."""
    if not is_trace_parent(each.trace_parent) or len(each.trace_state) > MAX_TEXT_BYTES:
        return "", ""
    return each.trace_parent, each.trace_state if each.trace_state.isprintable() else ""


def _position(place: Place, origin: Origin) -> Position:
    return position_of(place, origin.incarnation)


def _check_incarnation(incarnation: str) -> None:
    if not 0 < len(incarnation) <= _MOST_NAME or not incarnation.isprintable():
        raise InvalidRequest("a player says which incarnation of the log it reads")
