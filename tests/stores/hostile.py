"""Hostile callers, against servers over a shared store (DESIGN §3, §9)."""

from __future__ import annotations

from contextlib import ExitStack, closing

import pytest

import rifl
from lease_server._sessions import SessionPolicy
from rifl._stores.opening import open_inspection
from tests.helpers.raw import RawClient, header
from tests.helpers.servers import generic, serve
from tests.server.test_bad_input import bad_headers

__all__ = ["Hostile"]

_METHOD = "/test.Echo/Echo"
_WINDOW = 8
_BAD = ("INVALID_ARGUMENT", "BAD_HEADER", "not-executed")
_NOT_YOURS = ("PERMISSION_DENIED", "NOT_YOURS", "not-executed")
_EXPIRED = ("FAILED_PRECONDITION", "LEASE_EXPIRED", "unknown")
_FULL = ("RESOURCE_EXHAUSTED", "WINDOW_EXCEEDED", "not-executed")
_SESSIONS = 12


class Served:
    """A server, what ran on it, and a bystander who is to notice nothing."""

    def __init__(self, kind, url, stack):
        self.url = url
        self.runs = []
        self.dedup = stack.enter_context(
            rifl.Deduplicator(
                url,
                bounds=rifl.Bounds(window=_WINDOW, max_keys=_WINDOW),
                keys_from="authenticated",
            )
        )

        def run(request, context):
            self.runs.append(request)
            return request

        async def run_aio(request, context):
            return run(request, context)

        handlers = [generic("test.Echo", {"Echo": run_aio if kind == "aio" else run})]
        server = stack.enter_context(serve(kind, handlers, dedup=self.dedup))
        if server.loop is not None:
            # The loop's connections are closed on the loop.
            stack.callback(lambda: server.loop.run(self.dedup.aclose()))
        self.address = server.address
        self.client = stack.enter_context(RawClient(self.address))
        self.bystander = stack.enter_context(RawClient(self.address))
        self.seq = 0
        self.serves()

    def serves(self):
        """Somebody else's call is what it always is."""
        self.seq += 1
        assert self.bystander.call(_METHOD, b"fine", self.seq, first=self.seq).ok

    def kept(self):
        """Count clients, calls and sessions in the store itself."""
        with closing(open_inspection(self.url)) as store:
            found = store.summary()
        return found.clients, found.intents, found.records, found.open_sessions


class Hostile:
    """Over a store of any kind."""

    @pytest.fixture(params=["sync", "aio"])
    def served(self, request, url):
        """The server under test, in whose time a busy machine answers claims."""
        with ExitStack() as stack:
            yield Served(request.param, url.replace("dead_after_s=0.6", "dead_after_s=60"), stack)

    def test_what_is_refused_runs_nothing_and_leaves_nothing(self, served):
        """Malformed, oversized, forged, unauthenticated: typed, and no state (§3, §4.1)."""
        client, before = served.client, served.kept()
        ran = len(served.runs)
        for name, raw in bad_headers(client):
            assert client.call(_METHOD, b"x", raw=raw).refusal == _BAD, name
        reply = client.call(_METHOD, b"x", key=b"k" * (6 << 10))
        assert reply.refusal == _BAD or reply.code.name == "RESOURCE_EXHAUSTED"
        for size in (256, 3000, 6 << 10):
            entry = (("idempotency-key", "k" * size),)
            reply = client.call(_METHOD, b"x", bare=True, metadata=entry)
            assert reply.refusal == _BAD or reply.code.name == "RESOURCE_EXHAUSTED"
        entry = (("idempotency-key", "an-order"),)
        assert client.call(_METHOD, b"x", bare=True, metadata=entry).refusal == _NOT_YOURS
        for token in (b"", b"x" * 20, served.bystander.token):
            assert client.call(_METHOD, b"x", 1, token=token).refusal == _NOT_YOURS
        ids = served.dedup._store.leases.reserve_ids(1)
        stranger = header(ids[0], served.dedup._authority._signer.token(ids[0], b""), 1)
        assert client.call(_METHOD, b"x", raw=stranger).refusal == _EXPIRED
        assert len(served.runs) == ran
        assert served.kept() == before
        served.serves()

    def test_a_client_that_never_acknowledges_is_bounded(self, served):
        """By seqs and by keys: refused beyond, what is known still answered (§3, §4)."""
        client = served.client
        for seq in range(1, _WINDOW + 1):
            assert client.call(_METHOD, b"s", seq).ok
        with RawClient(served.address) as other:
            for number in range(_WINDOW):
                assert other.call(_METHOD, b"k", key=b"%d" % number).ok
            for number in range(_WINDOW, 3 * _WINDOW):
                assert client.call(_METHOD, b"s", number + 1).refusal == _FULL
                assert other.call(_METHOD, b"k", key=b"%d" % number).refusal == _FULL
            assert other.call(_METHOD, b"k", key=b"0", attempt=2).outcome == "replayed"
        assert client.call(_METHOD, b"s", 1, attempt=2).outcome == "replayed"
        assert served.kept()[2] == 2 * _WINDOW + 1
        served.serves()

    def test_one_that_opens_sessions_without_end_is_bounded(self, served):
        """Refused beyond the bound; the others' clients are served, and closing makes room (§5)."""
        served.dedup._authority._policy = SessionPolicy(max_open_per_peer=4 * _SESSIONS)
        with RawClient(served.address, grant=False) as greedy:
            for number in range(_SESSIONS):
                greedy.open_session(f"s{number}")
            for number in range(_SESSIONS, 3 * _SESSIONS):
                refused = greedy.try_session(f"s{number}")
                assert (refused.code.name, refused.response) == ("RESOURCE_EXHAUSTED", None)
            assert served.kept()[3] == _SESSIONS
            assert greedy.close_session("s0").ok
            greedy.open_session("another")
        assert served.kept()[3] == _SESSIONS
        served.serves()
