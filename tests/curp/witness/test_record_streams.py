"""Streams of records at a witness: order, authority, bounds, ends (DESIGN §7, invariant 2; §9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from curp._core.witness_table import WitnessTable
from curp.v1 import curp_pb2 as pb
from curp.witness import WitnessHandlers, add_witness_service
from lease_server._tokens import make_token
from rifl.core._shared.errors import BadHeader
from tests.curp.witness.test_handlers import (
    SECRET,
    frozen,
    record_bytes,
    start_bytes,
    verdict,
    witness_handlers,
)

V = pb.RecordReply
METHOD = "/curp.v1.Witness/Records"


def _message(first: int, *records: bytes) -> bytes:
    return pb.RecordsRequest(first=first, records=records).SerializeToString()


def _verdicts(raw: bytes) -> list[int]:
    return list(pb.RecordsReply.FromString(raw).verdicts)


def test_each_record_of_a_message_is_judged_as_if_it_came_alone() -> None:
    """One that its caller may not record, or is none, has no verdict; the others have theirs."""
    witness = witness_handlers()
    wrong = make_token(SECRET, 6)
    raw = _message(
        1,
        record_bytes(1, b"one", 7),
        record_bytes(2, b"two", 8, token=wrong),
        b"\xff",
        record_bytes(3, b"three", 7),
        record_bytes(4, b"four", 9),
    )
    answered = witness.records(raw, bytes, 1)
    assert _verdicts(answered.reply) == [V.ACCEPTED, 0, 0, V.CONFLICT, V.ACCEPTED]
    assert (answered.following, answered.refusal) == (6, None)
    assert [call.request for call in frozen(witness)] == [b"one", b"four"]
    assert _verdicts(witness.records(_message(6, record_bytes(5, b"", 1)), bytes, 6).reply) == [
        V.FROZEN
    ]


@pytest.mark.parametrize(
    "raw",
    [b"\xff", _message(1), _message(2, b"x"), _message(1, *[b""] * 257), b"\xa2\x06\x00" * 5001],
)
def test_a_message_out_of_line_is_refused_whole(raw: bytes) -> None:
    """Numbers that leave some out, no record, too many: nothing of it is looked at (§9)."""
    witness = witness_handlers()
    with pytest.raises(BadHeader):
        witness.records(raw, bytes, 1)
    assert frozen(witness) == []


def test_tokens_of_secrets_that_went_are_not_remembered() -> None:
    """A witness forgets whom it knew when it is told other secrets (DESIGN §5)."""
    witness = witness_handlers()
    assert verdict(witness.record(record_bytes(1, b"", 7), bytes)) == V.ACCEPTED
    other = pb.SecretsPut(secrets=[pb.SecretsPut.Secret(key_id=2, secret=b"n" * 32)])
    witness.start(start_bytes(refresh=True, secrets=other))
    answered = witness.records(_message(1, record_bytes(2, b"", 8)), bytes, 1)
    assert _verdicts(answered.reply) == [0]
    assert answered.refusal is not None


class _Served:
    def __init__(self, channel: grpc.aio.Channel, table: WitnessTable, stopping: Any) -> None:
        self.open: Any = channel.stream_stream(METHOD)
        self.table = table
        self.stopping = stopping


@pytest.fixture
async def served() -> AsyncIterator[_Served]:
    """A witness on a real server, started under number 1."""
    table, stopping = WitnessTable(), asyncio.Event()
    behind = WitnessHandlers(table)
    behind.start(start_bytes())
    server = grpc.aio.server()
    add_witness_service(server, behind, stopping=stopping)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield _Served(channel, table, stopping)
    await server.stop(None)


async def test_messages_are_answered_in_their_order(served: _Served) -> None:
    """Sent ahead, each is answered by a message of its own, until the caller ends it."""
    call = served.open()
    for seq in range(1, 6):
        await call.write(_message(seq, record_bytes(seq, b"", seq)))
    replies = [pb.RecordsReply.FromString(await call.read()) for _ in range(5)]
    assert [reply.first for reply in replies] == [1, 2, 3, 4, 5]
    assert {tuple(reply.verdicts) for reply in replies} == {(V.ACCEPTED,)}
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert len(served.table) == 5


async def test_who_is_not_authorised_holds_no_stream(served: _Served) -> None:
    """It ends with the first message that has no record of a caller it knows (invariant 2)."""
    call = served.open()
    await call.write(_message(1, record_bytes(1, b"", 7, token=b"x" * 20)))
    assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
    assert len(served.table) == 0


async def test_a_stream_without_a_record_is_ended(
    served: _Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends nothing holds nothing for long (DESIGN §9, bounds)."""
    monkeypatch.setattr("curp.witness._record_streams._FIRST_RECORD_S", 0.05)
    call = served.open()
    assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture
def two_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two streams of one peer."""
    monkeypatch.setattr("curp.witness._record_streams._MAX_STREAMS_PER_PEER", 2)


@pytest.mark.usefixtures("two_of_one", "served")
async def test_streams_of_one_peer_have_a_bound(served: _Served) -> None:
    """One more is refused, and taken again once another ended (DESIGN §9, bounds)."""

    async def begin(seq: int) -> Any:
        call = served.open()
        await call.write(_message(1, record_bytes(seq, b"", seq)))
        return call

    first, second = await begin(1), await begin(2)
    await first.read()
    await second.read()
    third = served.open()
    assert await third.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await first.done_writing()
    assert await first.code() is grpc.StatusCode.OK
    fourth = await begin(4)
    assert _verdicts(await fourth.read()) == [V.ACCEPTED]
    second.cancel()
    fourth.cancel()


async def test_a_stop_ends_the_streams_that_are_open(served: _Served) -> None:
    """Each with OK, behind its last answer: a server's stop waits for nobody (DESIGN §9)."""
    call = served.open()
    await call.write(_message(1, record_bytes(1, b"", 1)))
    assert _verdicts(await call.read()) == [V.ACCEPTED]
    served.stopping.set()
    async with asyncio.timeout(20):
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
