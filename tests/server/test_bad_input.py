"""Bad input at real servers: the table of DESIGN §3, and nothing left behind."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rifl
from tests.helpers.raw import RawClient, header, read
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import until

_METHOD = "/test.Echo/Echo"
_BAD = ("INVALID_ARGUMENT", "BAD_HEADER", "not-executed")
_NOT_YOURS = ("PERMISSION_DENIED", "NOT_YOURS", "not-executed")
_EXPIRED = ("FAILED_PRECONDITION", "LEASE_EXPIRED", "unknown")
_WINDOW = 8


class Clock:
    """Seconds that pass when told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Echo:
    """A server that counts what it runs, with a client of its own, and a bystander."""

    def __init__(self, kind, url, stack):
        self.runs = []
        self.clock = Clock()
        self.dedup = rifl.Deduplicator(
            url,
            methods={"/test.Echo/Big": rifl.MethodPolicy(max_response_bytes=1000)},
            bounds=rifl.Bounds(window=_WINDOW),
            clock=self.clock,
            term_s=4.0,
        )
        stack.enter_context(self.dedup)
        if kind == "aio":

            async def echo(request, context):
                self.runs.append(request)
                return request

            async def big(request, context):
                self.runs.append(request)
                return request * 5000
        else:

            def echo(request, context):
                self.runs.append(request)
                return request

            def big(request, context):
                self.runs.append(request)
                return request * 5000

        handlers = [generic("test.Echo", {"Echo": echo, "Other": echo, "Big": big})]
        self.served = stack.enter_context(serve(kind, handlers, dedup=self.dedup))
        self.stack = stack
        self.client = self.connect()
        self.bystander = self.connect()
        self.seq = 0

    def connect(self):
        """Another client, with an id of its own."""
        return self.stack.enter_context(RawClient(self.served.address))

    @property
    def entries(self):
        """How many clients the server holds state for."""
        return len(self.dedup._store._table)

    def alive(self):
        """Another client is served as ever."""
        self.seq += 1
        payload = b"alive %d" % self.seq
        reply = self.bystander.call(_METHOD, payload, self.seq, first=self.seq)
        assert (reply.ok, reply.response) == (True, payload)


_SERVERS = [("sync", "memory:"), ("sync", "sqlite:"), ("aio", "sqlite:"), ("threads", "memory:")]


@pytest.fixture(params=_SERVERS, ids=str)
def echo(request, tmp_path):
    """The server under test."""
    import contextlib

    kind, url = request.param
    with contextlib.ExitStack() as stack:
        where = f"sqlite:///{tmp_path}/s.db" if url == "sqlite:" else url
        yield Echo(kind, where, stack)


def bad_headers(client):
    """Name what may be wrong with a header, each with one that is."""
    good = client.header(1)
    yield "empty", b""
    yield "truncated", good[:-3]
    yield "cut token", good[: len(good) // 2]
    yield "oversized", good + b"\x5a\x80\x20" + b"x" * 4096
    yield "garbage", b"\xff" * 64
    yield "text", b"not a header at all, but some words"
    yield "no client id", client.header(1, client_id=0)
    yield "no identity", client.header()
    yield "seq 0", client.header(0)
    yield "seq 2^63", client.header(2**63)
    yield "seq 2^64-1", client.header(2**64 - 1)
    yield "first beyond seq", client.header(3, first=4)
    yield "first far beyond seq", client.header(3, first=2**64 - 1)
    yield "zero gap", client.header(9, completed=(0, 1))
    yield "zero run", client.header(9, completed=(1, 0))
    yield "odd count", client.header(9, completed=(1, 1, 1))
    yield "65 pairs", client.header(999, completed=(1, 1) * 65)
    yield "covers itself", client.header(2, completed=(1, 1))
    yield "range beyond 2^63", client.header(9, completed=(1, 2**63))
    yield "ranges overflow", client.header(9, completed=(2**63, 2**63) * 2)
    yield "empty key", client.header(key=b"")
    for size in (256, 1000, 3000):
        yield f"key of {size}", client.header(key=b"k" * size)
    yield "key with acknowledgements", client.header(key=b"k", first=5)
    yield "key with ranges", client.header(key=b"k", completed=(1, 1))
    yield "long content hash", client.header(1, content_hash=b"h" * 65)


def test_every_malformed_header_is_refused(echo):
    """A malformed header is BAD_HEADER, runs nothing and leaves nothing behind (§3, §4.1)."""
    stranger = echo.connect()
    before, runs = echo.entries, len(echo.runs)
    for name, raw in bad_headers(stranger):
        reply = stranger.call(_METHOD, b"x", raw=raw)
        assert reply.refusal == _BAD, name
    assert echo.entries == before
    assert len(echo.runs) == runs
    echo.alive()


def test_a_key_of_six_kilobytes_gets_an_answer(echo):
    """A header near gRPC's own limit is refused by us or by gRPC; the server lives (§3)."""
    for size in (4000, 5000, 6 << 10):
        reply = echo.client.call(_METHOD, b"x", key=b"k" * size)
        assert reply.refusal == _BAD or reply.code.name == "RESOURCE_EXHAUSTED"
    assert echo.runs == []
    echo.alive()


def test_the_bounds_themselves_are_accepted(echo):
    """seq 2^63-1, 64 ranges and keys of 1 and 255 bytes are within the bounds (§3)."""
    assert echo.client.call(_METHOD, b"a", key=b"k").ok
    assert echo.client.call(_METHOD, b"a", key=b"k" * 255).ok
    assert echo.client.call(_METHOD, b"a", 1000, completed=(1, 1) * 64).ok
    assert echo.client.call(_METHOD, b"a", 2**63 - 1).ok
    again = echo.client.call(_METHOD, b"a", 2**63 - 1, attempt=2)
    assert (again.ok, again.outcome) == (True, "replayed")
    assert echo.client.call(_METHOD, b"a", 2**63 - 1, first=2**63 - 1).ok
    assert len(echo.runs) == 4
    echo.alive()


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\x00",
        b"\x01",
        b"x" * 19,
        b"\x00" * 20,
        b"x" * 20,
        b"x" * 21,
        b"\x01\x00" + b"\x00" * 18,
    ],
    ids=repr,
)
def test_no_token_but_the_right_one_is_let_in(echo, token):
    """A wrong token is NOT_YOURS, for new, known and resolved calls alike (§3, §4.1)."""
    victim = echo.connect()
    for known in (False, True):
        if known:
            assert victim.call(_METHOD, b"mine", 1).ok
        before = echo.entries
        for seq, payload in ((1, b"mine"), (2, b"x")):
            reply = victim.call(_METHOD, payload, seq, token=token)
            assert reply.refusal == _NOT_YOURS
            assert victim.resolve(seq, token=token).refusal == _NOT_YOURS
        assert echo.entries == before
    assert echo.runs == [b"mine"]
    echo.alive()


def test_another_clients_id_is_not_yours(echo):
    """A genuine token of another id opens nothing (§3)."""
    thief, victim = echo.connect(), echo.connect()
    assert victim.call(_METHOD, b"secret", 1).ok
    reply = thief.call(_METHOD, b"secret", 1, client_id=victim.client_id)
    assert reply.refusal == _NOT_YOURS
    assert reply.response is None
    assert echo.runs == [b"secret"]


def test_ids_never_granted_leave_nothing(echo):
    """An id nobody was given is refused, and no state is made for it (§4.5)."""
    before = echo.entries
    own = echo.client.client_id
    for client_id in (own + 100, own + 12345, 2**31, 2**63 - 1, 2**64 - 1):
        reply = echo.client.call(_METHOD, b"x", 1, client_id=client_id)
        assert reply.refusal in (_NOT_YOURS, _EXPIRED)
    assert echo.entries == before
    assert echo.runs == []


def test_an_expired_id_is_told_so(echo):
    """After its lease ended a client's new calls are LEASE_EXPIRED; no state stays (§3, §5)."""
    late = echo.connect()
    assert late.call(_METHOD, b"x", 1).ok
    echo.clock.now += 1000.0
    assert late.call(_METHOD, b"y", 2).refusal == _EXPIRED
    until(lambda: echo.entries == 0, "the expired clients' state is dropped")
    assert late.call(_METHOD, b"x", 1, attempt=2).refusal == _EXPIRED
    assert echo.runs == [b"x"]
    echo.bystander.grant()
    echo.alive()


def test_a_retry_by_grpc_itself_is_said_to_be_one(echo):
    """LEASE_EXPIRED tells when the server saw gRPC's own attempts before (§3)."""
    from rifl._grpc.status import read_error_info

    echo.clock.now += 1000.0
    reply = echo.client.call(_METHOD, b"x", 1, metadata=(("grpc-previous-rpc-attempts", "1"),))
    assert reply.refusal == _EXPIRED
    assert read_error_info(reply.trailing).metadata["previous_attempts"] == "true"


def test_another_payload_or_method_is_a_mismatch(echo):
    """The same identity with another request or method is PAYLOAD_MISMATCH (§3, §4.2)."""
    assert echo.client.call(_METHOD, b"x", 1).ok
    wrong = ("INVALID_ARGUMENT", "PAYLOAD_MISMATCH", "not-executed")
    assert echo.client.call(_METHOD, b"y", 1, attempt=2).refusal == wrong
    assert echo.client.call("/test.Echo/Other", b"x", 1, attempt=2).refusal == wrong
    assert echo.client.call(_METHOD, b"x", 1, attempt=2, content_hash=b"x").refusal == wrong
    assert echo.client.call(_METHOD, b"x", 1, attempt=2).outcome == "replayed"
    assert echo.runs == [b"x"]


def test_a_content_hash_stands_for_the_payload(echo):
    """With a content hash the bytes may differ, the hash may not (§4)."""
    assert echo.client.call(_METHOD, b"x", 1, content_hash=b"same").response == b"x"
    again = echo.client.call(_METHOD, b"reordered", 1, attempt=2, content_hash=b"same")
    assert (again.response, again.outcome) == (b"x", "replayed")


def test_an_acknowledged_call_is_stale(echo):
    """An identity that was acknowledged is STALE_RPC (§3, §4.3)."""
    stale = ("FAILED_PRECONDITION", "STALE_RPC", "unknown")
    for seq in range(1, 5):
        assert echo.client.call(_METHOD, b"x", seq).ok
    assert echo.client.call(_METHOD, b"x", 6, first=3, completed=(1, 1)).ok
    for seq, expected in ((1, stale), (2, stale), (4, stale)):
        assert echo.client.call(_METHOD, b"x", seq, attempt=2).refusal == expected
    assert echo.client.call(_METHOD, b"x", 3, attempt=2).outcome == "replayed"
    assert len(echo.runs) == 5


def test_an_answer_too_large_is_recorded_as_that(echo):
    """An answer over the limit ran; the error is what is recorded and replayed (§3)."""
    reply = echo.client.call("/test.Echo/Big", b"x", 1)
    assert reply.refusal == ("RESOURCE_EXHAUSTED", "RESPONSE_TOO_LARGE", "executed")
    again = echo.client.call("/test.Echo/Big", b"x", 1, attempt=2)
    assert again.refusal == ("RESOURCE_EXHAUSTED", "RESPONSE_TOO_LARGE", "replayed")
    assert echo.runs == [b"x"]
    reply = echo.client.call(_METHOD, b"x" * 200, 2, max_response_bytes=100)
    assert reply.refusal == ("RESOURCE_EXHAUSTED", "RESPONSE_TOO_LARGE", "executed")
    assert echo.client.call(_METHOD, b"x" * 100, 3, max_response_bytes=100).ok


def test_a_full_window_is_refused_until_acknowledged(echo):
    """Too many unacknowledged calls: WINDOW_EXCEEDED, judged after the header's own (§4.5)."""
    for seq in range(1, _WINDOW + 1):
        assert echo.client.call(_METHOD, b"x", seq).ok
    full = ("RESOURCE_EXHAUSTED", "WINDOW_EXCEEDED", "not-executed")
    assert echo.client.call(_METHOD, b"x", 99).refusal == full
    assert echo.client.call(_METHOD, b"x", 1, attempt=2).outcome == "replayed"
    echo.alive()
    assert echo.client.call(_METHOD, b"x", 99, first=2).ok
    assert echo.client.call(_METHOD, b"x", 100, first=2).refusal == full


def test_two_headers_are_no_way_around(echo):
    """Of two headers in one call one is taken, and it has to be right (§4.1)."""
    bad = echo.client.header(1, token=b"\x00")
    good = echo.client.header(1)
    reply = echo.client.call(_METHOD, b"x", raw=bad, metadata=(("rifl-bin", bad),))
    assert reply.refusal == _NOT_YOURS
    assert echo.client.call(_METHOD, b"x", raw=good, metadata=(("rifl-bin", good),)).ok


def test_garbage_from_many_at_once_bothers_nobody(echo):
    """Random headers in parallel: typed refusals, no state, others served (§3)."""
    rnd = random.Random(7)
    before = echo.entries
    raws = [rnd.randbytes(rnd.randrange(0, 300)) for _ in range(200)]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda raw: echo.client.call(_METHOD, b"x", raw=raw), raws))
    assert {reply.refusal for reply in replies} <= {_BAD, _NOT_YOURS}
    assert echo.entries == before
    assert echo.runs == []
    echo.alive()


def test_a_resolution_of_garbage_is_refused(echo):
    """The resolving service refuses malformed requests as BAD_HEADER (§3)."""
    for raw in (b"\xff\xff", b"", b"\x08\x01", b"\x18\x01"):
        reply = echo.client.call("/rifl.v1.Outcomes/Resolve", raw, bare=True)
        assert reply.refusal == _BAD
    for identity in ({"seq": 0}, {"seq": 2**64 - 1}, {"key": b""}, {"key": b"k" * 256}):
        assert echo.client.resolve(**identity).refusal == _BAD


# LEASE_EXPIRED: the id with a bit flipped is another incarnation's.
_FUZZED = {"BAD_HEADER", "NOT_YOURS", "LEASE_EXPIRED", "STALE_RPC", "WINDOW_EXCEEDED"}
_pairs = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1)), max_size=132)
_seqs = st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1))


@pytest.fixture(scope="module", params=["sync", "aio"])
def fuzzed(request):
    """One server for all examples."""
    import contextlib

    with contextlib.ExitStack() as stack:
        yield Echo(request.param, "memory:", stack)


@settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seq=_seqs, first=_seqs, pairs=_pairs, attempt=st.integers(0, 2**32 - 1))
def test_any_numbers_get_a_typed_answer(fuzzed, seq, first, pairs, attempt):
    """Whatever the numbers of a header, the answer is one of the table's (§3)."""
    client = fuzzed.client
    reply = client.call(_METHOD, b"x", seq, first=first, completed=tuple(pairs), attempt=attempt)
    assert reply.ok or reply.reason in ("BAD_HEADER", "STALE_RPC", "WINDOW_EXCEEDED")
    if reply.reason == "WINDOW_EXCEEDED":
        client.grant()
    fuzzed.alive()


@settings(max_examples=150, deadline=None, database=None)
@given(raw=st.binary(max_size=200), cut=st.integers(0, 60), flip=st.integers(0, 400))
def test_any_bytes_get_a_typed_answer(fuzzed, raw, cut, flip):
    """Random bytes, and good headers cut or with a bit flipped, never pass or crash (§3)."""
    good = bytearray(header(fuzzed.client.client_id, fuzzed.client.token, 1))
    good[flip // 8 % len(good)] ^= 1 << flip % 8
    runs = len(fuzzed.runs)
    calls = [
        fuzzed.client.future(_METHOD, b"x", raw=bytes(value))
        for value in (raw, bytes(good[:cut]), bytes(good))
    ]
    for call in calls:
        reply = read(call)
        assert reply.ok or reply.reason in _FUZZED
        assert reply.ok or reply.outcome
    assert len(fuzzed.runs) - runs <= 1
