"""gRPC's own tests of a sync channel, restated: the same over bare gRPC and ours."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.grpc_behaviour.sides import DEADLINE_S, SERVICE, Behaviours, Side
from tests.helpers.waiting import deadlines

UNARY, COLLECT, COUNT = (f"/{SERVICE}/{name}" for name in ("Unary", "Collect", "Count"))

# Streams that are not declared are passed through.
DECLARED = pytest.mark.parametrize("declared", [True, False], ids=["declared", "passed through"])


@DECLARED
def test_a_deadline_ends_a_request_stream_in_the_background(side: Side, declared: bool) -> None:
    """The future ends, and its channel goes on (gRPC ``_rpc_part_2_test``; DESIGN §4)."""
    hold = threading.Event()

    def endless() -> Iterator[bytes]:
        yield b"a"
        hold.wait(DEADLINE_S)

    with side.serve(Behaviours(), declared=declared) as address, side.connect(address) as channel:
        stub = channel.stream_unary(COLLECT)
        assert stub(iter([b"a"]), timeout=DEADLINE_S) == b"a"
        future = stub.future(endless(), timeout=0.2)
        error = future.exception(DEADLINE_S)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert future.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert tuple(future.initial_metadata()) == ()
        hold.set()
        assert stub(iter([b"b"]), timeout=DEADLINE_S) == b"b"


@DECLARED
def test_a_response_stream_is_sent_before_it_is_read(side: Side, declared: bool) -> None:
    """Its handler runs without ``next``, on a fresh channel, too (DESIGN §4)."""
    behaviours = Behaviours()
    with side.serve(behaviours, declared=declared) as address, side.connect(address) as channel:
        call = channel.unary_stream(COUNT)(b"2", timeout=DEADLINE_S)
        assert behaviours.begun.wait(DEADLINE_S)
        assert list(call) == [b"0", b"1"]


@DECLARED
def test_a_response_stream_is_a_future(side: Side, declared: bool) -> None:
    """``done``, ``cancelled``, ``result``, callbacks, and the status, which waits (DESIGN §4)."""
    ended = threading.Event()
    with side.serve(Behaviours(), declared=declared) as address, side.connect(address) as channel:
        call = channel.unary_stream(COUNT)(b"2", timeout=DEADLINE_S)
        call.add_done_callback(lambda done: ended.set() if done is call else None)
        assert (call.cancelled(), call.is_active()) == (False, True)
        assert list(call) == [b"0", b"1"]
        assert ended.wait(DEADLINE_S)
        assert (call.done(), call.cancelled(), call.running()) == (True, False, False)
        assert (call.code(), call.details()) == (grpc.StatusCode.OK, "")
        assert tuple(call.trailing_metadata()) == ()
        assert call.exception() is None
        assert isinstance(call.debug_error_string(), str | None)


@DECLARED
def test_a_response_stream_that_is_cancelled_or_late_ends(side: Side, declared: bool) -> None:
    """Its callbacks run though nobody reads it; its reader is told (DESIGN §4)."""
    behaviours = Behaviours()

    def slow(request: bytes, context: Any) -> Iterator[bytes]:
        yield b"0"
        behaviours.gate.wait(DEADLINE_S)
        yield b"1"

    behaviours._behaviours["Count"] = slow
    with side.serve(behaviours, declared=declared) as address, side.connect(address) as channel:
        stub = channel.unary_stream(COUNT)
        call = stub(b"", timeout=DEADLINE_S)
        assert next(call) == b"0"
        assert call.cancel()
        assert call.cancelled()
        assert call.code() is grpc.StatusCode.CANCELLED
        with pytest.raises(grpc.RpcError):
            next(call)
        with pytest.raises(grpc.FutureCancelledError):
            call.result()
        ended = threading.Event()
        for timeout_s in deadlines():
            late = stub(b"", timeout=timeout_s)
            with contextlib.suppress(grpc.RpcError):
                assert next(late) == b"0"
                break
        late.add_done_callback(lambda _: ended.set())
        assert ended.wait(DEADLINE_S)
        assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@DECLARED
def test_a_request_stream_that_is_no_iterable_is_an_rpc_error(side: Side, declared: bool) -> None:
    """Not a TypeError in the caller's face (gRPC ``_invocation_defects_test``)."""
    with side.serve(Behaviours(), declared=declared) as address, side.connect(address) as channel:
        stub = channel.stream_unary(COLLECT)
        with pytest.raises(grpc.RpcError):
            stub(object(), timeout=DEADLINE_S)
        with pytest.raises(grpc.RpcError):
            stub.future(object(), timeout=DEADLINE_S).result()


@pytest.mark.parametrize("entry", [("InVaLiD", "x"), ("text", "a\nb"), ("", "x")])
def test_metadata_that_cannot_be_sent_is_told_at_once(side: Side, entry: Any) -> None:
    """INTERNAL, never tried again, before and after the first call (``_invalid_metadata_test``)."""
    behaviours = Behaviours()
    behaviours.gate.set()
    with side.serve(behaviours) as address, side.connect(address) as channel:
        if not side.ours and grpc.__version__ == "1.80.0":
            # It fails where it formats its own message: ours does not.
            with pytest.raises((TypeError, ValueError)):
                channel.unary_unary(UNARY)(b"", metadata=(entry,))
            return
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(UNARY)(b"", metadata=(entry,))
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            for call in (
                channel.unary_unary(UNARY).future(b"", metadata=(entry,)),
                channel.stream_unary(COLLECT).future(iter([b""]), metadata=(entry,)),
                channel.unary_stream(COUNT)(b"1", metadata=(entry,)),
            ):
                assert call.code() is grpc.StatusCode.INTERNAL
            channel.unary_unary(UNARY)(b"", timeout=DEADLINE_S)


def test_metadata_of_other_types_is_a_type_error(side: Side) -> None:
    """Also where the call had to wait for its client id (DESIGN §9)."""
    behaviours = Behaviours()
    behaviours.gate.set()
    with side.serve(behaviours) as address, side.connect(address) as channel:
        for _ in range(2):
            with pytest.raises(TypeError):
                channel.unary_unary(UNARY)(b"", timeout=DEADLINE_S, metadata=((42, 42),))
            channel.unary_unary(UNARY)(b"", timeout=DEADLINE_S)


def test_a_servers_own_limit_is_told_at_once(side: Side) -> None:
    """RESOURCE_EXHAUSTED, not executed, and not tried to the deadline (``_server_test``)."""
    behaviours = Behaviours()
    with (
        side.serve(behaviours, maximum_concurrent_rpcs=1) as address,
        side.connect(address) as channel,
    ):
        if side.ours:
            channel.session.open()
        first = channel.unary_unary(UNARY).future(b"a", timeout=DEADLINE_S)
        assert behaviours.begun.wait(DEADLINE_S)
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(UNARY)(b"b", timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not first.done()
        behaviours.gate.set()
        assert first.result() == b"a"


@pytest.mark.parametrize(
    ("code", "told"),
    [(grpc.StatusCode.NOT_FOUND, "NOT_FOUND"), (3, "UNKNOWN"), (grpc.StatusCode.OK, "UNKNOWN")],
)
def test_what_a_handler_aborts_with(side: Side, code: Any, told: str) -> None:
    """Its code if it is one; bytes are metadata keys (``_metadata_code_details_test``)."""

    def unary(request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata(((b"name", "value"), ("raw-bin", b"\0")))
        context.abort(code, "why")
        raise AssertionError

    with side.serve(Behaviours(Unary=unary)) as address, side.connect(address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(UNARY)(b"", timeout=DEADLINE_S)
        assert caught.value.code().name == told
        trailing = dict(caught.value.trailing_metadata())
        assert (trailing["name"], trailing["raw-bin"]) == ("value", b"\0")


def test_a_handler_may_be_given_a_callback_for_its_messages(side: Side) -> None:
    """``experimental_non_blocking``, as gRPC has it for response streams."""

    def called_back(request: bytes, context: Any, send: Any) -> None:
        def later() -> None:
            for at in range(3):
                send(b"%d" % at)
            send(None)

        threading.Thread(target=later).start()

    called_back.experimental_non_blocking = True  # type: ignore[attr-defined]
    with side.serve(Behaviours(Count=called_back)) as address, side.connect(address) as channel:
        call = channel.unary_stream(COUNT)(b"", timeout=DEADLINE_S)
        assert list(call) == [b"0", b"1", b"2"]
