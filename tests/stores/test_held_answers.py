"""Answers that nobody acknowledges are bounded: by client, by address, in all (DESIGN §9)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from lease_server import Acknowledgements, SharedAuthority
from lease_server._holders import holder_of
from rifl._stores import open_lease_storage
from rifl._stores.held_answers import HeldAnswers
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.client_entry import Attempt
from rifl.core._shared.call import Call
from rifl.core._shared.errors import WindowExceeded
from tests.client.conftest import Caller
from tests.helpers.raw import RawClient
from tests.helpers.servers import generic, serve
from tests.stores.redis.servers import until

_NUMBERS = itertools.count()
_SHARED = ("redis", "postgresql", "mariadb")
METHOD = "/p.S/Large"
_BYTES = 1 << 20


@pytest.fixture(params=["memory", "sqlite", "redis", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = f"held{next(_NUMBERS)}"
    if request.param == "mariadb":
        return str(request.getfixturevalue("shared_mariadb").url(prefix=f"{name}_"))
    if request.param == "redis":
        made: str = request.getfixturevalue("shared_redis").url(namespace=name)
    elif request.param == "postgresql":
        made = request.getfixturevalue("shared_postgres").url(schema=name)
    else:
        made = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 's.db'}"
    return made


def large(request: bytes, _: Any) -> bytes:
    return bytes(_BYTES)


async def large_async(request: bytes, _: Any) -> bytes:
    return bytes(_BYTES)


def test_large_answers_of_a_client_and_of_all_are_bounded(url: str) -> None:
    """An empty request pins its answer: beyond the bounds new calls wait, known ones not (§9)."""
    kind = "aio" if url == "memory:" or url.startswith("redis") else "sync"
    handler = large_async if kind == "aio" else large
    with (
        rifl.Deduplicator(
            url,
            bounds=rifl.Bounds(
                max_answer_bytes=3 * _BYTES,
                max_total_answer_bytes=5 * _BYTES,
                max_answer_bytes_per_caller=0,
            ),
        ) as dedup,
        serve(kind, [generic("p.S", {"Large": handler})], dedup=dedup) as served,
        RawClient(served.address) as one,
        RawClient(served.address) as two,
    ):
        for seq in (1, 2, 3):
            assert one.call(METHOD, b"", seq=seq, first=1).ok
        refused = one.call(METHOD, b"", seq=4, first=1)
        assert refused.refusal == ("RESOURCE_EXHAUSTED", "WINDOW_EXCEEDED", "not-executed")
        # What is known is answered, or nothing could ever be acknowledged.
        assert one.call(METHOD, b"", seq=3, first=1, attempt=2).outcome == "replayed"
        assert dedup.statistics().answer_bytes == 3 * _BYTES
        for seq in (1, 2):
            assert two.call(METHOD, b"", seq=seq, first=1).ok
        assert two.call(METHOD, b"", seq=3, first=1).reason == "WINDOW_EXCEEDED"
        # A header makes room, also that of a call which is refused.
        assert one.call(METHOD, b"", seq=4, first=3).ok
        assert two.call(METHOD, b"", seq=3, first=1).ok
        assert two.call(METHOD, b"", seq=4, first=4).ok
        assert dedup.statistics().answer_bytes == 3 * _BYTES


def test_one_address_does_not_fill_what_callers_without_a_name_share(
    url: str, tmp_path: Path
) -> None:
    """A quarter is an address's; others find room, and known keys are answered (§9)."""
    socket = f"unix:{tmp_path / 's'}"
    with (
        rifl.Deduplicator(
            url, keys_from="anyone", bounds=rifl.Bounds(max_key_bytes=8 * _BYTES)
        ) as dedup,
        serve(
            "sync",
            [generic("p.S", {"Large": large})],
            dedup=dedup,
            add=lambda server: server.add_insecure_port(socket),
        ) as served,
    ):

        def pay(target: str, key: str) -> str:
            with grpc.insecure_channel(target) as channel:
                try:
                    channel.unary_unary(METHOD)(
                        b"", timeout=20, metadata=(("idempotency-key", key),)
                    )
                except grpc.RpcError as error:
                    return str(error.code().name)  # type: ignore[attr-defined]
                return "OK"

        assert [pay(served.address, f"k{number}") for number in range(4)] == [
            "OK",
            "OK",
            "RESOURCE_EXHAUSTED",
            "RESOURCE_EXHAUSTED",
        ]
        assert pay(served.address, "k0") == "OK"
        assert pay(socket, "another's") == "OK"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock) -> Callable[..., HeldAnswers]:
    """Make a count with small bounds."""
    # An address has a quarter of the keys.
    bounds = Bounds(
        max_answer_bytes=100_000,
        max_total_answer_bytes=150_000,
        max_answer_bytes_per_caller=0,
        max_keys=12,
        max_key_bytes=4000,
    )
    return lambda of_one=0, **options: HeldAnswers(
        replace(bounds, max_answer_bytes_per_caller=of_one),
        KeyBounds(retention_s=60.0),
        clock=clock,
        **options,
    )


def arrival(client_id: int, seq: int | None, first: int = 1, **more: Any) -> Attempt:
    call = Call(client_id, b"", seq, more.pop("key", None), first, more.pop("completed", ()))
    call.method = more.pop("method", METHOD)
    call.source, call.peer = more.pop("source", ""), more.pop("peer", b"")
    return Attempt(None, call, rifl.MethodPolicy())  # type: ignore[arg-type]  # not looked at


def test_what_is_acknowledged_or_dropped_is_not_counted(make: Callable[..., HeldAnswers]) -> None:
    """By first incomplete, by ranges above it, and with the client (§4, §9)."""
    held = make()
    for seq in (1, 2, 3):
        held.note(arrival(1, seq), 40_000)
    held.note(arrival(1, 3), 40_000)
    assert held.total == 120_000
    with pytest.raises(WindowExceeded):
        held.admit(arrival(1, 4))
    held.admit(arrival(1, 4, 1, completed=((2, 2),)))
    assert held.total == 80_000
    held.admit(arrival(1, 4, 2))
    assert held.total == 40_000
    held.drop([1])
    assert (held.total, held.active) == (0, False)
    held.note(arrival(1, 9), 100)
    assert not held.active


def test_the_answers_of_all_clients_of_a_caller_are_bounded(
    make: Callable[..., HeldAnswers],
) -> None:
    """Whom a client's lease counts for its answers count for, wherever it calls from (§9)."""
    holders = {1: b"here", 2: b"here", 3: holder_of(b"peer", ""), 4: b""}
    held = make(of_one=80_000, holder=lambda client_id: holders[client_id])
    for client_id in (1, 2):
        held.note(arrival(client_id, 1), 40_000)
        # The same answer again, of a retry that ran.
        held.note(arrival(client_id, 1), 40_000)
    for client_id in (1, 2):
        with pytest.raises(WindowExceeded, match=r"^yours: .*of here .*max_answer_bytes_per_call"):
            held.admit(arrival(client_id, 2, peer=b"peer", source="elsewhere"))
    held.admit(arrival(3, 1))
    # No holder is known.
    held.note(arrival(4, 1), 40_000)
    held.admit(arrival(4, 2))
    held.admit(arrival(1, 2, 2))
    held.admit(arrival(2, 2))
    held.drop([1, 2, 4])
    assert (held.total, held.active, held._held_by) == (0, False, {})
    held.note(arrival(3, 1), 90_000)
    with pytest.raises(WindowExceeded, match="of this certificate "):
        held.admit(arrival(3, 2))
    held.forget()
    held.admit(arrival(3, 2))


def test_a_client_is_not_told_whose_answers_fill_the_server(
    make: Callable[..., HeldAnswers],
) -> None:
    """They are others': its own, and its address's, are told as such (§9)."""
    held = make(holder=lambda client_id: b"10.0.0.7")
    held.note(arrival(1, 1), 100_000)
    with pytest.raises(WindowExceeded, match=r"^yours: .*\(max_answer_bytes\)"):
        held.admit(arrival(1, 2))
    held.note(arrival(2, 1), 90_000)
    with pytest.raises(WindowExceeded, match=r"^others': .*max_total_answer_bytes") as refused:
        held.admit(arrival(3, 1))
    assert "10.0.0.7" not in str(refused.value)


@pytest.mark.parametrize("url", ["memory", "sqlite", *_SHARED], indirect=True)
def test_answers_count_for_the_address_that_the_lease_was_granted_to(
    url: str, tmp_path: Path
) -> None:
    """A quarter of all, whose-ever channel its clients use; other addresses have room (§9)."""
    socket = f"unix:{tmp_path / 's'}"
    with (
        rifl.Deduplicator(url, bounds=rifl.Bounds(max_total_answer_bytes=8 * _BYTES)) as dedup,
        serve(
            "sync",
            [generic("p.S", {"Large": large})],
            dedup=dedup,
            add=lambda server: server.add_insecure_port(socket),
        ) as served,
        RawClient(served.address) as one,
        RawClient(served.address) as two,
        RawClient(served.address) as three,
        RawClient(socket) as other,
    ):
        assert one.call(METHOD, b"", seq=1, first=1).ok
        assert two.call(METHOD, b"", seq=1, first=1).ok
        three.channel.close()
        three.channel = grpc.insecure_channel(socket)
        refused = three.call(METHOD, b"", seq=1, first=1)
        assert refused.refusal == ("RESOURCE_EXHAUSTED", "WINDOW_EXCEEDED", "not-executed")
        assert refused.details.startswith("yours: clients of 127.0.0.1 have ")
        assert "(max_answer_bytes_per_caller)" in refused.details
        other.channel.close()
        other.channel = grpc.insecure_channel(served.address)
        assert other.call(METHOD, b"", seq=1, first=1).ok
        # What a client acknowledges is room for all of its address.
        assert one.call(METHOD, b"", seq=2, first=2).ok
        assert two.call(METHOD, b"", seq=2, first=2).ok


@pytest.mark.parametrize("url", _SHARED, indirect=True)
def test_a_server_asks_the_store_whose_the_clients_of_others_are(url: str) -> None:
    """And what they acknowledged there, and which have ended: each server counts alone (§9)."""
    bounds = rifl.Bounds(max_total_answer_bytes=8 * _BYTES)
    with ExitStack() as opened:
        dedups = [opened.enter_context(rifl.Deduplicator(url, bounds=bounds)) for _ in range(2)]
        here, there = (
            opened.enter_context(
                serve("sync", [generic("p.S", {"Large": large, "Small": _small})], dedup=dedup)
            )
            for dedup in dedups
        )
        one, two, three = (opened.enter_context(RawClient(there.address)) for _ in range(3))

        def at(server: Any, client: RawClient) -> RawClient:
            client.channel.close()
            client.channel = grpc.insecure_channel(server.address)
            return client

        for client in (one, two):
            assert at(here, client).call(METHOD, b"", seq=1, first=1).ok
        assert at(here, three).call(METHOD, b"", seq=1, first=1).reason == "WINDOW_EXCEEDED"
        # What is acknowledged at another server, and who ends there.
        assert at(there, one).call("/p.S/Small", b"", seq=2, first=2).ok
        counted = dedups[0].statistics
        until(lambda: counted().answer_bytes == _BYTES, "what was acknowledged is not counted")
        assert at(there, two).release().ok
        until(lambda: counted().answer_bytes == 0, "who has ended is not counted")
        assert at(here, three).call(METHOD, b"", seq=1, first=1).ok


@pytest.mark.parametrize("url", ["memory", "sqlite", *_SHARED], indirect=True)
def test_a_newcomer_gets_in_once_idle_clients_have_renewed(url: str) -> None:
    """Living clients that make no call lock no other out, whatever they had answered (§5, §9)."""
    bounds = rifl.Bounds(max_total_answer_bytes=2 * _BYTES, max_answer_bytes_per_caller=0)
    with (
        rifl.Deduplicator(url, bounds=bounds) as dedup,
        serve("sync", [generic("p.S", {"Large": large})], dedup=dedup) as served,
        RawClient(served.address) as one,
        RawClient(served.address) as two,
        RawClient(served.address) as newcomer,
    ):
        assert one.call(METHOD, b"", seq=1, first=1).ok
        assert two.call(METHOD, b"", seq=1, first=1).ok
        full = newcomer.call(METHOD, b"", seq=1, first=1)
        assert full.details.startswith("others': ")
        # What it acknowledged is all that goes.
        assert one.acknowledge(1, completed=[1, 4]).ok
        assert two.acknowledge(2).ok
        until(lambda: dedup.statistics().answer_bytes == _BYTES, "what was acknowledged counts")
        assert newcomer.call(METHOD, b"", seq=1, first=1).ok
        assert one.call(METHOD, b"", seq=1, first=1, attempt=2).outcome == "replayed"
        assert two.call(METHOD, b"", seq=1, first=1, attempt=2).reason == "STALE_RPC"


@pytest.mark.parametrize("url", _SHARED, indirect=True)
def test_the_lone_lease_service_frees_answers_too(url: str) -> None:
    """In the store that it shares with the servers, which learn of it (§5, §9)."""
    with (
        rifl.Deduplicator(url) as dedup,
        serve("sync", [generic("p.S", {"Large": large})], dedup=dedup) as served,
        RawClient(served.address) as client,
    ):
        for seq in (1, 2):
            assert client.call(METHOD, b"", seq=seq, first=1).ok
        storage: Any = open_lease_storage(url)
        with closing(storage):
            alone = SharedAuthority(storage)
            alone.heartbeat(client.client_id, client.token, b"", Acknowledgements(2))
        until(lambda: dedup.statistics().answer_bytes == _BYTES, "what was acknowledged counts")
        assert client.call(METHOD, b"", seq=1, first=1, attempt=2).reason == "STALE_RPC"
        assert client.call(METHOD, b"", seq=2, first=1, attempt=2).outcome == "replayed"


@pytest.mark.parametrize("kind", ["sync", "aio"])
@pytest.mark.parametrize("caller", ["sync", "aio"])
def test_an_idle_client_tells_with_its_renewals(kind: str, caller: str) -> None:
    """By requests, and on the stream of an aio server (§5)."""
    handler = large_async if kind == "aio" else large
    with (
        # By a clock that stands still: no lease ends.
        rifl.Deduplicator("memory:", term_s=1.5, clock=lambda: 0.0) as dedup,
        serve(kind, [generic("p.S", {"Large": handler})], dedup=dedup) as served,
        closing(Caller(caller, served.address)) as client,
    ):
        for _ in range(2):
            client.call(b"", METHOD)
        assert dedup.statistics().clients == 1
        until(lambda: dedup.statistics().unacknowledged == 0, "the last answer is acknowledged")
        assert dedup.statistics().answer_bytes == 0
        client.call(b"", METHOD)


def _small(request: bytes, _: Any) -> bytes:
    return b""


def _fill(held: HeldAnswers, clients: range, size: int, seq: int = 1) -> None:
    for client_id in clients:
        held.note(arrival(client_id, seq, method=METHOD), size)


def test_when_most_is_taken_a_caller_adds_within_its_share_only(
    make: Callable[..., HeldAnswers],
) -> None:
    """From three quarters on; newcomers, who are below theirs, until all is taken (§9)."""
    held = make(of_one=60_000, holder=lambda client_id: b"%d" % (client_id // 10))
    _fill(held, range(10, 15, 10), 50_000)
    _fill(held, range(20, 31, 10), 20_000)
    # Below three quarters of 150,000.
    held.admit(arrival(11, 1, method=METHOD))
    _fill(held, range(40, 51, 10), 17_000)
    assert held.total == 124_000
    # A fifth is each one's share.
    with pytest.raises(WindowExceeded, match=r"^yours: clients of 1 have 50000 .* share is 30000"):
        held.admit(arrival(11, 1, method=METHOD))
    held.admit(arrival(21, 1, method=METHOD))
    # From seven eighths on the rest is for who has none.
    _fill(held, range(60, 61), 17_000)
    with pytest.raises(WindowExceeded, match=r"^others': all clients have 141000 "):
        held.admit(arrival(21, 1, method=METHOD))
    held.admit(arrival(70, 1, method=METHOD))
    _fill(held, range(80, 81), 17_000)
    with pytest.raises(WindowExceeded, match=r"^others': "):
        held.admit(arrival(70, 1, method=METHOD))
    # With what is acknowledged there is room.
    held.admit(arrival(10, 2, 2, method=METHOD))
    held.admit(arrival(70, 1, method=METHOD))


def test_calls_that_answer_little_are_not_refused_for_others_answers(
    make: Callable[..., HeldAnswers],
) -> None:
    """A method without a large answer that is counted adds nothing to what is taken (§9)."""
    held = make(of_one=100_000, holder=lambda client_id: b"%d" % client_id)
    _fill(held, range(1, 3), 90_000)
    held.admit(arrival(3, 1, method="/p.S/Small"))
    held.note(arrival(3, 1, method="/p.S/Small"), 100)
    held.admit(arrival(2, 2, method="/p.S/Small"))
    for client_id in (2, 3):
        with pytest.raises(WindowExceeded):
            held.admit(arrival(client_id, 2, method=METHOD))
    # Until it has one: it is counted as every other.
    held.note(arrival(3, 2, method="/p.S/Small"), 20_000)
    with pytest.raises(WindowExceeded):
        held.admit(arrival(4, 1, method="/p.S/Small"))
    held.drop([3])
    held.admit(arrival(4, 1, method="/p.S/Small"))
    _fill(held, range(1, 2), 20_000, seq=2)
    with pytest.raises(WindowExceeded, match=r"^yours: "):
        held.admit(arrival(1, 3, method="/p.S/Small"))


def test_the_keys_of_an_address_count_for_their_retention(
    make: Callable[..., HeldAnswers], clock: Clock
) -> None:
    """In number and in bytes, however small; other addresses and named peers apart (§9)."""
    held = make()
    for number in range(3):
        held.note(arrival(-1, None, key=b"k%d" % number, source="10.0.0.7"), 0)
    with pytest.raises(WindowExceeded):
        held.admit(arrival(-1, None, key=b"k9", source="10.0.0.7"))
    held.admit(arrival(-1, None, key=b"k9", source="10.0.0.8"))
    held.admit(arrival(-2, None, key=b"k9"))
    clock.now = 60.0
    held.admit(arrival(-1, None, key=b"k9", source="10.0.0.7"))
    held.note(arrival(-1, None, key=b"k9", source="10.0.0.7"), 1000)
    with pytest.raises(WindowExceeded):
        held.admit(arrival(-1, None, key=b"k10", source="10.0.0.7"))


def test_many_keys_of_an_address_take_no_more_memory(
    make: Callable[..., HeldAnswers], clock: Clock
) -> None:
    """They are counted together by when they end, and none is counted for much longer (§9)."""
    held = HeldAnswers(Bounds(max_keys=40_000), KeyBounds(retention_s=60.0), clock=clock)
    for at in range(10_000):
        held.note(arrival(-1, None, key=b"%d" % at, source="here"), 10)
        clock.now += 0.006
    assert len(held._sources["here"].kept) < 80
    with pytest.raises(WindowExceeded, match="10000 keys"):
        held.admit(arrival(-1, None, key=b"k", source="here"))
    clock.now += 31
    held.admit(arrival(-1, None, key=b"k", source="here"))
    assert 4_000 < held._sources["here"].keys < 6_000
    clock.now += 31
    held.admit(arrival(-1, None, key=b"k", source="here"))
    assert not held._sources
