"""Shared transactions in the hands of handlers that err, and what is said then (DESIGN §4, §6)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import rifl
import rifl.aio
from rifl._server.context import HandlerContext, Serving
from rifl._stores import WrongDatabase
from rifl._stores.sqlite import connection_proxy, shared_transactions
from rifl.core._serving.client_table import Attempt
from rifl.core._serving.later import Later
from rifl.core._shared.errors import RecordPending, StaleRpc, StoreUnavailable
from tests.helpers.raw import RawClient
from tests.helpers.servers import KINDS, generic, serve
from tests.helpers.waiting import until
from tests.stores.conformance import FIRST, OTHER
from tests.stores.shared_calls import ATOMIC, INSERT, Calls, Place, failing

METHOD = "/t.S/Act"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A file with a table of effects."""
    return Place(tmp_path / "store.db")


@pytest.fixture
def calls(place: Place) -> Iterator[Calls]:
    """A store over the file."""
    calls = Calls(place)
    yield calls
    calls.opened.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads of handlers."""
    with ThreadPoolExecutor(2) as pool:
        yield pool


def own(place: Place) -> Any:
    """A connection of the handler's own, closed at the end."""
    return contextlib.closing(sqlite3.connect(place.path))


def come_again(calls: Calls, place: Place) -> Attempt:
    """A call whose record stands, though nobody could tell: it is run once more."""
    attempt = calls.begin()
    with own(place) as mine, mine:
        calls.store.transactions.record(attempt, OTHER, mine)
    calls.store.abandon(attempt)
    return calls.opened.begin(attempt.call, ATOMIC)


# -- two transactions in one call ------------------------------------------------------------


def test_a_block_after_an_own_record_is_refused(calls: Calls, place: Place) -> None:
    """What was committed before is the answer, whatever becomes of the block (§4.7)."""
    attempt = calls.begin()
    with own(place) as mine, mine:
        mine.execute(INSERT, ("own",))
        calls.store.transactions.record(attempt, FIRST, mine)
    with pytest.raises(StaleRpc):
        calls.act(attempt)
    assert place.effects() == ["own"]
    assert calls.end(attempt) == FIRST


def test_a_block_after_one_that_nobody_knows_of_leaves_the_call_unknown(calls: Calls) -> None:
    """That a second one was refused does not make the first one undone (§3)."""
    failing(calls, "SQLITE_IOERR_FSYNC")
    attempt = calls.begin()
    with pytest.raises(RecordPending):
        calls.act(attempt)
    with pytest.raises(StaleRpc):
        calls.act(attempt)
    with pytest.raises(RecordPending):
        calls.end(attempt)


def test_a_block_after_one_that_failed_for_certain_may_follow(calls: Calls, place: Place) -> None:
    """Nothing of the first stands: the handler may try again (§6)."""
    failing(calls, "SQLITE_FULL")
    attempt = calls.begin()
    with pytest.raises(StoreUnavailable):
        calls.act(attempt)
    calls.act(attempt)
    assert calls.end(attempt) == FIRST
    assert place.effects() == [attempt.call.seq]


@pytest.mark.timeout(4)  # far less than SQLite would wait for its own lock
def test_an_own_record_within_a_turn_is_refused(calls: Calls, place: Place) -> None:
    """It could only wait for a lock that the turn itself holds, with all others (§6)."""
    attempt = calls.begin()
    with own(place) as mine, calls.enter(attempt) as connection:
        connection.execute(INSERT, ("x",))
        with pytest.raises(WrongDatabase, match="turn"):
            calls.store.transactions.record(attempt, FIRST, mine)
        calls.store.transactions.record(attempt, FIRST, connection)
    assert calls.end(attempt) == FIRST
    assert place.effects() == ["x"]


def test_a_call_has_one_block_at_a_time(
    calls: Calls, place: Place, pool: ThreadPoolExecutor
) -> None:
    """Also while a thread of its waits for one: of two, one would be lost sight of (§6)."""
    holder, attempt = calls.begin(), calls.begin()
    with own(place) as mine, calls.enter(holder) as connection:
        waits = pool.submit(calls.act, attempt)
        until(calls.waiting, "its thread waits for a turn")
        for begin in (
            lambda: calls.enter(attempt).__enter__(),
            lambda: calls.store.transactions.record(attempt, FIRST, mine),
        ):
            with pytest.raises(WrongDatabase, match="waits"):
                begin()
        calls.store.transactions.record(holder, FIRST, connection)
    waits.result()
    assert calls.end(attempt) == FIRST
    assert place.effects() == [attempt.call.seq]


# -- a record that stands --------------------------------------------------------------------


def test_a_record_that_stands_is_the_answer(calls: Calls, place: Place) -> None:
    """An attempt that meets an earlier one's record was executed, not undone (§4.7)."""
    again = come_again(calls, place)
    with pytest.raises(StaleRpc):
        calls.act(again)
    assert calls.end(again) == OTHER
    assert place.effects() == []


def test_so_it_is_where_the_handler_goes_on_behind_its_record(calls: Calls, place: Place) -> None:
    """Its own part is undone as the block ends; the answer is the one that stands (§4.7)."""
    again = come_again(calls, place)
    with pytest.raises(StaleRpc), calls.enter(again) as connection:  # noqa: PT012 - its body
        calls.store.transactions.record(again, FIRST, connection)
        connection.execute(INSERT, ("x",))
    assert calls.end(again) == OTHER
    assert place.effects() == []


def test_a_record_is_there_whatever_savepoint_it_was_given_in(calls: Calls, place: Place) -> None:
    """The block writes it last, once: told executed, it is kept (§4.6)."""
    attempt = calls.begin()
    with calls.enter(attempt) as connection:
        connection.execute(INSERT, ("x",))
        connection.execute("SAVEPOINT mine")
        calls.store.transactions.record(attempt, FIRST, connection)
        with pytest.raises(WrongDatabase, match="once"):
            calls.store.transactions.record(attempt, OTHER, connection)
        connection.execute("ROLLBACK TO mine")
    standing = calls.store.fetch(attempt.call)
    assert calls.end(attempt) == standing == FIRST
    assert place.effects() == ["x"]


def test_so_it_is_where_a_fall_back_meets_it(calls: Calls, place: Place) -> None:
    """Not that no turn came, but the record that its own transaction met (§4.7)."""
    holder, again = calls.begin(), come_again(calls, place)
    with calls.enter(holder) as connection:
        with pytest.raises(StoreUnavailable):
            calls.enter(again, 0.01).__enter__()
        calls.store.transactions.record(holder, FIRST, connection)
    with own(place) as mine, pytest.raises(StaleRpc):
        calls.store.transactions.record(again, FIRST, mine)
    assert calls.end(again) == OTHER


async def test_an_own_commit_that_goes_on_when_the_handler_is_gone_counts(
    calls: Calls, place: Place
) -> None:
    """A coroutine is cancelled, the thread that commits for it is not: it was executed (§4.6)."""
    for number in range(5):
        attempt = calls.begin()
        async with aiosqlite.connect(place.path) as mine:
            await mine.execute(INSERT, (number,))
            await calls.store.transactions.record_async(attempt, FIRST, mine)
            committing = asyncio.create_task(mine.commit())
            await asyncio.sleep(0)
            committing.cancel()
            standing = calls.store.committed(attempt)
            if isinstance(standing, Later):
                standing = await standing
        assert standing == (FIRST if number in place.effects() else None)


# -- turns that do not end as they should ------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_left_open_ends_with_its_handler(place: Place, kind: str) -> None:
    """Undone and told so: else its call, and all after it, would wait for ever (§4)."""

    def act(request: bytes, context: Any) -> bytes:
        block = rifl.transaction(context)
        kept.append(block)
        connection = block.__enter__()
        connection.execute(INSERT, (request.decode(),))
        rifl.record(context, b"done", connection)
        if request == b"left":
            return b"left"
        block.__exit__(None, None, None)
        return b"done"

    async def act_async(request: bytes, context: Any) -> bytes:
        block = rifl.aio.transaction(context)
        kept.append(block)
        connection = await block.__aenter__()
        connection.execute(INSERT, (request.decode(),))
        await rifl.aio.record(context, b"done", connection)
        if request == b"left":
            return b"left"
        await block.__aexit__(None, None, None)
        return b"done"

    kept: list[Any] = []
    handlers = {"Act": act_async if kind == "aio" else act}
    with (
        rifl.Deduplicator(place.url, methods={METHOD: "atomic"}) as dedup,
        serve(kind, [generic("t.S", handlers)], dedup=dedup) as at,
        RawClient(at.address) as client,
    ):
        left = client.call(METHOD, b"left", 1, timeout=30)
        assert left.refusal == ("INTERNAL", "NOT_RECORDED", "not-executed")
        assert client.call(METHOD, b"ended", 2, timeout=30).ok
    assert place.effects() == ["ended"]


@pytest.mark.parametrize("way", ["shared", "aiosqlite", "session"])
def test_a_coroutine_is_told_of_the_transaction_that_it_can_await(place: Place, way: str) -> None:
    """``rifl.transaction`` names ``rifl.aio.transaction``, and does nothing; so ``record``."""

    async def act(request: bytes, context: Any) -> bytes:
        given: tuple[Any, ...] = ()
        async with contextlib.AsyncExitStack() as stack:
            if way == "aiosqlite":
                given = (await stack.enter_async_context(aiosqlite.connect(place.path)),)
            elif way == "session":
                engine = create_async_engine(f"sqlite+aiosqlite:///{place.path}")
                stack.push_async_callback(engine.dispose)
                given = (await stack.enter_async_context(AsyncSession(engine)),)
            if request == b"record":
                rifl.record(context, b"done", *given)
            elif request == b"with":
                with rifl.transaction(context, *given):
                    pass
            else:
                block: Any = rifl.transaction(context, *given)
                async with block:
                    pass
        return b"done"

    with (
        rifl.Deduplicator(place.url, methods={METHOD: "atomic"}) as dedup,
        serve("aio", [generic("t.S", {"Act": act})], dedup=dedup) as at,
        RawClient(at.address) as client,
    ):
        for seq, request in enumerate([b"with", b"async with"], 1):
            error = client.call(METHOD, request, seq, timeout=30)
            assert "`async with rifl.aio.transaction(...)`" in error.details
        if way != "shared":
            error = client.call(METHOD, b"record", 3, timeout=30)
            assert "`await rifl.aio.record(...)`" in error.details
    assert place.effects() == []


def test_a_thread_that_outlives_its_handler_loses_its_turn(
    calls: Calls, place: Place, pool: ThreadPoolExecutor
) -> None:
    """It writes nothing more, is told so, and does not end another call's turn (§4, §6)."""
    late, other = calls.begin(), calls.begin()
    entered, go_on = threading.Event(), threading.Event()
    seen: list[type[BaseException]] = []

    def outlive() -> None:
        with calls.enter(late) as connection:
            connection.execute(INSERT, ("late",))
            calls.store.transactions.record(late, FIRST, connection)
            entered.set()
            go_on.wait()
            try:
                connection.execute(INSERT, ("later",))
            except sqlite3.ProgrammingError as error:
                seen.append(type(error))

    outliving = pool.submit(outlive)
    entered.wait()
    assert calls.end(late) is None
    with calls.enter(other) as connection:
        connection.execute(INSERT, ("other",))
        go_on.set()
        with pytest.raises(StaleRpc, match="ended before its block"):
            outliving.result()
        calls.store.transactions.record(other, FIRST, connection)
    assert seen == [sqlite3.ProgrammingError]
    assert calls.end(other) == FIRST
    assert place.effects() == ["other"]


def test_what_a_thread_begins_later_than_its_handler_ends_is_refused(
    calls: Calls, place: Place, pool: ThreadPoolExecutor
) -> None:
    """Its turn comes, or it records in its own transaction: the caller may be told already (§4)."""
    holder, late, later = calls.begin(), calls.begin(), calls.begin()
    with calls.enter(holder) as connection:
        waits = pool.submit(calls.act, late)
        until(calls.waiting, "it waits for its turn")
        assert calls.store.committed(late) is None
        calls.store.transactions.record(holder, FIRST, connection)
    with pytest.raises(StaleRpc, match="ended before its block"):
        waits.result()
    assert calls.store.committed(later) is None
    with own(place) as mine, mine:
        mine.execute(INSERT, ("own",))
        with pytest.raises(StaleRpc, match="has ended"):
            calls.store.transactions.record(later, FIRST, mine)
        mine.rollback()
    calls.act(calls.begin(), "next")
    assert place.effects() == ["next"]


def test_a_commit_that_fails_while_its_failure_is_told_is_not_taken_for_done(
    calls: Calls, pool: ThreadPoolExecutor
) -> None:
    """Whatever goes wrong on the way, nobody hears of a commit that was none, or waits (§9)."""
    failing(calls, "SQLITE_FULL")

    def stop(error: Exception) -> bool:
        raise LookupError

    calls.shared._stop = stop
    attempt, after = calls.begin(), calls.begin()
    with pytest.raises(LookupError):
        pool.submit(calls.act, attempt).result()
    with pytest.raises(RecordPending):
        calls.end(attempt)
    pool.submit(calls.act, after).result()
    assert calls.end(after) == FIRST


async def test_a_store_that_is_closed_says_so(calls: Calls) -> None:
    """To each that comes after, and at once (§3)."""
    attempts = [calls.begin() for _ in range(3)]
    await _act(calls, attempts[0])
    calls.shared.close()
    for attempt in attempts[1:]:
        with pytest.raises(StoreUnavailable, match="closed"):
            await _act(calls, attempt)


async def test_a_turn_that_ends_after_the_store_was_closed_is_committed(
    calls: Calls, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler outlasted the drain: it is not left waiting for its commit (§4)."""
    monkeypatch.setattr(shared_transactions, "LONGEST_WAIT_S", 0.01)
    attempts = [calls.begin() for _ in range(2)]
    await _act(calls, attempts[0])
    async with calls.enter_async(attempts[1]) as connection:
        connection.execute(INSERT, ("late",))
        await calls.store.transactions.record_async(attempts[1], FIRST, connection)
        await asyncio.to_thread(calls.shared.close)
    assert place.effects() == [attempts[0].call.seq, "late"]


async def _act(calls: Calls, attempt: Attempt) -> None:
    async with calls.enter_async(attempt) as connection:
        connection.execute(INSERT, (attempt.call.seq,))
        await calls.store.transactions.record_async(attempt, FIRST, connection)


# -- what is lent ----------------------------------------------------------------------------


def test_a_cursor_of_the_turn_takes_the_record(calls: Calls, place: Place) -> None:
    """As ``rifl.record`` says, and as the connection does: no longer than the turn (§6)."""
    attempt, other = calls.begin(), calls.begin()
    with calls.enter(attempt) as connection:
        cursor = connection.execute(INSERT, ("x",))
        calls.store.transactions.record(attempt, FIRST, cursor)
    assert calls.end(attempt) == FIRST
    with calls.enter(other) as connection:
        with pytest.raises(WrongDatabase):
            calls.store.transactions.record(other, FIRST, cursor)
        calls.store.transactions.record(other, FIRST, connection)
    assert place.effects() == ["x"]


def test_a_block_keeps_no_cursor_that_nobody_holds(calls: Calls) -> None:
    """A block may execute any number of statements (§9)."""
    attempt = calls.begin()
    with calls.enter(attempt) as connection:
        for number in range(300):
            connection.execute(INSERT, (number,))
        gc.collect()
        kept = [
            thing for thing in gc.get_objects() if isinstance(thing, connection_proxy._CursorProxy)
        ]
        assert len(kept) < 50
        calls.store.transactions.record(attempt, FIRST, connection)


# -- blocks on a connection of the handler's -------------------------------------------------


def test_what_another_call_left_in_a_connection_is_not_committed(
    calls: Calls, place: Place
) -> None:
    """A transaction that is open already has effects which the record is not of (§6)."""
    context = HandlerContext(None, calls.begin(), Serving(calls.store, None))
    with own(place) as mine:
        mine.execute(INSERT, ("of another call",))
        with pytest.raises(WrongDatabase, match="open"), rifl.transaction(context, mine):
            pytest.fail("it has begun")
    assert place.effects() == []


def test_a_block_without_an_identity_is_refused_where_it_were_no_transaction(
    place: Place,
) -> None:
    """In autocommit what an exception leaves behind stands (§6)."""
    with contextlib.closing(sqlite3.connect(place.path, isolation_level=None)) as mine:
        with pytest.raises(WrongDatabase, match="autocommit"), rifl.transaction(None, mine):
            pytest.fail("it has begun")
        with pytest.raises(KeyError):  # noqa: PT012 - its body
            mine.execute("BEGIN")
            with rifl.transaction(None, mine):
                mine.execute(INSERT, ("x",))
                raise KeyError
    assert place.effects() == []
