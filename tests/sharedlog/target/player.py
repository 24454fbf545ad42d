"""A player of a few lines that speaks the wire: for tests of targets, and nothing else."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator, Sequence
from typing import Any

import grpc

from sharedlog.v1 import log_pb2, sharedlog_pb2, target_pb2, target_pb2_grpc

A = target_pb2.DeliveryAnswer
TAG = "orders/0"


def place(lsn: int, tag: str = TAG) -> log_pb2.Place:
    """The place of the message with this LSN."""
    substream = int(tag.rpartition("/")[2])
    return log_pb2.Place(lsn=lsn, ordinal=0, checksum=1000 + lsn, substream=substream)


def message(
    lsn: int,
    follows: int | None,
    method: str = "",
    *,
    tag: str = TAG,
    body: bytes | None = None,
    **more: Any,
) -> target_pb2.Delivery:
    """The message at an LSN, behind the one at ``follows``, as it is delivered."""
    envelope = sharedlog_pb2.Envelope(
        version=1,
        method=method,
        body=b"%d" % lsn if body is None else body,
        key=b"k",
        causation_id="cause",
        headers=[sharedlog_pb2.Header(name="h", value=b"v")],
    )
    return target_pb2.Delivery(
        tag=tag,
        place=place(lsn, tag),
        follows=None if follows is None else place(follows, tag),
        envelope=envelope.SerializeToString(),
        append_time_us=1_000_000 * lsn,
        **more,
    )


def row(first: int, last: int, method: str = "", **more: Any) -> list[target_pb2.Delivery]:
    """Messages one after the other, of which the first follows the one before it, from 1."""
    return [
        message(lsn, lsn - 1 if lsn > 1 else None, method, **more) for lsn in range(first, last + 1)
    ]


class Stream:
    """One ``Deliver`` call."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call = player.stub.Deliver(iter(self._sent.get, None), metadata=player.metadata)
        self._first = True

    def send(self, *deliveries: Any, confirmed: Sequence[Any] = ()) -> None:
        """Send one message of deliveries."""
        self._sent.put(self._player.deliveries(deliveries, confirmed, first=self._first))
        self._first = False

    def answers(self, until: Any) -> list[Any]:
        """Read answers until one of them is so."""
        found: list[Any] = []
        for each in self._call:
            found.extend(each.answers)
            if any(map(until, found)):
                return found
        raise AssertionError(f"the stream ended with {found}")

    def finish(self) -> list[Any]:
        """Send no more, and read to the end."""
        self._sent.put(None)
        return [answer for each in self._call for answer in each.answers]

    def cut(self) -> None:
        """Break off."""
        self._call.cancel()
        self._sent.put(None)


class Player:
    """Calls one target."""

    def __init__(self, address: str, *, token: str = "", incarnation: str = "i1") -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub = target_pb2_grpc.TargetStub(self.channel)
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.incarnation = incarnation
        self.feed = target_pb2.Feed(log="shop", number=1)

    def connect(
        self, *tags: str, processes: Sequence[str] = (), passed_over: Sequence[Any] = ()
    ) -> Any:
        """Ask where the target is, and which of its processes have ended.

        ``passed_over``: messages that are to be skipped.
        """
        request = target_pb2.ConnectRequest(
            feed=self.feed,
            incarnation=self.incarnation,
            tags=tags or (TAG,),
            player="test",
            processes=processes,
            passed_over=passed_over,
        )
        return self.stub.Connect(request, metadata=self.metadata, timeout=20)

    def index(self, tag: str = TAG) -> Any:
        """Ask where it is in one substream."""
        return self.connect(tag).indexes[0]

    def deliveries(
        self, deliveries: Sequence[Any], confirmed: Sequence[Any], *, first: bool
    ) -> Any:
        """One message of deliveries."""
        if not first:
            return target_pb2.Deliveries(deliveries=deliveries, confirmed=confirmed)
        return target_pb2.Deliveries(
            feed=self.feed,
            incarnation=self.incarnation,
            term=7,
            deliveries=deliveries,
            confirmed=confirmed,
        )

    def batch(self, *deliveries: Any, confirmed: Sequence[Any] = ()) -> list[Any]:
        """Deliver once."""
        found = self.stub.DeliverBatch(
            self.deliveries(deliveries, confirmed, first=True), metadata=self.metadata, timeout=20
        )
        assert found.term == 7
        return list(found.answers)

    def stream(self) -> Stream:
        """Begin a stream."""
        return Stream(self)


@contextlib.contextmanager
def player(address: str, **options: Any) -> Iterator[Player]:
    """A player while it is needed."""
    found = Player(address, **options)
    try:
        yield found
    finally:
        found.channel.close()


def told(answers: Sequence[Any]) -> list[tuple[str, int]]:
    """Answers as (kind, LSN)."""
    return [(A.Kind.Name(each.kind), each.place.lsn) for each in answers]
