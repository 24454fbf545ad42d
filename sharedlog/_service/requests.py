"""Requests as the log's rules take them, or why they cannot be (DESIGN-LOG §12, §13)."""

from __future__ import annotations

from collections.abc import Iterable

from sharedlog._core.catalog import Stream
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.envelope import check
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.fences import Fence, check_fence_name
from sharedlog._core.following import From
from sharedlog._core.named import MAX_SEQ
from sharedlog._core.position import MAX_LSN, Position
from sharedlog._core.producers import MAX_WINDOW, TOKEN_BYTES, ProducerId
from sharedlog._core.publishing import Placed, size_of
from sharedlog._core.streams import stream_of, substream_of, tag_of
from sharedlog._log.placing import Placing
from sharedlog._wire.conversions import At, at_of
from sharedlog.v1 import log_pb2 as pb
from sharedlog.v1.sharedlog_pb2 import Span

_MAX_FENCE = 1 << 62


class Requests:
    """What came to one log. Any thread."""

    def __init__(self, placing: Placing, incarnation: str) -> None:
        """``placing``: knows the streams."""
        self._placing = placing
        self._incarnation = incarnation

    def stream_of_tag(self, tag: str) -> Stream:
        """Return the stream of a substream's tag; raises ``InvalidRequest``, ``NoSuchStream``."""
        stream = self._placing.stream(stream_of(tag))
        number = tag.rpartition("/")[2]
        if not number.isdecimal() or tag_of(stream.name, int(number[:6])) != tag:
            raise InvalidRequest(f"{tag[:200]!r} is no tag, such as orders/3")
        if int(number) >= stream.substreams:
            raise InvalidRequest(
                f"{tag!r}: {stream.name!r} has the substreams 0 to {stream.substreams - 1}"
            )
        return stream

    def placed(self, message: pb.NewMessage) -> Placed:
        """Return a message to be appended; raises ``InvalidRequest`` if none could read it."""
        tag = message.tag
        stream = self.stream_of_tag(tag)
        envelope = check(message.envelope)
        if envelope.HasField("key"):
            mine = tag_of(stream.name, substream_of(envelope.key, stream.substreams))
            if mine != tag:
                raise InvalidRequest(f"the key of a message to {tag} belongs to {mine}")
        return Placed(message.envelope, tag, size_of(message.envelope, tag))

    def spans(self, spans: Iterable[Span]) -> dict[str, int]:
        """Return where spans begin, by tag."""
        found: dict[str, int] = {}
        for each in spans:
            self.stream_of_tag(each.tag)
            if each.tag in found or not 0 < each.begin <= MAX_LSN:
                raise InvalidRequest(f"no span of {each.tag!r}, or a second one")
            found[each.tag] = each.begin
        return found

    def decision(self, decided: pb.Decided) -> ProducerDecision:
        """Return what is decided of one producer."""
        return ProducerDecision(
            decided.producer.id, _seq(decided.through), self.spans(decided.spans)
        )

    def at(self, start: pb.Start, stream: Stream) -> At | From:
        """Return where a reader begins; raises ``LogForked``, ``InvalidRequest``."""
        at = at_of(start, self._incarnation)
        if isinstance(at, Position):
            at.check(self._incarnation, stream.substreams)
        elif isinstance(at, int):
            if not 0 < at <= MAX_LSN:
                raise InvalidRequest(f"{at} is no LSN")
            return From(at)
        return at


def producer_of(producer: pb.Producer) -> ProducerId:
    """Return who appends; raises ``InvalidRequest`` for who no grant could have made."""
    if (
        not 0 < producer.id <= MAX_SEQ
        or len(producer.token) != TOKEN_BYTES
        or not 0 < producer.window <= MAX_WINDOW
    ):
        raise InvalidRequest("a producer has the id, the token and the window of its grant")
    return ProducerId(producer.id, producer.token, producer.window)


def fence_of(fence: pb.Fence) -> Fence:
    """Return the fence that an append shows."""
    check_fence_name(fence.name)
    if fence.number > MAX_SEQ:
        raise InvalidRequest(f"{fence.number} is no fence's number")
    return Fence(fence.name, fence.number)


def fence_number(number: int) -> int:
    """Return what a fence is raised to at least; raises if it could not be raised again."""
    if number > _MAX_FENCE:
        raise InvalidRequest(f"a fence is raised to {_MAX_FENCE} at most")
    return number


def _seq(seq: int) -> int:
    if seq > MAX_SEQ:
        raise InvalidRequest(f"{seq} is no seq")
    return seq
