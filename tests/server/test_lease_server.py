"""Servers with stores of their own and one lease server between them (DESIGN §5)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import rifl
from lease_server import LeaseAuthority, MemoryLeaseStorage, add_lease_service
from lease_server.checks import Checks
from rifl import Deduplicator
from rifl.envelope import encode_batch
from rifl.stores import StoreUnreachable, UnsupportedStore
from rifl.v1 import rifl_pb2
from tests.helpers.processes import Process, started
from tests.helpers.raw import RawClient, Reply, header
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import until

METHOD = "/test.Service/Do"
KINDS = ("sync", "aio")


class Service:
    """One server with a store of its own; what ran is in ``effects``."""

    def __init__(self, kind: str, url: str, lease_server: str, **options: Any) -> None:
        self.effects: list[bytes] = []
        self.dedup = Deduplicator(url, lease_server=lease_server, **options)
        self._stack = contextlib.ExitStack()
        self._stack.callback(self.dedup.close)
        handler: Callable[..., Any] = self._aio_effect if kind == "aio" else self._effect
        served = serve(kind, [generic("test.Service", {"Do": handler})], dedup=self.dedup)
        self.address = self._stack.enter_context(served).address
        self._client = self._stack.enter_context(RawClient(self.address, grant=False))

    def _effect(self, request: bytes, context: Any) -> bytes:
        self.effects.append(request)
        return b"did " + request

    async def _aio_effect(self, request: bytes, context: Any) -> bytes:
        return self._effect(request, context)

    def call(self, client: RawClient, request: bytes, seq: int, **more: Any) -> Reply:
        """Call as ``client``, whose id may be from elsewhere."""
        more.setdefault("token", client.token)
        return self._client.call(METHOD, request, seq, client_id=client.client_id, **more)

    @property
    def clients(self) -> int:
        return self.dedup.statistics().clients

    def close(self) -> None:
        self._stack.close()


class Leases:
    """The lease server's process; ``restart`` gives it its address and store again."""

    def __init__(
        self, tmp_path: Path, term_s: float, stack: contextlib.ExitStack, url: str = ""
    ) -> None:
        self._tmp_path, self._term_s, self._stack = tmp_path, term_s, stack
        self._url = url
        self._listen = "127.0.0.1:0"
        self.process = self._start()

    def _start(self, name: str = "leases.db") -> Process:
        url = self._url or f"sqlite:///{self._tmp_path / name}"
        process = self._stack.enter_context(
            started(
                "lease_server",
                *("--listen", self._listen, "--store", url),
                *("--term-s", str(self._term_s)),
                log=self._tmp_path / "leases.log",
            )
        )
        self.address = self._listen = process.line()
        return process

    def restart(self, name: str = "leases.db") -> None:
        self.process.kill()
        self.process = self._start(name)


Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a lease server of some term and two services of a kind."""
    with contextlib.ExitStack() as stack:

        def make(kind: str = "sync", term_s: float = 30.0) -> tuple[Leases, Service, Service]:
            leases = Leases(tmp_path, term_s, stack)
            services = []
            for name in ("a", "b"):
                url = f"sqlite:///{tmp_path / name}.db"
                service = Service(kind, url, leases.address)
                stack.callback(service.close)
                services.append(service)
            return leases, services[0], services[1]

        yield make


@pytest.mark.parametrize("kind", KINDS)
def test_one_client_id_serves_at_servers_that_share_nothing_else(start: Start, kind: str) -> None:
    """An id granted through one server is met by another; each replays its own (DESIGN §5)."""
    _, first, second = start(kind)
    with RawClient(first.address) as client:
        assert client.term_ms == 30_000
        assert first.call(client, b"x", 1).response == b"did x"
        assert second.call(client, b"y", 1).response == b"did y"
        for service, request in ((first, b"x"), (second, b"y")):
            again = service.call(client, request, 1, attempt=2)
            assert (again.response, again.outcome) == (b"did " + request, "replayed")
        forged = second.call(client, b"z", 2, token=b"\1" * 20)
        assert forged.refusal == ("PERMISSION_DENIED", "NOT_YOURS", "not-executed")
        assert (first.effects, second.effects) == ([b"x"], [b"y"])


def test_the_client_sdk_keeps_one_id_at_both(start: Start) -> None:
    """Grants and heartbeats are passed on, so an SDK channel needs no other address (DESIGN §5)."""
    _, first, second = start(term_s=0.6)
    with (
        rifl.connect(first.address) as channel,
        RawClient(second.address, grant=False) as other,
    ):
        assert channel.unary_unary(METHOD)(b"x") == b"did x"
        lease = channel._client.session.lease
        assert lease is not None
        other.client_id, other.token = lease.client_id, lease.token
        assert second.call(other, b"y", 1).response == b"did y"
        granted_at = lease.renewed_at
        until(lambda: lease.token_at > granted_at + 1.2, "it is renewed beyond two terms")
        assert second.call(other, b"y", 1, attempt=2).outcome == "replayed"
        assert channel.session.client_id == lease.client_id


@pytest.mark.parametrize("kind", KINDS)
def test_while_the_lease_server_is_dead_known_clients_go_on(start: Start, kind: str) -> None:
    """Killed: met clients go on, others STORE_UNAVAILABLE, none dropped; then as before (§5)."""
    leases, first, second = start(kind, term_s=1.0)
    with RawClient(first.address) as met, RawClient(first.address) as stranger:
        assert first.call(met, b"x", 1).ok
        assert second.call(met, b"x", 1).ok
        leases.process.kill()
        refused = first.call(stranger, b"s", 1)
        assert refused.refusal == ("UNAVAILABLE", "STORE_UNAVAILABLE", "not-executed")
        started_at = first.dedup._authority.now()
        seq = 1
        while first.dedup._authority.now() < started_at + 1.5:
            seq += 1
            assert first.call(met, b"x", seq, first=seq).ok
        # The second heard nothing of it for longer than a term: it cannot ask, and keeps.
        assert second.call(met, b"x", 1, attempt=2).outcome == "replayed"
        leases.restart()
        assert second.call(met, b"x", 1, attempt=2).outcome == "replayed"
        assert first.call(met, b"x", seq + 1).ok
        with until(lambda: _granted(second.address), "ids are granted again") as fresh:
            assert fresh.client_id not in (met.client_id, stranger.client_id)
            assert first.call(fresh, b"f", 1).ok
        # Nobody had met it: nothing of it can have run, so it is gone for ever.
        gone = until(
            lambda: (
                reply
                if (reply := first.call(stranger, b"s", 1)).reason != "STORE_UNAVAILABLE"
                else None
            ),
            "the lease server is reached again",
        )
        assert gone.refusal == ("FAILED_PRECONDITION", "LEASE_EXPIRED", "unknown")
        assert b"s" not in first.effects


def test_a_client_that_is_over_goes_everywhere_and_runs_nowhere(start: Start) -> None:
    """Before dropping a client each server asks; after it a late duplicate is refused (§5)."""
    _, first, second = start(term_s=0.5)
    with RawClient(first.address) as client:
        for service in (first, second):
            assert service.call(client, b"x", 1).ok
        client.release()
        until(lambda: first.clients == second.clients == 0, "both dropped it")
        for service in (first, second):
            late = service.call(client, b"x", 1, attempt=2)
            assert late.reason == "LEASE_EXPIRED"
            assert service.effects == [b"x"]


def test_a_client_silent_at_one_server_is_not_dropped_there(start: Start) -> None:
    """Active at one server it stays known at the other, which asks first (DESIGN §5)."""
    _, first, second = start(term_s=0.4)
    with RawClient(first.address) as client:
        assert second.call(client, b"x", 1).ok
        began, seq = first.dedup._authority.now(), 0
        while first.dedup._authority.now() < began + 1.5:
            seq += 1
            assert first.call(client, b"y", seq, first=seq).ok
        assert second.call(client, b"x", 1, attempt=2).outcome == "replayed"
        assert second.effects == [b"x"]


def test_a_restarted_server_meets_its_clients_again(start: Start, tmp_path: Path) -> None:
    """Its records are there, and the lease server says who is alive (DESIGN §5)."""
    leases, first, _ = start()
    with RawClient(first.address) as client:
        assert first.call(client, b"x", 1).ok
        first.close()
        url = f"sqlite:///{tmp_path / 'a'}.db"
        again = Service("sync", url, leases.address)
        try:
            reply = again.call(client, b"x", 1, attempt=2)
            assert (reply.response, reply.outcome) == (b"did x", "replayed")
            assert again.effects == []
        finally:
            again.close()
        leases.process.kill()
        with pytest.raises(StoreUnreachable):
            Deduplicator(url, lease_server=leases.address, lock_timeout_s=0.3)


def test_a_store_is_one_lease_servers_for_good(start: Start, tmp_path: Path) -> None:
    """Ids of two origins would be taken for one another: refused, and calls too (DESIGN §5)."""
    leases, first, _ = start()
    first.close()
    url = f"sqlite:///{tmp_path / 'a'}.db"
    with pytest.raises(UnsupportedStore, match="lease server's"):
        Deduplicator(url)
    own = f"sqlite:///{tmp_path / 'own'}.db"
    with Deduplicator(own) as dedup, serve("sync", dedup=dedup) as served:
        RawClient(served.address).close()
    with pytest.raises(UnsupportedStore, match="its own"):
        Deduplicator(own, lease_server=leases.address)
    with pytest.raises(UnsupportedStore, match="outlives"):
        Deduplicator("memory:", lease_server=leases.address)
    leases.restart("another.db")
    with pytest.raises(UnsupportedStore, match="another"):
        Deduplicator(url, lease_server=leases.address)


def test_a_lease_server_that_hangs_holds_up_no_event_loop(start: Start) -> None:
    """Asking about one client does not keep others of an aio server waiting (DESIGN §5)."""
    leases, first, second = start("aio")
    with RawClient(first.address) as met, RawClient(second.address) as stranger:
        assert first.call(met, b"x", 1).ok
        os.kill(leases.process.pid, signal.SIGSTOP)
        try:
            replies: list[Reply] = []
            waiting = threading.Thread(target=lambda: replies.append(first.call(stranger, b"s", 1)))
            waiting.start()
            served = 0
            while not replies:
                served += 1
                assert first.call(met, b"x", 1 + served, first=1 + served).ok
            waiting.join()
            assert replies[0].reason == "STORE_UNAVAILABLE"
            assert served > 20
        finally:
            os.kill(leases.process.pid, signal.SIGCONT)
        until(lambda: first.call(stranger, b"s", 1).ok, "it goes on when it can be asked")
        assert first.effects.count(b"s") == 1


def test_sessions_are_the_lease_servers(start: Start) -> None:
    """A name is one id at both servers, takes keys only, and its close is noticed (DESIGN §5)."""
    _, first, second = start(term_s=0.5)
    with RawClient(first.address, grant=False) as one, RawClient(second.address) as two:
        one.open_session("job")
        two.open_session("job")
        assert one.client_id == two.client_id
        assert one.call(METHOD, b"k", key=b"k").ok
        assert one.call(METHOD, b"k", key=b"k", attempt=2).outcome == "replayed"
        assert one.call(METHOD, b"s", 1).reason == "BAD_HEADER"
        assert two.close_session("job").ok
        until(lambda: one.call(METHOD, b"n", key=b"n").reason == "SESSION_CLOSED", "it is noticed")


def _granted(address: str) -> RawClient | None:
    client = RawClient(address, grant=False)
    try:
        client.grant()
    except grpc.RpcError:
        client.close()
        return None
    return client


class _Counting(grpc.ServerInterceptor):
    def __init__(self) -> None:
        self.checks = 0

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        self.checks += details.method.endswith("/Check")
        return continuation(details)


def test_it_is_asked_once_for_a_client_and_never_for_a_call(tmp_path: Path) -> None:
    """Meeting costs one request, however many calls follow or come at once (DESIGN §5)."""
    storage = MemoryLeaseStorage()
    authority = LeaseAuthority(storage)
    counting = _Counting()

    def add(server: Any) -> None:
        add_lease_service(server, authority, deduplicated=[], checks=Checks(authority, storage))

    with serve("sync", interceptors=[counting], add=add) as leases:
        service = Service("sync", f"sqlite:///{tmp_path / 'calls.db'}", leases.address)
        try:
            with RawClient(service.address) as client:
                begun = [client.future(METHOD, b"x", seq, first=1) for seq in range(1, 200)]
                assert all(future.result() == b"did x" for future in begun)
                for seq in range(200, 300):
                    assert client.call(METHOD, b"x", seq, first=200).ok
                # Several may have asked before the first was answered.
                assert counting.checks <= 8
                assert len(service.effects) == 299
        finally:
            service.close()


def test_what_a_crash_may_have_taken_is_not_said_to_have_not_run(tmp_path: Path) -> None:
    """Ids outlive a server: a resolved call of an idempotent method is unknown (DESIGN §4)."""
    storage = MemoryLeaseStorage()
    authority = LeaseAuthority(storage)

    def add(server: Any) -> None:
        add_lease_service(server, authority, deduplicated=[], checks=Checks(authority, storage))

    with serve("sync", add=add) as leases:
        url = f"sqlite:///{tmp_path / 'calls.db'}"
        service = Service("sync", url, leases.address, default="idempotent")
        try:
            with RawClient(service.address) as client:
                resolved = client.resolve(1)
                assert resolved.outcome == rifl_pb2.OUTCOME_UNKNOWN
        finally:
            service.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_a_client_that_was_not_met_asks_once(start: Start, kind: str) -> None:
    """The lease server is asked before its calls are claimed, once for all; DESIGN §4, §5."""
    _, service, _ = start(kind)
    items = [rifl.BatchItem(b"%d" % at, b"k%d" % at if at % 2 else None) for at in range(50)]
    asked: list[int] = []
    authority = service.dedup._authority
    check = authority.begin_check
    authority.begin_check = lambda *who: asked.append(who[0]) or check(*who)
    with rifl.connect(service.address) as channel:
        results = channel.batch(METHOD, items, timeout=30)
    assert all(result.ok for result in results)
    assert len(asked) == 1
    assert service.effects == [item.request for item in items]
    stranger = encode_batch([b"x", b"y"], [b"x", b"y"], [])
    with RawClient(service.address, grant=False) as raw:
        value = header(2**40, b"t" * 20)
        reply = raw.call(METHOD, stranger, raw=value, metadata=(("rifl-batch", "1"),))
    assert reply.refusal == ("PERMISSION_DENIED", "NOT_YOURS", "not-executed")
    assert len(service.effects) == 50
