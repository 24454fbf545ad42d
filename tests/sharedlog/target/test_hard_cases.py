"""Targets that are not as usual: hostile players, hung handlers, restarts (DESIGN-LOG §15)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import rifl
from rifl._stores.errors import WrongDatabase
from sharedlog._core.errors import InvalidRequest, NotAllowed, OtherStore
from sharedlog._wire.refusals import error_of
from sharedlog.v1 import target_pb2
from tests.helpers.servers import KINDS
from tests.helpers.waiting import until
from tests.sharedlog.target.player import TAG, A, message, place, row, told
from tests.sharedlog.target.shop import ATOMIC, IDEMPOTENT, PLAIN, Shop, open_shop

SHOWN = "of the player's"


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop whose effects are in the store's file."""
    return Shop(tmp_path / "store.db")


def url(shop: Shop) -> str:
    """Where its store is."""
    return f"sqlite:///{shop.path}"


@pytest.mark.parametrize("kind", KINDS)
def test_who_may_not_deliver_is_refused(kind: str, shop: Shop) -> None:
    """Without the token nothing of a target is to be had, whichever method is asked."""
    with open_shop(kind, url(shop), shop, token=SHOWN, show=SHOWN) as target:
        assert told(target.batch(*row(1, 1, ATOMIC))) == [("DONE", 1)]
        for shown in ((), (("authorization", "Bearer other"),), (("authorization", SHOWN),)):
            target.metadata = shown
            for ask in (target.connect, lambda: target.batch(*row(2, 2, ATOMIC))):
                with pytest.raises(grpc.RpcError) as refused:
                    ask()
                assert isinstance(error_of(refused.value), NotAllowed)
            if kind != "sync":
                stream = target.stream()
                stream.send(*row(2, 2, ATOMIC))
                with pytest.raises(grpc.RpcError) as refused:
                    stream.finish()
                assert isinstance(error_of(refused.value), NotAllowed)
    assert shop.effects() == [1]


def hostile() -> Iterator[target_pb2.Deliveries]:
    """Batches that no player sends."""
    for change in (
        lambda it: it.place.ClearField("lsn"),
        lambda it: it.place.MergeFrom(type(it.place)(lsn=(1 << 64) - 1)),
        lambda it: it.place.MergeFrom(type(it.place)(substream=3)),
        lambda it: it.follows.CopyFrom(place(9)),
        lambda it: setattr(it, "tag", "orders"),
        lambda it: setattr(it, "tag", "orders/00"),
        lambda it: setattr(it, "tag", "secrets/0"),
        lambda it: setattr(it, "tag", "x" * 100_000),
        lambda it: setattr(it, "kind", 17),
    ):
        found = message(1, None, ATOMIC)
        change(found)
        yield target_pb2.Deliveries(deliveries=[found])
    yield target_pb2.Deliveries(deliveries=[message(1, None, ATOMIC)] * 10_001)
    yield target_pb2.Deliveries(feed=target_pb2.Feed(log="\n", number=1))
    yield target_pb2.Deliveries(incarnation="x" * 1000)


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_hostile_players_get_typed_errors(kind: str, shop: Shop) -> None:
    """What is no delivery is INVALID_REQUEST, whatever it is; nothing runs, and others go on."""
    with open_shop(kind, url(shop), shop) as target:
        for found in hostile():
            base = target.deliveries((), (), first=True)
            base.MergeFrom(found)
            with pytest.raises(grpc.RpcError) as refused:
                target.stub.DeliverBatch(base, timeout=20)
            assert isinstance(error_of(refused.value), InvalidRequest), found
        for method in ("Connect", "DeliverBatch"):
            raw = target.channel.unary_unary(f"/sharedlog.v1.Target/{method}")
            with pytest.raises(grpc.RpcError) as refused:
                raw(b"\xff\xff\xff", timeout=20)
            assert isinstance(error_of(refused.value), InvalidRequest)
        for tags in ([TAG, TAG], ["secrets/1"], [f"orders/{at}" for at in range(2000)], ["/"]):
            with pytest.raises(grpc.RpcError) as refused:
                target.connect(*tags)
            assert isinstance(error_of(refused.value), InvalidRequest)
        assert shop.effects() == []
        assert told(target.batch(*row(1, 1, ATOMIC))) == [("DONE", 1)]


def test_a_stream_that_turns_hostile_ends_with_what_was_done(shop: Shop) -> None:
    """What was taken before a wrong message is answered, then the stream is refused."""
    with open_shop("aio", url(shop), shop) as target:
        stream = target.stream()
        stream.send(*row(1, 2, ATOMIC))
        stream.answers(lambda each: each.kind == A.DONE and each.place.lsn == 2)
        wrong = message(3, 2, ATOMIC)
        wrong.tag = "secrets/0"
        stream.send(wrong)
        with pytest.raises(grpc.RpcError) as refused:
            stream.finish()
        assert isinstance(error_of(refused.value), InvalidRequest)
        assert told(target.batch(*row(3, 3, ATOMIC))) == [("DONE", 3)]


def test_a_request_that_does_not_parse_is_refused(shop: Shop) -> None:
    """What a handler's deserializer raises is REFUSED, and the handler is not called."""

    def parse(data: bytes) -> bytes:
        raise ValueError(data)

    for kind in KINDS:
        service = shop.handlers(kind)
        for name, handler in list(service._method_handlers.items()):
            service._method_handlers[name] = handler._replace(request_deserializer=parse)
        shop.handlers = lambda kind, service=service: service  # type: ignore[method-assign]
        for at, method in enumerate((ATOMIC, IDEMPOTENT, PLAIN)):
            tag = f"orders/{KINDS.index(kind) * 3 + at}"
            with open_shop(kind, url(shop), shop) as target:
                (answer,) = target.batch(message(1, None, method, tag=tag))
                assert (answer.kind, answer.code) == (A.REFUSED, 3)
                assert not target.index(tag).HasField("begun")
        del shop.handlers
    assert shop.deliveries == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_that_its_server_lacks_is_refused(kind: str, shop: Shop) -> None:
    """It is allowed, and nobody has it: UNIMPLEMENTED, for good; nothing is begun (P7)."""
    service = shop.handlers(kind)
    del service._method_handlers["/shop.S/Plain"]
    shop.handlers = lambda kind: service  # type: ignore[method-assign]
    with open_shop(kind, url(shop), shop) as target:
        (answer,) = target.batch(*row(1, 2, PLAIN))
        assert (answer.kind, answer.code, answer.place.lsn) == (A.REFUSED, 12, 1)
        assert not target.index().HasField("begun")
    assert shop.effects() == []


@pytest.mark.parametrize("kind", ["aio", "threads"])
def test_a_handler_that_hangs_holds_up_its_substream_only(kind: str, shop: Shop) -> None:
    """Others of the same stream go on, and what hangs ends for whoever asks later (P4)."""
    hanging, go_on = threading.Event(), threading.Event()

    def act(request: bytes, context: Any) -> Any:
        if request != b"1":
            return None
        hanging.set()
        if kind == "aio":
            return asyncio.get_running_loop().run_in_executor(None, go_on.wait, 30)
        return go_on.wait(30)

    async def act_aio(request: bytes, context: Any) -> None:
        if (found := act(request, context)) is not None:
            await found

    shop.act = act_aio if kind == "aio" else act
    other = [message(lsn, lsn - 1 if lsn > 11 else None, PLAIN, tag="orders/2") for lsn in (11, 12)]
    with open_shop(kind, url(shop), shop) as target:
        stream = target.stream()
        stream.send(*row(1, 2, PLAIN), *other)
        stream.answers(lambda each: each.tag == "orders/2" and each.place.lsn == 12)
        assert hanging.is_set()
        stream.cut()
        # It runs in this very process: nobody has to wonder what became of it.
        assert not target.index().HasField("begun")
        again = target.stream()
        again.send(*row(1, 2, PLAIN))
        go_on.set()
        assert told(again.finish())[-1] == ("DONE", 2)
    assert sorted(shop.effects()) == [1, 2, 11, 12]


def test_handlers_that_fill_the_loops_executor_do_not_stop_the_target(shop: Shop) -> None:
    """``asyncio.to_thread`` calls block there; what the target reads needs no thread of it (P4)."""
    hanging, go_on = threading.Event(), threading.Event()

    async def act(request: bytes, context: Any) -> None:
        if request == b"1":
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
            blocked = asyncio.ensure_future(asyncio.to_thread(go_on.wait, 30))
            hanging.set()
            await blocked

    shop.act = act
    with open_shop("aio", url(shop), shop) as target:
        stream = target.stream()
        stream.send(*row(1, 1, PLAIN))
        assert hanging.wait(20)
        try:
            assert not target.index("orders/2").HasField("at")
            assert told(target.batch(message(11, None, PLAIN, tag="orders/2"))) == [("DONE", 11)]
        finally:
            go_on.set()
        assert told(stream.finish()) == [("DONE", 1)]


class _Late(Shop):
    """It hangs before its transaction."""

    def atomic(self, request: bytes, context: Any) -> bytes:
        self._note(request, context)
        with rifl.transaction(context) as connection:
            connection.execute("INSERT INTO effect VALUES (?)", (int(request),))
            rifl.record(context, b"done", connection)
        return b"done"

    async def atomic_async(self, request: bytes, context: Any) -> bytes:
        await self._act_async(request, context)
        async with rifl.aio.transaction(context) as connection:
            connection.execute("INSERT INTO effect VALUES (?)", (int(request),))
            rifl.record(context, b"done", connection)
        return b"done"


@pytest.mark.parametrize("method", [PLAIN, IDEMPOTENT, ATOMIC])
@pytest.mark.parametrize("kind", ["aio", "threads"])
def test_a_message_whose_handler_hangs_is_passed_over_by_a_skip(
    kind: str, method: str, tmp_path: Path
) -> None:
    """Who connects is told of it; what the run does then moves no index (P7)."""
    shop = _Late(tmp_path / "shop.db")
    go_on = threading.Event()

    def act(request: bytes, context: Any) -> None:
        if request == b"1":
            go_on.wait(30)

    async def act_aio(request: bytes, context: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(None, act, request, context)

    shop.act = act_aio if kind == "aio" else act  # type: ignore[assignment]
    skip = target_pb2.Delivery(
        tag=TAG, kind=target_pb2.Delivery.SKIP, place=place(1), skip={"reason": "hangs", "by": "x"}
    )
    with open_shop(kind, url(shop), shop) as target:
        first = target.stub.DeliverBatch.future(
            target.deliveries(row(1, 1, method), (), first=True)
        )
        try:
            until(lambda: target.index().HasField("running"), "its handler runs")
            assert told(target.batch(skip, message(2, 1, method))) == [("DONE", 2)]
            assert not target.index().HasField("running")
        finally:
            go_on.set()
        # It is behind the index by now, whoever moved that.
        assert {each.kind for each in first.result(timeout=20).answers} <= {A.GAP, A.DONE}
        assert told(target.batch(message(3, 2, method))) == [("DONE", 3)]
        index = target.index()
        assert (index.at.lsn, index.taken) == (3, 3)
        assert [each.place.lsn for each in index.skipped] == [1]
    # An atomic one's is refused; others' come, as the dead letter says.
    assert sorted(shop.effects()) == ([2, 3] if method == ATOMIC else [1, 2, 3])


@pytest.mark.parametrize("kind", ["aio"])
def test_what_was_begun_by_a_process_that_died_is_unknown(kind: str, shop: Shop) -> None:
    """A plain message that was begun is called again by a word of its player only (P7)."""
    with open_shop(kind, url(shop), shop) as target:
        assert told(target.batch(*row(1, 1, PLAIN))) == [("DONE", 1)]
        _begin(shop, 2)
    with open_shop(kind, url(shop), shop) as target:
        index = target.index()
        assert (index.at.lsn, index.begun) == (1, place(2))
        (answer,) = target.batch(*row(2, 3, PLAIN))
        assert (answer.kind, answer.index.begun.lsn) == (A.UNKNOWN, 2)
        assert shop.effects() == [1]
        once_more = message(2, 1, PLAIN, again=True)
        assert told(target.batch(once_more, message(3, 2, PLAIN)))[-1] == ("DONE", 3)
        assert shop.effects() == [1, 2, 3]
        assert [each.redelivered for each in shop.deliveries] == [False, True, False]


@pytest.mark.parametrize("kind", ["sync"])
def test_what_is_unknown_can_be_passed_over(kind: str, shop: Shop) -> None:
    """An operator may skip what was begun: it is not begun any more (P7)."""
    with open_shop(kind, url(shop), shop) as target:
        target.batch(*row(1, 1, PLAIN))
        _begin(shop, 2)
    with open_shop(kind, url(shop), shop) as target:
        skip = target_pb2.Delivery(
            kind=2, tag=TAG, place=place(2), follows=place(1), skip=target_pb2.Skipped(by="ops")
        )
        assert told(target.batch(skip, message(3, 2, PLAIN)))[-1] == ("DONE", 3)
        assert not target.index().HasField("begun")
    assert shop.effects() == [1, 3]


def _begin(shop: Shop, lsn: int) -> None:
    """Leave the store as a process does that dies in the handler of a plain message."""
    import sqlite3

    from sharedlog._core.target_index import pack_index, unpack_index
    from sharedlog._target.requests import position_of

    with sqlite3.connect(shop.path) as connection:
        ((key, value),) = connection.execute(
            "SELECT key, value FROM rifl_row WHERE key LIKE 'index/%'"
        ).fetchall()
        begun = unpack_index(value)._replace(begun=position_of(place(lsn), "i1"))
        connection.execute("UPDATE rifl_row SET value=? WHERE key=?", (pack_index(begun), key))
    connection.close()


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_interceptors_behind_ours_see_each_delivery(kind: str, shop: Shop) -> None:
    """A handler is found as a call of its method finds it, however many are delivered (§4)."""
    seen: list[str] = []

    class Seeing(grpc.ServerInterceptor):
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            seen.append(details.method)
            return continuation(details)

    class SeeingAio(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            seen.append(details.method)
            return await continuation(details)

    behind = Seeing() if kind == "sync" else SeeingAio()
    with open_shop(kind, url(shop), shop, interceptors=[behind]) as target:
        target.batch(*row(1, 3, ATOMIC))
        assert seen == [ATOMIC] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_drains_takes_nothing(kind: str, shop: Shop) -> None:
    """UNAVAILABLE: nothing ran, nothing is begun, and it is no handler's fault (§4)."""
    made: list[rifl.Deduplicator] = []
    real = rifl.Deduplicator

    def make(*args: Any, **options: Any) -> rifl.Deduplicator:
        made.append(real(*args, **options))
        return made[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rifl, "Deduplicator", make)
        with open_shop(kind, url(shop), shop) as target:
            target.batch(*row(1, 1, ATOMIC))
            made[0].drain()
            for method in (ATOMIC, IDEMPOTENT, PLAIN):
                (answer,) = target.batch(*row(2, 3, method))
                assert (answer.kind, answer.place.lsn) == (A.UNAVAILABLE, 2)
            assert not target.index().HasField("begun")
    assert shop.effects() == [1]


def test_an_atomic_handler_that_records_nothing_has_failed(shop: Shop) -> None:
    """Without ``rifl.record`` there is no commit of the index: FAILED, and it says why (§6)."""

    def atomic(request: bytes, context: Any) -> bytes:
        return b"done"

    shop.atomic = atomic  # type: ignore[method-assign]
    with open_shop("sync", url(shop), shop) as target:
        (answer,) = target.batch(*row(1, 1, ATOMIC))
        assert answer.kind == A.FAILED
        assert "rifl.record" in answer.details


def test_a_transaction_of_a_plain_handler_is_refused(shop: Shop) -> None:
    """``rifl.transaction`` and ``rifl.record`` are for atomic methods, delivered or called (§6)."""
    refused: list[Exception] = []

    def act(request: bytes, context: Any) -> None:
        with pytest.raises(WrongDatabase) as found, rifl.transaction(context):
            raise AssertionError
        refused.append(found.value)

    shop.act = act
    with open_shop("sync", url(shop), shop) as target:
        assert told(target.batch(*row(1, 1, PLAIN))) == [("DONE", 1)]
    assert len(refused) == 1


def test_too_much_of_one_substream_waits_with_its_player(shop: Shop) -> None:
    """What is beyond a substream's share of the queue is UNAVAILABLE; others have theirs (P4)."""
    go_on = threading.Event()

    async def act(request: bytes, context: Any) -> None:
        if request.startswith(b"1 "):
            await asyncio.get_running_loop().run_in_executor(None, go_on.wait, 30)

    shop.act = act
    filler = b" " * 600
    much = [
        message(at, at - 1 if at > 1 else None, IDEMPOTENT, body=b"%d" % at + filler)
        for at in range(1, 6)
    ]
    with open_shop("aio", url(shop), shop, queued_bytes=4000) as target:
        stream = target.stream()
        stream.send(*much)
        stream.send(message(11, None, IDEMPOTENT, tag="orders/1"))
        stream.answers(lambda each: each.tag == "orders/1")
        go_on.set()
        (full,) = [
            each
            for each in stream.answers(lambda each: each.kind == A.UNAVAILABLE)
            if each.kind == A.UNAVAILABLE
        ]
        first = full.place.lsn
        assert 1 < first <= 5
        for each in much[first - 1 :]:
            stream.send(each)
            stream.answers(lambda told: told.kind == A.DONE)
        assert stream.finish() == []
    assert sorted(shop.effects()) == [1, 2, 3, 4, 5, 11]


@pytest.mark.parametrize("kind", KINDS)
def test_deliveries_that_were_begun_in_another_store_are_refused(kind: str, shop: Shop) -> None:
    """Who answers now may be another one than was asked: nothing of them is taken (P6)."""
    with open_shop(kind, url(shop), shop) as target:
        mine = target.connect().store

        def deliveries(store: str) -> target_pb2.Deliveries:
            found = target.deliveries(row(1, 1, ATOMIC), (), first=True)
            found.store = store
            return found

        with pytest.raises(grpc.RpcError) as refused:
            target.stub.DeliverBatch(deliveries("another"), timeout=20)
        assert isinstance(error_of(refused.value), OtherStore)
        if kind != "sync":
            with pytest.raises(grpc.RpcError) as refused:
                list(target.stub.Deliver(iter([deliveries("another")]), timeout=20))
            assert isinstance(error_of(refused.value), OtherStore)
        assert shop.effects() == []
        assert told(target.stub.DeliverBatch(deliveries(mine), timeout=20).answers) == [("DONE", 1)]


def test_a_player_is_told_what_it_speaks_to(shop: Shop) -> None:
    """Connect says whether streams are there, the largest message, and whose store it is."""
    with open_shop("aio", url(shop), shop, most_bytes=1000) as target:
        reply = target.connect(TAG, "mails/3")
        assert [each.tag for each in reply.indexes] == [TAG, "mails/3"]
        assert (reply.most_bytes, reply.streams, bool(reply.store)) == (1000, True, True)
