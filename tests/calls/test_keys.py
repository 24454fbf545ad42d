"""Plain keys from callers with no SDK, and how long they last (DESIGN §3, §4)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

import rifl
from rifl._grpc.status import read_error_info
from rifl.testing import FakeClock
from tests.calls.services import Kinds, serving, trailers
from tests.helpers.sealing import SEALED

KINDS = ("sync", "aio")
UNARY = "/t.Kinds/Unary"


class Caller:
    """grpcio alone, with the header."""

    def __init__(self, service: Any) -> None:
        self.channel = grpc.insecure_channel(service.address)

    def call(self, key: str | bytes | None, request: bytes = b"x", method: str = UNARY) -> Any:
        metadata = () if key is None else (("idempotency-key", key),)
        future = self.channel.unary_unary(method).future(request, 10, metadata)
        future.exception()
        return future


def reason(call: Any) -> str | None:
    info = read_error_info(tuple(call.trailing_metadata()))
    return None if info is None else info[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_makes_a_call_happen_once_and_its_answers_say_so(kind: str) -> None:
    """The same key runs once; every answer carries rifl-outcome (DESIGN §3)."""
    kinds = Kinds()
    with serving(kind, kinds, keys_from="anyone") as service:
        caller = Caller(service)
        first, second = caller.call("order-7"), caller.call("order-7")
        other = caller.call("order-8")
        assert (first.result(), second.result(), other.result()) == (b"1", b"1", b"2")
        outcomes = [trailers(call)["rifl-outcome"] for call in (first, second, other)]
        assert outcomes == ["executed", "replayed", "executed"]
        assert caller.call(None).result() == b"3"
        mismatch = caller.call("order-7", b"y")
        assert mismatch.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert reason(mismatch) == "PAYLOAD_MISMATCH"
    assert kinds.effects == [b"x", b"x", b"x"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["", "k" * 256, "k" * 6000])
def test_a_bad_key_is_refused_and_leaves_no_state(kind: str, key: str) -> None:
    """A key is 1 to 255 printable ASCII characters: BAD_HEADER else (DESIGN §3)."""
    kinds = Kinds()
    with serving(kind, kinds, keys_from="anyone") as service:
        call = Caller(service).call(key)
        assert call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (reason(call), trailers(call)["rifl-outcome"]) == ("BAD_HEADER", "not-executed")
        assert len(service.dedup._store._table) == 0
    assert kinds.effects == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_unauthenticated_key_is_refused_unless_the_server_opts_in(kind: str) -> None:
    """One namespace for all would let anyone read answers: NOT_YOURS (DESIGN §3)."""
    kinds = Kinds()
    with serving(kind, kinds) as service:
        call = Caller(service).call("k")
        assert call.code() is grpc.StatusCode.PERMISSION_DENIED
        assert reason(call) == "NOT_YOURS"
    with serving(kind, kinds, keys_from="nobody") as service:
        caller = Caller(service)
        assert [caller.call("k").result(), caller.call("k").result()] == [b"1", b"2"]


@pytest.mark.parametrize("kind", KINDS)
def test_keys_last_for_their_retention_from_completion(kind: str) -> None:
    """Within the retention a retry is replayed; after it the call runs again (DESIGN §3)."""
    clock = FakeClock()
    kinds = Kinds()
    with serving(kind, kinds, keys_from="anyone", key_retention_s=100.0, clock=clock) as service:
        caller = Caller(service)
        assert caller.call("k").result() == b"1"
        _live(service, clock, 99)
        assert caller.call("k").result() == b"1"
        _live(service, clock, 1)
        assert len(service.dedup._store._table) == 0
        assert caller.call("k").result() == b"2"


def test_keys_of_a_namespace_are_bounded() -> None:
    """Who never acknowledges fills a part, then is WINDOW_EXCEEDED; others are not (DESIGN §9)."""
    kinds = Kinds()
    with serving("sync", kinds, keys_from="anyone", bounds=rifl.Bounds(max_keys=8)) as service:
        caller = Caller(service)
        assert [caller.call(key).result() for key in "ab"] == [b"1", b"2"]
        full = caller.call("c")
        assert full.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason(full) == "WINDOW_EXCEEDED"
        assert caller.call("a").result() == b"1"
        assert service.channel.unary_unary(UNARY)(b"mine", timeout=10) == b"3"


def test_keys_survive_a_restart_with_the_time_they_have_left(tmp_path: Path) -> None:
    """Namespaces need no lease and keep their dates, so restarts do not renew them (DESIGN §3)."""
    clock = FakeClock()
    kinds = Kinds()
    url = f"sqlite:///{tmp_path}/s.db"
    with serving(
        "sync", kinds, url=url, keys_from="anyone", key_retention_s=100.0, clock=clock, term_s=10.0
    ) as service:
        caller = Caller(service)
        assert caller.call("k").result() == b"1"
        service.kill()
        _live(service, clock, 50)
        store = service.dedup._store
        store.clients_ended(service.dedup._authority.expire())
        assert trailers(caller.call("k"))["rifl-outcome"] == "replayed"
        _live(service, clock, 51)
        store._main.journal.submit(_marker()).wait()
        assert caller.call("k").result() == b"2"
    assert kinds.effects == [b"x", b"x"]


@pytest.mark.parametrize("ahead_s", [86_400.0, -86_400.0 * 365])
def test_the_wall_clock_ages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """Neither a clock that jumps, nor time while nobody served, makes a key new (DESIGN §5)."""
    from rifl._stores.sqlite import SqliteStore

    kinds = Kinds()
    url = f"sqlite:///{tmp_path}/s.db"

    def set_clock(ahead_s: float) -> None:
        monkeypatch.setitem(
            SqliteStore.__init__.__kwdefaults__, "wall_clock", lambda: time.time() + ahead_s
        )

    set_clock(ahead_s)
    with serving("sync", kinds, url=url, keys_from="anyone", key_retention_s=1000.0) as service:
        caller = Caller(service)
        assert caller.call("k").result() == b"1"
        for then_s in (0.0, -ahead_s, 0.0):
            set_clock(then_s)
            service.kill()
            store = service.dedup._store
            store.expire_keys()
            store._main.journal.submit(_marker()).wait()
            assert trailers(caller.call("k"))["rifl-outcome"] == "replayed"
    assert kinds.effects == [b"x"]


def _live(service: Any, clock: FakeClock, seconds: int) -> None:
    """Let time pass, and have somebody look what is over."""
    clock.advance(float(seconds))
    service.dedup._store.expire_keys()


def _marker() -> Any:
    from rifl._stores.sqlite.journal_entries import JournalEntry

    return JournalEntry(JournalEntry.DELETE, (0, 0), patient=False, failure=lambda error: error)


def test_peers_have_namespaces_of_their_own_by_a_named_property(tmp_path: Path) -> None:
    """Two certificates of one name share keys; another name does not (DESIGN §3)."""
    ca = trustme.CA()
    server_cert = ca.issue_cert("127.0.0.1")
    kinds = Kinds()

    def secure(server: Any) -> None:
        kinds.adder("sync")(server)
        credentials = grpc.ssl_server_credentials(
            [(server_cert.private_key_pem.bytes(), server_cert.cert_chain_pems[0].bytes())],
            ca.cert_pem.bytes(),
            require_client_auth=True,
        )
        secure.port = server.add_secure_port("127.0.0.1:0", credentials)  # type: ignore[attr-defined]

    def answer(name: str) -> bytes:
        cert = ca.issue_cert("x.example", common_name=name)
        credentials = grpc.ssl_channel_credentials(
            ca.cert_pem.bytes(),
            cert.private_key_pem.bytes(),
            cert.cert_chain_pems[0].bytes(),
        )
        port = secure.port  # type: ignore[attr-defined]
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            found: bytes = channel.unary_unary(UNARY)(b"x", 10, (("idempotency-key", "k"),))
            return found

    from rifl import testing

    with testing.serve(secure, peer_property="x509_common_name"):
        assert [answer("alice"), answer("bob"), answer("alice")] == [b"1", b"2", b"1"]


def test_a_sealed_store_holds_no_answer_in_the_clear(tmp_path: Path) -> None:
    """The user's encryption covers stored answers; a lost key is a typed unknown (DESIGN §6)."""

    def broken(data: bytes, associated: bytes) -> bytes:
        raise ValueError("no such key")

    class Secretive(Kinds):
        def unary(self, request: bytes, context: Any) -> bytes:
            super().unary(request, context)
            return b"the-secret-answer"

    kinds = Secretive()
    url = f"sqlite:///{tmp_path}/s.db"
    with serving("sync", kinds, url=url, keys_from="anyone", **SEALED) as service:
        caller = Caller(service)
        assert caller.call("k").result() == b"the-secret-answer"
        service.kill()
        assert caller.call("k").result() == b"the-secret-answer"
        service._options["unseal"] = broken
        service.kill()
        lost = caller.call("k")
        assert (lost.code(), reason(lost)) == (grpc.StatusCode.ABORTED, "OUTCOME_UNKNOWN")
    assert kinds.effects == [b"x"]
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"the-secret-answer" not in stored
