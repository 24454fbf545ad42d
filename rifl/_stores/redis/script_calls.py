"""Requests as calls of Lua scripts (see ``scripts``): one, or many in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import redis

from _rifl_ground.redis.lua import Script
from lease_server._storage import Acknowledgements
from lease_server._tokens import writer_of
from rifl._stores.redis.scripts import BEAT, CLAIM, ENDS, FINISH, FINISH_UNCLAIMED, LEASE, ROWS
from rifl._stores.rows import Move
from rifl._stores.shared.backend import BackendError
from rifl._stores.shared.requests import (
    Abandon,
    Beats,
    Claim,
    Claimed,
    CountBeat,
    Ending,
    Finish,
    Finished,
    FinishUnclaimed,
    Found,
    GetRows,
    Look,
    LookAtClient,
    MoveRows,
    SeenClient,
    TakeBack,
)
from rifl.core._serving.namespace import is_namespace
from rifl.core._serving.policy import Kind
from rifl.core._shared.call import Call

# A script, the client whose keys it is about (None: the store's), and its arguments: as they
# travel, since the caller knows what each of them is, and so packs them fastest.
Step = tuple[Script, int | None, list[bytes]]
# A pipeline's commands, and the scripts they need should Redis not have them.
Sent = list[tuple[Script, list[bytes]]]
# How soon the index may have a client's keys looked at when a claim has filed them: by
# then it must be back, by the clock of another server of a cluster.
_FILED_MS = (1_000, 10_000, 60_000)
_FALSE, _TRUE = b"0", b"1"
_KINDS = {kind: kind.value.encode() for kind in Kind}
# As the scripts say them.
_FOUND = {each.value.encode(): each for each in Found}
_ENDINGS = {each.value.encode(): each for each in Ending}
# What ends an attempt, or asks whether it has.
_OF_AN_ATTEMPT = (Finish, Abandon, Look)
_STANDS, _RUNNING, _COMPLETED = Ending.STANDS, Found.RUNNING, Found.COMPLETED


def steps_of(request: Any) -> Generator[Step, list[Any], Any]:
    """Carry a request out: yields script calls, is sent their replies, returns its own."""
    if isinstance(request, Claim):
        return (yield from _claim(request))
    if isinstance(request, _OF_AN_ATTEMPT):
        return _finished((yield FINISH, request.call.client_id, finish_arguments(request)))
    if isinstance(request, FinishUnclaimed):
        arguments = unclaimed_arguments(request)
        return _finished((yield FINISH_UNCLAIMED, request.call.client_id, arguments))
    if isinstance(request, CountBeat):
        dead = [part for name, beat in request.dead for part in (name.encode(), b"%d" % beat)]
        reading_ms = int(request.reading_s * 1000)
        told = [_TRUE if request.leaving else _FALSE, b"%d" % reading_ms]
        reply = yield BEAT, None, [request.owner.encode(), *told, *dead]
        beats = {reply[at].decode(): int(reply[at + 1]) for at in range(2, len(reply), 2)}
        return Beats(beats, int(reply[1]) / 1000)
    if isinstance(request, TakeBack):
        arguments = [member_of(request.call), request.token, b"", b"take-back", b"", _FALSE]
        reply = yield FINISH, request.call.client_id, arguments
        return int(reply[1]) / 1000
    if isinstance(request, LookAtClient):
        reply = yield LEASE, request.client_id, [b"look"]
        return None if reply[0] == b"gone" else _seen(*reply[1:])
    if isinstance(request, GetRows):
        reply = yield ROWS, None, [b"get", *[key.encode() for key in request.keys]]
        pairs = zip(request.keys, reply[1:], strict=True)
        return {key: value for key, value in pairs if value is not None}
    if isinstance(request, MoveRows):
        reply = yield ROWS, None, move_arguments(request.moves)
        return reply[0] == b"moved"
    raise TypeError(f"not a request: {request!r}")


def move_arguments(moves: Sequence[Move], what: bytes = b"move") -> list[bytes]:
    """Return what the script that moves rows is told; ``look``: to look only."""
    parts = [(each.key.encode(), each.expected or b"", each.value) for each in moves]
    return [what, *(part for each in parts for part in each)]


def rounds(
    requests: Sequence[Any],
    invocation: Callable[..., list[bytes]],
    accept: Callable[[list[Any]], list[Any]],
) -> Generator[Sent, list[Any], list[Any]]:
    """Carry requests out in step: yields what to send, is sent the replies or errors.

    Returns for each request its reply, or the ``BackendError`` it failed with. Scripts are
    run in the order of the requests.
    """
    replies: list[Any] = [None] * len(requests)
    rules = [steps_of(request) for request in requests]
    moved: list[tuple[int, Any]] = [(at, None) for at in range(len(rules))]
    while True:
        asking: list[tuple[int, Step]] = []
        for at, reply in moved:
            try:
                asking.append((at, rules[at].send(reply)))
            except StopIteration as stop:
                replies[at] = stop.value
            except BackendError as error:
                replies[at] = error
        if not asking:
            return replies
        found = yield [(step[0], invocation(*step)) for _, step in asking]
        moved = []
        for (at, _), reply in zip(asking, found, strict=True):
            if isinstance(reply, redis.RedisError):
                replies[at] = BackendError(f"{type(reply).__name__}: {reply}")
            else:
                moved.append((at, accept(reply)))


def member_of(call: Call) -> bytes:
    """Return what a call is filed under: a seq in 16 digits, or its key."""
    if call.key is None:
        return b"s%016x" % (call.seq or 0)
    return b"k" + call.key


def finish_arguments(request: Finish | Abandon | Look) -> list[bytes]:
    """Return what the script that ends attempts is told."""
    member = member_of(request.call)
    if isinstance(request, Finish):
        call = request.call
        how, namespace = request.how.encode(), _flag(is_namespace(call.client_id))
        return [member, request.token, request.record, how, call.fingerprint or b"", namespace]
    what = b"abandon" if isinstance(request, Abandon) else b"look"
    return [member, request.token, b"", what, b"", _FALSE]


def _finished(reply: list[Any]) -> Finished:
    ending = _ENDINGS.get(reply[0]) or Ending(reply[0].decode())
    return Finished(ending, reply[1] if ending is _STANDS else b"")


def unclaimed_arguments(request: FinishUnclaimed) -> list[bytes]:
    """Return what the script is told that records calls without a claim."""
    call = request.call
    return [
        *(member_of(call), *acknowledged_of(call), call.fingerprint or b"", request.record),
        *(b"%d" % request.window, call.method.encode(), _flag(request.unknown)),
    ]


def acknowledged_of(told: Call | Acknowledgements) -> tuple[bytes, bytes]:
    """Return what is acknowledged as scripts take it: first incomplete, and the ranges above it."""
    first_incomplete = b"%016x" % told.first_incomplete
    if not told.completed:
        return first_incomplete, b""
    ranges = [b"%016x%016x" % (first, last + 1) for first, last in told.completed]
    return first_incomplete, b"".join(ranges)


def _seen(holder: bytes, first: bytes, ranges: bytes) -> SeenClient:
    bounds = [int(ranges[at : at + 16], 16) for at in range(0, len(ranges), 16)]
    completed = [(low, high - 1) for low, high in zip(bounds[::2], bounds[1::2], strict=True)]
    return SeenClient(holder, int(first, 16), completed)


def _claim(request: Claim) -> Generator[Step, list[Any], Claimed]:
    call, arguments = request.call, _claim_arguments(request)
    if call.key is None:
        reply = yield CLAIM, call.client_id, arguments
    else:
        reply = yield from _claim_key(request, arguments)
    found = _FOUND.get(reply[0]) or Found(reply[0].decode())
    if found is _RUNNING:
        return Claimed(found, reply[1], reply[2].decode(), Kind(reply[3].decode()))
    if found is _COMPLETED:
        return Claimed(found, record=reply[1], verified=reply[2] == b"1")
    return Claimed(found)


def _claim_key(request: Claim, arguments: list[bytes]) -> Generator[Step, list[Any], list[Any]]:
    client_id, writer = request.call.client_id, writer_of(request.call.token)
    reply = yield CLAIM, client_id, [*arguments, writer, b""]
    for not_before_ms in _FILED_MS:
        if reply[0] != b"unfiled":
            return reply
        # The index of who is swept is in another slot: filed first, then claimed.
        telling = [b"%d" % client_id, _retention_ms(request), b"%d" % not_before_ms]
        filed = yield ENDS, None, [b"file", *telling]
        reply = yield CLAIM, client_id, [*arguments, writer, filed[1]]
    if reply[0] == b"unfiled":
        raise BackendError("the keys could not be filed for retention: clocks differ")
    return reply


def _retention_ms(request: Claim) -> bytes:
    # Empty: kept as long as the client lives.
    retention_s = request.retention_s
    return b"" if retention_s is None else b"%d" % max(1, int(retention_s * 1000))


def _flag(value: bool) -> bytes:
    return _TRUE if value else _FALSE


def _claim_arguments(request: Claim) -> list[bytes]:
    call = request.call
    return [
        member_of(call),
        *acknowledged_of(call),
        call.fingerprint or b"",
        _KINDS[request.kind],
        request.token,
        request.owner.encode(),
        _flag(request.refusing),
        b"%d" % request.window,
        b"%d" % request.max_keys,
        b"%d" % request.max_key_bytes,
        request.take_over,
        request.lost,
        call.method.encode(),
        _retention_ms(request),
        _flag(is_namespace(call.client_id)),
        b"" if request.until_s is None else b"%d" % int(request.until_s * 1000),
    ]
