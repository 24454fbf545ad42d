"""The calls of handlers as keys of the log, where that has the consumer's state (T4, T6).

``state/NAME/TAG/call/SERIAL`` has one call of the shard, put under its fence: before the call is
sent, and with the answer, before the handler has that.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable

from sharedlog._core.commit import Commit, Condition, Put, Refused
from sharedlog._core.consumer.calls import HandlerCall
from sharedlog._core.consumer.names import state_key
from sharedlog._core.envelope import About, pack, unpack
from sharedlog._core.errors import CorruptLog, SealedMessage
from sharedlog._core.fences import Fence, check_fence, condition_of, fence_key
from sharedlog._core.position import Position
from sharedlog._core.sealing import Seals, opened
from sharedlog._core.steps import Rule, Scan

_CONTENT_TYPE = "application/x-sharedlog-call"
# What is said of it, its request, its answer, if it has one.
_LENGTHS = struct.Struct(">BII?")
_VERSION = 1


def read_calls(name: str, tag: str, seals: Seals | None) -> Rule[list[HandlerCall]]:
    """Return the calls of a shard, by their serials."""
    found: dict[str, bytes] = yield Scan(_key(name, tag))
    return sorted(_read(key, each, seals) for key, each in found.items())


def keep_call(
    name: str, tag: str, fence: Fence, call: HandlerCall, seals: Seals | None
) -> Rule[None]:
    """Keep a call, with its answer if it has one; raises ``Fenced``.

    A copy of the request that comes late does not take the answer back: a call without one is put
    behind what its key had before, and no second time.
    """
    said = [call.serial, str(call.position), call.number]
    told = json.dumps([*said, call.session, call.client, call.target, call.method]).encode()
    answer = call.answer
    lengths = _LENGTHS.pack(_VERSION, len(told), len(call.request), answer is not None)
    body = lengths + told + call.request + (answer or b"")
    envelope = pack(body, None, About(content_type=_CONTENT_TYPE), 0)
    key = _key(name, tag, call.serial)
    value = envelope if seals is None else seals.sealed(envelope, key)
    if answer is not None:
        yield from _put(fence, [Put(key, value)])
        return
    before: bytes | None = None
    while True:
        try:
            yield from _put(fence, [Put(key, value)], Condition(key, before))
        except Refused as refused:
            before = refused.found[key]
            if before is not None and _read(key, before, seals)._replace(answer=None) == call:
                # An earlier request of this one, whose reply was lost.
                return
            continue
        return


def drop_calls(name: str, tag: str, fence: Fence, serials: Iterable[int]) -> Rule[None]:
    """Let calls go whose messages are done; raises ``Fenced``."""
    yield from _put(fence, [Put(_key(name, tag, each), None) for each in serials])


def _put(fence: Fence, puts: list[Put], *conditions: Condition) -> Rule[None]:
    try:
        yield Commit((condition_of(fence), *conditions), tuple(puts))
    except Refused as refused:
        check_fence(fence, refused.found[fence_key(fence.name)])
        raise


def _key(name: str, tag: str, serial: int | None = None) -> str:
    return state_key(name, tag, f"call/{'' if serial is None else serial}")


def _read(key: str, value: bytes, seals: Seals | None) -> HandlerCall:
    envelope, why = opened(value, seals, key)
    if why:
        raise SealedMessage(f"a consumer's call is sealed: {why}")
    body = unpack(envelope).body
    try:
        version, length, size, answered = _LENGTHS.unpack_from(body)
        at = _LENGTHS.size + length
        told = json.loads(body[_LENGTHS.size : at])
        serial, position, number, session, client, target, method = told
    except (struct.error, ValueError, TypeError) as error:
        raise CorruptLog("what is kept of a consumer's call is not what was written") from error
    if version != _VERSION:
        raise CorruptLog("what is kept of a consumer's call is not what was written")
    return HandlerCall(
        serial,
        Position.parse(position),
        number,
        session,
        client,
        target,
        method,
        body[at : at + size],
        body[at + size :] if answered else None,
    )
