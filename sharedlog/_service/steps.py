"""The steps of players at a log that is served: each judged, then carried out (DESIGN-LOG §15)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused, Stamp
from sharedlog._core.errors import InvalidRequest
from sharedlog._core.player.reach import Reach
from sharedlog._core.position import MAX_LSN
from sharedlog._core.publishing import committing
from sharedlog._core.streams import stream_of
from sharedlog._log.place import Place
from sharedlog._service.access import Caller
from sharedlog._service.quotas import Quotas
from sharedlog._service.requests import Requests
from sharedlog._service.tail import Tail
from sharedlog._wire.methods import MOST_REPLY_BYTES
from sharedlog.v1 import log_pb2, steps_pb2

# Of one reply, and how long one call waits: a thread waits with it.
_MOST_ROWS, _MOST_WAIT_S = 10_000, 1.0
_MOST_KEYS = 10_000
_STAMPS = {steps_pb2.StepPut.NONE: Stamp.NONE, steps_pb2.StepPut.LAST: Stamp.LAST}


class ServedSteps:
    """Of one log. Any thread."""

    def __init__(self, place: Place, quotas: Quotas, requests: Requests, tail: Tail) -> None:
        """``tail``: of those who wait for more."""
        self._place = place
        self._engine = place.engine
        self._quotas = quotas
        self._requests = requests
        self._tail = tail

    @property
    def methods(self) -> Mapping[str, Callable[[Any, Caller], Any]]:
        """What answers each method."""
        return {
            "Get": self._get,
            "Scan": self._scan,
            "Read": self._read,
            "Ends": self._ends,
            "Wait": self._wait,
            "Commit": self._commit,
        }

    def _get(self, request: steps_pb2.GetStep, caller: Caller) -> steps_pb2.StepValues:
        keys = tuple(request.keys)
        if len(keys) > _MOST_KEYS:
            raise InvalidRequest(f"{_MOST_KEYS} keys are read at once, at most")
        _reach(request, caller).check_get(keys)
        return _values(self._engine.get(keys))

    def _scan(self, request: steps_pb2.ScanStep, caller: Caller) -> steps_pb2.StepValues:
        _reach(request, caller).check_scan(request.prefix)
        return _values(self._engine.scan(request.prefix))

    def _read(self, request: steps_pb2.ReadStep, caller: Caller) -> steps_pb2.StepRows:
        _reach(request, caller)
        if request.after > MAX_LSN or not request.limit:
            raise InvalidRequest("rows are read behind an LSN, one at least")
        tag = request.tag if request.HasField("tag") else None
        found = self._engine.read(request.after, min(request.limit, _MOST_ROWS), tag)
        reply = steps_pb2.StepRows(through=found.through)
        size = 0
        for lsn, body, tags, at_us in found.rows:
            size += len(body) + sum(map(len, tags)) + 64
            if reply.rows and size > MOST_REPLY_BYTES // 2:
                reply.through = reply.rows[-1].lsn
                break
            reply.rows.add(lsn=lsn, body=body, tags=tags, at_us=at_us)
        return reply

    def _ends(self, request: steps_pb2.EndsStep, caller: Caller) -> steps_pb2.StepLsns:
        _reach(request, caller)
        return steps_pb2.StepLsns(first=self._engine.first(), last=self._engine.tail())

    def _wait(self, request: steps_pb2.WaitStep, caller: Caller) -> steps_pb2.StepLsns:
        _reach(request, caller)
        timeout_s = min(request.timeout_ms / 1000, _MOST_WAIT_S)
        last = self._engine.wait(min(request.after, MAX_LSN), timeout_s)
        return steps_pb2.StepLsns(last=last)

    def _commit(self, request: steps_pb2.CommitStep, caller: Caller) -> steps_pb2.CommitStepReply:
        commit = _commit_of(request)
        asked = _reach(request, caller).check_commit(commit)
        if asked.streams:
            caller.check_admin()
        placed = [
            self._requests.placed(log_pb2.NewMessage(tag=tags[0] if tags else "", envelope=found))
            for tags, found in asked.entries
        ]
        for each in placed:
            caller.check_publish(stream_of(each.tag))
        if placed and [each.tags for each in committing(placed)] != [
            tags for tags, _ in asked.entries
        ]:
            raise InvalidRequest("an append's entries have their substreams' tags, and no others")
        if not placed:
            return self._committed(commit)
        sizes: dict[str, int] = {}
        for each in placed:
            stream = stream_of(each.tag)
            sizes[stream] = sizes.get(stream, 0) + each.size
        self._quotas.publish(caller.name, f"player {request.player}", sizes)
        self._tail.begins()
        first, last = 0, 0
        try:
            reply = self._committed(commit)
            first, last = reply.lsns.first, reply.lsns.last
        finally:
            self._tail.ended(first, last, {each.tag for each in placed})
        return reply

    def _committed(self, commit: Commit) -> steps_pb2.CommitStepReply:
        try:
            lsns = self._place.act(self._engine, commit)
        except Refused as refused:
            return steps_pb2.CommitStepReply(refused=True, found=_values(refused.found).values)
        return steps_pb2.CommitStepReply(lsns=steps_pb2.StepLsns(first=lsns.first, last=lsns.last))


def _reach(request: Any, caller: Caller) -> Reach:
    """Return what a step may reach; raises ``NotAllowed`` for who is not this player."""
    caller.check_player(request.player)
    return Reach(request.player)


def _commit_of(request: steps_pb2.CommitStep) -> Commit:
    """Return what is asked for, as of now by this server's clock, not by the caller's."""
    puts = tuple(
        Put(each.key, each.value if each.HasField("value") else None, _STAMPS[each.stamp])
        for each in request.puts
        if each.stamp in _STAMPS
    )
    if len({each.key for each in puts}) < len(request.puts):
        raise InvalidRequest("a key is put once in a commit, with a stamp that there is")
    return Commit(
        tuple(
            Condition(each.key, each.value if each.HasField("value") else None)
            for each in request.conditions
        ),
        puts,
        tuple(NewEntry(each.body, tuple(each.tags)) for each in request.entries),
        time.time_ns() // 1000,
    )


def _values(found: Mapping[str, bytes | None]) -> steps_pb2.StepValues:
    return steps_pb2.StepValues(
        values=[steps_pb2.StepValue(key=key, value=value) for key, value in found.items()]
    )
