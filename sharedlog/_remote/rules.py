"""The rules of a log that a server carries out: for each the request, and what is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from sharedlog._core.calling import CalledRule
from sharedlog._core.catalog import Stream, all_streams, check_stream, find_stream, make_stream
from sharedlog._core.errors import InvalidRequest, LogForked
from sharedlog._core.fences import Fence, raise_fence
from sharedlog._core.following import Start, read_some
from sharedlog._core.holds import Hold, all_holds, drop, forget
from sharedlog._core.incarnation import read_incarnation
from sharedlog._core.named import (
    Named,
    Turn,
    all_names,
    append_named,
    decide_named,
    highest_of,
    placed_by,
)
from sharedlog._core.named import forget as forget_named
from sharedlog._core.names import check_hold_name
from sharedlog._core.producers import append, grant
from sharedlog._core.reading import Committed
from sharedlog._core.roster import Granted, granted_producers
from sharedlog._core.spans import decide, has_pending, pend, retire
from sharedlog._core.streams import check_name, stream_of, substream_number
from sharedlog._core.trim import Committers, TrimOutcome, trim
from sharedlog._core.whole import Trimmed
from sharedlog._remote.appends import RemoteAppends
from sharedlog._remote.channel import LogChannel
from sharedlog._wire.conversions import committed_of, hold_of, start_of, stream_of_info
from sharedlog.v1 import log_pb2 as pb

_US = timedelta(microseconds=1)


class Rules:
    """What is asked of one server's log. Any thread."""

    def __init__(self, channel: LogChannel, description: pb.Description) -> None:
        """``description``: what the server said of its log when it was opened."""
        self._ask = channel.ask
        self._read_all = channel.read_all
        self._incarnation: str = description.incarnation
        appends = RemoteAppends(channel, self._incarnation)
        self._known: dict[Any, Callable[..., Any]] = {
            _of(rule): asked
            for rule, asked in (
                (read_incarnation, self._read_incarnation),
                (find_stream, self._find_stream),
                (make_stream, self._make_stream),
                (all_streams, self._all_streams),
                (grant, appends.grant),
                (append, appends.append),
                (pend, appends.pend),
                (decide, appends.decide),
                (append_named, appends.append_named),
                (decide_named, appends.decide_named),
                (highest_of, self._highest_of),
                (placed_by, self._placed_by),
                (forget_named, self._forget_named),
                (has_pending, appends.has_pending),
                (retire, self._retire),
                (granted_producers, self._granted_producers),
                (all_names, self._all_names),
                (raise_fence, self._raise_fence),
                (read_some, self._read_some),
                (all_holds, self._all_holds),
                (drop, self._drop),
                (forget, self._forget),
                (trim, self._trim),
            )
        }

    def ask(self, call: CalledRule[Any]) -> Any:
        """Have a rule carried out; raises what ends it, ``InvalidRequest`` for one not served."""
        asked = self._known.get(call.function)
        if asked is None:
            raise InvalidRequest(
                f"{call.function.__name__} is not served over gRPC: do it where the log is opened "
                "itself"
            )
        return asked(*call.arguments, **call.named)

    def _read_incarnation(self, expected: str | None = None) -> str:
        if expected is not None and expected != self._incarnation:
            raise LogForked(
                f"the log is of incarnation {self._incarnation}, and {expected} is expected: it is "
                "another log, or was restored and declared so"
            )
        return self._incarnation

    def _find_stream(self, name: str) -> Stream:
        check_name(name)
        request = pb.MakeStreamRequest(incarnation=self._incarnation, name=name, find=True)
        return stream_of_info(self._ask("MakeStream", request))

    def _make_stream(
        self, name: str, substreams: int | None = None, retention: timedelta | None = None
    ) -> Stream:
        check_stream(name, substreams, retention)
        request = pb.MakeStreamRequest(
            incarnation=self._incarnation,
            name=name,
            substreams=substreams or 0,
            retention_us=None if retention is None else retention // _US,
        )
        return stream_of_info(self._ask("MakeStream", request))

    def _all_streams(self) -> list[Stream]:
        request = pb.ListStreamsRequest(incarnation=self._incarnation)
        return [stream_of_info(each) for each in self._ask("ListStreams", request).streams]

    def _highest_of(self, name: str) -> int:
        request = pb.GetNamedRequest(incarnation=self._incarnation, name=name)
        found: int = self._ask("GetNamed", request).highest_seq
        return found

    def _placed_by(self, turn: Turn, lsn: int) -> tuple[list[str], int]:
        request = pb.GetNamedRequest(
            incarnation=self._incarnation, name=turn.name, seq=turn.seq, lsn=lsn
        )
        found = self._ask("GetNamed", request)
        return list(found.tags), found.checksum

    def _forget_named(self, name: str) -> int:
        request = pb.ForgetNamedRequest(incarnation=self._incarnation, name=name)
        found: int = self._ask("ForgetNamed", request).highest_seq
        return found

    def _retire(self, producer: int, *, seq: int | None = None, fence: Fence | None = None) -> int:
        if seq is not None or fence is not None:
            raise InvalidRequest("a server of a log sweeps it itself: sharedlog serve")
        request = pb.RetireRequest(incarnation=self._incarnation, producer=pb.Producer(id=producer))
        found: int = self._ask("Retire", request).highest_seq
        return found

    def _granted_producers(self) -> list[Granted]:
        request = pb.ListProducersRequest(incarnation=self._incarnation)
        return [
            Granted(
                each.producer.id,
                each.producer.window,
                each.highest_seq,
                each.retired,
                {span.tag: span.begin for span in each.spans},
            )
            for each in self._ask("ListProducers", request).producers
        ]

    def _all_names(self) -> list[Named]:
        request = pb.ListProducersRequest(incarnation=self._incarnation, named=True)
        found = self._ask("ListProducers", request).named
        return [Named(each.name, each.highest_seq) for each in found]

    def _raise_fence(self, name: str, at_least: int = 0) -> int:
        request = pb.RaiseFenceRequest(incarnation=self._incarnation, name=name, at_least=at_least)
        found: int = self._ask("RaiseFence", request).number
        return found

    def _read_some(self, tag: str, incarnation: str, start: Start, limit: int) -> list[Committed]:
        if isinstance(start, Mapping):
            start = start.get(tag)
        request = pb.ReadRequest(
            incarnation=incarnation,
            stream=stream_of(tag),
            substream=substream_number(tag),
            start=start_of(start),
            limit=limit,
        )
        replies = self._read_all("Read", request)
        found = [each for reply in replies for each in reply.messages]
        return committed_of(found, stream_of(tag), incarnation)

    def _all_holds(self, name: str | None = None) -> list[Hold]:
        request = pb.ListHoldsRequest(incarnation=self._incarnation, name=name or "")
        return [hold_of(each) for each in self._ask("ListHolds", request).holds]

    def _drop(self, name: str, tags: Sequence[str] | None = None) -> list[Hold]:
        return self._end_holds(name, tags, forget=False)

    def _forget(self, name: str, tags: Sequence[str] | None = None) -> list[Hold]:
        return self._end_holds(name, tags, forget=True)

    def _end_holds(self, name: str, tags: Sequence[str] | None, *, forget: bool) -> list[Hold]:
        if tags is not None:
            raise InvalidRequest("over gRPC the holds of a name end together")
        check_hold_name(name)
        request = pb.EndHoldsRequest(incarnation=self._incarnation, name=name, forget=forget)
        return [hold_of(each) for each in self._ask("EndHolds", request).holds]

    def _trim(
        self,
        committers: Committers,
        now_us: int,
        retention_us: int,
        *,
        fence: Fence | None = None,
    ) -> TrimOutcome:
        # By the server's clock, and what it remembers.
        del committers, now_us
        if fence is not None:
            raise InvalidRequest("a server trims on a schedule itself: serve --trim-every")
        request = pb.TrimRequest(incarnation=self._incarnation, retention_us=_int64(retention_us))
        found = self._ask("Trim", request)
        trimmed = Trimmed(found.whole, found.removed, found.at_us)
        return TrimOutcome(
            trimmed,
            found.rows,
            found.kept_by,
            [hold_of(each) for each in found.overdue],
            found.remaining,
        )


def _of(rule: Any) -> Any:
    """Return a rule as its calls have it."""
    return rule.__wrapped__


def _int64(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise InvalidRequest(f"a time of {value} microseconds")
    return value
