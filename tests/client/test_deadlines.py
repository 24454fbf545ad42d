"""Deadlines: a call uses the time that it has, and no more (DESIGN §3)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import grpc
import pytest

import rifl
import rifl.aio
from rifl._client import BatchItem
from rifl._client.errors import CallError
from rifl.core import Outcome
from rifl.core._calling.retry import RetryPolicy
from tests.client.conftest import Caller, Connect
from tests.client.protocol_server import ECHO, Arrival, ProtocolServer, label
from tests.helpers.ports import free_port
from tests.helpers.waiting import deadlines

# Pauses that are far longer than the calls, whatever part of them is drawn.
SLOW = RetryPolicy(initial_backoff_s=1e6, max_backoff_s=1e6)
TIMEOUT_S = 0.6
DECLARED = (ECHO, "/test.Service/Collect", "/test.Service/Count")


def labelled(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
    if arrival.attempt > 1:
        label(context, "executed")
    return arrival.request


def unary(caller: Caller, **options: Any) -> Any:
    return caller.call(b"x", **{"timeout": TIMEOUT_S, **options})


def collect(caller: Caller, **options: Any) -> Any:
    method = caller.channel.stream_unary("/test.Service/Collect")
    options = {"timeout": TIMEOUT_S, **options}
    if caller.kind == "sync":
        return method(iter([b"x"]), **options)

    async def call() -> Any:
        return await method(iter([b"x"]), **options)

    return caller.on_loop(call())


def count(caller: Caller, **options: Any) -> Any:
    method = caller.channel.unary_stream("/test.Service/Count")
    options = {"timeout": TIMEOUT_S, **options}
    if caller.kind == "sync":
        return list(method(b"1", **options))

    async def call() -> Any:
        return [message async for message in method(b"1", **options)]

    return caller.on_loop(call())


def batch(caller: Caller, **options: Any) -> Any:
    items = [BatchItem(b"x"), BatchItem(b"y")]
    options = {"timeout": TIMEOUT_S, **options}
    for result in caller.do(caller.channel.batch, ECHO, items, **options):
        result.raise_for_status()


def future(caller: Caller, **options: Any) -> Any:
    return caller.result(caller.start(b"x", **{"timeout": TIMEOUT_S, **options}))


def plain(caller: Caller, **options: Any) -> Any:
    return caller.call(b"x", "/test.Service/Plain", **{"timeout": TIMEOUT_S, **options})


@pytest.mark.parametrize("form", [unary, collect, count, batch])
def test_a_server_that_is_away_is_tried_until_the_deadline(connect: Connect, form: Any) -> None:
    """However long the pauses have become: the last attempt is made close to the deadline, and
    what is raised does not come before it (DESIGN §3)."""
    with ProtocolServer(deduplicated=DECLARED) as server:
        caller = connect(server.target, retry=SLOW)
        caller.do(caller.session.open)
    for timeout_s in deadlines(TIMEOUT_S):
        began = time.monotonic()
        with pytest.raises(CallError) as caught:
            form(caller, timeout=timeout_s)
        assert time.monotonic() - began > timeout_s - 0.1
        if caught.value.outcome is not Outcome.NOT_EXECUTED:
            break
    assert caught.value.outcome is Outcome.UNKNOWN
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def came_back(caller: Caller, address: str, timeout_s: float) -> bool:
    """Begin a call without a server, which comes later; tell whether the call found it.

    On a busy machine the server may come when the deadline has passed.
    """
    call = caller.start(b"x", timeout=timeout_s)
    with pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(grpc.insecure_channel(address)).result(0.3)
    with ProtocolServer(labelled, address=address):
        try:
            assert caller.result(call) == b"x"
        except CallError:
            return False
        return True


def test_a_server_that_is_back_before_the_deadline_is_found(connect: Connect) -> None:
    """Though the next attempt was far away, and the next connection too (DESIGN §3)."""
    for timeout_s in deadlines(1.0):
        address = f"127.0.0.1:{free_port()}"
        with ProtocolServer(address=address):
            caller = connect(address, retry=SLOW)
            caller.do(caller.session.open)
        if came_back(caller, address, timeout_s):
            return


def test_a_server_that_comes_before_the_deadline_gives_an_id(connect: Connect) -> None:
    """A call that waits for its client id asks for it until its deadline (DESIGN §5)."""
    for timeout_s in deadlines(1.0):
        address = f"127.0.0.1:{free_port()}"
        if came_back(connect(address, retry=SLOW), address, timeout_s):
            return


@pytest.mark.parametrize("form", [unary, collect, count, batch])
def test_a_deadline_in_front_of_a_full_window_is_a_deadline(connect: Connect, form: Any) -> None:
    """Nothing was sent, and the call says so by the code that its caller looks for (§3)."""
    release = threading.Event()

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        release.wait(20)
        return b""

    with ProtocolServer(script, deduplicated=DECLARED, window=1) as server:
        caller = connect(server.target)
        slow = caller.start(b"slow")
        server.wait_for(lambda: len(server.arrivals) == 1)
        with pytest.raises(CallError) as caught:
            form(caller)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert caught.value.outcome is Outcome.NOT_EXECUTED
        release.set()
        caller.result(slow)
        assert len(server.arrivals) == 1


@pytest.mark.parametrize("form", [unary, collect, count, batch])
def test_metadata_that_no_server_takes_are_sent_once(connect: Connect, form: Any) -> None:
    """What a transport refuses for its size is not tried again until the deadline. Whose metadata
    were too large, the request's or the answer's, nobody tells: the outcome is unknown (§3)."""
    with ProtocolServer(deduplicated=DECLARED) as server:
        caller = connect(server.target, retry=SLOW)
        caller.do(caller.session.open)
        with pytest.raises(CallError, match="received metadata size exceeds hard limit") as caught:
            form(caller, metadata=(("large", "x" * 20_000),), timeout=60.0)
        assert caught.value.original_code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.outcome is Outcome.UNKNOWN
        assert caught.value.rpc_id is not None
        assert server.arrivals == []


@pytest.mark.parametrize("form", [unary, collect, count, batch, future, plain])
@pytest.mark.parametrize("timeout", [-1.0, 0.0])
def test_a_timeout_that_has_passed_sends_nothing_and_says_so(
    connect: Connect, form: Any, timeout: float
) -> None:
    """A difference of times below zero is a mistake: as in gRPC, the call's time is over. It
    was not executed, for sure, and the error names the timeout (DESIGN §3)."""
    with ProtocolServer(deduplicated=DECLARED) as server:
        caller = connect(server.target)
        for _ in range(2):
            with pytest.raises(CallError) as caught:
                form(caller, timeout=timeout)
            error = caught.value
            assert error.outcome is Outcome.NOT_EXECUTED
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert error.details() == "Deadline Exceeded, not sent: the timeout is not positive"
            # The first was before the client id.
            caller.do(caller.session.open)
            caller.call(b"known", timeout=30)
        assert {each.request for each in server.arrivals} == {b"known"}


def test_hundreds_of_calls_whose_time_is_over_before_a_full_window_all_end() -> None:
    """A loop that was busy finds room in the window, which none of them can use (DESIGN §3)."""
    released = threading.Event()

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        assert released.wait(60)
        return arrival.request

    async def calls(server: ProtocolServer) -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: failures.append(about))
        async with rifl.aio.connect(server.target) as channel:
            method = channel.unary_unary(ECHO)
            first = method(b"first", timeout=60)
            while not server.arrivals:
                await asyncio.sleep(0.01)
            waiting = [asyncio.ensure_future(end(method(b"x", timeout=0.2))) for _ in range(600)]
            await asyncio.sleep(0)
            released.set()
            # Meanwhile the first one is answered, and the others' time passes.
            threading.Event().wait(0.7)
            async with asyncio.timeout(60):
                assert await first == b"first"
                ended = await asyncio.gather(*waiting)
        assert set(ended) <= {"WINDOW_EXCEEDED", "DEADLINE_EXCEEDED", ""}
        assert failures == []

    async def end(call: Any) -> str:
        try:
            await call
        except rifl.CallError as error:
            return error.reason or error.code().name
        return ""

    with ProtocolServer(script, window=1) as server:
        asyncio.run(calls(server))


@pytest.mark.parametrize("form", [unary, collect, count])
def test_a_time_limit_on_the_way_is_not_the_calls_deadline(connect: Connect, form: Any) -> None:
    """A proxy or an interceptor ended an attempt: the call goes on in the time it has (§3)."""

    def script(arrival: Arrival, context: grpc.ServicerContext) -> bytes:
        if arrival.attempt == 1:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "a proxy's limit")
        return labelled(arrival, context)

    with ProtocolServer(script, deduplicated=DECLARED) as server:
        form(connect(server.target), timeout=60.0)
        assert [arrival.attempt for arrival in server.arrivals] == [1, 2]
