"""Callers that are not let in are counted and told of, seldom and in bounds (DESIGN §9)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest

import rifl
from _rifl_ground.refusals import Denied, NotYours
from lease_server.v1 import lease_server_pb2 as leases
from lease_server.v1.lease_server_pb2_grpc import LeaseServerStub
from rifl._cli.command import main as command
from rifl._grpc import audit as audits
from rifl._grpc.audit import MOST, OTHERS, WINDOW_S, CallerAudit, RefusalTimes, address_of
from rifl._leases.openers import SessionOpeners
from rifl._leases.peer import peer_of
from rifl._stores.errors import StoreError, StoreLocked
from rifl._stores.settling import Settlement, settle
from rifl._wire.header import HEADER_KEY, KEY_KEY
from rifl.core._shared.identity import RpcId
from rifl.metrics import PrometheusObserver
from rifl.v1 import rifl_pb2
from tests.helpers.raw import header
from tests.helpers.servers import generic, serve

WRONG = Denied("client_token", "wrong")
NO_SECRET, BAD_SECRET = (Denied("session_secret", each) for each in ("missing", "wrong"))
NO_PEER = Denied("certificate", "missing")


def test_of_an_address_the_first_tenth_and_hundredth_refusal_are_told() -> None:
    """And so on; after ten minutes it is counted anew (DESIGN §9)."""
    times = RefusalTimes()
    told = [times.note(WRONG, "10.0.0.7", 5.0)[1] for _ in range(1234)]
    assert [each for each in told if each] == [1, 10, 100, 1000]
    assert times.note(WRONG, "10.0.0.8", 5.0) == ("10.0.0.8", 1)
    assert times.note(NO_PEER, "10.0.0.7", 5.0) == ("10.0.0.7", 1)
    assert times.note(WRONG, "10.0.0.7", 4.9 + WINDOW_S)[1] == 0
    assert times.note(WRONG, "10.0.0.7", 5.0 + WINDOW_S) == ("10.0.0.7", 1)


def test_however_many_addresses_there_are_few_are_remembered_and_told() -> None:
    """Addresses beyond the bound count together, and earlier ones stay apart (DESIGN §9)."""
    times = RefusalTimes()
    told = [times.note(WRONG, f"10.{each}", 0.0) for each in range(100_000)]
    assert len(times) == MOST + 1
    assert sum(1 for _, number in told if number) == MOST + 5
    assert told[-1] == (OTHERS, 0)
    assert times.note(WRONG, "10.0", 1.0)[0] == "10.0"
    # Each is forgotten in its time.
    assert times.note(WRONG, "10.0.0.9", WINDOW_S) == ("10.0.0.9", 1)
    assert len(times) == 1


class _Logger:
    def __init__(self, act: Any) -> None:
        self._act = act

    def warning(self, event: str, **fields: Any) -> None:
        self._act()


def test_a_logger_that_raises_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal goes on as if it were silent."""

    def fail() -> None:
        raise ValueError("no disk")

    monkeypatch.setattr(audits, "_log", _Logger(fail))
    monkeypatch.setattr("_rifl_ground.audit._log", _Logger(fail))
    audit = CallerAudit()
    audit.refused(NotYours("no"), lambda: "ipv4:10.0.0.7:1")
    audit.acted("ops", "trim", "log")
    assert audit.counts == {WRONG: 1}


def test_a_logger_may_cause_a_refusal_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, or in another thread that it waits for: no lock is held meanwhile."""
    audit = CallerAudit()
    left = [3]

    def again() -> None:
        if left[0]:
            left[0] -= 1
            other = threading.Thread(
                target=audit.refused, args=(NotYours("no"), lambda: f"ipv4:10.0.0.{left[0]}:1")
            )
            other.start()
            other.join(30)
            assert not other.is_alive()
            audit.refused(NotYours("no"), lambda: "ipv4:10.0.0.9:1")

    monkeypatch.setattr(audits, "_log", _Logger(again))
    audit.refused(NotYours("no"), lambda: "ipv4:10.0.0.7:1")
    assert audit.counts[WRONG] == 7


def test_a_refusal_that_is_about_no_caller_is_not_counted() -> None:
    """Such as a call that is stale."""
    audit = CallerAudit()
    audit.refused(rifl.core.StaleRpc("late"), lambda: "ipv4:10.0.0.7:1")
    assert not audit.counts


class _Doors:
    """A server of one kind, its metrics, and what is told."""

    def __init__(self, channel: grpc.Channel, registry: CollectorRegistry, told: Any) -> None:
        self.channel = channel
        self.leases = LeaseServerStub(channel)
        self.registry = registry
        self._told = told

    def counted(self, denied: Denied) -> float:
        """Return how often callers were refused for this."""
        return (
            self.registry.get_sample_value("rifl_server_callers_refused_total", denied._asdict())
            or 0.0
        )

    def told(self) -> list[tuple[str, str, str, int]]:
        """Return what was told since the last time."""
        found = [
            (each["kind"], each["reason"], each["address"], each["times"])
            for each in self._told
            if each["event"] == "caller_refused"
        ]
        self._told.clear()
        return found

    def refused(self, call: Any, *given: Any, **more: Any) -> None:
        """Call, and be refused."""
        with pytest.raises(grpc.RpcError) as error:
            call(*given, timeout=30, **more)
        assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]


@contextmanager
def _doors(kind: str, url: str) -> Iterator[_Doors]:
    registry = CollectorRegistry()

    async def echo(request: bytes, _: Any) -> bytes:
        return request

    handlers = [generic("p.S", {"Echo": echo if kind == "aio" else lambda request, _: request})]
    with (
        rifl.Deduplicator(url, observer=PrometheusObserver(registry)) as dedup,
        serve(kind, handlers, dedup=dedup) as served,
        grpc.insecure_channel(served.address) as channel,
        structlog.testing.capture_logs() as told,
    ):
        yield _Doors(channel, registry, told)


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_wrong_tokens_and_secrets_are_counted_and_told_with_the_address(
    kind: str, tmp_path: Path
) -> None:
    """Of calls, of outcomes, of leases and of sessions; no metric has an address (DESIGN §9)."""
    with _doors(kind, f"sqlite:///{tmp_path / 's.db'}") as doors:
        grant = doors.leases.Grant(leases.GrantRequest(), timeout=30)
        bad = grant.token[:-1] + bytes([grant.token[-1] ^ 1])
        echo = doors.channel.unary_unary("/p.S/Echo")
        with_header = ((HEADER_KEY, header(grant.client_id, bad, 1)),)
        for _ in range(10):
            doors.refused(echo, b"x", metadata=with_header)
        assert doors.counted(WRONG) == 10
        assert doors.told() == [(*WRONG, "127.0.0.1", 1), (*WRONG, "127.0.0.1", 10)]
        # A call that is let in says nothing.
        good = ((HEADER_KEY, header(grant.client_id, grant.token, 1)),)
        assert echo(b"x", timeout=30, metadata=good) == b"x"
        doors.refused(echo, b"x", metadata=((KEY_KEY, '"k"'),))
        assert doors.counted(NO_PEER) == 1
        resolve = doors.channel.unary_unary("/rifl.v1.Outcomes/Resolve")
        asked = rifl_pb2.ResolveRequest(client_id=grant.client_id, token=bad, seq=1)
        doors.refused(resolve, asked.SerializeToString())
        doors.refused(doors.leases.Renew, leases.RenewRequest(client_id=1, token=bad))
        doors.refused(doors.leases.Release, leases.ReleaseRequest(client_id=1, token=bad))
        assert doors.counted(WRONG) == 13
        opening = leases.OpenSessionRequest(name="job", retention_ms=60_000)
        doors.refused(doors.leases.OpenSession, opening)
        opening.secret = b"a secret of sixteen bytes"
        doors.leases.OpenSession(opening, timeout=30)
        opening.secret = b"another one, just as long"
        doors.refused(doors.leases.OpenSession, opening)
        closing = leases.CloseSessionRequest(name="job", secret=opening.secret)
        doors.refused(doors.leases.CloseSession, closing)
        assert (doors.counted(NO_SECRET), doors.counted(BAD_SECRET)) == (1, 2)
        address = "127.0.0.1"
        assert doors.told() == [
            (*NO_PEER, address, 1),
            (*NO_SECRET, address, 1),
            (*BAD_SECRET, address, 1),
        ]
        assert address.encode() not in generate_latest(doors.registry)


@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_refusals_that_are_answered_among_others_count_each(kind: str, tmp_path: Path) -> None:
    """Leases that are renewed together, and streams of heartbeats (DESIGN §9)."""
    with _doors(kind, f"sqlite:///{tmp_path / 's.db'}") as doors:
        grant = doors.leases.Grant(leases.GrantRequest(), timeout=30)
        request = leases.RenewRequest(client_id=grant.client_id, token=grant.token)
        for client_id in range(2, 5):
            request.also.add(client_id=client_id, token=bytes(20))
        doors.leases.Renew(request, timeout=30)
        assert doors.counted(WRONG) == 3
        if kind == "aio":
            reply = next(doors.leases.KeepAlive(iter([request]), timeout=30))
            assert [each.refused for each in reply.also] == ["NOT_YOURS"] * 3
            stray = leases.RenewRequest(client_id=1, token=bytes(20))
            assert next(doors.leases.KeepAlive(iter([stray]), timeout=30)).refused == "NOT_YOURS"
            assert doors.counted(WRONG) == 7
        assert doors.told() == [(*WRONG, "127.0.0.1", 1)]


def test_what_an_operator_does_in_a_servers_process_is_told(tmp_path: Path) -> None:
    """A new secret, and the end of a session: who, what, and how it ended (DESIGN §9)."""
    with rifl.Deduplicator(f"sqlite:///{tmp_path / 's.db'}") as dedup:
        with structlog.testing.capture_logs() as told:
            dedup.rotate_secret()
            dedup.end_session("job")
        acts = [each for each in told if each["event"] == "operator_acted"]
        assert [(each["verb"], each["object"], each["outcome"]) for each in acts] == [
            ("rotate_secret", "store", "done"),
            ("end_session", "job", "done"),
        ]
        assert "@" in acts[0]["caller"]


@pytest.mark.parametrize(
    ("sessions_from", "names", "secret", "denied"),
    [
        ("secret", None, b"", NO_SECRET),
        ("peers", None, b"", NO_PEER),
        (["dns:shop"], None, b"", NO_PEER),
        (["dns:shop"], [b"mail"], b"", ("certificate", "unlisted")),
        ("peers", [b""], b"", ("certificate", "unnamed")),
    ],
)
def test_why_a_caller_may_open_no_session_is_kept(
    sessions_from: Any, names: Any, secret: bytes, denied: tuple[str, str]
) -> None:
    """In the words of the metric (DESIGN §9)."""
    caller, openers = _Certified(names), SessionOpeners(sessions_from)
    with pytest.raises(NotYours) as error:
        openers.shown(secret, "job", peer_of(caller))
    assert error.value.denied == denied


class _Certified:
    def __init__(self, names: list[bytes] | None) -> None:
        self._names = names

    def peer_identities(self) -> list[bytes] | None:
        return self._names

    def peer_identity_key(self) -> str:
        return "x509_subject_alternative_name"

    def auth_context(self) -> dict[str, list[bytes]]:
        names = self._names or []
        return {
            "x509_common_name": [b""],
            "x509_subject_alternative_name": names,
            "peer_dns": names,
        }


class _Books:
    """A store that knows no call, and keeps notes if it can."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def call(self, rpc_id: Any) -> None:
        return None

    def remember(self, rpc_id: Any, note: str) -> None:
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("error", "outcomes"),
    [
        (None, ["done"]),
        (StoreLocked("a server has it"), []),
        (StoreError("the disk"), ["unknown"]),
    ],
)
def test_a_settlement_is_told_with_who_made_it(
    error: Exception | None, outcomes: list[str]
) -> None:
    """If something may have been done (DESIGN §9)."""
    books: Any = _Books(error)
    ends: Any = nullcontext() if error is None else pytest.raises(type(error))
    with structlog.testing.capture_logs() as told, ends:
        settle(books, RpcId(7, 1), Settlement(True, "ann", "in the ledger"))
    assert [each["outcome"] for each in told] == outcomes
    assert {(each["caller"], each["verb"], each["object"]) for each in told} <= {
        ("ann", "settle_executed", "7/1")
    }


def test_what_a_command_does_to_a_store_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once it was done: not if it only warns (DESIGN §9)."""
    url = f"sqlite:///{tmp_path / 's.db'}"
    rifl.Deduplicator(url).close()
    with structlog.testing.capture_logs() as told:
        assert command(["inspect", url]) == 0
        assert command(["restored", url]) == 2
        assert command(["rotate-secret", url]) == 0
        command(["end-session", url, "nightly", "--yes"])
    acts = [each for each in told if each["event"] == "operator_acted"]
    assert [(each["verb"], each["object"], each["outcome"]) for each in acts] == [
        ("rotate_secret", "store", "done"),
        ("end_session", "nightly", "done"),
    ]
    capsys.readouterr()


async def test_where_an_ended_call_was_from_is_known_from_its_beginning() -> None:
    """Of a call on an event loop that has ended gRPC must not be asked: the process would die."""
    told: list[str] = []
    over = asyncio.Event()

    async def behave(request: bytes, context: Any) -> bytes:
        whence = address_of(context)
        try:
            await asyncio.sleep(3600)
        finally:
            told.append(whence())
            over.set()
        return request

    server = grpc.aio.server()
    handler: Any = grpc.unary_unary_rpc_method_handler(behave)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("p.S", {"M": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary("/p.S/M")(b"", timeout=0.5)
        await over.wait()
    await server.stop(None)
    assert told[0].startswith("ipv4:127.0.0.1:")
