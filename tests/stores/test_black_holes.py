"""A shared store that answers nothing, through a real Toxiproxy: who is refused, and when."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import rifl
from chaos.run.toxiproxy import Link, Toxiproxy
from rifl._stores.shared.requests import Claim
from rifl._wire.envelope import encode_batch
from tests.helpers.raw import RawClient, Reply, read
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import DEADLINE_S
from tests.stores.redis.servers import RedisServer, SentinelServer, until

pytestmark = pytest.mark.faults

_NUMBERS = itertools.count()
METHOD = "/p.S/Pay"
_THREADS = 2
_REFUSED = ("UNAVAILABLE", "STORE_UNAVAILABLE", "not-executed")


class Hole:
    """The path to a store's server, that swallows all that is sent when it is ``dark``."""

    def __init__(self, link: Link, url: Callable[..., str]) -> None:
        self._link = link
        self.url = url
        self._toxics: list[str] = []

    def darken(self) -> None:
        """Let nothing through, and close nothing."""
        for stream in ("upstream", "downstream"):
            self._toxics.append(self._link.poison("timeout", stream, {"timeout": 0}))

    def lighten(self) -> None:
        """Let it through again; what was on its way is lost."""
        self._link.cut()
        for each in self._toxics:
            self._link.cure(each)
        self._link.mend()


@contextmanager
def _sentinel(tmp_path: Path) -> Iterator[Hole]:
    with _own_redis(tmp_path) as (_, link):
        # It names the primary all the while: a test says itself when the store is away.
        sentinel = SentinelServer(tmp_path, link.port, down_after_ms=600_000)
        try:
            place = f"redis+sentinel://127.0.0.1:{sentinel.port}/main/0?"
            yield Hole(link, lambda **options: place + urlencode(options))
        finally:
            sentinel.stop()


@contextmanager
def _cluster(tmp_path: Path) -> Iterator[Hole]:
    with _own_redis(tmp_path, **{"cluster-enabled": "yes"}) as (server, link):
        with server.client() as client:
            client.config_set("cluster-announce-ip", "127.0.0.1")
            client.config_set("cluster-announce-port", link.port)
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            until(lambda: b"cluster_state:ok" in _info(client), "the cluster is up")
        place = f"redis+cluster://127.0.0.1:{link.port}?"
        yield Hole(link, lambda **options: place + urlencode(options))


def _info(client: Any) -> bytes:
    client.response_callbacks.clear()
    return client.execute_command("CLUSTER", "INFO")  # type: ignore[no-any-return]


@contextmanager
def _own_redis(tmp_path: Path, **settings: str) -> Iterator[tuple[RedisServer, Link]]:
    (tmp_path / "server").mkdir()
    server = RedisServer(tmp_path / "server", **settings)
    try:
        with Toxiproxy(tmp_path) as proxy:
            yield server, proxy.link("store", server.port)
    finally:
        server.stop()


@pytest.fixture(params=["redis", "sentinel", "cluster", "postgresql", "mariadb"])
def hole(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hole]:
    if made := {"sentinel": _sentinel, "cluster": _cluster}.get(request.param):
        with made(tmp_path) as found:
            yield found
        return
    name = f"hole{next(_NUMBERS)}"
    if request.param == "redis":
        server, place = request.getfixturevalue("shared_redis"), {"namespace": name}
    elif request.param == "postgresql":
        server, place = request.getfixturevalue("shared_postgres"), {"schema": name}
    else:
        server, place = request.getfixturevalue("shared_mariadb"), {"prefix": f"{name}_"}
    with Toxiproxy(tmp_path) as proxy:
        link = proxy.link("store", server.port)

        def url(**options: Any) -> str:
            made: str = server.url(**place, **options)
            assert str(server.port) in made
            return made.replace(f":{server.port}", f":{link.port}")

        yield Hole(link, url)


def _answer(request: bytes, _: Any) -> bytes:
    return request


@contextmanager
def _served(
    url: str, handler: Callable[[bytes, Any], bytes] = _answer
) -> Iterator[tuple[Any, RawClient]]:
    """Serve by a small pool; a client that was answered once."""
    with (
        rifl.Deduplicator(url, drain_s=0.0) as dedup,
        serve("sync", [generic("p.S", {"Pay": handler})], dedup=dedup, threads=_THREADS) as served,
        RawClient(served.address) as client,
    ):
        assert client.call(METHOD, b"", seq=1).ok
        yield dedup, client


def _batch(client: RawClient, seqs: range, timeout: float) -> Reply:
    header = client.header(None, first=seqs[0])
    body = encode_batch([b""] * len(seqs), [], list(seqs))
    metadata = (("rifl-bin", header), ("rifl-batch", "1"))
    return read(client.channel.unary_unary(METHOD).future(body, timeout, metadata))


def _at_once(client: RawClient, seqs: range, timeout: float) -> list[Reply]:
    begun = [client.future(METHOD, b"", seq=seq, first=1, timeout=timeout) for seq in seqs]
    return [read(each) for each in begun]


def test_calls_are_refused_at_once_while_the_heartbeat_fails(hole: Hole) -> None:
    """One alone, and many: the store is not asked, and no call ends as its deadline (§6)."""
    with _served(hole.url(timeout_s=1, beat_s=0.1, dead_after_s=60)) as (dedup, client):
        store = dedup._store
        hole.darken()
        until(lambda: store._refusing.absence, "a heartbeat fails")
        asked, ask = [], store._backend.ask

        def asking(request: Any, *within_s: Any) -> Any:
            asked.append(type(request))
            return ask(request, *within_s)

        store._backend.ask, store._backend.ask_all = asking, None
        assert client.call(METHOD, b"", seq=2, first=1).refusal == _REFUSED
        # Each would have held one of two threads for a second.
        replies = _at_once(client, range(3, 43), timeout=10.0)
        assert [reply.refusal for reply in replies] == [_REFUSED] * 40
        assert _batch(client, range(43, 53), timeout=10.0).refusal == _REFUSED
        assert Claim not in asked
        del store._backend.ask_all
        hole.lighten()
        until(lambda: client.call(METHOD, b"", seq=2, first=1).ok, "the heartbeat is the probe", 60)
        assert _at_once(client, range(3, 43), timeout=20.0)[-1].ok


def test_a_call_waits_for_the_store_no_longer_than_it_has(hole: Hole) -> None:
    """A thread is free again when its caller has left; what was claimed is taken back (§6)."""
    # No heartbeat ends before: the store's own limit is far. A batch does so as a whole.
    with _served(hole.url(timeout_s=90, beat_s=1, dead_after_s=600)) as (dedup, client):
        hole.darken()
        replies = _at_once(client, range(2, 8), timeout=1.0)
        assert not [reply for reply in replies if reply.ok]
        until(lambda: not dedup._store._attempts.handling(), "the threads are free", 45)
        assert not _batch(client, range(2, 80), timeout=1.0).ok
        until(lambda: not dedup._store._attempts.handling(), "the threads are free", 45)
        assert not dedup._store._refusing.absence
        hole.lighten()
        until(lambda: _at_once(client, range(8, 9), 2.0)[0].ok, "calls are taken", 45)


@pytest.mark.parametrize("hole", ["redis", "postgresql", "mariadb"], indirect=True)
def test_a_record_whose_call_has_no_time_left_is_written_later(hole: Hole) -> None:
    """Its thread is free, and it stays a call that ran: no attempt runs it again (§6)."""
    entered, leave = threading.Event(), threading.Event()
    runs: list[bytes] = []

    def hold(request: bytes, _: Any) -> bytes:
        if request == b"held":
            runs.append(request)
            entered.set()
            assert leave.wait(DEADLINE_S)
        return request

    with _served(hole.url(timeout_s=90, beat_s=1, dead_after_s=600), hold) as (dedup, client):
        call = client.future(METHOD, b"held", seq=2, first=1, timeout=4.0)
        assert entered.wait(DEADLINE_S)
        hole.darken()
        leave.set()
        assert not read(call).ok
        until(lambda: not dedup._store._attempts.handling(), "the thread is free", 45)
        hole.lighten()

        def answered() -> bool:
            reply = client.call(METHOD, b"held", seq=2, first=1, attempt=2, timeout=2.0)
            return reply.ok and reply.outcome == "replayed"

        until(answered, "its answer stands", 45)
    assert runs == [b"held"]
