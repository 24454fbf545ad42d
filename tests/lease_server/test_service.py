"""The gRPC service on real servers, sync and aio."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc.aio
import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lease_server import LeaseAuthority, MemoryLeaseStorage, SessionPolicy, StorageUnavailable
from lease_server.v1 import lease_server_pb2 as pb
from rifl import add_lease_service
from rifl._grpc.source import source_of
from rifl._grpc.status import read_error_info
from rifl._leases import service
from rifl.core import NotLeader

PREFIX = "/lease_server.v1.LeaseServer/"
REPLIES = {
    "Grant": pb.GrantReply,
    "Renew": pb.RenewReply,
    "Release": pb.ReleaseReply,
    "OpenSession": pb.OpenSessionReply,
    "CloseSession": pb.CloseSessionReply,
}


def call(channel, method, request=None, **options):
    """One unary call; a request may be raw bytes."""
    raw = request if isinstance(request, bytes) else request.SerializeToString() if request else b""
    stub = channel.unary_unary(PREFIX + method, response_deserializer=REPLIES[method].FromString)
    return stub(raw, timeout=20, **options)


def opening(**fields):
    return pb.OpenSessionRequest(secret=b"sixteen bytes, or more", **fields)


def closing(**fields):
    return pb.CloseSessionRequest(secret=b"sixteen bytes, or more", **fields)


def keep_alive(channel):
    return channel.stream_stream(
        PREFIX + "KeepAlive", response_deserializer=pb.RenewReply.FromString
    )


def refusal(error):
    """Code, reason and retry delay of a rich error."""
    info = read_error_info(error.value.trailing_metadata())
    assert info is not None, error.value
    return error.value.code(), info.reason, info.retry_after_s


@pytest.fixture
def authority(storage, clock):
    return LeaseAuthority(storage, term_s=60.0, clock=clock, wall_clock=clock)


class AioServer:
    """A grpc.aio server on a loop of its own, so that one test serves both kinds."""

    def __init__(self, authority, credentials=None, **options):
        self._loop = asyncio.new_event_loop()
        self._pool = ThreadPoolExecutor(1)
        self._running = self._pool.submit(self._loop.run_forever)
        self.port = self._run(self._start(authority, credentials, options))

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    async def _start(self, authority, credentials, options):
        self._server = grpc.aio.server()
        if (also := options.pop("also", None)) is not None:
            self._server.add_insecure_port(also)
        add_lease_service(self._server, authority, deduplicated=["*"], **options)
        port = bind(self._server, credentials)
        await self._server.start()
        return port

    def stop(self):
        self._run(self._server.stop(None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._running.result(20)
        self._pool.shutdown()
        self._loop.close()


class SyncServer:
    """A grpc.server with four threads."""

    def __init__(self, authority, credentials=None, **options):
        self._server = grpc.server(ThreadPoolExecutor(4))
        if (also := options.pop("also", None)) is not None:
            self._server.add_insecure_port(also)
        add_lease_service(self._server, authority, deduplicated=["*"], **options)
        self.port = bind(self._server, credentials)
        self._server.start()

    def stop(self):
        self._server.stop(None).wait(20)


def bind(server, credentials):
    if credentials is None:
        return server.add_insecure_port("127.0.0.1:0")
    return server.add_secure_port("127.0.0.1:0", credentials)


@pytest.fixture(params=[SyncServer, AioServer], ids=["sync", "aio"])
def serve(request):
    """Starts servers of each kind; stops them after the test."""
    started = []

    def start(authority, credentials=None, **options):
        started.append(request.param(authority, credentials, **options))
        return f"127.0.0.1:{started[-1].port}"

    start.kind = request.param
    yield start
    for server in started:
        server.stop()


@pytest.fixture
def channel(serve, authority):
    with grpc.insecure_channel(serve(authority)) as channel:
        yield channel


@pytest.fixture
def aio_channel(authority):
    server = AioServer(authority)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel
    server.stop()


def test_a_grant_says_what_the_client_needs(serve, authority):
    """Grants carry id, token, term, patterns, window and the form of heartbeat (§5)."""
    target = serve(authority, not_deduplicated=["/a.B/C"], window=77)
    with grpc.insecure_channel(target) as channel:
        grant = call(channel, "Grant")
    assert grant.client_id > 0
    authority.check(grant.client_id, grant.token)
    assert (grant.term_ms, grant.window) == (60_000, 77)
    assert (list(grant.deduplicated), list(grant.not_deduplicated)) == (["*"], ["/a.B/C"])
    unary = serve.kind is SyncServer
    assert grant.heartbeat == (pb.HEARTBEAT_UNARY if unary else pb.HEARTBEAT_STREAM)


def test_one_address_does_not_take_all_leases(serve, storage, clock, tmp_path):
    """The refusal names the address and the option; who comes from elsewhere has a lease (§9)."""
    there = f"unix:{tmp_path / 's'}"
    authority = LeaseAuthority(storage, clock=clock, max_clients_per_caller=2)
    target = serve(authority, also=there)
    with grpc.insecure_channel(target) as one, grpc.insecure_channel(target) as two:
        call(one, "Grant")
        held = call(two, "Grant")
        for channel in (one, two):
            with pytest.raises(grpc.RpcError) as error:
                call(channel, "Grant")
            assert refusal(error) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY", 5.0)
            assert "127.0.0.1 holds as many leases as one caller may (2, " in error.value.details()
            assert "max_clients_per_caller" in error.value.details()
        with grpc.insecure_channel(there) as elsewhere:
            call(elsewhere, "Grant")
        call(two, "Release", pb.ReleaseRequest(client_id=held.client_id, token=held.token))
        call(one, "Grant")


def test_renew_and_release(channel, authority, clock):
    """The unary heartbeat renews; a release ends; both are LEASE_EXPIRED after (§3, §5)."""
    grant = call(channel, "Grant")
    mine = pb.RenewRequest(client_id=grant.client_id, token=grant.token)
    clock.advance(50)
    reply = call(channel, "Renew", mine)
    assert (reply.client_id, reply.term_ms, reply.token, reply.refused) == (
        grant.client_id, 60_000, b"", "",
    )  # fmt: skip
    clock.advance(50)
    assert authority.alive(grant.client_id)
    call(channel, "Release", pb.ReleaseRequest(client_id=grant.client_id, token=grant.token))
    with pytest.raises(grpc.RpcError) as error:
        call(channel, "Renew", mine)
    assert refusal(error) == (grpc.StatusCode.FAILED_PRECONDITION, "LEASE_EXPIRED", None)


def test_sessions_over_the_wire(channel, authority):
    """Open, join, renew, close, close again, and refusals by the table (§3, §5)."""
    opened = call(channel, "OpenSession", opening(name="job", retention_ms=5000))
    joined = call(channel, "OpenSession", opening(name="job"))
    assert opened.created
    assert not joined.created
    assert opened.client_id == joined.client_id
    assert opened.retention_ms == 5000
    mine = pb.RenewRequest(client_id=opened.client_id, token=opened.token)
    call(channel, "Renew", mine)
    call(channel, "CloseSession", closing(name="job"))
    call(channel, "CloseSession", closing(name="job"))
    for method, request in (
        ("OpenSession", opening(name="job")),
        ("CloseSession", closing(name="other")),
        ("Renew", mine),
    ):
        with pytest.raises(grpc.RpcError) as error:
            call(channel, method, request)
        assert refusal(error) == (grpc.StatusCode.FAILED_PRECONDITION, "SESSION_CLOSED", None)
    with pytest.raises(grpc.RpcError) as error:
        call(channel, "OpenSession", opening(name="x" * 257))
    assert refusal(error)[1] == "BAD_HEADER"
    huge = opening(name="huge", retention_ms=2**64 - 1)
    assert call(channel, "OpenSession", huge).retention_ms == 30 * 86_400_000


def test_wrong_tokens_and_garbage(channel, authority):
    """Wrong tokens are NOT_YOURS, garbage BAD_HEADER, and nothing changes (§3)."""
    grant = call(channel, "Grant")
    stranger = call(channel, "Grant")
    wrong = pb.RenewRequest(client_id=grant.client_id, token=stranger.token)
    for method in ("Renew", "Release"):
        with pytest.raises(grpc.RpcError) as error:
            call(channel, method, wrong)
        assert refusal(error) == (grpc.StatusCode.PERMISSION_DENIED, "NOT_YOURS", None)
    for method in REPLIES:
        with pytest.raises(grpc.RpcError) as error:
            call(channel, method, b"\xff\xff\xff")
        assert refusal(error) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_HEADER", None)
    assert authority.expire() == []


@pytest.mark.parametrize("kind", [SyncServer, AioServer])
def test_an_unreachable_storage_over_the_wire(kind, open_storage, clock):
    """A storage that is down is UNAVAILABLE with RetryInfo; heartbeats go on (§3)."""
    storage = open_storage()
    server = kind(LeaseAuthority(storage, id_block=1, clock=clock))
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        grant = call(channel, "Grant")
        storage.fail = True
        for method, request in (("Grant", None), ("OpenSession", opening(name="a"))):
            with pytest.raises(grpc.RpcError) as error:
                call(channel, method, request)
            assert refusal(error) == (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE", 1.0)
        call(channel, "Renew", pb.RenewRequest(client_id=grant.client_id, token=grant.token))
    server.stop()


def test_a_slow_disk_does_not_stall_the_event_loop(open_storage, clock):
    """On aio a grant waiting for the disk leaves heartbeats going (§4)."""
    storage = open_storage()
    server = AioServer(LeaseAuthority(storage, id_block=1, clock=clock))
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        grant = call(channel, "Grant")
        storage.gate.clear()
        storage.reserving.clear()
        stub = channel.unary_unary(PREFIX + "Grant", response_deserializer=pb.GrantReply.FromString)
        waiting = stub.future(b"", timeout=20)
        assert storage.reserving.wait(60)
        call(channel, "Renew", pb.RenewRequest(client_id=grant.client_id, token=grant.token))
        assert not waiting.done()
        storage.gate.set()
        assert waiting.result().client_id > grant.client_id
    server.stop()


def test_keep_alive_is_unimplemented_on_a_sync_server(authority):
    """A grpc.server takes no heartbeat streams: each would hold a thread (§5)."""
    server = SyncServer(authority)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        with pytest.raises(grpc.RpcError) as error:
            next(keep_alive(channel)(iter([b""]), timeout=20))
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    server.stop()


def renewals(first, *also):
    """One request that renews the leases of several grants."""
    request = pb.RenewRequest(client_id=first.client_id, token=first.token)
    request.also.extend(
        pb.RenewRequest(client_id=each.client_id, token=each.token, store=each.store)
        for each in also
    )
    return request


def test_one_request_renews_many_each_with_its_own_verdict(channel, authority, clock):
    """One that is over, another's, or another store's takes no other with it (§3, §5)."""
    grants = [call(channel, "Grant") for _ in range(6)]
    first, fine, over, crossed, elsewhere, last = grants
    authority.release(over.client_id, over.token)
    crossed.token = fine.token
    elsewhere.store ^= 1
    clock.advance(50)
    reply = call(channel, "Renew", renewals(*grants))
    foreign = reply.also[3].refused
    assert foreign in ("LEASE_EXPIRED", "STORE_MISMATCH")
    assert [each.refused for each in (reply, *reply.also)] == [
        "", "", "LEASE_EXPIRED", "NOT_YOURS", foreign, "",
    ]  # fmt: skip
    assert [each.client_id for each in (reply, *reply.also)] == [each.client_id for each in grants]
    clock.advance(50)
    alive = [authority.alive(each.client_id) for each in grants]
    assert alive == [True, True, False, False, False, True]
    # The first one's verdict, too, is in the answer: else nothing were known of the others.
    reply = call(channel, "Renew", renewals(over, first, last))
    assert [each.refused for each in (reply, *reply.also)] == ["LEASE_EXPIRED", "", ""]
    assert reply.also[0].term_ms == 60_000


def test_a_peers_lease_is_not_renewed_by_who_is_not_that_peer(channel, authority, clock):
    """All leases of a request are judged for the peer that it came from (§3, §5)."""
    mine = call(channel, "Grant")
    theirs = authority.grant(b"another peer")
    clock.advance(50)
    bound = pb.RenewRequest(client_id=theirs.client_id, token=theirs.token)
    reply = call(channel, "Renew", renewals(mine, bound, mine))
    assert [each.refused for each in (reply, *reply.also)] == ["", "NOT_YOURS", ""]
    clock.advance(50)
    assert [authority.alive(each.client_id) for each in (mine, theirs)] == [True, False]


def test_one_request_renews_no_more_than_was_said(channel, authority, clock):
    """What is beyond the bound is neither looked at nor answered (§9)."""
    grants = [call(channel, "Grant") for _ in range(2)]
    clock.advance(50)
    request = renewals(grants[0], *[grants[0]] * 256, grants[1], grants[1])
    request.also[0].also.append(renewals(grants[1]))
    reply = call(channel, "Renew", request)
    assert len(reply.also) == 256
    assert not any(each.also for each in reply.also)
    clock.advance(50)
    assert [authority.alive(each.client_id) for each in grants] == [True, False]


def test_garbage_beside_a_renewal_is_refused_alone(channel, authority, clock):
    """Ids, tokens and stores of any kind get a verdict each, and change nothing (§3, §9)."""
    grant = call(channel, "Grant")
    clock.advance(50)
    garbage = [
        pb.RenewRequest(),
        pb.RenewRequest(client_id=2**64 - 1, token=b"x" * 20, store=2**64 - 1),
        pb.RenewRequest(client_id=grant.client_id, token=b"x" * 10_000),
    ]
    reply = call(channel, "Renew", renewals(grant, *garbage, grant))
    assert [bool(each.refused) for each in (reply, *reply.also)] == [
        False, True, True, True, False,
    ]  # fmt: skip
    assert authority.expire() == []


@pytest.mark.parametrize(
    "told",
    [
        {"first_incomplete": 2**63},
        {"first_incomplete": 2, "completed": [1]},
        {"first_incomplete": 2, "completed": [0, 1]},
        {"first_incomplete": 2**63 - 1, "completed": [1, 1]},
        {"completed": [1, 1] * 65},
    ],
)
def test_what_acknowledges_no_calls_is_refused_alone(channel, authority, clock, told):
    """As a header that says it: the lease is not renewed; those beside it are (§4, §5)."""
    grants = [call(channel, "Grant") for _ in range(2)]
    clock.advance(50)
    wrong = pb.RenewRequest(client_id=grants[0].client_id, token=grants[0].token, **told)
    with pytest.raises(grpc.RpcError) as error:
        call(channel, "Renew", wrong)
    assert refusal(error)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_HEADER")
    beside = renewals(grants[1])
    beside.also.append(wrong)
    reply = call(channel, "Renew", beside)
    assert [each.refused for each in (reply, *reply.also)] == ["", "BAD_HEADER"]
    clock.advance(50)
    assert [authority.alive(each.client_id) for each in grants] == [False, True]


def test_a_stream_renews_many_at_once(aio_channel, authority, clock):
    """A message of KeepAlive may renew several leases; their refusals count (§5, §9)."""
    first, second, stranger = (call(aio_channel, "Grant") for _ in range(3))
    stranger.token = second.token
    clock.advance(50)
    sent = [renewals(stranger, second).SerializeToString()] * 100
    stream = keep_alive(aio_channel)(iter(sent), timeout=20)
    seen = []
    with pytest.raises(grpc.RpcError) as error:
        seen.extend(
            (reply.refused, [each.refused for each in reply.also])
            for reply in (next(stream) for _ in range(100))
        )
    # It began with a good one among the refused: so it went on, as far as streams do.
    assert refusal(error) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY", 5.0)
    clock.advance(50)
    assert authority.alive(second.client_id)
    assert not authority.alive(first.client_id)


def test_every_renewal_of_a_stream_is_answered_in_order(aio_channel, authority, clock):
    """KeepAlive answers each renewal, good or refused, and goes on after a refusal (§5)."""
    grants = [call(aio_channel, "Grant") for _ in range(2)]
    first, second = (pb.RenewRequest(client_id=g.client_id, token=g.token) for g in grants)
    crossed = pb.RenewRequest(client_id=first.client_id, token=second.token)
    clock.advance(40)
    sent = [
        first.SerializeToString(),
        crossed.SerializeToString(),
        b"\xff",
        b"",
        first.SerializeToString(),
    ]
    replies = list(keep_alive(aio_channel)(iter(sent), timeout=20))
    refused = [reply.refused for reply in replies]
    assert refused == ["", "NOT_YOURS", "BAD_HEADER", "NOT_YOURS", ""]
    assert [reply.client_id for reply in replies] == [
        first.client_id, first.client_id, 0, 0, first.client_id,
    ]  # fmt: skip
    assert replies[0].term_ms == 60_000
    clock.advance(40)
    assert authority.alive(first.client_id)
    assert not authority.alive(second.client_id)
    replies = list(keep_alive(aio_channel)(iter([second.SerializeToString()]), timeout=20))
    assert [reply.refused for reply in replies] == ["LEASE_EXPIRED"]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize(
    ("refused", "again_s", "info"),
    [
        (NotLeader("another one leads", "10.0.0.9:1"), 0.05, {"leader": "10.0.0.9:1"}),
        (StorageUnavailable("gone"), 1.0, {}),
    ],
)
def test_a_stream_ends_with_the_status_of_a_server_that_cannot_judge(
    aio_channel, authority, monkeypatch, refused, again_s, info, opened
):
    """It says nothing of the lease, and who leads where that is known; the next one renews (§5)."""
    grant = call(aio_channel, "Grant")
    mine = pb.RenewRequest(client_id=grant.client_id, token=grant.token).SerializeToString()

    def renewals():
        if opened:
            yield mine
            assert first.wait(20)
        monkeypatch.setattr(authority, "heartbeat", refusing)
        yield mine

    def refusing(*_):
        raise refused

    first = threading.Event()
    stream = keep_alive(aio_channel)(renewals(), timeout=20)
    if opened:
        assert next(stream).refused == ""
        first.set()
    with pytest.raises(grpc.RpcError) as error:
        next(stream)
    assert refusal(error) == (
        grpc.StatusCode.UNAVAILABLE, refused.reason, again_s,
    )  # fmt: skip
    assert dict(read_error_info(error.value.trailing_metadata()).metadata) == info
    monkeypatch.undo()
    assert next(keep_alive(aio_channel)(iter([mine]), timeout=20)).refused == ""


def test_a_stream_of_refusals_ends(aio_channel):
    """After 64 refusals a stream ends with TOO_MANY; the answers before it arrive (§9)."""
    grant = call(aio_channel, "Grant")
    mine = pb.RenewRequest(client_id=grant.client_id, token=grant.token).SerializeToString()
    stream = keep_alive(aio_channel)(iter([mine] + [b"\xff"] * 100), timeout=20)
    seen = []
    with pytest.raises(grpc.RpcError) as error:
        seen.extend(reply.refused for reply in stream)
    assert refusal(error) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY", 5.0)


def test_a_stream_is_for_who_shows_a_token_first(aio_channel, monkeypatch):
    """A stream that begins with none, or with a bad one, ends: it costs nobody a place (§9)."""
    refused = list(keep_alive(aio_channel)(iter([b"\xff"] * 100), timeout=20))
    assert [reply.refused for reply in refused] == ["BAD_HEADER"]
    monkeypatch.setattr(service, "_FIRST_RENEWAL_S", 0.1)
    silent = iter_until_stopped()
    with pytest.raises(grpc.RpcError) as error:
        next(keep_alive(aio_channel)(silent, timeout=20))
    assert refusal(error) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY", 5.0)
    silent.close()


def test_streams_of_one_address_leave_room_for_others(authority, tmp_path):
    """Who has no name is counted by address; another address has its own places (§9)."""
    server = AioServer(authority, max_streams_per_peer=1, also=f"unix:{tmp_path / 's'}")
    targets = (f"127.0.0.1:{server.port}", f"unix:{tmp_path / 's'}")
    with grpc.insecure_channel(targets[0]) as here, grpc.insecure_channel(targets[1]) as there:
        grant = call(here, "Grant")
        mine = pb.RenewRequest(client_id=grant.client_id, token=grant.token).SerializeToString()
        sends = [iter_until_stopped(mine) for _ in range(3)]
        first = keep_alive(here)(sends[0], timeout=20)
        assert next(first).refused == ""
        with pytest.raises(grpc.RpcError) as error:
            next(keep_alive(here)(sends[1], timeout=20))
        assert refusal(error)[1] == "TOO_MANY"
        assert next(keep_alive(there)(sends[2], timeout=20)).refused == ""
        first.cancel()
        for send in sends:
            send.close()
    server.stop()


def test_sessions_of_one_address_leave_room_for_others(serve, storage, clock, tmp_path):
    """Who has no name is counted by address; another address opens its own (§5, §9)."""
    policy = SessionPolicy(max_open_per_peer=4)
    authority = LeaseAuthority(storage, clock=clock, wall_clock=clock, session_policy=policy)
    there = f"unix:{tmp_path / 's'}"
    targets = (serve(authority, also=there, sessions_from="anyone"), there)
    with grpc.insecure_channel(targets[0]) as here, grpc.insecure_channel(targets[1]) as there:
        assert call(here, "OpenSession", opening(name="a")).created
        for request in (opening(name="b"), pb.OpenSessionRequest(name="c")):
            with pytest.raises(grpc.RpcError) as error:
                call(here, "OpenSession", request)
            assert refusal(error)[1] == "TOO_MANY"
        assert not call(here, "OpenSession", opening(name="a")).created
        assert call(there, "OpenSession", opening(name="d")).created


@pytest.mark.parametrize(
    ("peer", "source"),
    [
        ("ipv4:10.0.0.7:4711", "10.0.0.7"),
        ("ipv6:%5B2001:db8::1%5D:4711", "2001:db8::/64"),
        ("ipv6:[2001:db8::2]:4711", "2001:db8::/64"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:4711", "10.0.0.7"),
        ("unix:", "unix:"),
        ("ipv4:nonsense", "ipv4:nonsense"),
    ],
)
def test_a_source_is_an_address_without_its_port(peer, source):
    """Of IPv6 the network of one subscriber, who has all its addresses (§9)."""
    assert source_of(peer) == source


def test_streams_are_bounded_and_freed(authority):
    """Streams beyond the bound are refused; a cancelled one makes room (§9)."""
    server = AioServer(authority, max_streams=1)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        grant = call(channel, "Grant")
        mine = pb.RenewRequest(client_id=grant.client_id, token=grant.token).SerializeToString()

        def open_stream():
            send = iter_until_stopped(mine)
            stream = keep_alive(channel)(send, timeout=20)
            return stream, send

        first, stop_first = open_stream()
        assert next(first).refused == ""
        second, stop_second = open_stream()
        with pytest.raises(grpc.RpcError) as error:
            next(second)
        assert refusal(error)[1] == "TOO_MANY"
        stop_second.close()
        first.cancel()
        stop_first.close()
        for _ in range(1000):
            again, stop_again = open_stream()
            try:
                assert next(again).refused == ""
                break
            except grpc.RpcError:
                continue
            finally:
                again.cancel()
                stop_again.close()
        else:
            pytest.fail("a cancelled stream never made room")
    server.stop()


class iter_until_stopped:  # noqa: N801 - reads as the function it stands for
    """One message, then an open stream until closed."""

    def __init__(self, *messages):
        import threading

        self._messages = list(messages)
        self._closed = threading.Event()

    def __iter__(self):
        return self

    def __next__(self):
        if self._messages:
            return self._messages.pop()
        self._closed.wait(20)
        raise StopIteration

    def close(self):
        self._closed.set()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(messages=st.lists(st.binary(max_size=60), max_size=70))
def test_a_stream_of_garbage_harms_nobody(messages, aio_channel, authority):
    """Any garbage on a stream leaves the server alive and others' leases running (§3, §9)."""
    grant = call(aio_channel, "Grant")
    sessions_before, clients_before = len(authority._book), len(authority)
    try:
        for reply in keep_alive(aio_channel)(iter(messages), timeout=20):
            assert reply.refused in ("BAD_HEADER", "NOT_YOURS", "LEASE_EXPIRED")
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # noqa: PT017 - may not raise
        assert len(messages) >= 64
    mine = pb.RenewRequest(client_id=grant.client_id, token=grant.token)
    assert call(aio_channel, "Renew", mine).client_id == grant.client_id
    assert (len(authority._book), len(authority)) == (sessions_before, clients_before)


def test_two_hundred_clients_on_four_threads(authority, clock):
    """200 clients renew through a grpc.server with 4 threads, nobody starves (§5)."""
    server = SyncServer(authority)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        grants = [call(channel, "Grant") for _ in range(200)]
        stub = channel.unary_unary(PREFIX + "Renew", response_deserializer=pb.RenewReply.FromString)
        for _ in range(3):
            clock.advance(40)
            waiting = [
                stub.future(
                    pb.RenewRequest(client_id=g.client_id, token=g.token).SerializeToString(),
                    timeout=30,
                )
                for g in grants
            ]
            assert [reply.result().client_id for reply in waiting] == [g.client_id for g in grants]
        assert authority.expire() == []
        clock.advance(60)
        assert len(authority.expire()) == 200
    server.stop()


def test_two_hundred_streams(aio_channel, authority, clock):
    """200 heartbeat streams live on one event loop beside unary calls (§5)."""
    grants = [call(aio_channel, "Grant") for _ in range(200)]
    clock.advance(40)

    async def beat():
        target = aio_channel._channel.target().decode()
        async with grpc.aio.insecure_channel(target) as channel:
            streams = []
            for grant in grants:
                stream = keep_alive(channel)()
                await stream.write(
                    pb.RenewRequest(
                        client_id=grant.client_id, token=grant.token
                    ).SerializeToString()
                )
                streams.append(stream)
            replies = [await stream.read() for stream in streams]
            call_ = channel.unary_unary(PREFIX + "Grant")
            assert await call_(b"", timeout=20)
            for stream in streams:
                stream.cancel()
            return replies

    replies = asyncio.run(beat())
    assert [reply.client_id for reply in replies] == [grant.client_id for grant in grants]
    clock.advance(40)
    assert authority.expire() == []


def test_only_grpc_servers_and_good_patterns(authority):
    """Wrong servers, patterns and windows are refused when the service is added (§9)."""
    server = grpc.server(ThreadPoolExecutor(1))
    with pytest.raises(TypeError):
        add_lease_service(object(), authority, deduplicated=["*"])
    for pattern in ("", "a.B/C", "/a.B", "/", "//x", "**"):
        with pytest.raises(ValueError, match="pattern"):
            add_lease_service(server, authority, deduplicated=[pattern])
    with pytest.raises(ValueError, match="window"):
        add_lease_service(server, authority, deduplicated=["/a.B/*"], window=0)


@pytest.fixture(scope="module")
def authorities():
    return trustme.CA()


def server_credentials(ca):
    cert = ca.issue_cert("127.0.0.1", "localhost")
    pair = (cert.private_key_pem.bytes(), b"".join(p.bytes() for p in cert.cert_chain_pems))
    return grpc.ssl_server_credentials([pair], ca.cert_pem.bytes(), require_client_auth=True)


def client_channel(ca, target, *names, common_name=None):
    cert = ca.issue_cert(*names, common_name=common_name)
    credentials = grpc.ssl_channel_credentials(
        ca.cert_pem.bytes(),
        cert.private_key_pem.bytes(),
        b"".join(p.bytes() for p in cert.cert_chain_pems),
    )
    return grpc.secure_channel(target, credentials)


def test_ids_and_names_are_bound_to_the_peer(serve, authorities):
    """On mTLS another peer's id is NOT_YOURS and its session names are its own (§3, §5)."""
    authority = LeaseAuthority(MemoryLeaseStorage())
    target = serve(authority, server_credentials(authorities))
    with (
        client_channel(authorities, target, "alice.example") as alice,
        client_channel(authorities, target, "alice.example") as alice_again,
        client_channel(authorities, target, "mallory.example") as mallory,
    ):
        grant = call(alice, "Grant")
        mine = pb.RenewRequest(client_id=grant.client_id, token=grant.token)
        call(alice_again, "Renew", mine)
        with pytest.raises(grpc.RpcError) as error:
            call(mallory, "Renew", mine)
        assert refusal(error)[:2] == (grpc.StatusCode.PERMISSION_DENIED, "NOT_YOURS")
        job = pb.OpenSessionRequest(name="job")
        opened = call(alice, "OpenSession", job)
        assert call(alice_again, "OpenSession", job).client_id == opened.client_id
        assert call(mallory, "OpenSession", job).client_id != opened.client_id
        call(mallory, "CloseSession", pb.CloseSessionRequest(name="job"))
        assert call(alice, "OpenSession", job).client_id == opened.client_id
        if serve.kind is AioServer:
            replies = keep_alive(mallory)(iter([mine.SerializeToString()]), timeout=20)
            assert [reply.refused for reply in replies] == ["NOT_YOURS"]


def test_a_named_property_survives_other_names(serve, authorities):
    """Bound by common name, certificates may change their other names; none is NOT_YOURS (§3)."""
    authority = LeaseAuthority(MemoryLeaseStorage())
    target = serve(authority, server_credentials(authorities), peer_property="x509_common_name")
    with (
        client_channel(authorities, target, "a1.example", common_name="alice") as before,
        client_channel(authorities, target, "a2.example", common_name="alice") as after,
        client_channel(authorities, target, "a2.example") as nameless,
    ):
        grant = call(before, "Grant")
        mine = pb.RenewRequest(client_id=grant.client_id, token=grant.token)
        call(after, "Renew", mine)
        for method in REPLIES:
            with pytest.raises(grpc.RpcError) as error:
                call(nameless, method, mine if method == "Renew" else None)
            assert refusal(error)[1] == "NOT_YOURS"
