"""A target that keeps the rules of target.proto, in this process: for what a real one cannot show.

It takes what follows its index, and answers what a test tells it to.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import grpc
import grpc.aio

from sharedlog._core.errors import OtherStore
from sharedlog._wire.refusals import refusal_of
from sharedlog.v1 import sharedlog_pb2
from sharedlog.v1.target_pb2 import (
    ConnectReply,
    ConnectRequest,
    Deliveries,
    Delivery,
    DeliveryAnswer,
    DeliveryAnswers,
    Index,
)
from sharedlog.v1.target_pb2_grpc import TargetServicer, add_TargetServicer_to_server


class Called(NamedTuple):
    """A call of a handler."""

    tag: str
    method: str
    body: bytes
    lsn: int
    again: bool
    more: bool


def answer(kind: int, details: str = "", code: int = 13) -> DeliveryAnswer:
    """What a handler's call comes to, if it is not done."""
    return DeliveryAnswer(kind=kind, code=code, details=details)


Handler = Callable[[Called], DeliveryAnswer | None]


class Store:
    """What outlives the target: indexes by feed and substream, and what handlers have done."""

    def __init__(self, name: str = "store") -> None:
        self.name = name
        self.indexes: dict[tuple[str, int, str], Index] = {}
        self.skips: Counter[tuple[str, int, str]] = Counter()
        self.done: list[Called] = []
        self.called: list[Called] = []
        self.changed = threading.Condition()

    def bodies(self, tag: str | None = None) -> list[str]:
        """What was done, in order."""
        return [each.body.decode() for each in self.done if tag in (None, each.tag)]

    def wait_for(self, condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
        """Wait until something is so."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), (self.bodies(), self.indexes)


class FakeTarget(TargetServicer):
    """One, on an event loop in a thread of its own, at a port that it keeps."""

    def __init__(
        self, store: Store, handler: Handler = lambda _: None, *, streams: bool = True
    ) -> None:
        self.store = store
        self.handler = handler
        self.streams = streams
        self.connects: list[ConnectRequest] = []
        self.hangs = threading.Event()
        self.tokens: list[str] = []
        # How many deliveries travelled together, of each message to it.
        self.batches: list[int] = []
        # What a player has to show; "": as if there was no such service.
        self.allowed: str | None = None
        # Of one message to it.
        self.most_bytes = 4 << 20
        # So many connections are refused, as while it restarts.
        self.refuses = 0
        # So many connections are answered from a store of another name.
        self.other_stores = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.address = ""
        self.starts = 0
        self.start()

    def start(self) -> None:
        """Listen; again at the same port, as another process over the same store."""
        self.starts += 1
        self.process = f"process {self.starts}"
        self._run(self._start())

    def stop(self) -> None:
        """As if it was killed: what runs is gone."""
        self._run(self._server.stop(None))

    def close(self) -> None:
        """For good."""
        self.hangs.clear()
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def _run(self, doing: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(30)

    async def _start(self) -> None:
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        add_TargetServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def Connect(self, request: ConnectRequest, context: Any) -> ConnectReply:  # noqa: N802
        """Where it is."""
        self.connects.append(request)
        self.tokens += [str(v) for k, v in context.invocation_metadata() if k == "authorization"]
        if self.refuses:
            self.refuses -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Connection refused")
        if self.allowed == "":
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
        if self.allowed is not None and self.tokens[-1:] != [self.allowed]:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not with this token")
        await self._hang()
        found = []
        for tag in request.tags:
            found.append(self._index(request.feed, tag))
        name = self.store.name
        if self.other_stores:
            self.other_stores -= 1
            name = "another store"
        return ConnectReply(
            store=name,
            indexes=found,
            streams=self.streams,
            most_bytes=self.most_bytes,
            process=self.process,
            beats=[int(each == self.process) for each in request.processes],
        )

    async def Deliver(  # noqa: N802
        self, requests: AsyncIterator[Deliveries], context: Any
    ) -> AsyncIterator[DeliveryAnswers]:
        """As long as the connection lasts."""
        if not self.streams:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "batches")
        first: Deliveries | None = None
        dropped: dict[str, tuple[int, int]] = {}
        async for request in requests:
            first = first or request
            await self._check_store(request, context)
            await self._hang()
            yield self._answers(first, request, dropped)

    async def DeliverBatch(self, request: Deliveries, context: Any) -> DeliveryAnswers:  # noqa: N802
        """The same, once."""
        await self._check_store(request, context)
        await self._hang()
        return self._answers(request, request, {})

    async def _check_store(self, request: Deliveries, context: Any) -> None:
        if request.store != self.store.name:
            refusal = refusal_of(OtherStore("another store"))
            await context.abort(refusal.code, refusal.details, refusal.trailing_metadata)

    async def _hang(self) -> None:
        while self.hangs.is_set():
            await asyncio.sleep(0.01)

    def _index(self, feed: Any, tag: str) -> Index:
        return self.store.indexes.setdefault((feed.log, feed.number, tag), Index(tag=tag))

    def _answers(
        self, first: Deliveries, request: Deliveries, dropped: dict[str, tuple[int, int]]
    ) -> DeliveryAnswers:
        found = DeliveryAnswers(term=request.term)
        with self.store.changed:
            self.batches.append(len(request.deliveries))
            for each in request.confirmed:
                index = self._index(first.feed, each.tag)
                kept = [one for one in index.skipped if one.number > each.number]
                del index.skipped[:]
                index.skipped.extend(kept)
            for delivery in request.deliveries:
                answered = self._taken(first, delivery, dropped)
                if answered is not None:
                    found.answers.append(answered)
            self.store.changed.notify_all()
        return found

    def _taken(
        self, first: Deliveries, delivery: Delivery, dropped: dict[str, tuple[int, int]]
    ) -> DeliveryAnswer | None:
        tag = delivery.tag
        index = self._index(first.feed, tag)
        at = (index.at.lsn, index.at.ordinal) if index.HasField("at") else None
        follows = (
            (delivery.follows.lsn, delivery.follows.ordinal)
            if delivery.HasField("follows")
            else None
        )
        place = (delivery.place.lsn, delivery.place.ordinal)
        done = DeliveryAnswer(kind=DeliveryAnswer.DONE, tag=tag, place=delivery.place)
        if tag in dropped and place > dropped[tag]:
            return None
        dropped.pop(tag, None)
        if at is not None and place <= at:
            return done
        if follows != at:
            dropped[tag] = place
            return DeliveryAnswer(kind=DeliveryAnswer.GAP, tag=tag, place=delivery.place)
        if delivery.kind == Delivery.MESSAGE:
            envelope = sharedlog_pb2.Envelope.FromString(delivery.envelope)
            called = Called(
                tag, envelope.method, envelope.body, place[0], delivery.again, delivery.more
            )
            self.store.called.append(called)
            refused = self.handler(called)
            if refused is not None:
                dropped[tag] = place
                refused.tag = tag
                refused.place.CopyFrom(delivery.place)
                return refused
            self.store.done.append(called)
        if delivery.kind == Delivery.SKIP:
            skipped = index.skipped.add()
            skipped.CopyFrom(delivery.skip)
            skipped.place.CopyFrom(delivery.place)
            feed = (first.feed.log, first.feed.number, tag)
            self.store.skips[feed] += 1
            skipped.number = self.store.skips[feed]
        index.at.CopyFrom(delivery.place)
        index.incarnation = first.incarnation or index.incarnation
        index.taken += delivery.kind != Delivery.EMPTY
        return done
