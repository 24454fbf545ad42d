"""Deliveries and indexes as they travel (proto/sharedlog/v1/target.proto)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from _rifl_ground.texts import one_line
from sharedlog._core.player.indexes import KnownIndex, Unconfirmed
from sharedlog._core.player.item import Outgoing
from sharedlog._core.player.trouble import Cause, Trouble
from sharedlog._core.position import Position
from sharedlog._core.streams import substream_number
from sharedlog._core.target_delivery import DeliveryKind
from sharedlog._wire.conversions import place_of, position_of
from sharedlog.v1 import log_pb2, target_pb2

_KINDS = {
    DeliveryKind.MESSAGE: target_pb2.Delivery.MESSAGE,
    DeliveryKind.EMPTY: target_pb2.Delivery.EMPTY,
    DeliveryKind.SKIP: target_pb2.Delivery.SKIP,
}
_ANSWER = target_pb2.DeliveryAnswer
DONE = _ANSWER.DONE
_CAUSES = {
    _ANSWER.GAP: Cause.GAP,
    _ANSWER.FAILED: Cause.FAILED,
    _ANSWER.REFUSED: Cause.REFUSED,
    _ANSWER.UNKNOWN: Cause.UNKNOWN,
    _ANSWER.FORKED: Cause.FORKED,
    _ANSWER.UNAVAILABLE: Cause.UNAVAILABLE,
}

_MOST_STORE = 200


class Garbage(Exception):
    """What a target answered makes no sense."""


def indexes_of(
    reply: target_pb2.ConnectReply, tags: Sequence[str], incarnation: str
) -> list[KnownIndex]:
    """Return where a target is; raises ``Garbage`` unless it answers what was asked."""
    if len(reply.store) > _MOST_STORE or not reply.store.isprintable():
        raise Garbage(f"its store's id is none: {one_line(reply.store, _MOST_STORE)}")
    if [each.tag for each in reply.indexes] != list(tags):
        raise Garbage("it names other substreams than it was asked for")
    return [_index_of(each, incarnation) for each in reply.indexes]


def beats_of(reply: target_pb2.ConnectReply, processes: Sequence[str]) -> dict[str, int]:
    """Return what a target says of its processes; raises ``Garbage`` for other ones."""
    if not reply.process and not reply.beats:
        # It cannot tell.
        return {}
    if len(reply.process) > _MOST_STORE or not reply.process.isprintable():
        raise Garbage(f"its process's id is none: {one_line(reply.process, _MOST_STORE)}")
    if len(reply.beats) != len(processes):
        raise Garbage("it tells of other processes than it was asked for")
    return dict(zip(processes, reply.beats, strict=True))


def _index_of(index: target_pb2.Index, incarnation: str) -> KnownIndex:
    inside, tag = index.incarnation, index.tag

    def place(at: log_pb2.Place) -> Position:
        found = position_of(at, inside)
        if not at.lsn or found.substream != substream_number(tag):
            raise Garbage(f"{found} is no place in {tag}")
        return found

    return KnownIndex(
        tag,
        place(index.at) if index.HasField("at") else None,
        index.taken,
        place(index.begun) if index.HasField("begun") else None,
        tuple(
            Unconfirmed(place(each.place), each.number, each.reason, each.by, each.at_us)
            for each in index.skipped
        ),
        # Of the log that is played: a target that is restored runs nothing.
        position_of(index.running, incarnation) if index.HasField("running") else None,
        index.waits,
    )


def delivery_of(sent: Outgoing, envelope: bytes, now_us: int) -> target_pb2.Delivery:
    """Return a delivery as it travels; ``envelope``: that of a message."""
    item = sent.item
    found = target_pb2.Delivery(
        kind=_KINDS[sent.kind],
        tag=item.tag,
        place=place_of(item.place),
        envelope=envelope if sent.kind is DeliveryKind.MESSAGE else b"",
        append_time_us=item.at_us,
        more=sent.more,
        again=sent.again,
    )
    if sent.follows is not None:
        found.follows.CopyFrom(place_of(sent.follows))
    if sent.kind is DeliveryKind.SKIP and sent.skip is not None:
        found.skip.reason, found.skip.by, found.skip.at_us = *sent.skip, now_us
    return found


def confirmed_of(numbers: Iterable[tuple[str, int]]) -> list[target_pb2.Confirmed]:
    """Return which skipped messages are among the dead letters, through a number of each tag."""
    return [target_pb2.Confirmed(tag=tag, number=number) for tag, number in numbers]


def trouble_of(answer: target_pb2.DeliveryAnswer, incarnation: str) -> Trouble:
    """Return what an answer says that is not DONE."""
    cause = _CAUSES.get(answer.kind)
    if cause is None:
        return Trouble(Cause.GARBAGE, details=f"an answer of kind {answer.kind}")
    place = position_of(answer.place, incarnation) if answer.HasField("place") else None
    return Trouble(cause, answer.tag, place, answer.code, one_line(answer.details))
