"""Keys and named sessions in our own client (DESIGN §3, §5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from rifl.core import BadHeader, NotDeduplicated, PayloadMismatch, SessionClosed
from rifl.testing import Fault
from tests.calls.services import Kinds, serving

UNARY = "/t.Kinds/Unary"


def test_a_key_names_a_call_in_a_block_and_in_an_entry() -> None:
    """Calls under one key are one call; others are none of it (DESIGN §3)."""
    kinds = Kinds()
    with serving("sync", kinds) as service:
        unary = service.channel.unary_unary(UNARY)
        with rifl.key("order-7"):
            assert [unary(b"x", timeout=10), unary(b"x", timeout=10)] == [b"1", b"1"]
        assert unary(b"x", timeout=10, metadata=[rifl.key(b"order-7"), ("a", "b")]) == b"1"
        assert unary(b"x", timeout=10) == b"2"
        future = unary.future(b"x", timeout=10, metadata=(rifl.key("order-7"),))
        assert (future.result(), future.rpc_id.key) == (b"1", b"order-7")
        with pytest.raises(PayloadMismatch), rifl.key("order-7"):
            unary(b"other", timeout=10)
        with service.connect() as other:
            assert other.unary_unary(UNARY)(b"x", metadata=[rifl.key("order-7")]) == b"3"
    assert kinds.effects == [b"x"] * 3


async def test_a_key_names_a_call_aio() -> None:
    """The same for asyncio (DESIGN §3)."""
    kinds = Kinds()
    with serving("sync", kinds) as service:
        async with rifl.aio.connect(service.address) as channel:
            unary = channel.unary_unary(UNARY)
            with rifl.key("k"):
                assert [await unary(b"x", timeout=10) for _ in range(2)] == [b"1", b"1"]
            assert await unary(b"x", timeout=10, metadata=[rifl.key("k")]) == b"1"
            assert await unary(b"x", timeout=10) == b"2"


@pytest.mark.parametrize("wrong", ["", b"k" * 65, "k" * 6000])
def test_a_key_out_of_bounds_is_refused_where_it_is_made(wrong: Any) -> None:
    """1 to 64 bytes (DESIGN §3)."""
    with pytest.raises(BadHeader):
        rifl.key(wrong)


@pytest.mark.parametrize("wrong", [7, None, True, [1, 2], 7.0])
def test_a_key_is_text_or_bytes(wrong: Any) -> None:
    """A number is not taken for so many zeroes, singly or in a batch (rifl.key, BatchItem)."""
    with pytest.raises(TypeError, match="text or bytes"):
        rifl.key(wrong)
    if wrong is not None:
        with rifl.connect("127.0.0.1:1") as channel, pytest.raises(TypeError, match="bytes"):
            channel.batch(UNARY, [rifl.BatchItem(b"x", wrong)], timeout=5)


def test_a_keyed_call_is_retried_under_its_key() -> None:
    """A lost answer is fetched by a second attempt with the same key (DESIGN §3)."""
    kinds = Kinds()
    with serving("sync", kinds) as service:
        service.faults.arm(Fault.DROP_ANSWER)
        with rifl.key("k"):
            assert service.channel.unary_unary(UNARY)(b"x", timeout=10) == b"1"
    assert kinds.effects == [b"x"]


def test_a_key_on_a_method_that_is_not_deduplicated_is_refused() -> None:
    """It would happen as often as it is sent: typed, and not executed (DESIGN §9)."""
    kinds = Kinds()
    with serving("sync", kinds, methods={UNARY: None}) as service:
        with pytest.raises(NotDeduplicated) as caught, rifl.key("k"):
            service.channel.unary_unary(UNARY)(b"x", timeout=10)
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
            channel.unary_unary(UNARY)(b"x", timeout=5)
    assert kinds.effects == [b"x"]


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
    [{"session": ""}, {"session_retention": 5.0}, {"session": "s", "session_retention": 0}],
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

    with serving("sync", Spy()) as service:
        service.channel.unary_unary(UNARY)(b"x", metadata=[rifl.key("k"), ("mine", "1")])
    assert "mine" in seen
    assert not any("rifl-key" in key for key in seen)
    assert isinstance(grpc.StatusCode.OK, grpc.StatusCode)
