"""The conversions of positions, messages and holds to what travels, and back."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from sharedlog._core.catalog import Stream
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.following import Moment
from sharedlog._core.holds import END, Hold
from sharedlog._core.position import Position
from sharedlog._core.reading import Committed, State
from sharedlog._core.streams import tag_of
from sharedlog.v1 import log_pb2 as pb

_STATES: dict[State, pb.State] = {
    State.COMMITTED: pb.STATE_COMMITTED,
    State.PENDING: pb.STATE_PENDING,
    State.ROLLED_BACK: pb.STATE_ROLLED_BACK,
}
_STATES_OF: dict[int, State] = {number: state for state, number in _STATES.items()}
# Where a reader begins, in one substream or in all.
At = Position | int | str | Moment | None


def place_of(position: Position) -> pb.Place:
    """Return a position as it travels."""
    lsn, ordinal, checksum, _, substream = position
    return pb.Place(lsn=lsn, ordinal=ordinal, checksum=checksum, substream=substream)


def position_of(place: pb.Place, incarnation: str) -> Position:
    """Return the position that came."""
    return Position(place.lsn, place.ordinal, place.checksum, incarnation, place.substream)


def start_of(at: At) -> pb.Start:
    """Return where a reader begins, as it travels."""
    if isinstance(at, Position):
        return pb.Start(after=place_of(at))
    if isinstance(at, Moment):
        return pb.Start(time_us=at.at_us)
    if isinstance(at, int):
        return pb.Start(lsn=at)
    return pb.Start(end=True) if at == END else pb.Start()


def at_of(start: pb.Start, incarnation: str) -> At:
    """Return where a reader begins, of what came."""
    kind = start.WhichOneof("at")
    if kind == "after":
        return position_of(start.after, incarnation)
    if kind == "lsn":
        return start.lsn
    if kind == "time_us":
        return Moment(start.time_us)
    return END if kind == "end" and start.end else None


def delivered_of(message: Committed) -> pb.Delivered:
    """Return a message as it travels."""
    return pb.Delivered(
        place=place_of(message.position),
        envelope=message.envelope,
        append_time_us=message.at_us,
        state=_STATES[message.state],
    )


def committed_of(
    messages: Iterable[pb.Delivered], stream: str, incarnation: str
) -> list[Committed]:
    """Return the messages that came."""
    found = []
    for each in messages:
        position = position_of(each.place, incarnation)
        found.append(
            Committed(
                position,
                tag_of(stream, position.substream),
                position.lsn,
                0,
                0,
                each.envelope,
                each.append_time_us,
                _STATES_OF.get(each.state, State.COMMITTED),
            )
        )
    return found


def held_of(hold: Hold) -> pb.Hold:
    """Return a hold as it travels."""
    return pb.Hold(
        name=hold.name,
        tag=hold.tag,
        lsn=hold.lsn,
        done=None if hold.position is None else place_of(hold.position),
        renewed_us=hold.renewed_us,
        retention_us=hold.retention_us,
        dropped=hold.dropped,
        incarnation=hold.incarnation,
    )


def hold_of(held: pb.Hold) -> Hold:
    """Return the hold that came."""
    done = position_of(held.done, held.incarnation) if held.HasField("done") else None
    times = (held.renewed_us, held.retention_us)
    return Hold(held.name, held.tag, held.lsn, done, *times, held.dropped, held.incarnation)


def info_of(stream: Stream) -> pb.StreamInfo:
    """Return a stream as it travels."""
    return pb.StreamInfo(
        name=stream.name,
        substreams=stream.substreams,
        retention_us=stream.retention // timedelta(microseconds=1),
    )


def stream_of_info(info: pb.StreamInfo) -> Stream:
    """Return the stream that came."""
    return Stream(info.name, info.substreams, timedelta(microseconds=info.retention_us))


def retention_of(microseconds: int) -> timedelta:
    """Return a time that came; raises ``InvalidRequest`` for what is none."""
    try:
        return timedelta(microseconds=microseconds)
    except OverflowError:
        raise InvalidRequest(f"a retention of {microseconds} microseconds") from None
