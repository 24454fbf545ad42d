"""The appends of a log's service: what may be in one, whose it is, and the rule it asks for."""

from __future__ import annotations

from collections.abc import Callable

from sharedlog._core.draft import check_spread, tags_for
from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.fences import Fence
from sharedlog._core.named import MAX_SEQ, Turn, append_named, check_turn, decide_named
from sharedlog._core.producers import Appended, append, shown
from sharedlog._core.publishing import (
    APPEND_BYTES,
    APPEND_ENTRIES,
    Placed,
    committing,
    pending,
)
from sharedlog._core.spans import decide, pend
from sharedlog._core.steps import Rule
from sharedlog._core.streams import MAX_TAGS, stream_of
from sharedlog._log.place import Place
from sharedlog._service.access import Caller
from sharedlog._service.quotas import Quotas
from sharedlog._service.requests import Requests, fence_of, producer_of
from sharedlog._service.tail import Tail
from sharedlog.v1 import log_pb2 as pb
from sharedlog.v1.sharedlog_pb2 import Span


class ServedAppends:
    """Of one log. Any thread. ``entries``, ``bytes``, ``tags``: what one append may have."""

    def __init__(self, place: Place, quotas: Quotas, requests: Requests, tail: Tail) -> None:
        """``requests``: read by what ``place`` has; ``tail``: told of what was appended."""
        self._place = place
        self._tail = tail
        self._quotas = quotas
        self._requests = requests
        limits = place.engine.limits
        self.entries = min(APPEND_ENTRIES, limits.entries)
        self.bytes = min(APPEND_BYTES, limits.append_bytes)
        self.tags = tags_for(limits.operations, MAX_TAGS - 1)

    def answer(self, request: pb.AppendRequest, caller: Caller) -> pb.AppendReply:
        """Append what a caller asks for, once; raises what refuses it."""
        fence = fence_of(request.fence) if request.HasField("fence") else None
        if fence is not None:
            caller.check_name(fence.name)
        tags = {each.tag for each in request.messages} | set(request.pending.opened)
        tags |= {span.tag for each in request.marker.decided for span in each.spans}
        check_spread(tags, self.tags)
        for stream in {stream_of(tag) for tag in tags}:
            caller.check_publish(stream)
        for tag in request.pending.opened:
            self._requests.stream_of_tag(tag)
        placed = [self._requests.placed(each) for each in request.messages]
        decisions = [self._requests.decision(each) for each in request.marker.decided]
        self._check_size(request, placed)
        if request.HasField("named"):
            rule = self._named(request, placed, decisions, fence, caller)
            who = f"name {request.named.name}"
        else:
            rule = self._of_producer(request, placed, decisions, fence)
            who = str(request.producer.id)
        sizes: dict[str, int] = {}
        for each in placed:
            stream = stream_of(each.tag)
            sizes[stream] = sizes.get(stream, 0) + each.size
        self._quotas.publish(caller.name, who, sizes)
        self._tail.begins()
        first, last = 0, 0
        try:
            reply = self._place.run(rule())
            last = reply.lsn
            # One that was answered before is not told again, and a pending one has no first.
            first = last + 1 - len(placed) if request.HasField("pending") else reply.first
        finally:
            decided = {span.tag for each in request.marker.decided for span in each.spans}
            mine = decided | {each.tag for each in placed}
            self._tail.ended(first, last if first else 0, mine)
        return reply

    def _of_producer(
        self,
        request: pb.AppendRequest,
        placed: list[Placed],
        decisions: list[ProducerDecision],
        fence: Fence | None,
    ) -> Callable[[], Rule[pb.AppendReply]]:
        producer = producer_of(request.producer)
        seq = request.seq
        if not 0 < seq <= MAX_SEQ:
            raise InvalidRequest(f"{seq} is no seq: they begin at 1")

        def rule() -> Rule[pb.AppendReply]:
            if request.HasField("marker"):
                yield from self._shown(request, but=producer.id)
                commits = request.marker.commits
                found = yield from decide(producer, seq, decisions, commits=commits, fence=fence)
                return _appended(found)
            if request.HasField("pending"):
                opened = list(request.pending.opened)
                pended = yield from pend(producer, seq, pending(placed), opened, fence=fence)
                spans = [Span(tag=tag, begin=begin) for tag, begin in pended.begins.items()]
                return pb.AppendReply(lsn=pended.lsn, begins=spans)
            return _appended((yield from append(producer, seq, committing(placed), fence=fence)))

        return rule

    def _named(
        self,
        request: pb.AppendRequest,
        placed: list[Placed],
        decisions: list[ProducerDecision],
        fence: Fence | None,
        caller: Caller,
    ) -> Callable[[], Rule[pb.AppendReply]]:
        turn = Turn(request.named.name, request.named.seq, request.named.follows)
        check_turn(turn)
        caller.check_name(turn.name)
        content = request.named.content
        if request.HasField("pending") or (decisions and not request.marker.commits):
            raise InvalidRequest("under a name messages are committed; a producer has them pending")

        def rule() -> Rule[pb.AppendReply]:
            if request.HasField("marker"):
                yield from self._shown(request)
                return _appended((yield from decide_named(turn, content, decisions, fence=fence)))
            return _appended(
                (yield from append_named(turn, content, committing(placed), fence=fence))
            )

        return rule

    def _shown(self, request: pb.AppendRequest, but: int = 0) -> Rule[None]:
        """Raise ``UnknownProducer`` unless the tokens of all that are decided are shown."""
        others = [each.producer for each in request.marker.decided if each.producer.id != but]
        if others:
            yield from shown([producer_of(each) for each in others])

    def _check_size(self, request: pb.AppendRequest, placed: list[Placed]) -> None:
        marked = request.HasField("marker")
        # Under a name the seq alone is something to record.
        if marked if placed else not (marked or request.HasField("named")):
            raise InvalidRequest("an append has messages, or a marker")
        if request.HasField("marker") and request.HasField("pending"):
            raise InvalidRequest("a marker is not pending")
        if request.HasField("named") is request.HasField("producer"):
            raise InvalidRequest("an append is a producer's, or a name's")
        if len(placed) > self.entries:
            raise InvalidRequest(f"{len(placed)} messages; an append has {self.entries} at most")
        size = sum(each.size for each in placed)
        if size > self.bytes:
            raise InvalidRequest(f"messages of {size} bytes; an append has {self.bytes} at most")


def _appended(found: Appended) -> pb.AppendReply:
    return pb.AppendReply(lsn=found.lsn, first=found.first or 0, checksum=found.checksum)
