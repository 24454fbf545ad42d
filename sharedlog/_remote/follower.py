"""A follower of a served log: its server reads on, as fast as messages are taken here."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import grpc

from sharedlog._core.errors import InvalidRequest, LogUnavailable, TrimmedLog
from sharedlog._core.following import Follower, Kept, Moment, Start
from sharedlog._core.holds import Hold
from sharedlog._core.position import Position
from sharedlog._core.reading import Committed
from sharedlog._core.steps import Rule
from sharedlog._core.streams import stream_of, substream_number, tag_of
from sharedlog._remote.channel import LogChannel
from sharedlog._wire.conversions import at_of, committed_of, hold_of, place_of, start_of
from sharedlog.v1 import log_pb2 as pb

_Replies: TypeAlias = "queue.Queue[pb.FollowReply | Exception]"
# How soon a thread whose replies are not taken checks whether the follower is still used.
_LOOK_S = 1.0
# Replies that are here and not taken: of more the server waits.
_AHEAD = 8


class RemoteFollower(Follower):
    """As ``Follower``; its rules take no steps, and block.

    A stream that broke is begun again behind what was delivered: all readers see one order, so
    what was delivered of a commit before is passed over.
    """

    def __init__(self, channel: LogChannel, timeout_s: float, *args: Any, **named: Any) -> None:
        """``timeout_s``: for how long a beginning is waited for. The rest is ``Follower``'s."""
        super().__init__(*args, **named)
        self._channel = channel
        self._timeout_s = timeout_s
        self._stream = stream_of(self._tags[0])
        self._call: Any = None
        self._replies: _Replies = queue.Queue(_AHEAD)
        self._peeked: pb.FollowReply | Exception | None = None
        # A reply may have left the queue, and be nowhere: an interrupt came meanwhile.
        self._doubt = False
        # The last message that was delivered, in the order that all readers see.
        self._last = (0, 0, 0)
        self._closed = threading.Event()
        # The log's tail as it was when the newest read was to return what is there.
        self._refreshing = False
        self._wanted = 0

    def begin(self, now_us: int) -> Rule[None]:
        """Begin at the server."""
        del now_us
        if self._doubt and self._call is not None:
            # The stream begins again behind what was delivered.
            self._call.cancel()
            self._call = None
        if self._call is None:
            self._open()
        self._doubt = False
        return
        yield

    def take(self, found: list[Committed]) -> None:
        """Note the messages that were returned, so that a new call goes on after them."""
        if found and self._kept is not None and self._kept.found is found:
            self._last = _place(found[-1])
        super().take(found)

    def _look(self, now_us: int) -> Rule[None]:
        """Return the next messages."""
        yield from self.begin(now_us)
        if self._refreshing:
            self._wanted = self._channel.ask("Describe", pb.DescribeRequest(look=self._stream)).tail
            self._refreshing = False
        self._doubt = True
        returned = self._returned
        found: list[Committed] = []
        while True:
            behind = returned < self._wanted and not self._closed.is_set()
            reply = self._next(self._timeout_s if behind else 0)
            if reply is None:
                self._wanted = 0
                break
            if isinstance(reply, Exception):
                self._call = None
                raise reply
            found = self._fresh(reply)
            returned = max(returned, reply.through)
            if found:
                break
        self._kept = Kept(found, returned)
        self._doubt = False

    def explain(self, error: TrimmedLog) -> Rule[TrimmedLog]:
        """Return the error, which the server has explained."""
        return error
        yield

    def refresh(self) -> None:
        """Have the next read return what the log has by then, and not only what has come."""
        self._refreshing = True

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something to read; False: the timeout has passed."""
        if self._call is None or self._doubt or self._kept is not None:
            return True
        self._doubt = True
        self._peeked = self._next(timeout_s)
        self._doubt = False
        return self._peeked is not None

    @property
    def closed(self) -> bool:
        """Whether it reads no more."""
        return self._closed.is_set()

    def reads(self, replies: _Replies) -> bool:
        """Whether these are what it reads, and not what it read before a break."""
        return self._replies is replies

    def close(self) -> None:
        """Read no more; idempotent."""
        self._closed.set()
        if self._call is not None:
            self._call.cancel()

    def _move_holds(
        self, places: Mapping[str, Position | None], now_us: int
    ) -> Rule[dict[str, Hold]]:
        del now_us
        request = pb.MoveHoldRequest(
            incarnation=self._incarnation, stream=self._stream, name=self._name or ""
        )
        for tag, place in places.items():
            done = request.done.add(substream=substream_number(tag))
            if place is not None and place.incarnation:
                done.through.CopyFrom(place_of(place))
            elif place is not None:
                done.idle_through = place.lsn
        holds = self._channel.ask("MoveHold", request).holds
        return dict(self._held) | {each.tag: hold_of(each) for each in holds}
        yield

    def _pass(self, places: dict[str, Position | None]) -> Rule[None]:
        if self._kept is not None:
            return
        through, waiting = self._returned, self._waiting.substreams
        for tag, hold in self._held.items():
            at = substream_number(tag)
            behind = through <= max(hold.lsn, self._waiting.last(at))
            if not (behind or at in waiting or places.get(tag) is not None):
                # Of no log: an LSN alone, which the server looks at.
                places[tag] = Position(through, 0, 0, "", at)
        return
        yield

    def _open(self) -> None:
        request = pb.FollowRequest(
            incarnation=self._incarnation,
            stream=self._stream,
            substreams=[substream_number(tag) for tag in self._tags],
            uncommitted=not self._committed,
            name=self._name or "",
            held=bool(self._held),
        )
        if self._starts is None:
            self._begin_at(request, self._start)
        else:
            self._begin_at(request, self._starts)
            request.through = self._returned
        self._doubt = True
        call = self._channel.stream("Follow", request)
        replies: _Replies = queue.Queue(_AHEAD)
        self._replies, self._peeked = replies, None
        threading.Thread(
            target=_receive,
            args=(self._channel, call, replies, weakref.ref(self)),
            name="sharedlog-follow",
            daemon=True,
        ).start()
        try:
            first = replies.get(timeout=self._timeout_s)
        except queue.Empty:
            call.cancel()
            found = LogUnavailable(f"the server said nothing for {self._timeout_s:g} s")
            found.appended = False
            raise found from None
        except BaseException:
            call.cancel()
            raise
        if isinstance(first, Exception):
            raise first
        if self._starts is None:
            begun = first.begun
            self._starts = {
                tag_of(self._stream, each.substream): _begun(each.start, self._incarnation)
                for each in begun.starts
            }
        if not self._held:
            self._held = {each.tag: hold_of(each) for each in first.begun.holds}
        self._call = call
        if self._closed.is_set():
            call.cancel()

    def _begin_at(self, request: pb.FollowRequest, start: Start) -> None:
        if not isinstance(start, Mapping):
            if not isinstance(start, Position | int | str | Moment | None):
                raise InvalidRequest(f"{start!r:.200} is no place to begin at")
            request.start.CopyFrom(start_of(start))
            if request.start.WhichOneof("at") is None:
                request.ClearField("start")
            return
        for tag in self._tags:
            request.starts.add(substream=substream_number(tag), start=start_of(start.get(tag)))

    def _next(self, timeout_s: float) -> pb.FollowReply | Exception | None:
        peeked, self._peeked = self._peeked, None
        if peeked is not None:
            return peeked
        with suppress(queue.Empty):
            return self._replies.get(timeout_s > 0, timeout_s)
        return None

    def _fresh(self, reply: pb.FollowReply) -> list[Committed]:
        found = committed_of(reply.messages, self._stream, self._incarnation)
        if found and self._last >= _place(found[0]):
            found = [each for each in found if _place(each) > self._last]
        return found


def _receive(
    channel: LogChannel, call: Any, replies: _Replies, follower: weakref.ref[RemoteFollower]
) -> None:
    """Take replies as they come, in a thread of this call's own, while its follower is there."""
    last: pb.FollowReply | Exception
    try:
        for reply in call:
            if not _put(replies, reply, follower):
                call.cancel()
                return
        last = LogUnavailable("the server ended the stream")
    except grpc.RpcError as error:
        last = channel.told(error)
    except Exception as error:  # noqa: BLE001 - the reader gets it
        last = LogUnavailable(f"the stream broke: {error}")
    _put(replies, last, follower)


def _put(
    replies: _Replies, reply: pb.FollowReply | Exception, follower: weakref.ref[RemoteFollower]
) -> bool:
    while True:
        try:
            replies.put(reply, timeout=_LOOK_S)
        except queue.Full:
            there = follower()
            if there is None or there.closed or not there.reads(replies):
                return False
        else:
            return True


def _place(message: Committed) -> tuple[int, int, int]:
    lsn, ordinal, _, _, substream = message.position
    return lsn, substream, ordinal


def _begun(start: pb.Start, incarnation: str) -> Position | int:
    found = at_of(start, incarnation)
    if not isinstance(found, Position | int):
        raise LogUnavailable("the server does not say where it began")
    return found
