"""A target's rows and index over each store: moved conditionally (DESIGN §6, DESIGN-LOG §15)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import curp
import rifl
import sharedlog
from lease_server import open_authority
from rifl._stores import UnsupportedStore, open_store
from rifl._stores.rows import Move, RowCall
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import MethodPolicies, MethodPolicy, PolicyError
from rifl.core._shared.errors import Draining
from tests.helpers.servers import generic, serve
from tests.sharedlog.target.player import A, Player, player, row, told

STORES = ("memory", "sqlite", "redis", "postgres")
ATOMIC = "/shop.S/Atomic"
SHOWN = "of the player's"
INSERT = "INSERT INTO target_effect (name, lsn) VALUES (%s, %s)"
SELECT = "SELECT lsn FROM target_effect WHERE name = %s ORDER BY at"


@pytest.fixture
def url_of(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> Any:
    """The URL of a store of the test's own, by kind."""

    def url(kind: str) -> str:
        if kind == "redis":
            return str(request.getfixturevalue("shared_redis").url(namespace=name))
        if kind == "postgres":
            return str(request.getfixturevalue("shared_postgres").url(schema=name))
        return "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/store.db"

    return url


@contextlib.contextmanager
def opened(url: str) -> Iterator[Any]:
    """A store that serves."""
    store = open_store(url)
    authority = open_authority(store.leases, term_s=60.0, clock=lambda: 0.0)
    store.bind(authority, MethodPolicies({}, "plain"), clock=lambda: 0.0, bounds=Bounds())
    try:
        yield store
    finally:
        store.close()


@pytest.mark.parametrize("kind", STORES)
def test_rows_are_moved_all_or_none(kind: str, url_of: Any) -> None:
    """A move is done where every row is as expected, and else changes nothing."""
    with opened(url_of(kind)) as store:
        rows = store.rows
        a, b = "index/1/orders/0@it's a log", "b"
        assert rows.get([a, b]) == {a: None, b: None}
        assert rows.move([Move(a, None, b"\x00\xff1"), Move(b, None, b"2")]).wait()
        assert rows.get([a, b]) == {a: b"\x00\xff1", b: b"2"}
        assert not rows.move([Move(a, b"\x00\xff1", b"3"), Move(b, b"other", b"4")]).wait()
        assert not rows.move([Move(a, None, b"5")]).wait()
        assert not rows.move([Move("c", b"x", b"5")]).wait()
        assert rows.get([a, b, "c"]) == {a: b"\x00\xff1", b: b"2", "c": None}
        assert rows.move([Move(a, b"\x00\xff1", b"3"), Move(b, b"2", b"4")]).wait()
        assert rows.get([b, a]) == {a: b"3", b: b"4"}


@pytest.mark.parametrize("kind", STORES)
def test_of_rivals_one_moves_a_row(kind: str, url_of: Any) -> None:
    """Of moves that expect the same one is done, whoever asks at the same time."""
    with opened(url_of(kind)) as store:
        rows, won = store.rows, []

        def move(each: int) -> None:
            for turn in range(10):
                before = b"%d" % turn if turn else None
                if rows.move([Move("k", before, b"%d" % (turn + 1))]).wait():
                    won.append((turn, each))

        threads = [threading.Thread(target=move, args=(each,)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(turn for turn, _ in won) == list(range(10))
        assert rows.get(["k"]) == {"k": b"10"}


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_rows_are_durable_and_of_their_store(kind: str, url_of: Any) -> None:
    """Another process finds the rows, and the same id of the store."""
    url = url_of(kind)
    with opened(url) as store:
        name = store.rows.store_id
        assert name
        assert store.rows.move([Move("k", None, b"1")]).wait()
    with opened(url) as store:
        assert (store.rows.store_id, store.rows.get(["k"])) == (name, {"k": b"1"})
        assert store.rows.move([Move("k", b"1", b"2")]).wait()


@pytest.mark.parametrize("kind", STORES)
def test_a_run_counts_as_one_that_runs(kind: str, url_of: Any) -> None:
    """A store that drains waits for runs of handlers that nobody called, and begins none (§6)."""
    with opened(url_of(kind)) as store:
        attempt = store.rows.begin(RowCall("/s/m", b"x"), MethodPolicy())
        store.refuse_new(True)
        assert (store.running(), store.handling()) == (1, 1)
        assert not store.settled(0.0)
        with pytest.raises(Draining):
            store.rows.begin(RowCall("/s/m", b"y"), MethodPolicy())
        store.rows.end(attempt)
        assert (store.running(), store.handling()) == (0, 0)
        assert store.settled(0.0)


class Effects:
    """Atomic handlers in a shared store's database, and what they did."""

    def __init__(self, kind: str, server: Any, name: str) -> None:
        self.kind, self.server, self.name = kind, server, name
        self.act: Any = lambda request: None
        if kind == "postgres":
            with server.connect() as connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS target_effect (name text, at serial, lsn int)"
                )
        else:
            self.client = redis.Redis.from_url(server.url())

    def close(self) -> None:
        """Let connections go."""
        if self.kind == "redis":
            self.client.close()

    def handle(self, request: bytes, context: Any) -> bytes:
        """Note the request, in one transaction with the index."""
        self.act(request)
        if self.kind == "postgres":
            with (
                self.server.connect() as connection,
                rifl.transaction(context, connection),
            ):
                connection.execute(INSERT, (self.name, int(request)))
                rifl.record(context, b"done", connection)
        else:
            with self.client.pipeline() as pipeline:
                rifl.record(context, b"done", pipeline)
                pipeline.rpush(f"{self.name}-effects", request)
                pipeline.execute()
        return b"done"

    def all(self) -> list[int]:
        """What was done, in its order."""
        if self.kind == "postgres":
            with self.server.connect() as connection:
                found = connection.execute(SELECT, (self.name,))
                return [lsn for (lsn,) in found.fetchall()]
        return [int(each) for each in self.client.lrange(f"{self.name}-effects", 0, -1)]


@pytest.fixture(params=("redis", "postgres"))
def effects(request: pytest.FixtureRequest, name: str) -> Iterator[Effects]:
    """Handlers over one of the servers."""
    kind = str(request.param)
    found = Effects(kind, request.getfixturevalue(f"shared_{kind}"), name)
    yield found
    found.close()


@contextlib.contextmanager
def replica(url: str, effects: Effects) -> Iterator[Player]:
    """One replica of a target over the store, and a player of its own."""
    with rifl.Deduplicator(url, methods={ATOMIC: "atomic"}, drain_s=1.0) as dedup:

        def add(server: Any) -> None:
            sharedlog.add_target_to_server(server, dedup, {"orders": ATOMIC}, token=SHOWN)

        service = generic("shop.S", {"Atomic": effects.handle})
        with (
            serve("sync", [service], dedup=dedup, add=add) as served,
            player(served.address, token=SHOWN) as found,
        ):
            yield found


def test_effect_and_index_are_one_commit_in_a_shared_store(effects: Effects, url_of: Any) -> None:
    """An atomic handler's transaction moves the index, or nothing of it stands (P1)."""
    url = url_of(effects.kind)
    with replica(url, effects) as target:
        assert told(target.batch(*row(1, 5)))[-1] == ("DONE", 5)
        assert told(target.batch(*row(1, 6)))[-1] == ("DONE", 6)
        assert effects.all() == [1, 2, 3, 4, 5, 6]
        assert target.index().at.lsn == 6
    with replica(url, effects) as target:
        assert target.index().at.lsn == 6
        assert told(target.batch(*row(6, 7)))[-1] == ("DONE", 7)
    assert effects.all() == [1, 2, 3, 4, 5, 6, 7]


def test_two_replicas_deliver_a_message_once(effects: Effects, url_of: Any) -> None:
    """Rival deliveries to two replicas over one store have one effect, in order (P1, P2)."""
    url = url_of(effects.kind)
    with replica(url, effects) as one, replica(url, effects) as two:
        together = threading.Barrier(2)
        answers: dict[int, list[Any]] = {}

        def deliver(which: int, target: Player) -> None:
            together.wait(30)
            at = 0
            found = answers.setdefault(which, [])
            while at < 20:
                # Whatever was refused is sent again from where the index is.
                found.extend(target.batch(*row(at + 1, 20)))
                index = target.index()
                at = index.at.lsn if index.HasField("at") else 0

        threads = [threading.Thread(target=deliver, args=each) for each in enumerate((one, two))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert effects.all() == list(range(1, 21))
        kinds = {each.kind for some in answers.values() for each in some}
        assert kinds <= {A.DONE, A.GAP, A.FAILED}


def test_a_handler_that_lost_its_turn_leaves_nothing(effects: Effects, url_of: Any) -> None:
    """Another replica moved the index while the handler ran: its own transaction is undone."""
    url = url_of(effects.kind)
    with replica(url, effects) as one, replica(url, effects) as two:
        came, go_on = threading.Event(), threading.Event()

        def act(request: bytes) -> None:
            if not came.is_set():
                came.set()
                assert go_on.wait(30)

        effects.act = act
        late: list[Any] = []
        thread = threading.Thread(target=lambda: late.extend(one.batch(*row(1, 1))))
        thread.start()
        assert came.wait(30)
        try:
            assert told(two.batch(*row(1, 2)))[-1] == ("DONE", 2)
        finally:
            go_on.set()
            thread.join(30)
        assert told(late) == [("DONE", 1)]
        assert effects.all() == [1, 2]


def test_what_cannot_be_a_target_is_refused(tmp_path: Path) -> None:
    """A group, and a method whose records are elsewhere, are refused before anything comes."""
    with pytest.raises(UnsupportedStore, match="Deduplicator"):
        sharedlog.add_target_to_server(None, curp.Replica, {"orders": ATOMIC})  # type: ignore[arg-type]
    methods = {
        ATOMIC: MethodPolicy(kind="atomic", database=f"sqlite:///{tmp_path}/other.db"),
        "/shop.S/Not": None,
    }
    with rifl.Deduplicator(f"sqlite:///{tmp_path}/store.db", methods=methods) as dedup:
        for method in (ATOMIC, "/shop.S/Not", "/sharedlog.v1.Target/Connect"):
            with pytest.raises(PolicyError):
                sharedlog.add_target_to_server(None, dedup, {"orders": method})  # type: ignore[arg-type]
        for streams in ({}, {"orders": ()}, {"no/name": ATOMIC}, {"orders": "Reserve"}):
            with pytest.raises(sharedlog.InvalidRequest):
                sharedlog.add_target_to_server(None, dedup, streams)  # type: ignore[arg-type]
