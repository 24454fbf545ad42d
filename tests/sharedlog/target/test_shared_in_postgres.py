"""Deliveries that share a transaction in PostgreSQL: one commit of many (DESIGN-LOG §15, P1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import rifl
import rifl.aio
import sharedlog
from lease_server import open_authority
from rifl._stores import WrongDatabase, open_store
from rifl._stores.postgres.shared_blocks import PostgresBlocks
from rifl._stores.rows import Move, RowCall
from rifl._stores.shared.attempts import SharedAttempt
from rifl.core._serving.bounds import Bounds
from rifl.core._serving.policy import MethodPolicies, MethodPolicy
from rifl.core._shared.call import Call
from rifl.core._shared.errors import NotRecorded
from tests.helpers.servers import KINDS, generic, serve
from tests.sharedlog.target.player import A, Player, message, player, row, told

METHOD, OTHER = "/shop.S/Atomic", "/shop.S/Other"
COUNT, SELECT = "SELECT count(*) FROM {}", "SELECT lsn, number FROM {} ORDER BY at"
INSERT = "INSERT INTO {} (lsn, number) VALUES (%s, txid_current())"


class Shop:
    """Atomic handlers on connections of the store's, and what they did."""

    def __init__(self, server: Any, name: str) -> None:
        self.server = server
        self.table = f"{name}_effect"
        self.called: list[int] = []
        self.act: Any = lambda lsn, connection: None
        # Of this message a statement fails.
        self.broken = 0
        with server.connect() as connection:
            connection.execute(
                f"CREATE TABLE {self.table} (at serial, lsn int, number bigint, "
                "UNIQUE (lsn) DEFERRABLE INITIALLY DEFERRED)"
            )

    def handle(self, request: bytes, context: Any) -> bytes:
        """Note the request, in the transaction that others share."""
        lsn = int(request)
        self.called.append(lsn)
        with rifl.transaction(context) as connection:
            connection.execute(INSERT.format(self.table), (lsn,))
            if lsn == self.broken:
                connection.execute("SELECT 1 / 0")
            self.act(lsn, connection)
            rifl.record(context, b"done", connection)
        return b"done"

    async def handle_async(self, request: bytes, context: Any) -> bytes:
        """The same on a loop."""
        lsn = int(request)
        self.called.append(lsn)
        async with rifl.aio.transaction(context) as connection:
            await connection.execute(INSERT.format(self.table), (lsn,))
            if lsn == self.broken:
                await connection.execute("SELECT 1 / 0")
            self.act(lsn, connection)
            await rifl.aio.record(context, b"done", connection)
        return b"done"

    def alone(self, request: bytes, context: Any) -> bytes:
        """The same on a connection of its own, which counts what it sees of the others."""
        with self.server.connect() as connection, rifl.transaction(context, connection):
            seen = connection.execute(COUNT.format(self.table)).fetchone()[0]
            connection.execute(INSERT.format(self.table), (int(request),))
            assert seen == int(request) - 1
            rifl.record(context, b"done", connection)
        return b"done"

    def rows(self) -> list[tuple[int, int]]:
        """What was done, in its order, each with the number of its transaction."""
        with self.server.connect() as connection:
            return list(connection.execute(SELECT.format(self.table)).fetchall())

    def effects(self) -> list[int]:
        """What was done, in its order."""
        return [lsn for lsn, _ in self.rows()]

    def transactions(self) -> int:
        """How many there were."""
        return len({number for _, number in self.rows()})


class Commits(rifl.Observer):
    """What is told of commits that deliveries share."""

    def __init__(self) -> None:
        self.shared: list[tuple[int, bool]] = []

    def committed(self, entries: int, seconds: float, error: Exception | None) -> None:
        self.shared.append((entries, error is None))


@pytest.fixture
def shop(shared_postgres: Any, name: str) -> Shop:
    """One with a table of its own."""
    return Shop(shared_postgres, name)


@contextlib.contextmanager
def opened(
    kind: str, shop: Shop, name: str, observer: rifl.Observer | None = None
) -> Iterator[Player]:
    """A target over the server, and a player before it."""
    url = shop.server.url(schema=name)
    methods = {METHOD: "atomic", OTHER: "atomic"}
    with rifl.Deduplicator(url, methods=methods, drain_s=1.0, observer=observer) as dedup:

        def add(server: Any) -> None:
            sharedlog.add_target_to_server(server, dedup, {"orders": [METHOD, OTHER]})

        handle: Any = shop.handle_async if kind == "aio" else shop.handle
        service = generic("shop.S", {"Atomic": handle, "Other": shop.alone})
        with (
            serve(kind, [service], dedup=dedup, add=add) as served,
            player(served.address) as found,
        ):
            try:
                yield found
            finally:
                # Connections of an event loop are closed on it.
                dedup.close()


def deliver(kind: str, target: Player, *deliveries: Any) -> list[Any]:
    """By a stream where there is one, else in a batch."""
    if kind == "sync":
        return target.batch(*deliveries)
    stream = target.stream()
    stream.send(*deliveries)
    return stream.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_are_at_hand_are_one_transaction(kind: str, shop: Shop, name: str) -> None:
    """Their effects, and the index, are there together, or none is (P1)."""
    with opened(kind, shop, name) as target:
        assert told(deliver(kind, target, *row(1, 50, METHOD)))[-1] == ("DONE", 50)
        assert (shop.effects(), shop.transactions()) == (list(range(1, 51)), 1)
        assert (target.index().at.lsn, target.index().taken) == (50, 50)
        # One that comes by itself has one of its own.
        assert told(deliver(kind, target, *row(51, 51, METHOD)))[-1] == ("DONE", 51)
        assert shop.transactions() == 2
    with opened(kind, shop, name) as target:
        assert told(deliver(kind, target, *row(50, 52, METHOD)))[-1] == ("DONE", 52)
    assert shop.effects() == list(range(1, 53))


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_fails_in_the_middle_undoes_itself_alone(
    kind: str, shop: Shop, name: str
) -> None:
    """Those before it are committed, by their one transaction; it comes again (P1, P7)."""

    def act(lsn: int, connection: Any) -> None:
        if lsn == 30 and shop.called.count(30) == 1:
            raise ValueError("no room")

    shop.act = act
    with opened(kind, shop, name) as target:
        answers = deliver(kind, target, *row(1, 50, METHOD))
        assert told(answers)[-1] == ("FAILED", 30)
        assert "no room" in answers[-1].details
        assert ("DONE", 29) in told(answers)
        assert (shop.effects(), shop.transactions()) == (list(range(1, 30)), 1)
        assert target.index().at.lsn == 29
        assert told(deliver(kind, target, *row(30, 50, METHOD)))[-1] == ("DONE", 50)
    assert shop.effects() == list(range(1, 51))


@pytest.mark.parametrize("kind", KINDS)
def test_a_statement_that_fails_leaves_those_before_it(kind: str, shop: Shop, name: str) -> None:
    """PostgreSQL takes nothing more in that transaction, but for what undoes its part (P1)."""

    shop.broken = 3
    with opened(kind, shop, name) as target:
        assert told(deliver(kind, target, *row(1, 5, METHOD)))[-1] == ("FAILED", 3)
        shop.broken = 0
        # Twice the same: the constraint is looked at when it commits.
        twice = message(3, 2, METHOD, body=b"2")
        answers = deliver(kind, target, twice, message(4, 3, METHOD), message(5, 4, METHOD))
        assert answers[-1].kind == A.UNAVAILABLE
        assert shop.effects() == [1, 2]
        # So that one message does not keep the others for ever each is tried by itself now.
        assert told(deliver(kind, target, twice, message(4, 3, METHOD)))[-1] == ("FAILED", 3)
        assert told(deliver(kind, target, *row(3, 5, METHOD)))[-1] == ("DONE", 5)
    assert shop.effects() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_for_locks_that_others_hold_is_tried_by_itself(
    kind: str, shop: Shop, name: str
) -> None:
    """A deadlock of transactions that deliveries share is no handler's failure (P7)."""

    def act(lsn: int, connection: Any) -> None:
        if lsn == 3 and shop.called.count(3) == 1:
            raise psycopg.errors.DeadlockDetected("says the test")

    shop.act = act
    with opened(kind, shop, name) as target:
        assert told(deliver(kind, target, *row(1, 5, METHOD)))[-1] == ("DONE", 5)
    assert shop.effects() == [1, 2, 3, 4, 5]
    assert shop.called == [1, 2, 3, 3, 4, 5]
    assert shop.transactions() == 3


@pytest.mark.parametrize("kind", ["sync", "threads"])
def test_a_handler_with_a_connection_of_its_own_sees_what_was_before_it(
    kind: str, shop: Shop, name: str
) -> None:
    """Those that share a transaction are committed before it runs (P1)."""
    with opened(kind, shop, name) as target:
        both = [*row(1, 3, METHOD), *row(4, 4, OTHER), *row(5, 6, METHOD), *row(7, 8, OTHER)]
        assert told(deliver(kind, target, *both))[-1] == ("DONE", 8)
    assert shop.effects() == list(range(1, 9))


@pytest.mark.parametrize("kind", KINDS)
def test_their_commits_are_told(kind: str, shop: Shop, name: str) -> None:
    """Once for all that share it, and how many those are; one that is refused is not (§9)."""
    seen = Commits()
    with opened(kind, shop, name, observer=seen) as target:
        assert told(deliver(kind, target, *row(1, 50, METHOD)))[-1] == ("DONE", 50)
        assert told(deliver(kind, target, *row(51, 51, METHOD)))[-1] == ("DONE", 51)
        assert seen.shared == [(50, True), (1, True)]
        # The constraint is looked at when it commits.
        twice = message(52, 51, METHOD, body=b"1")
        assert told(deliver(kind, target, twice))[-1][0] == "FAILED"
        assert seen.shared == [(50, True), (1, True)]


def test_a_commit_that_was_not_answered_is_told_as_that(shop: Shop, name: str) -> None:
    """Nobody knows what became of it (DESIGN §9)."""
    seen = Commits()

    def act(lsn: int, connection: Any) -> None:
        if lsn == 2 and shop.called.count(2) == 1:
            with shop.server.connect(autocommit=True) as killer:
                pid = connection.info.backend_pid
                killer.execute("SELECT pg_terminate_backend(%s)", (pid,))

    shop.act = act
    with opened("sync", shop, name, observer=seen) as target:
        target.batch(*row(1, 2, METHOD))
        assert seen.shared[0] == (2, False)


def test_another_replica_moved_the_index_meanwhile(shop: Shop, name: str) -> None:
    """Nothing of the shared transaction stands; what is behind it runs once more (P2)."""
    theirs = [message(at, at - 1 if at > 1 else None, METHOD, body=b"10%d" % at) for at in (1, 2)]
    with opened("sync", shop, name) as one, opened("sync", shop, name) as two:

        def act(lsn: int, connection: Any) -> None:
            if lsn == 3 and shop.called.count(3) == 1:
                assert told(two.batch(*theirs))[-1] == ("DONE", 2)

        shop.act = act
        assert told(one.batch(*row(1, 3, METHOD)))[-1] == ("DONE", 3)
    assert shop.effects() == [101, 102, 3]


def test_a_run_that_outlives_its_store_leaves_no_connection(shop: Shop, name: str) -> None:
    """What was not committed is undone when the store is closed beneath it (§6)."""
    store = open_store(shop.server.url(schema=name))
    authority = open_authority(store.leases, term_s=60.0, clock=lambda: 0.0)
    store.bind(authority, MethodPolicies({}, "plain"), clock=lambda: 0.0, bounds=Bounds())
    policy = MethodPolicy(kind="atomic")
    attempt = store.rows.begin(RowCall(METHOD, b"x", [Move("k", None, b"1")]), policy)
    held: list[Any] = []

    def handle() -> None:
        with store.shared_blocks.block(attempt, None) as connection:
            held.append(connection)
            connection.execute(INSERT.format(shop.table), (1,))
            store.rows.end(attempt)
            store.close()

    with pytest.raises(NotRecorded):
        handle()
    assert held[0].closed
    assert store.shared_blocks._pools is None
    assert shop.effects() == []


def test_a_call_of_grpcs_brings_a_connection() -> None:
    """Only deliveries come one after the other, so that they can share a transaction (§6)."""
    policy = MethodPolicy(kind="atomic")
    called = SharedAttempt(Call(1, b"", None, b"x", method=METHOD), policy, 1, b"", "")
    with pytest.raises(WrongDatabase, match="give a connection"):
        PostgresBlocks(None, None, None, None).block(called, None)  # type: ignore[arg-type]


def test_a_handler_does_not_end_what_it_shares(shop: Shop, name: str) -> None:
    """``WrongDatabase``; else its neighbours' effects would be there without the index (P1)."""

    def act(lsn: int, connection: Any) -> None:
        for statement in ("COMMIT", "ROLLBACK", b"SELECT 1; END"):
            with pytest.raises(rifl.WrongDatabase, match=r"rifl\.transaction commits"):
                connection.execute(statement)

    shop.act = act
    with opened("sync", shop, name) as target:
        assert told(deliver("sync", target, *row(1, 5, METHOD)))[-1] == ("DONE", 5)
        assert (shop.effects(), shop.transactions()) == ([1, 2, 3, 4, 5], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_handler_leaves_running_writes_into_no_later_part(
    kind: str, shop: Shop, name: str
) -> None:
    """The next run shares its transaction and its connection, and not what it was lent (P1)."""
    kept: list[Any] = []
    refused: list[object] = []

    def again(act: Any) -> None:
        try:
            act()
        except WrongDatabase as error:
            refused.append(error)

    async def again_async(act: Any) -> None:
        try:
            await act()
        except WrongDatabase as error:
            refused.append(error)

    def act(lsn: int, connection: Any) -> None:
        if lsn == 1:
            cursor = connection.cursor()
            write = INSERT.format(shop.table), (99,)
            kept.extend([lambda: connection.execute(*write), lambda: cursor.execute(*write)])
            return
        for each in kept:
            if kind == "aio":
                left.append(asyncio.ensure_future(again_async(each)))
            else:
                again(each)

    left: list[Any] = []
    shop.act = act
    with opened(kind, shop, name) as target:
        assert told(deliver(kind, target, *row(1, 3, METHOD)))[-1] == ("DONE", 3)
    assert shop.effects() == [1, 2, 3]
    assert len(refused) == 4
