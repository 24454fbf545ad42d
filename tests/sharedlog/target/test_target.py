"""A target over real gRPC: each message of a substream once, in order (DESIGN-LOG §15, P1, P2)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from rifl._stores.sqlite.shared_transactions import SharedTransactions
from sharedlog.v1 import target_pb2
from tests.helpers.servers import KINDS
from tests.helpers.waiting import until
from tests.sharedlog.target.player import A, Player, message, place, row, told
from tests.sharedlog.target.shop import (
    ATOMIC,
    IDEMPOTENT,
    OTHER,
    PLAIN,
    Shop,
    aborting,
    open_shop,
)

EACH = (ATOMIC, IDEMPOTENT, PLAIN)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of server."""
    return str(request.param)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A shop whose effects are in the store's file."""
    return Shop(tmp_path / "store.db")


@pytest.fixture
def target(kind: str, shop: Shop) -> Iterator[Player]:
    """A player before the shop."""
    with open_shop(kind, f"sqlite:///{shop.path}", shop) as found:
        yield found


def deliver(kind: str, target: Player, *deliveries: Any) -> list[Any]:
    """Deliver by a stream where there is one, else by a batch."""
    if kind == "sync":
        return target.batch(*deliveries)
    stream = target.stream()
    stream.send(*deliveries)
    return stream.finish()


@pytest.mark.parametrize("method", EACH)
def test_messages_are_taken_once_in_order(
    kind: str, shop: Shop, target: Player, method: str
) -> None:
    """What is delivered twice, or again from before the index, has its effect once (P1, P2)."""
    assert not target.index().HasField("at")
    assert told(deliver(kind, target, *row(1, 3, method)))[-1] == ("DONE", 3)
    assert told(deliver(kind, target, *row(1, 5, method)))[-1] == ("DONE", 5)
    assert shop.effects() == [1, 2, 3, 4, 5]
    index = target.index()
    assert (index.at, index.taken, index.incarnation) == (place(5), 5, "i1")
    assert not index.HasField("begun")


def test_batches_are_taken_on_each_kind_of_server(kind: str, shop: Shop, target: Player) -> None:
    """``DeliverBatch`` is there on either server, and takes several substreams (P8)."""
    other = [message(lsn, lsn - 1 if lsn > 1 else None, PLAIN, tag="orders/7") for lsn in (1, 2)]
    answers = target.batch(*row(1, 3, IDEMPOTENT), *other)
    done = {each.tag: each.place.lsn for each in answers if each.kind == A.DONE}
    assert done == {"orders/0": 3, "orders/7": 2}
    assert target.connect().streams is (kind != "sync")


def test_a_sync_server_has_no_stream(shop: Shop) -> None:
    """A stream would hold a thread of the pool: ``Deliver`` is UNIMPLEMENTED there (P8)."""
    with open_shop("sync", f"sqlite:///{shop.path}", shop) as target:
        with pytest.raises(grpc.RpcError) as refused:
            target.stream().finish()
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_what_does_not_follow_is_a_gap(kind: str, shop: Shop, target: Player) -> None:
    """A delivery that follows another place than the index is refused, and so is all behind it."""
    deliver(kind, target, *row(1, 2, ATOMIC))
    answers = deliver(kind, target, *row(4, 6, ATOMIC))
    assert told(answers) == [("GAP", 4)]
    assert answers[0].index.at == place(2)
    assert shop.effects() == [1, 2]


@pytest.mark.parametrize("method", EACH)
def test_a_handler_that_fails_stops_its_substream_only(
    kind: str, shop: Shop, target: Player, method: str
) -> None:
    """FAILED has the handler's status; what is behind it waits until it is sent again (P7)."""

    def act(request: bytes, context: Any) -> Any:
        if request == b"2" and len(failing) > 0:
            failing.pop()
            return aborting(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "no more")
        return None

    failing = [True]
    shop.act = act
    both = [*row(1, 4, method), *row(11, 12, method, tag="orders/3")]
    both[4].ClearField("follows")
    answers = deliver(kind, target, *both)
    failed = [each for each in answers if each.kind == A.FAILED]
    assert told(failed) == [("FAILED", 2)]
    assert (failed[0].code, failed[0].details) == (8, "no more")
    assert failed[0].index.at == place(1)
    assert ("DONE", 12) in told(answers)
    assert ("DONE", 4) not in told(answers)
    assert sorted(shop.effects()) == [1, 11, 12]
    assert not target.index().HasField("begun")
    assert told(deliver(kind, target, *row(2, 4, method)))[-1] == ("DONE", 4)
    assert sorted(shop.effects()) == [1, 2, 3, 4, 11, 12]
    redelivered = [each.redelivered for each in shop.deliveries if each.position.lsn == 2]
    assert redelivered == [False, True]


def test_a_handler_that_raises_has_failed(kind: str, shop: Shop, target: Player) -> None:
    """An exception is an answer like a status, and nothing of an atomic handler stands."""

    def act(request: bytes, context: Any) -> None:
        raise ValueError("broken")

    shop.act = act
    (answer,) = deliver(kind, target, *row(1, 1, ATOMIC))
    assert (answer.kind, answer.code) == (A.FAILED, 2)
    assert "broken" in answer.details
    assert shop.effects() == []


def test_a_coroutine_in_a_blocking_transaction_has_failed_and_is_told_why(tmp_path: Path) -> None:
    """The failure, and with it a dead letter, names ``rifl.aio.transaction``."""

    class Blocking(Shop):
        async def atomic_async(self, request: bytes, context: Any) -> bytes:
            with rifl.transaction(context):
                return b"done"

    with open_shop("aio", f"sqlite:///{tmp_path}/shop.db", Blocking(None)) as target:
        (answer,) = deliver("aio", target, *row(1, 1, ATOMIC))
    assert answer.kind == A.FAILED
    assert "`async with rifl.aio.transaction(...)`" in answer.details


def test_a_handler_learns_what_it_is_called_with(kind: str, shop: Shop, target: Player) -> None:
    """``sharedlog.delivery(context)`` says where the message stands, and what is said of it."""
    deliver(kind, target, *row(1, 1, IDEMPOTENT))
    (found,) = shop.deliveries
    assert (found.log, found.stream, found.substream) == ("shop", "orders", 0)
    assert found.position[:4] == (1, 0, 1001, "i1")
    assert (found.key, found.headers, found.causation_id) == (b"k", {"h": b"v"}, "cause")
    assert found.append_time.timestamp() == 1
    assert found.method == IDEMPOTENT


def test_direct_calls_are_no_deliveries(shop: Shop, target: Player) -> None:
    """A handler that a caller of gRPC's calls has no delivery."""
    assert target.channel.unary_unary(IDEMPOTENT)(b"1") == b"done"
    assert shop.deliveries == [None]


def test_only_what_is_allowed_is_called(kind: str, shop: Shop, target: Player) -> None:
    """A method that is not in its stream's list, or not there, is REFUSED for good."""
    (answer,) = deliver(kind, target, *row(1, 1, OTHER))
    assert (answer.kind, answer.code) == (A.REFUSED, 7)
    (answer,) = deliver(kind, target, *row(1, 1, "/no.Such/Method"))
    assert (answer.kind, answer.code) == (A.REFUSED, 7)
    (answer,) = deliver(kind, target, *row(1, 1, ""))
    assert (answer.kind, answer.code) == (A.REFUSED, 3)
    assert shop.effects() == []


def test_a_message_without_a_method_calls_the_only_one(
    kind: str, shop: Shop, target: Player
) -> None:
    """A stream that may call one method needs no method in its messages."""
    assert told(deliver(kind, target, *row(1, 2, "", tag="mails/1")))[-1] == ("DONE", 2)
    assert shop.effects() == [1, 2]


def test_another_incarnation_is_a_fork(kind: str, shop: Shop, target: Player) -> None:
    """An index of another incarnation, or with another message there, takes nothing (P6)."""
    deliver(kind, target, *row(1, 2, ATOMIC))
    other = message(2, 1, ATOMIC)
    other.place.checksum = 5
    assert told(deliver(kind, target, other)) == [("FORKED", 2)]
    target.incarnation = "i2"
    (answer,) = deliver(kind, target, *row(3, 3, ATOMIC))
    assert (answer.kind, answer.index.incarnation) == (A.FORKED, "i1")
    assert shop.effects() == [1, 2]


def test_an_empty_delivery_moves_the_index(kind: str, shop: Shop, target: Player) -> None:
    """An index is moved forward where nothing was to be taken, from its place only (P5)."""
    deliver(kind, target, *row(1, 1, ATOMIC))
    moved = target_pb2.Delivery(kind=1, tag="orders/0", place=place(9), follows=place(1))
    assert told(deliver(kind, target, moved)) == [("DONE", 9)]
    assert told(deliver(kind, target, *row(2, 2, ATOMIC))) == [("DONE", 2)]
    index = target.index()
    assert (index.at.lsn, index.taken) == (9, 1)
    assert shop.effects() == [1]
    late = target_pb2.Delivery(kind=1, tag="orders/0", place=place(12), follows=place(8))
    assert told(deliver(kind, target, late)) == [("GAP", 12)]


def test_a_skip_is_kept_until_it_is_confirmed(kind: str, shop: Shop, target: Player) -> None:
    """What is passed over is in the index, numbered, until it is among the dead letters (P7)."""
    deliver(kind, target, *row(1, 1, ATOMIC))
    skips = [
        target_pb2.Delivery(
            kind=2,
            tag="orders/0",
            place=place(lsn),
            follows=place(lsn - 1),
            skip=target_pb2.Skipped(reason="always fails", by="ops", at_us=5),
        )
        for lsn in (2, 3)
    ]
    assert told(deliver(kind, target, *skips)) == [("DONE", 3)]
    index = target.index()
    assert [(each.place.lsn, each.number) for each in index.skipped] == [(2, 1), (3, 2)]
    assert (index.skipped[0].reason, index.skipped[0].by, index.taken) == ("always fails", "ops", 3)
    confirmed = target_pb2.Confirmed(tag="orders/0", number=1)
    assert told(target.batch(message(4, 3, ATOMIC), confirmed=[confirmed]))[-1] == ("DONE", 4)
    assert [each.number for each in target.index().skipped] == [2]
    target.batch(confirmed=[target_pb2.Confirmed(tag="orders/0", number=2)])
    assert list(target.index().skipped) == []
    assert shop.effects() == [1, 4]


def test_what_may_have_been_tried_before_says_so(kind: str, shop: Shop, target: Player) -> None:
    """Something was sent by an earlier connection, and the index has not moved since."""

    def failing(request: bytes, context: object) -> None:
        raise ValueError("not yet")

    shop.act = failing
    for _ in range(2):
        # By itself this asks where the index is, and sends nothing.
        target.connect()
    deliver(kind, target, *row(1, 1, ATOMIC))
    assert not shop.deliveries[-1].redelivered
    target.connect()
    deliver(kind, target, *row(2, 2, IDEMPOTENT))
    shop.act = lambda request, context: None
    target.connect()
    deliver(kind, target, *row(1, 1, ATOMIC))
    assert shop.deliveries[-1].redelivered
    target.connect()
    deliver(kind, target, *row(2, 3, ATOMIC))
    assert not shop.deliveries[-1].redelivered


def test_the_index_survives_a_restart(kind: str, shop: Shop) -> None:
    """Index and store id are durable; another process goes on, and knows that this one ended."""
    url = f"sqlite:///{shop.path}"
    with open_shop(kind, url, shop) as target:
        deliver(kind, target, *row(1, 3, ATOMIC))
        deliver(kind, target, *row(4, 5, IDEMPOTENT))
        first = target.connect()
        assert target.connect(processes=[first.process]).beats == [1]
    with open_shop(kind, url, shop) as target:
        reply = target.connect(processes=[first.process])
        assert (reply.store, reply.indexes[0].at.lsn) == (first.store, 5)
        assert (reply.process != first.process, reply.beats) == (True, [0])
        assert told(deliver(kind, target, *row(5, 6, ATOMIC)))[-1] == ("DONE", 6)
    # Those that are in the table first.
    assert shop.effects() == [1, 2, 3, 6, 4, 5]


def test_a_store_in_memory_takes_what_needs_no_transaction(kind: str) -> None:
    """``memory:`` has rows, too, while the process lives."""
    shop = Shop(None)
    with open_shop(kind, "memory:", shop) as target:
        assert told(deliver(kind, target, *row(1, 3, IDEMPOTENT)))[-1] == ("DONE", 3)
        assert told(deliver(kind, target, *row(2, 4, PLAIN)))[-1] == ("DONE", 4)
        assert shop.effects() == [1, 2, 3, 4]


class _Commits(rifl.Observer):
    """Counts what the store commits."""

    def __init__(self) -> None:
        self.entries: list[int] = []

    def committed(self, entries: int, seconds: float, error: Exception | None) -> None:
        """Note how many there were."""
        self.entries.append(entries)


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_deliveries_share_transactions(kind: str, shop: Shop) -> None:
    """Messages of a substream that are at hand go into one commit of a shared block's (P1)."""
    commits = _Commits()
    with open_shop(kind, f"sqlite:///{shop.path}", shop, observer=commits) as target:
        before = len(commits.entries)
        assert told(deliver(kind, target, *row(1, 60, ATOMIC)))[-1] == ("DONE", 60)
        # An observer is told after those who waited for the commit.
        until(lambda: sum(commits.entries[before:]) >= 60, "the commits are told")
        shared = commits.entries[before:]
    assert shop.effects() == list(range(1, 61))
    assert max(shared) > 1


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_of_a_shared_transaction_that_fails_nothing_stands(
    kind: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its deliveries are UNAVAILABLE, and come again from where the index is (P1)."""
    real, failed = SharedTransactions._end, []

    def end(self: Any, group: Any) -> None:
        if not failed and group.handlers > 1:
            failed.append(group.handlers)
            group.error = sqlite3.OperationalError("the disk is full, says the test")
        real(self, group)

    monkeypatch.setattr(SharedTransactions, "_end", end)
    with open_shop(kind, f"sqlite:///{shop.path}", shop) as target:
        answers = deliver(kind, target, *row(1, 60, ATOMIC))
        assert failed
        stopped = answers[-1]
        assert stopped.kind == A.UNAVAILABLE
        reached = stopped.index.at.lsn
        assert (stopped.place.lsn, shop.effects()) == (reached + 1, list(range(1, reached + 1)))
        assert told(deliver(kind, target, *row(reached + 1, 60, ATOMIC)))[-1] == ("DONE", 60)
    assert shop.effects() == list(range(1, 61))


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_what_fails_behind_others_undoes_itself_alone(kind: str, shop: Shop) -> None:
    """A handler that raises in the shared transaction leaves those before it as they are (P1)."""

    def act(request: bytes, context: Any) -> None:
        if request == b"30":
            raise ValueError(request)

    shop.act = act
    with open_shop(kind, f"sqlite:///{shop.path}", shop) as target:
        answers = deliver(kind, target, *row(1, 60, ATOMIC))
        assert told(answers)[-1] == ("FAILED", 30)
        assert ("DONE", 29) in told(answers)
        assert answers[-1].index.at.lsn == 29
        assert shop.effects() == list(range(1, 30))
