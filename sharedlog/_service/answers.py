"""The answers of a log's service: for each method a rule of the log, in the calling thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sharedlog._core.catalog import Stream, find_stream
from sharedlog._core.errors import InvalidRequest, LogForked, NoSuchStream
from sharedlog._core.fences import check_fence_name, raise_fence
from sharedlog._core.holds import Hold, all_holds, drop, forget, move_named
from sharedlog._core.named import (
    MAX_SEQ,
    Turn,
    all_names,
    check_any_name,
    highest_of,
    placed_by,
)
from sharedlog._core.names import check_hold_name
from sharedlog._core.position import MAX_LSN, Position
from sharedlog._core.producers import grant, shown
from sharedlog._core.roster import Granted, granted_producers, one_producer
from sharedlog._core.spans import retire
from sharedlog._core.streams import check_name, tag_of
from sharedlog._core.whole import read_trimmed
from sharedlog._log.following import chosen_substreams
from sharedlog._log.log import Log
from sharedlog._log.place import Place
from sharedlog._log.placing import Placing
from sharedlog._service.access import Caller
from sharedlog._service.appends import ServedAppends
from sharedlog._service.quotas import Quotas
from sharedlog._service.requests import (
    Requests,
    fence_number,
    producer_of,
)
from sharedlog._service.tail import Tail
from sharedlog._wire.conversions import (
    held_of,
    info_of,
    position_of,
    retention_of,
)
from sharedlog.v1 import log_pb2 as pb
from sharedlog.v1.sharedlog_pb2 import Span

Answer = Callable[[Any, Caller], Any]


class Answers:
    """Of one log, whose rules stay in ``_core``; what is asked here is who may. Any thread."""

    def __init__(self, log: Log, place: Place, quotas: Quotas, tail: Tail) -> None:
        """``place``: of ``log``; ``tail``: of those who wait for more."""
        self._log = log
        self._place = place
        self._quotas = quotas
        self._placing = Placing(place)
        self.requests = Requests(self._placing, place.incarnation)
        self._appends = ServedAppends(place, quotas, self.requests, tail)
        self._tail = tail

    @property
    def methods(self) -> Mapping[str, Answer]:
        """What answers each method that has one answer."""
        return {
            "Describe": self._describe,
            "MakeStream": self._make_stream,
            "ListStreams": self._list_streams,
            "Grant": self._grant,
            "GetProducer": self._get_producer,
            "ListProducers": self._list_producers,
            "Retire": self._retire,
            "Append": self._appends.answer,
            "GetNamed": self._get_named,
            "ForgetNamed": self._forget_named,
            "RaiseFence": self._raise_fence,
            "MoveHold": self._move_hold,
            "ListHolds": self._list_holds,
            "EndHolds": self._end_holds,
            "Trim": self._trim,
        }

    def check_incarnation(self, request: Any) -> None:
        """Raise ``LogForked`` unless the request is for this log."""
        if request.incarnation != self._place.incarnation:
            raise LogForked(
                f"the log is {self._place.incarnation}, and the request is for "
                f"{request.incarnation[:100]!r}: it is another log, or was restored"
            )

    def stream(self, name: str) -> Stream:
        """Return a stream that exists; raises ``NoSuchStream``."""
        return self._placing.stream(name)

    def _describe(self, request: pb.DescribeRequest, caller: Caller) -> pb.Description:
        engine = self._place.engine
        tail = engine.tail()
        look = request.look
        if look and caller.may_follow(look) and self._placing.knows(look):
            self._tail.look(look, tail)
        return pb.Description(
            incarnation=self._place.incarnation,
            durability=engine.durability,
            append_entries=self._appends.entries,
            append_bytes=self._appends.bytes,
            append_tags=self._appends.tags,
            tail=tail,
            whole=self._place.run(read_trimmed()).whole,
        )

    def _make_stream(self, request: pb.MakeStreamRequest, caller: Caller) -> pb.StreamInfo:
        name = request.name
        if request.find:
            check_name(name)
            if not caller.may_use(name):
                # A caller that may not use it does not learn whether it is there.
                raise NoSuchStream(f"there is no stream {name!r} for {caller.name}")
            return info_of(self._place.run(find_stream(name)))
        caller.check_admin()
        kept = request.retention_us
        return info_of(
            self._log.stream(
                name,
                request.substreams or None,
                retention_of(kept) if request.HasField("retention_us") else None,
            )
        )

    def _list_streams(self, request: pb.ListStreamsRequest, caller: Caller) -> pb.ListStreamsReply:
        del request
        found = [each for each in self._log.streams() if caller.may_use(each.name)]
        return pb.ListStreamsReply(streams=map(info_of, found))

    def _grant(self, request: pb.GrantRequest, caller: Caller) -> pb.Producer:
        caller.check_publisher()
        self._quotas.step(caller.name)
        return pb.Producer(id=self._place.run(grant(request.token, request.window)).id)

    def _get_producer(self, request: pb.GetProducerRequest, caller: Caller) -> pb.ProducerState:
        del caller
        return _state(self._place.run(one_producer(producer_of(request.producer))))

    def _list_producers(
        self, request: pb.ListProducersRequest, caller: Caller
    ) -> pb.ListProducersReply:
        caller.check_admin()
        if request.named:
            names = self._place.run(all_names())
            named = [pb.NamedProducer(name=each.name, highest_seq=each.seq) for each in names]
            return pb.ListProducersReply(named=named)
        found = self._place.run(granted_producers())
        return pb.ListProducersReply(producers=map(_state, found))

    def _retire(self, request: pb.RetireRequest, caller: Caller) -> pb.RetireReply:
        if request.producer.token:
            self._place.run(shown([producer_of(request.producer)]))
        else:
            caller.check_admin()
            if not 0 < request.producer.id <= MAX_SEQ:
                raise InvalidRequest("a producer has an id")
        return pb.RetireReply(highest_seq=self._place.run(retire(request.producer.id)))

    def _get_named(self, request: pb.GetNamedRequest, caller: Caller) -> pb.NamedState:
        check_any_name(request.name)
        caller.check_name(request.name)
        reply = pb.NamedState(highest_seq=self._place.run(highest_of(request.name)))
        if request.seq:
            if not 0 < request.lsn <= MAX_LSN:
                raise InvalidRequest(f"{request.lsn} is no LSN")
            turn = Turn(request.name, request.seq, 0)
            tags, checksum = self._place.run(placed_by(turn, request.lsn))
            reply.tags[:] = tags
            reply.checksum = checksum
        return reply

    def _forget_named(self, request: pb.ForgetNamedRequest, caller: Caller) -> pb.NamedState:
        caller.check_admin()
        return pb.NamedState(highest_seq=self._log.forget(request.name))

    def _raise_fence(self, request: pb.RaiseFenceRequest, caller: Caller) -> pb.Fence:
        check_fence_name(request.name)
        caller.check_name(request.name)
        self._quotas.step(caller.name)
        at_least = fence_number(request.at_least)
        if at_least:
            number = self._place.run(raise_fence(request.name, at_least))
        else:
            number = self._log.raise_fence(request.name).number
        return pb.Fence(name=request.name, number=number)

    def _move_hold(self, request: pb.MoveHoldRequest, caller: Caller) -> pb.Holds:
        caller.check_follow(request.stream)
        check_hold_name(request.name)
        caller.check_name(request.name)
        stream = self.stream(request.stream)
        places: dict[str, Position | int | None] = {}
        for each in request.done:
            chosen_substreams(stream, (each.substream,))
            place: Position | int | None = None
            if each.HasField("through"):
                position = position_of(each.through, self._place.incarnation)
                position.check(self._place.incarnation, stream.substreams)
                place = position._replace(substream=each.substream)
            elif each.idle_through:
                place = min(each.idle_through, MAX_LSN)
            places[tag_of(stream.name, each.substream)] = place
        incarnation, now_us = self._place.incarnation, time.time_ns() // 1000
        moved = self._place.run(move_named(request.name, places, incarnation, now_us))
        return _holds(moved.values())

    def _list_holds(self, request: pb.ListHoldsRequest, caller: Caller) -> pb.Holds:
        if request.name:
            check_hold_name(request.name)
            caller.check_name(request.name)
        else:
            caller.check_admin()
        return _holds(self._place.run(all_holds(request.name or None)))

    def _end_holds(self, request: pb.EndHoldsRequest, caller: Caller) -> pb.Holds:
        caller.check_admin()
        check_hold_name(request.name)
        ended = forget(request.name) if request.forget else drop(request.name)
        return _holds(self._place.run(ended))

    def _trim(self, request: pb.TrimRequest, caller: Caller) -> pb.TrimReply:
        caller.check_admin()
        kept = retention_of(request.retention_us) if request.retention_us else None
        outcome = self._log.trim(kept)
        return pb.TrimReply(
            whole=outcome.trimmed.whole,
            removed=outcome.trimmed.removed,
            at_us=outcome.trimmed.at_us,
            rows=outcome.rows,
            kept_by=outcome.kept_by,
            overdue=map(held_of, outcome.overdue),
            remaining=outcome.remaining,
        )


def _state(granted: Granted) -> pb.ProducerState:
    return pb.ProducerState(
        producer=pb.Producer(id=granted.id, window=granted.window),
        highest_seq=granted.seq,
        retired=granted.retired,
        spans=[Span(tag=tag, begin=begin) for tag, begin in sorted(granted.pending.items())],
    )


def _holds(found: Any) -> pb.Holds:
    held: list[Hold] = list(found)
    return pb.Holds(holds=map(held_of, held))
