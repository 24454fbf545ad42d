"""gRPC's own tests of an aio channel, restated: the same over bare gRPC and ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

import rifl
from tests.grpc_behaviour.sides import DEADLINE_S, SERVICE, Behaviours, Side

UNARY, COLLECT, COUNT = (f"/{SERVICE}/{name}" for name in ("Unary", "Collect", "Count"))


class AioBehaviours(Behaviours):
    """The same in coroutines."""

    def __init__(self, **behaviours: Any) -> None:
        super().__init__(**behaviours)
        self.goes_on = asyncio.Event()
        self.has_begun = asyncio.Event()
        self.read: list[bytes] = []

    async def unary(self, request: bytes, context: Any) -> bytes:  # type: ignore[override]
        self.has_begun.set()
        await self.goes_on.wait()
        return request

    async def collect(self, requests: AsyncIterator[bytes], context: Any) -> bytes:  # type: ignore[override]
        async for request in requests:
            self.read.append(request)
        return b"|".join(self.read)

    async def count(self, request: bytes, context: Any) -> AsyncIterator[bytes]:  # type: ignore[override]
        for at in range(int(request)):
            yield b"%d" % at


async def test_calls_under_way_are_cancelled_by_close(side: Side) -> None:
    """Whether they were sent or waited for a client id, they say so (``close_channel_test``)."""
    async with side.serve_aio(AioBehaviours()) as address:
        for opened in (False, True):
            channel = side.connect_aio(address)
            if opened and side.ours:
                await channel.session.open()
            calls = [
                channel.unary_unary(UNARY)(b""),
                channel.unary_stream(COUNT)(b"1"),
                channel.stream_unary(COLLECT)(),
            ]
            await channel.close()
            for call in calls:
                assert await asyncio.wait_for(call.code(), DEADLINE_S) is grpc.StatusCode.CANCELLED
            assert [call.cancelled() for call in calls] == [True] * 3
            with pytest.raises(grpc.aio.UsageError):
                await channel.unary_stream(COUNT)(b"1").read()


@pytest.mark.parametrize("form", ["unary", "collect", "count"])
@pytest.mark.parametrize("awaited", ["before", "after"])
async def test_waiting_for_a_call_of_a_closed_channel_is_cancelled(
    side: Side, form: str, awaited: str
) -> None:
    """Whether a task waited already or waits then, and whether or not the call was sent
    (``close_channel_test``). What our call's outcome is stands in the error's cause (DESIGN §3)."""

    async def count(request: bytes, context: Any) -> AsyncIterator[bytes]:
        behaviours.has_begun.set()
        await behaviours.goes_on.wait()
        yield b""

    async def wait(call: Any) -> Any:
        return [message async for message in call] if form == "count" else await call

    behaviours = AioBehaviours(Count=count)
    async with side.serve_aio(behaviours) as address:
        for sent in (False, True):
            channel = side.connect_aio(address)
            if sent and side.ours:
                await channel.session.open()
            call = {
                "unary": lambda channel: channel.unary_unary(UNARY)(b"", timeout=DEADLINE_S),
                "collect": lambda channel: channel.stream_unary(COLLECT)(timeout=DEADLINE_S),
                "count": lambda channel: channel.unary_stream(COUNT)(b"", timeout=DEADLINE_S),
            }[form](channel)
            waiting = asyncio.ensure_future(wait(call)) if awaited == "before" else None
            if sent and form == "collect":
                await call.write(b"a")
            elif sent:
                await asyncio.wait_for(behaviours.has_begun.wait(), DEADLINE_S)
            await channel.close()
            with pytest.raises(asyncio.CancelledError) as caught:
                await asyncio.wait_for(waiting or wait(call), DEADLINE_S)
            assert call.cancelled()
            told = caught.value.__cause__
            assert isinstance(told, rifl.CallError) is side.ours
            if isinstance(told, rifl.CallError):
                assert told.code() is grpc.StatusCode.CANCELLED
                unknown = rifl.Outcome.UNKNOWN
                assert told.outcome is (unknown if sent else rifl.Outcome.NOT_EXECUTED)
                assert (told.rpc_id is not None) is sent
            behaviours.has_begun.clear()


async def test_close_with_a_grace_lets_calls_go_on(side: Side) -> None:
    """Those, too, that have no client id yet; new ones are refused (``close_channel_test``)."""
    behaviours = AioBehaviours()
    async with side.serve_aio(behaviours) as address:
        channel = side.connect_aio(address)
        call = channel.unary_unary(UNARY)(b"a")
        closing = asyncio.ensure_future(channel.close(DEADLINE_S))
        await asyncio.wait_for(behaviours.has_begun.wait(), DEADLINE_S)
        with pytest.raises(grpc.aio.UsageError):
            await channel.unary_unary(UNARY)(b"b")
        behaviours.goes_on.set()
        assert await call == b"a"
        await asyncio.wait_for(closing, DEADLINE_S)
        assert not call.cancelled()


async def test_nothing_is_written_after_the_end(side: Side) -> None:
    """After ``done_writing`` and after ``cancel`` a write is an error (``call_test``)."""
    behaviours = AioBehaviours()
    async with side.serve_aio(behaviours) as address, side.connect_aio(address) as channel:
        call = channel.stream_unary(COLLECT)(timeout=DEADLINE_S)
        await call.write(b"a")
        await call.done_writing()
        await call.done_writing()
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(b"late")
        assert await call == b"a"
        with pytest.raises(asyncio.InvalidStateError):
            await call.write(b"later")
        cancelled = channel.stream_unary(COLLECT)(timeout=DEADLINE_S)
        await cancelled.write(b"b")
        assert cancelled.cancel()
        with pytest.raises(asyncio.InvalidStateError):
            await cancelled.write(b"c")
        await cancelled.done_writing()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    assert b"late" not in behaviours.read


async def test_a_connection_is_waited_for_without_messages(side: Side) -> None:
    """``wait_for_connection`` returns before anything is written (``wait_for_connection_test``)."""
    async with side.serve_aio(AioBehaviours()) as address, side.connect_aio(address) as channel:
        call = channel.stream_unary(COLLECT)(timeout=DEADLINE_S)
        await asyncio.wait_for(call.wait_for_connection(), DEADLINE_S)
        await call.write(b"a")
        await call.done_writing()
        assert await call == b"a"
        counted = channel.unary_stream(COUNT)(b"1", timeout=DEADLINE_S)
        await asyncio.wait_for(counted.wait_for_connection(), DEADLINE_S)
        assert [message async for message in counted] == [b"0"]


async def test_the_two_ways_of_a_stream_are_not_mixed(side: Side) -> None:
    """Iterators, or ``read`` and ``write``: not both on one call (``call_test``)."""
    async with side.serve_aio(AioBehaviours()) as address, side.connect_aio(address) as channel:
        given = channel.stream_unary(COLLECT)(iter([b"a"]), timeout=DEADLINE_S)
        with pytest.raises(grpc.aio.UsageError):
            await given.write(b"b")
        with pytest.raises(grpc.aio.UsageError):
            await given.done_writing()
        assert await given == b"a"
        counted = channel.unary_stream(COUNT)(b"2", timeout=DEADLINE_S)
        assert await counted.read() == b"0"
        with pytest.raises(grpc.aio.UsageError):
            async for _ in counted:
                pass


async def test_a_request_stream_that_is_no_iterable_ends_its_call(side: Side) -> None:
    """The call ends; nothing is raised where it is made (``call_test``)."""
    async with side.serve_aio(AioBehaviours()) as address, side.connect_aio(address) as channel:
        call = channel.stream_unary(COLLECT)(42, timeout=DEADLINE_S)
        with pytest.raises((asyncio.CancelledError, grpc.RpcError)):
            await call
        assert await call.code() is not grpc.StatusCode.OK


async def call_once(channel: Any) -> Any:
    return await channel.unary_unary(UNARY)(b"a", timeout=DEADLINE_S)


async def test_a_servers_own_limit_is_told_at_once_on_aio(side: Side) -> None:
    """RESOURCE_EXHAUSTED, not tried to the deadline (``server_test``)."""
    behaviours = AioBehaviours()
    async with (
        side.serve_aio(behaviours, maximum_concurrent_rpcs=1) as address,
        side.connect_aio(address) as channel,
    ):
        if side.ours:
            await channel.session.open()
        begun = asyncio.ensure_future(behaviours.has_begun.wait())
        while not begun.done():
            # Before 1.84 gRPC counts an RPC on, such as that for our client id, until another
            # one came, which it refuses.
            first = asyncio.ensure_future(call_once(channel))
            await asyncio.wait((begun, first), return_when=asyncio.FIRST_COMPLETED)
            if first.done():
                refused: Any = first.exception()
                assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(UNARY)(b"b", timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        behaviours.goes_on.set()
        assert await first == b"a"


async def test_the_first_abort_stands(side: Side) -> None:
    """A second one is a UsageError, and metadata of other shapes a TypeError (``abort_test``)."""

    async def unary(request: bytes, context: Any) -> bytes:
        for wrong in (42, {}, {"a": "b"}, [{"a": "b"}]):
            with pytest.raises(TypeError):
                context.set_trailing_metadata(wrong)
        try:
            await context.abort(grpc.StatusCode.NOT_FOUND, "first")
        finally:
            await context.abort(grpc.StatusCode.DATA_LOSS, "second")
        raise AssertionError

    behaviours = AioBehaviours(Unary=unary)
    async with side.serve_aio(behaviours) as address, side.connect_aio(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(UNARY)(b"", timeout=DEADLINE_S)
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.NOT_FOUND,
            "first",
        )


async def test_plain_functions_take_streams_on_an_aio_server(side: Side) -> None:
    """In the server's thread pool (``compatibility_test``)."""

    def collect(requests: Iterator[bytes], context: Any) -> bytes:
        return b"|".join(requests)

    def count(request: bytes, context: Any) -> Iterator[bytes]:
        for at in range(int(request)):
            yield b"%d" % at

    behaviours = AioBehaviours(Collect=collect, Count=count)
    async with side.serve_aio(behaviours) as address, side.connect_aio(address) as channel:
        stub = channel.stream_unary(COLLECT)
        assert await stub(iter([b"a", b"b"]), timeout=DEADLINE_S) == b"a|b"
        counted = channel.unary_stream(COUNT)(b"3", timeout=DEADLINE_S)
        assert [message async for message in counted] == [b"0", b"1", b"2"]
        assert await counted.debug_error_string() == ""


async def test_call_credentials_need_a_secure_channel(side: Side) -> None:
    """Refused where the call is made (``call_test``)."""
    credentials = grpc.access_token_call_credentials("t")
    async with side.serve_aio(AioBehaviours()) as address, side.connect_aio(address) as channel:
        with pytest.raises(grpc.aio.UsageError):
            channel.unary_unary(UNARY)(b"", credentials=credentials)
        with pytest.raises(grpc.aio.UsageError):
            channel.unary_stream(COUNT)(b"1", credentials=credentials)
        with pytest.raises(grpc.aio.UsageError):
            channel.stream_unary(COLLECT)(credentials=credentials)
