"""Keys and named sessions in our own client (DESIGN §3, §5)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from rifl.core import BadHeader, NotDeduplicated, PayloadMismatch, SessionClosed
from rifl.testing import Fault
from tests.calls.services import Kinds, serving

UNARY = "/t.Kinds/Unary"
COLLECT, COUNT, ECHO = "/t.Kinds/Collect", "/t.Kinds/Count", "/t.Kinds/Echo"


def test_a_key_names_a_call_in_a_block_and_in_an_entry() -> None:
    """Calls under one key are one call; others are none of it (DESIGN §3)."""
    kinds = Kinds()
    with serving("sync", kinds) as service, service.connect(session="orders") as channel:
        unary = channel.unary_unary(UNARY)
        with rifl.key("order-7"):
            assert [unary(b"x", timeout=10), unary(b"x", timeout=10)] == [b"1", b"1"]
        assert unary(b"x", timeout=10, metadata=[rifl.key(b"order-7"), ("a", "b")]) == b"1"
        future = unary.future(b"x", timeout=10, metadata=(rifl.key("order-7"),))
        assert (future.result(), future.rpc_id.key) == (b"1", b"order-7")
        with pytest.raises(PayloadMismatch), rifl.key("order-7"):
            unary(b"other", timeout=10)
        assert service.channel.unary_unary(UNARY)(b"x", timeout=10) == b"2"
        with service.connect(session="other orders") as other:
            assert other.unary_unary(UNARY)(b"x", metadata=[rifl.key("order-7")]) == b"3"
    assert kinds.effects == [b"x"] * 3


async def test_a_key_names_a_call_aio() -> None:
    """The same for asyncio (DESIGN §3)."""
    kinds = Kinds()
    with serving("sync", kinds) as service:
        async with rifl.aio.connect(service.address, session="orders") as channel:
            unary = channel.unary_unary(UNARY)
            with rifl.key("k"):
                assert [await unary(b"x", timeout=10) for _ in range(2)] == [b"1", b"1"]
            assert await unary(b"x", timeout=10, metadata=[rifl.key("k")]) == b"1"
    assert kinds.effects == [b"x"]


@pytest.mark.parametrize("wrong", ["", b"k" * 256, "k" * 6000, "\ud800"])
def test_a_key_out_of_bounds_is_refused_where_it_is_made(wrong: Any) -> None:
    """1 to 255 bytes; the error is one of a call, which was not executed (DESIGN §3)."""
    with rifl.connect("127.0.0.1:1", session="s") as channel:
        for make in (
            rifl.key,
            lambda key: channel.batch(UNARY, [rifl.BatchItem(b"x", key)], timeout=60),
        ):
            with pytest.raises(BadHeader) as caught:
                make(wrong)
            assert isinstance(caught.value, rifl.CallError)
            assert caught.value.outcome is rifl.Outcome.NOT_EXECUTED
    customer, order = "0b8e5ad6-1b7c-4b5e-9b4f-6c1c4f7a2d11", "8f14e45f-ceea-467f-a8b1-2c0f5e9d7a33"
    assert rifl.key(f"{customer}/{order}")[1] == f"{customer}/{order}".encode()


def test_a_key_that_is_given_without_its_list_is_refused() -> None:
    """``metadata=rifl.key(...)`` is told how it is written (DESIGN §3)."""
    with (
        rifl.connect("127.0.0.1:1", session="s") as channel,
        pytest.raises(BadHeader, match=r"metadata=\[rifl.key"),
    ):
        channel.unary_unary(UNARY)(b"x", timeout=60, metadata=rifl.key("k"))


@pytest.mark.parametrize("wrong", [7, None, True, [1, 2], 7.0])
def test_a_key_is_text_or_bytes(wrong: Any) -> None:
    """A number is not taken for so many zeroes, singly or in a batch (rifl.key, BatchItem)."""
    with pytest.raises(TypeError, match="text or bytes"):
        rifl.key(wrong)
    if wrong is not None:
        with (
            rifl.connect("127.0.0.1:1") as channel,
            pytest.raises(TypeError, match="text or bytes"),
        ):
            channel.batch(UNARY, [rifl.BatchItem(b"x", wrong)], timeout=60)


def test_a_keyed_call_is_retried_under_its_key() -> None:
    """A lost answer is fetched by a second attempt with the same key (DESIGN §3)."""
    kinds = Kinds()
    with serving("sync", kinds) as service, service.connect(session="orders") as channel:
        service.faults.arm(Fault.DROP_ANSWER)
        with rifl.key("k"):
            assert channel.unary_unary(UNARY)(b"x", timeout=10) == b"1"
    assert kinds.effects == [b"x"]


def test_a_key_on_a_method_that_is_not_deduplicated_is_refused() -> None:
    """It would happen as often as it is sent: typed, and not executed (DESIGN §9)."""
    kinds = Kinds()
    with (
        serving("sync", kinds, methods={UNARY: None}) as service,
        service.connect(session="orders") as channel,
    ):
        with pytest.raises(NotDeduplicated) as caught, rifl.key("k"):
            channel.unary_unary(UNARY)(b"x", timeout=10)
        assert caught.value.outcome is rifl.Outcome.NOT_EXECUTED
    assert kinds.effects == []


def test_a_named_session_outlives_its_channels() -> None:
    """Same name, same identity; keyed calls only; closed is refused (DESIGN §5)."""
    kinds = Kinds()
    with serving("sync", kinds) as service:
        ids = []
        for _ in range(2):
            with rifl.connect(service.address, session="nightly", session_retention=60) as channel:
                unary = channel.unary_unary(UNARY)
                with rifl.key("row-1"):
                    assert unary(b"x", timeout=10) == b"1"
                ids.append(channel.session.client_id)
                with pytest.raises(BadHeader):
                    unary(b"x", timeout=10)
        assert ids[0] == ids[1]
        with rifl.connect(service.address, session="nightly") as channel:
            channel.session.close()
            channel.session.close()
        with (
            rifl.connect(service.address, session="nightly") as channel,
            pytest.raises(SessionClosed),
            rifl.key("row-1"),
        ):
            channel.unary_unary(UNARY)(b"x", timeout=60)
    assert kinds.effects == [b"x"]


async def test_a_closed_session_refuses_on_its_own_channel() -> None:
    """Calls and ``open``, at once, though the lease was good; sync and aio (DESIGN §5)."""
    kinds = Kinds()
    with serving("sync", kinds) as service:
        with service.connect(session="nightly") as channel:
            channel.session.open()
            channel.session.close()
            with pytest.raises(SessionClosed):
                channel.session.open(timeout=10)
            with pytest.raises(SessionClosed), rifl.key("row-1"):
                channel.unary_unary(UNARY)(b"x", timeout=10)
            results = channel.batch(UNARY, [rifl.BatchItem(b"x", "row-1")], timeout=10)
            assert results[0].reason == "SESSION_CLOSED"
        async with rifl.aio.connect(service.address, session="weekly") as aio_channel:
            await aio_channel.session.open()
            await aio_channel.session.close()
            with pytest.raises(SessionClosed):
                await aio_channel.session.open(timeout=10)
            with pytest.raises(SessionClosed), rifl.key("row-1"):
                await aio_channel.unary_unary(UNARY)(b"x", timeout=10)
    assert kinds.effects == []


async def test_a_named_session_aio() -> None:
    """The same name is the same session for asyncio too (DESIGN §5)."""
    kinds = Kinds()
    with serving("sync", kinds) as service:
        for _ in range(2):
            async with rifl.aio.connect(service.address, session="nightly") as channel:
                with rifl.key("row-1"):
                    assert await channel.unary_unary(UNARY)(b"x", timeout=10) == b"1"
        async with rifl.aio.connect(service.address, session="nightly") as channel:
            await channel.session.close()
            with pytest.raises(SessionClosed), rifl.key("row-1"):
                await channel.unary_unary(UNARY)(b"x", timeout=10)
    assert kinds.effects == [b"x"]


def test_a_session_is_closed_through_an_outage_and_others_are_not(tmp_path: Path) -> None:
    """Closing is tried again; a name nobody opened, and no name, are errors (Session.close)."""
    kinds = Kinds()
    with serving("sync", kinds, url=f"sqlite:///{tmp_path}/records.db") as service:
        with rifl.connect(service.address, session="job") as channel:
            channel.session.open()
            service.kill()
            channel.session.close(timeout=30)
        with (
            rifl.connect(service.address, session="never") as channel,
            pytest.raises(SessionClosed),
        ):
            channel.session.close()
        with pytest.raises(ValueError, match="named session"):
            service.channel.session.close()


@pytest.mark.parametrize(
    "options",
    [
        {"session": ""},
        {"session_retention": 5.0},
        {"session": "s", "session_retention": 0},
        # A server would keep it for a day, for 30 days, or for whatever that may be.
        {"session": "s", "session_retention": 0.0001},
        {"session": "s", "session_retention": 30 * 86_400 + 1},
        {"session": "s", "session_retention": float("inf")},
        {"session": "s", "session_retention": float("nan")},
    ],
)
def test_session_settings_that_make_no_sense(options: Any) -> None:
    """Settings are cross-checked when built (DESIGN §9)."""
    with pytest.raises(ValueError, match="session"):
        rifl.connect("localhost:1", **options)


def test_grpc_never_sees_our_entry() -> None:
    """The key's metadata entry stays in the process (rifl.key's contract)."""
    seen: list[Any] = []

    class Spy(Kinds):
        def unary(self, request: bytes, context: Any) -> bytes:
            seen.extend(key for key, _ in context.invocation_metadata())
            return super().unary(request, context)

    with serving("sync", Spy()) as service, service.connect(session="orders") as channel:
        channel.unary_unary(UNARY)(b"x", metadata=[rifl.key("k"), ("mine", "1")])
    assert "mine" in seen
    assert not any("rifl-key" in key for key in seen)
    assert isinstance(grpc.StatusCode.OK, grpc.StatusCode)


class _Recording(Kinds):
    """Remembers what travels with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata: list[set[str]] = []

    def unary(self, request: bytes, context: Any) -> bytes:
        self.metadata.append({key for key, _ in context.invocation_metadata()})
        return super().unary(request, context)


@pytest.mark.parametrize("form", ["entry", "block"])
@pytest.mark.parametrize("call", ["unary", "future", "collect", "count", "echo", "interceptor"])
def test_a_key_on_a_channel_without_a_session_is_refused_unsent(call: str, form: str) -> None:
    """After a lost lease it would be another call; not even a Grant is sent (DESIGN §5)."""
    kinds = Kinds()
    with serving("sync", kinds) as service, contextlib.ExitStack() as stack:
        channel: Any = service.connect()
        stack.callback(channel.close)
        if call == "interceptor":
            interceptor = rifl.client_interceptor(channel._inner)
            intercepted = grpc.intercept_channel(channel._inner, interceptor)
        metadata = [rifl.key("k")] if form == "entry" else None
        if form == "block":
            stack.enter_context(rifl.key("k"))
        callables: dict[str, Any] = {
            "unary": lambda: channel.unary_unary(UNARY)(b"x", metadata=metadata),
            "future": lambda: channel.unary_unary(UNARY).future(b"x", metadata=metadata).result(),
            "collect": lambda: channel.stream_unary(COLLECT)(iter([b"x"]), metadata=metadata),
            "count": lambda: list(channel.unary_stream(COUNT)(b"1", metadata=metadata)),
            "echo": lambda: list(channel.stream_stream(ECHO)(iter([b"x"]), metadata=metadata)),
            "interceptor": lambda: intercepted.unary_unary(UNARY)(b"x", metadata=metadata),
        }
        with pytest.raises(BadHeader) as caught:
            callables[call]()
        assert isinstance(caught.value, grpc.RpcError)
        assert caught.value.outcome is rifl.Outcome.NOT_EXECUTED
        assert channel.session.client_id is None
    assert kinds.effects == []


async def test_a_key_on_an_aio_channel_without_a_session_is_refused_unsent() -> None:
    """The same for asyncio, each kind of call (DESIGN §5)."""
    kinds = Kinds()
    with serving("sync", kinds) as service, rifl.key("k"):
        async with rifl.aio.connect(service.address) as channel:
            with pytest.raises(BadHeader):
                await channel.unary_unary(UNARY)(b"x")
            with pytest.raises(BadHeader):
                await channel.stream_unary(COLLECT)(iter([b"x"]))
            with pytest.raises(BadHeader):
                await channel.unary_stream(COUNT)(b"1").read()
            with pytest.raises(BadHeader):
                channel.stream_stream(ECHO)(iter([b"x"]))
            assert channel.session.client_id is None
    assert kinds.effects == []


@pytest.mark.parametrize(
    "entries",
    [
        [rifl.key("a"), rifl.key("b")],
        [rifl.key("a"), ("idempotency-key", "a")],
        [("idempotency-key", "a"), ("idempotency-key", "a")],
    ],
)
def test_two_keys_in_one_call_are_refused(entries: Any) -> None:
    """Nobody can tell which one counts; a block's counts, too (DESIGN §3)."""
    kinds = Kinds()
    with serving("sync", kinds) as service, service.connect(session="orders") as channel:
        unary = channel.unary_unary(UNARY)
        with pytest.raises(BadHeader, match="one key"):
            unary(b"x", metadata=entries)
        with pytest.raises(BadHeader, match="one key"), rifl.key("c"):
            unary(b"x", metadata=entries[:1])
        with rifl.key("c"):
            assert unary(b"x", metadata=[rifl.key("c")]) == b"1"
    assert kinds.effects == [b"x"]


@pytest.mark.parametrize("session", [None, "orders"])
def test_the_plain_header_is_the_identity_where_it_is_given(session: str | None) -> None:
    """The call carries no header of ours, which would outweigh it, and is sent once (DESIGN §3)."""
    kinds = _Recording()
    given = [("idempotency-key", "order-7")]
    with (
        serving("sync", kinds, keys_from="anyone") as service,
        service.connect(session=session) as channel,
        service.connect() as other,
    ):
        unary = channel.unary_unary(UNARY)
        assert unary(b"x", metadata=given, timeout=10) == b"1"
        assert unary.future(b"x", metadata=given, timeout=10).result() == b"1"
        assert other.unary_unary(UNARY)(b"x", metadata=given, timeout=10) == b"1"
        with pytest.raises(PayloadMismatch) as caught:
            unary(b"y", metadata=given, timeout=10)
        assert caught.value.outcome is rifl.Outcome.NOT_EXECUTED
        assert channel.session.client_id is None
    assert kinds.effects == [b"x"]
    assert "rifl-bin" not in kinds.metadata[0]
