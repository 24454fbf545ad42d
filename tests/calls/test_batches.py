"""Batched calls end to end, at real servers, sync and aio (DESIGN §4, "Batched calls")."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import rifl
from rifl import BatchItem, Outcome
from rifl._wire.envelope import encode_batch
from rifl.core import BadHeader
from rifl.testing import Fault
from tests.calls.services import Kinds, serving
from tests.helpers.raw import RawClient, header
from tests.helpers.servers import KINDS, LoopThread, generic, serve
from tests.helpers.waiting import DEADLINE_S, deadlines, until

METHOD = "/t.Rows/Put"
BOTH = ("sync", "aio")


class Rows:
    """A unary handler that counts effects; what a request says, it does."""

    def __init__(self) -> None:
        self.effects: list[bytes] = []
        self.gate = threading.Event()
        self.held = threading.Event()

    def put(self, request: bytes, context: Any) -> bytes:
        verb, _, _ = request.partition(b":")
        if verb == b"hold":
            self.held.set()
            assert self.gate.wait(DEADLINE_S)
        return self._done(verb, request, context)

    async def aput(self, request: bytes, context: Any) -> bytes:
        verb, _, _ = request.partition(b":")
        if verb == b"hold":
            self.held.set()
            assert await asyncio.to_thread(self.gate.wait, DEADLINE_S)
        if verb == b"abort":
            self.effects.append(request)
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such row", (("why", "none"),))
        return self._done(verb, request, context)

    def _done(self, verb: bytes, request: bytes, context: Any) -> bytes:
        if verb == b"later":
            context.set_code(grpc.StatusCode.UNAVAILABLE)
            return b""
        self.effects.append(request)
        if verb == b"abort":
            context.set_trailing_metadata((("why", "none"),))
            context.abort(grpc.StatusCode.NOT_FOUND, "no such row")
        if verb == b"raise":
            raise KeyError("a bug")
        if verb == b"cancel":
            context.cancel()
        if verb == b"big":
            return b"x" * int(request.split(b":")[1])
        context.set_trailing_metadata((("row", request.decode()),))
        return b"put " + request

    def handlers(self, kind: str) -> list[Any]:
        return [generic("t.Rows", {"Put": self.aput if kind == "aio" else self.put})]


@contextlib.contextmanager
def rows_served(kind: str, url: str = "memory:", **options: Any) -> Iterator[tuple[Rows, str, Any]]:
    rows = Rows()
    with (
        rifl.Deduplicator(url, **options) as dedup,
        serve(kind, rows.handlers(kind), dedup=dedup) as served,
    ):
        try:
            yield rows, served.address, dedup
        finally:
            rows.gate.set()


@pytest.fixture(params=["memory", "sqlite"])
def url(request: Any, tmp_path: Any) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db"


@pytest.fixture(params=["sync", "aio"])
def batch(request: Any) -> Iterator[Any]:
    """``channel.batch`` of a sync or an aio channel, blocking."""
    if request.param == "sync":
        with contextlib.ExitStack() as stack:
            channels: dict[Any, Any] = {}

            def call(address: str, items: Any, timeout: float = 20.0, **options: Any) -> Any:
                name = (address, *options.items())
                if name not in channels:
                    channels[name] = stack.enter_context(rifl.connect(address, **options))
                return channels[name].batch(METHOD, items, timeout=timeout)

            yield call
        return
    loop = LoopThread()
    opened: dict[Any, Any] = {}

    async def acall(address: str, items: Any, timeout: float, options: Any) -> Any:
        name = (address, *options.items())
        if name not in opened:
            opened[name] = rifl.aio.connect(address, **options)
        return await opened[name].batch(METHOD, items, timeout=timeout)

    async def close() -> None:
        for channel in opened.values():
            await channel.close()

    yield lambda address, items, timeout=20.0, **options: loop.run(
        acall(address, items, timeout, options)
    )
    loop.run(close())
    loop.close()


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_has_its_own_answer(kind: str, url: str, batch: Any) -> None:
    """One RPC, an unchanged unary handler; results in the order of the items (DESIGN §4)."""
    with rows_served(kind, url) as (rows, address, _):
        items = [BatchItem(b"row:%d" % at, b"k%d" % at) for at in range(300)]
        results = batch(address, items, session="s")
        assert [result.response for result in results] == [b"put " + item.request for item in items]
        assert rows.effects == [item.request for item in items]
        for item, result in zip(items, results, strict=True):
            assert result.ok
            assert result.outcome is Outcome.EXECUTED
            assert result.rpc_id.key == item.key
            assert result.trailing_metadata == (("row", item.request.decode()),)
            result.raise_for_status()
        assert len({result.rpc_id for result in results}) == 300
        again = batch(address, items, session="s")
        assert {result.outcome for result in again} == {Outcome.REPLAYED}
        assert [result.response for result in again] == [result.response for result in results]
        assert len(rows.effects) == 300
        # The same rows without a session are calls of the channel's own.
        sequenced = batch(address, [BatchItem(item.request) for item in items])
        assert [result.response for result in sequenced] == [r.response for r in results]
        assert [result.rpc_id.seq for result in sequenced] == list(range(1, 301))
        assert len(rows.effects) == 600


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_fails_fails_alone(kind: str, url: str, batch: Any) -> None:
    """An abort, an exception, a mismatch: that row's own status, on a replay too (DESIGN §4)."""
    with rows_served(kind, url) as (rows, address, _):
        items = [
            BatchItem(b"a", b"1"),
            BatchItem(b"abort:", b"2"),
            BatchItem(b"raise:", b"3"),
            BatchItem(b"cancel:", b"4"),
            BatchItem(b"b", b"1"),
            BatchItem(b"a", b"1"),
            BatchItem(b"c", b"5"),
        ]
        first, second = (batch(address, items, session="s") for _ in range(2))
        for results, outcome in ((first, Outcome.EXECUTED), (second, Outcome.REPLAYED)):
            codes = [result.code.name for result in results]
            assert codes == ["OK", "NOT_FOUND", "UNKNOWN", "OK", "INVALID_ARGUMENT", "OK", "OK"]
            assert results[1].details == "no such row"
            assert ("why", "none") in results[1].trailing_metadata
            assert "a bug" in results[2].details
            assert (results[4].reason, results[4].outcome) == (
                "PAYLOAD_MISMATCH",
                Outcome.NOT_EXECUTED,
            )
            assert results[5].outcome is Outcome.REPLAYED
            assert {results[at].outcome for at in (0, 1, 2, 3, 6)} == {outcome}
            with pytest.raises(rifl.core.PayloadMismatch) as caught:
                results[4].raise_for_status()
            assert caught.value.rpc_id.key == b"1"
        assert sorted(rows.effects) == [b"a", b"abort:", b"c", b"cancel:", b"raise:"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_where_nothing_happened_is_new_again(kind: str) -> None:
    """Codes that are not recorded are not, item by item (DESIGN §4)."""
    policy = rifl.MethodPolicy(unrecorded={"UNAVAILABLE"})
    with (
        rows_served(kind, methods={METHOD: policy}) as (rows, address, dedup),
        rifl.connect(address, session="s") as channel,
    ):
        results = channel.batch(METHOD, [BatchItem(b"a", "1"), BatchItem(b"later:", "2")])
        assert [result.code.name for result in results] == ["OK", "UNAVAILABLE"]
        assert results[1].outcome is Outcome.NOT_EXECUTED
        assert rows.effects == [b"a"]
        assert dedup._store.running() == 0


@pytest.mark.parametrize("kind", BOTH)
def test_two_batches_in_opposite_order_end(kind: str, url: str) -> None:
    """Each waits for the other's rows only when its own are recorded (DESIGN §4)."""
    with (
        rows_served(kind, url) as (rows, address, _),
        rifl.connect(address, session="s") as one,
        rifl.connect(address, session="s") as other,
    ):
        keys = [b"%d" % at for at in range(200)]
        for turn in range(5):
            items = [BatchItem(b"row", b"%d-" % turn + key) for key in keys]
            under_way = [
                one.batch_future(METHOD, items, timeout=20),
                other.batch_future(METHOD, items[::-1], timeout=20),
                one.batch_future(METHOD, items[::3], timeout=20),
            ]
            results = [future.result(DEADLINE_S) for future in under_way]
            assert all(result.ok for each in results for result in each)
            executed = [
                result for each in results for result in each if result.outcome is Outcome.EXECUTED
            ]
            assert len(executed) == 200
        assert len(rows.effects) == 1000


@pytest.mark.parametrize("kind", BOTH)
def test_a_slow_row_holds_up_its_own_batch_only(kind: str) -> None:
    """Others' calls and batches go on; a single duplicate of a done row is told (DESIGN §4)."""
    with (
        rows_served(kind) as (rows, address, _),
        rifl.connect(address, session="s") as channel,
    ):
        items = [BatchItem(b"a", b"1"), BatchItem(b"hold:", b"2"), BatchItem(b"b", b"3")]
        slow = channel.batch_future(METHOD, items, timeout=30)
        assert rows.held.wait(DEADLINE_S)
        others = channel.batch(METHOD, [BatchItem(b"c%d" % at, b"o%d" % at) for at in range(9)])
        assert all(result.ok for result in others)
        mixed = [BatchItem(b"b", b"3"), BatchItem(b"d", b"4")]
        for timeout_s in deadlines():
            late = channel.batch(METHOD, mixed, timeout=timeout_s)
            assert late[0].original_code.name in ("ABORTED", "DEADLINE_EXCEEDED")
            if late[1].ok:
                break
        assert late[0].outcome is Outcome.UNKNOWN
        assert not slow.done()
        rows.gate.set()
        assert all(result.ok for result in slow.result(DEADLINE_S))
        assert sorted(rows.effects)[:2] == [b"a", b"b"]
        assert len(rows.effects) == 13


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_may_be_taken_for_dead_begins_no_further_call(kind: str, url: str) -> None:
    """Another one may have answered it while this one was suspended (DESIGN §4)."""
    with rows_served(kind, url) as (rows, address, dedup):
        asked: list[list[bytes]] = []

        def overdue() -> bool:
            asked.append([*rows.effects])
            return len(asked) == 2

        dedup._store.overdue = overdue
        with rifl.connect(address) as channel:
            items = [BatchItem(b"row:%d" % at) for at in range(3)]
            assert all(result.ok for result in channel.batch(METHOD, items, timeout=30))
        assert sorted(rows.effects) == [b"row:0", b"row:1", b"row:2"]
        # The second was not begun, and came again, alone or with the third.
        assert asked[:3] == [[], [b"row:0"], [b"row:0"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_caller_that_goes_leaves_no_claims(kind: str, url: str) -> None:
    """What began is recorded, the rest is new again and runs for the retry (DESIGN §4.6)."""
    with rows_served(kind, url) as (rows, address, dedup):
        items = [BatchItem(b"a", b"1"), BatchItem(b"hold:", b"2")]
        items += [BatchItem(b"row", b"r%d" % at) for at in range(20)]
        with rifl.connect(address, session="s") as channel:
            future = channel.batch_future(METHOD, items, timeout=30)
            assert rows.held.wait(DEADLINE_S)
        gone = future.result(DEADLINE_S)
        assert {result.code.name for result in gone} == {"CANCELLED"}
        assert {result.outcome for result in gone} == {Outcome.UNKNOWN}
        # The server hears of it on another thread than the one that holds.
        with rifl.connect(address, session="s") as channel:
            until(
                lambda: channel.batch(METHOD, [BatchItem(b"x", b"x")], timeout=5)[0].ok,
                "the server goes on",
            )
        rows.gate.set()
        until(lambda: dedup._store.running() == 0, "the batch ends")
        assert rows.effects[:1] == [b"a"]
        with rifl.connect(address, session="s") as channel:
            again = channel.batch(METHOD, items, timeout=20)
        assert all(result.ok for result in again)
        assert [result.outcome for result in again[:2]] == [Outcome.REPLAYED] * 2
        assert len(rows.effects) == 23


def test_coroutine_handlers_run_at_once_where_that_is_declared() -> None:
    """In order by default; ``batch_concurrency`` bounds how many run at once (DESIGN §4)."""
    running, most = 0, 0

    async def put(request: bytes, context: Any) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running -= 1
        return request

    for concurrency in (1, 4):
        most = 0
        policy = rifl.MethodPolicy(batch_concurrency=concurrency)
        with (
            rifl.Deduplicator("memory:", methods={METHOD: policy}) as dedup,
            serve("aio", [generic("t.Rows", {"Put": put})], dedup=dedup) as served,
            rifl.connect(served.address) as channel,
        ):
            items = [BatchItem(b"%d" % at) for at in range(50)]
            results = channel.batch(METHOD, items, timeout=20)
            assert [result.response for result in results] == [item.request for item in items]
            assert most == concurrency
    with pytest.raises(rifl.PolicyError):
        rifl.MethodPolicy(batch_concurrency=0)


def test_a_batch_over_the_bounds_is_split(batch: Any) -> None:
    """BATCH_TOO_LARGE by count or bytes, gRPC's own limits, and answers too large (DESIGN §3)."""
    with rows_served("sync", bounds=rifl.Bounds(max_batch_items=7)) as (rows, address, _):
        results = batch(address, [BatchItem(b"row:%d" % at) for at in range(100)])
        assert all(result.ok for result in results)
        assert rows.effects == [b"row:%d" % at for at in range(100)]
    with rows_served("sync", bounds=rifl.Bounds(max_batch_bytes=500)) as (rows, address, _):
        results = batch(address, [BatchItem(b"row:" + b"x" * 90) for at in range(30)])
        assert all(result.ok for result in results)
        assert len(rows.effects) == 30
        (result,) = batch(address, [BatchItem(b"x" * 600)])
        assert (result.code.name, result.reason) == ("RESOURCE_EXHAUSTED", "BATCH_TOO_LARGE")
        assert result.outcome is Outcome.NOT_EXECUTED
    with rows_served("sync") as (rows, address, _):
        results = batch(address, [BatchItem(b"big:900000:%d" % at) for at in range(12)])
        assert {len(result.response or b"") for result in results} == {900_000}
        assert len(rows.effects) == 12
        results = batch(
            address,
            [BatchItem(b"big:30:%d" % at) for at in range(300)],
            options=(("grpc.max_receive_message_length", 9000),),
        )
        assert {len(result.response or b"") for result in results} == {30}
        results = batch(
            address,
            [BatchItem(b"row:" + b"x" * 300) for _ in range(100)],
            options=(("grpc.max_send_message_length", 5000),),
        )
        assert all(result.ok for result in results)
        assert len(rows.effects) == 412


@pytest.mark.parametrize("kind", BOTH)
def test_what_is_lost_on_the_way_is_asked_for_again(kind: str, batch: Any) -> None:
    """A lost answer, a store that is down, a request that comes twice: once each (DESIGN §3)."""
    kinds = Kinds()
    with serving(kind, kinds) as service:
        for session in (None, "s"):
            items = [BatchItem(b"%d" % at, session and f"k{at}") for at in range(40)]
            for fault in (Fault.DROP_ANSWER, Fault.STORE_DOWN, Fault.DUPLICATE_REQUEST):
                service.faults.arm(fault, times=2)
            with rifl.connect(service.address, session=session) as channel:
                results = channel.batch("/t.Kinds/Unary", items, timeout=20)
            assert all(result.ok for result in results)
            assert sorted(kinds.effects) == sorted(item.request for item in items)
            assert {result.outcome for result in results} <= {Outcome.EXECUTED, Outcome.REPLAYED}
            kinds.effects.clear()


def test_a_window_smaller_than_a_batch_is_filled_again_and_again(batch: Any) -> None:
    """Sequenced rows keep to the client's window, others of the channel too (DESIGN §3)."""
    with rows_served("sync", bounds=rifl.Bounds(window=8)) as (rows, address, _):
        results = batch(address, [BatchItem(b"row:%d" % at) for at in range(50)])
        assert all(result.ok for result in results)
        assert rows.effects == [b"row:%d" % at for at in range(50)]


@pytest.mark.parametrize("kind", BOTH)
def test_whole_batches_are_refused_as_single_calls_are(kind: str) -> None:
    """A bad envelope, a wrong token, a closed session: gRPC's own status (DESIGN §3)."""
    with rows_served(kind, bounds=rifl.Bounds(max_batch_items=100)) as (rows, address, dedup):
        with rifl.connect(address, session="s") as channel:
            assert channel.batch(METHOD, [BatchItem(b"a", b"1")])[0].ok
            no_key = channel.batch(METHOD, [BatchItem(b"a")])[0]
            assert (no_key.reason, no_key.outcome) == ("BAD_HEADER", Outcome.NOT_EXECUTED)
            lease = channel._client.session.lease
            with RawClient(address) as raw:
                good = encode_batch([b"r"], [b"k"], [])
                for token, body, refusal in (
                    (lease.token, b"\x07", ("INVALID_ARGUMENT", "BAD_HEADER", "not-executed")),
                    (lease.token, b"\x00\xff", ("INVALID_ARGUMENT", "BAD_HEADER", "not-executed")),
                    (lease.token, b"", ("INVALID_ARGUMENT", "BAD_HEADER", "not-executed")),
                    (lease.token, b"r", ("INVALID_ARGUMENT", "BAD_HEADER", "not-executed")),
                    (
                        lease.token,
                        b"\x07" + b"\x0a\x00" * 1_000_000,
                        ("RESOURCE_EXHAUSTED", "BATCH_TOO_LARGE", "not-executed"),
                    ),
                    (b"t" * 32, good, ("PERMISSION_DENIED", "NOT_YOURS", "unknown")),
                ):
                    value = header(lease.client_id, token)
                    marker = (("rifl-batch", "1"),)
                    reply = raw.call(METHOD, body, raw=value, metadata=marker)
                    assert reply.refusal == refusal
            channel.session.close(timeout=10)
            dedup._store.clients_ended(dedup._authority.expire())
            results = channel.batch(METHOD, [BatchItem(b"a", b"1"), BatchItem(b"b", b"2")])
            assert {(r.code.name, r.reason) for r in results} == {
                ("FAILED_PRECONDITION", "SESSION_CLOSED")
            }
        assert rows.effects == [b"a"]
        assert dedup._store.running() == 0


class FirstBytes(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Notes what batches begin with."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        if details.method == METHOD:
            self.seen.append(request[:1])
        return continuation(details, request)


@pytest.mark.parametrize("kind", BOTH)
def test_a_batch_begins_with_what_no_message_begins_with(kind: str) -> None:
    """0x07 is a tag of a wire type that there is not (DESIGN §4)."""
    first = FirstBytes()
    with (
        rows_served(kind) as (rows, address, _),
        rifl.connect(address, interceptors=[first]) as channel,
    ):
        assert channel.batch(METHOD, [BatchItem(b"a")])[0].ok
        assert first.seen == [b"\7"]
        assert rows.effects == [b"a"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", ["raw", "protobuf"])
def test_a_server_that_is_not_wrapped_is_found_out(kind: str, codec: str, batch: Any) -> None:
    """It cannot parse the envelope, or answers something else: NOT_WRAPPED (DESIGN §3, §4)."""
    from lease_server.v1 import lease_server_pb2

    ran: list[Any] = []

    def put(request: Any, context: Any) -> Any:
        ran.append(request)
        return request

    async def aput(request: Any, context: Any) -> Any:
        return put(request, context)

    messages = lease_server_pb2.GrantRequest if codec == "protobuf" else None
    handlers = [generic("t.Rows", {"Put": aput if kind == "aio" else put}, messages)]
    with (
        rifl.Deduplicator("memory:") as dedup,
        serve("sync", handlers=[], dedup=dedup) as leases,
        serve(kind, handlers) as unwrapped,
        # The client id is from one server, the batch goes to the other.
        rifl.connect(leases.address) as wrapped,
    ):
        client_id = wrapped.session.open(10)
        assert client_id
        lease = wrapped._client.session.lease
        with rifl.connect(unwrapped.address, session="s") as channel:
            channel._client.session.lease = lease
            channel._client.lease = lease
            items = [BatchItem(b"a", "j"), BatchItem(b"b", "k")]
            results = channel.batch(METHOD, items, timeout=20)
        assert {result.reason for result in results} == {"NOT_WRAPPED"}
        assert {result.outcome for result in results} == {Outcome.UNKNOWN}
        if codec == "protobuf":
            assert ran == []


def test_a_method_that_is_not_deduplicated_takes_no_batch(batch: Any) -> None:
    """Nothing is sent: the envelope would reach the handler (DESIGN §4)."""
    with rows_served("sync", methods={METHOD: None}) as (rows, address, _):
        results = batch(address, [BatchItem(b"a"), BatchItem(b"b")])
        assert {result.reason for result in results} == {"NOT_DEDUPLICATED"}
        assert {result.outcome for result in results} == {Outcome.NOT_EXECUTED}
        assert rows.effects == []


def test_a_batch_that_cannot_be_sent_says_so(batch: Any) -> None:
    """An unreachable server within the deadline; no items; a key that is none (DESIGN §9)."""
    results = batch("127.0.0.1:1", [BatchItem(b"a"), BatchItem(b"b")], timeout=0.3)
    assert {result.code.name for result in results} == {"DEADLINE_EXCEEDED"}
    assert {result.outcome for result in results} == {Outcome.NOT_EXECUTED}
    assert batch("127.0.0.1:1", []) == []
    for wrong in (b"", b"k" * 256):
        with pytest.raises(BadHeader):
            batch("127.0.0.1:1", [BatchItem(b"a", wrong)])


def test_a_closed_channel_takes_no_batch() -> None:
    """As gRPC has it: ValueError; what was under way is cancelled (DESIGN §9)."""
    channel = rifl.connect("127.0.0.1:1")
    future = channel.batch_future(METHOD, [BatchItem(b"a")], timeout=30)
    channel.close()
    assert {result.code.name for result in future.result(DEADLINE_S)} == {"CANCELLED"}
    with pytest.raises(ValueError, match="closed"):
        channel.batch(METHOD, [BatchItem(b"a")])
    for key in (rifl.key("k"), ("idempotency-key", "k")):
        with pytest.raises(ValueError, match="BatchItem"):
            rifl.connect("127.0.0.1:1").batch(METHOD, [], metadata=[key])


def test_items_come_from_any_iterable_and_keys_may_be_text(batch: Any) -> None:
    """A generator is read to its end first; text is its UTF-8, as for ``rifl.key`` (DESIGN §3)."""
    with rows_served("sync") as (rows, address, _):
        items = (BatchItem(b"row:%d" % at, f"Zeile-ä{at}") for at in range(5))
        results = batch(address, items, session="s")
        assert [result.rpc_id.key for result in results] == [
            f"Zeile-ä{at}".encode() for at in range(5)
        ]
        again = batch(address, [BatchItem(b"row:1", "Zeile-ä1".encode())], session="s")
        assert again[0].outcome is Outcome.REPLAYED
        assert len(rows.effects) == 5


def test_keys_without_a_session_are_refused_before_anything_is_sent(batch: Any) -> None:
    """After a lost lease the same key would be another call, silently (DESIGN §3, §5)."""
    with pytest.raises(BadHeader, match="named session"):
        batch("127.0.0.1:1", [BatchItem(b"a"), BatchItem(b"b", b"k")])
