"""The appends to a log that a server carries out: their requests, and who is granted what."""

from __future__ import annotations

from collections.abc import Sequence

from sharedlog._core.entry import ProducerDecision
from sharedlog._core.errors import UnknownProducer
from sharedlog._core.fences import Fence
from sharedlog._core.named import Turn
from sharedlog._core.producers import Appended, NewMessage, ProducerId
from sharedlog._core.spans import Pended
from sharedlog._remote.channel import LogChannel
from sharedlog.v1 import log_pb2 as pb
from sharedlog.v1.sharedlog_pb2 import Span


class RemoteAppends:
    """To one server's log, each the rule of its name. Any thread."""

    def __init__(self, channel: LogChannel, incarnation: str) -> None:
        """``incarnation``: the log's, as the server said when it was opened."""
        self._ask = channel.ask
        self._incarnation = incarnation
        # Granted here: markers show the tokens of all whose messages they decide.
        self._granted: dict[int, ProducerId] = {}

    def grant(self, token: bytes, window: int = 1) -> ProducerId:
        """Get a producer, whose token this keeps."""
        request = pb.GrantRequest(incarnation=self._incarnation, token=token, window=window)
        found = ProducerId(self._ask("Grant", request).id, token, window)
        self._granted[found.id] = found
        return found

    def append(
        self,
        producer: ProducerId,
        seq: int,
        messages: Sequence[NewMessage],
        *,
        fence: Fence | None = None,
    ) -> Appended:
        """Commit messages as a producer's next append."""
        request = self._request(fence, messages, producer=producer, seq=seq)
        return _appended(self._ask("Append", request))

    def pend(
        self,
        producer: ProducerId,
        seq: int,
        messages: Sequence[NewMessage],
        opened: Sequence[str],
        *,
        fence: Fence | None = None,
    ) -> Pended:
        """Append messages that wait for a marker."""
        request = self._request(fence, messages, producer=producer, seq=seq)
        request.pending.opened[:] = opened
        request.pending.SetInParent()
        found = self._ask("Append", request)
        return Pended(found.lsn, {each.tag: each.begin for each in found.begins})

    def decide(
        self,
        producer: ProducerId,
        seq: int,
        decisions: Sequence[ProducerDecision],
        *,
        commits: bool,
        fence: Fence | None = None,
    ) -> Appended:
        """Append the marker that decides what producers granted here have pending."""
        request = self._request(fence, (), producer=producer, seq=seq)
        request.marker.CopyFrom(self._marker(decisions, commits=commits))
        return _appended(self._ask("Append", request))

    def append_named(
        self,
        turn: Turn,
        content: bytes,
        messages: Sequence[NewMessage],
        *,
        fence: Fence | None = None,
    ) -> Appended:
        """Commit messages as a name's next."""
        request = self._request(fence, messages, turn=turn, content=content)
        return _appended(self._ask("Append", request))

    def decide_named(
        self,
        turn: Turn,
        content: bytes,
        decisions: Sequence[ProducerDecision],
        *,
        fence: Fence | None = None,
    ) -> Appended:
        """Commit what producers granted here have pending, as a name's next."""
        request = self._request(fence, (), turn=turn, content=content)
        request.marker.CopyFrom(self._marker(decisions, commits=True))
        return _appended(self._ask("Append", request))

    def has_pending(self, producer: ProducerId) -> bool:
        """Return whether a producer has something pending."""
        request = pb.GetProducerRequest(incarnation=self._incarnation, producer=_shown(producer))
        return len(self._ask("GetProducer", request).spans) > 0

    def _request(
        self,
        fence: Fence | None,
        messages: Sequence[NewMessage],
        *,
        producer: ProducerId | None = None,
        seq: int = 0,
        turn: Turn | None = None,
        content: bytes = b"",
    ) -> pb.AppendRequest:
        request = pb.AppendRequest(
            incarnation=self._incarnation,
            seq=seq,
            messages=[
                # The tags behind the first are made of it, where it is appended.
                pb.NewMessage(tag=tags[0], envelope=envelope)
                for envelope, tags in messages
            ],
        )
        if producer is not None:
            request.producer.CopyFrom(_shown(producer))
        if turn is not None:
            request.named.CopyFrom(
                pb.Named(name=turn.name, seq=turn.seq, follows=turn.follows, content=content)
            )
        if fence is not None:
            request.fence.CopyFrom(pb.Fence(name=fence.name, number=fence.number))
        return request

    def _marker(self, decisions: Sequence[ProducerDecision], *, commits: bool) -> pb.Marker:
        marker = pb.Marker(commits=commits)
        for each in decisions:
            producer = self._granted.get(each.producer)
            if producer is None:
                raise UnknownProducer(f"producer {each.producer} was not granted here")
            spans = [Span(tag=tag, begin=begin) for tag, begin in each.begins.items()]
            marker.decided.add(producer=_shown(producer), through=each.through, spans=spans)
        return marker


def _shown(producer: ProducerId) -> pb.Producer:
    return pb.Producer(id=producer.id, token=producer.token, window=producer.window)


def _appended(found: pb.AppendReply) -> Appended:
    return Appended(found.lsn, found.first or None, found.checksum)
