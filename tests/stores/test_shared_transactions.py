"""Transactions that calls share on SQLite: one commit, each call's own fate (DESIGN §4, §6)."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rifl
import rifl.aio
from rifl._stores import MemoryStore, WrongDatabase
from rifl._stores.rows import RowCall
from rifl._stores.sqlite import journal, shared_transactions, write_queue
from rifl._stores.sqlite.file_guard import StoreFileGuard
from rifl._stores.sqlite.journal_entries import JournalEntry
from rifl._stores.sqlite.write_queue import SharedTransaction
from rifl.core._serving.client_table import Attempt
from rifl.core._serving.decision import Decision
from rifl.core._serving.later import Later
from rifl.core._shared.errors import NotRecorded, RecordPending, StaleRpc, StoreUnavailable
from tests.helpers.raw import RawClient
from tests.helpers.servers import KINDS, generic, serve
from tests.helpers.waiting import until
from tests.stores.conformance import FIRST, PLAIN, call, wait
from tests.stores.shared_calls import ATOMIC, INSERT, Calls, Place, failing

METHOD = "/t.S/Act"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A file with a table of effects."""
    return Place(tmp_path / "store.db")


@pytest.fixture
def calls(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """A store over the file, whose transactions do not end for their age."""
    monkeypatch.setattr(write_queue, "OPEN_S", 60.0)
    calls = Calls(place)
    yield calls
    calls.opened.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads of handlers."""
    with ThreadPoolExecutor(16) as pool:
        yield pool


def test_a_call_is_one_commit_and_nothing_is_written_before_it(
    calls: Calls, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim is a decision in memory, its record is in its transaction (DESIGN §4, step 6)."""
    commits: list[int] = []
    # Whoever commits to the file says so there.
    monkeypatch.setattr(
        StoreFileGuard, "committed", lambda _, number, raised: commits.append(number)
    )
    for seq in range(1, 4):
        decision = calls.store.claim(call(calls.client, seq), ATOMIC)
        assert isinstance(decision, Decision)
        assert decision.attempt is not None
        assert calls.store.start(decision.attempt) is None
        assert len(commits) == seq - 1
        calls.act(decision.attempt, seq)
        assert calls.end(decision.attempt) == FIRST
        assert len(commits) == seq
    assert place.effects() == [1, 2, 3]


def held(calls: Calls, pool: ThreadPoolExecutor, count: int) -> tuple[list[Attempt], Any]:
    """The first of so many calls is in its turn, the others wait; what lets it go on."""
    attempts = [calls.begin() for _ in range(count)]
    entered, go_on = threading.Event(), threading.Event()

    def first() -> None:
        with calls.enter(attempts[0]) as connection:
            entered.set()
            go_on.wait()
            connection.execute(INSERT, (attempts[0].call.seq,))
            calls.store.transactions.record(attempts[0], FIRST, connection)

    futures = [pool.submit(first)]
    entered.wait()
    for attempt in attempts[1:]:
        futures.append(pool.submit(calls.act, attempt))
        until(lambda: calls.waiting() == len(futures) - 1, "it waits for its turn")

    def release() -> list[Future[None]]:
        go_on.set()
        return futures

    return attempts, release


# -- one commit ------------------------------------------------------------------------------


def test_those_who_wait_share_one_commit(
    calls: Calls, place: Place, pool: ThreadPoolExecutor
) -> None:
    """WriteQueue in the order they came, in one transaction; all committed or none (§6)."""
    attempts, release = held(calls, pool, 8)
    assert place.effects() == []
    for future in release():
        future.result()
    assert len({id(attempt.shared.group) for attempt in attempts}) == 1  # type: ignore[union-attr]
    assert place.effects() == [attempt.call.seq for attempt in attempts]
    for attempt in attempts:
        assert calls.end(attempt) == FIRST
        assert calls.opened.answer(attempt.call) == FIRST


def test_a_block_ends_when_its_effects_are_durable(calls: Calls, place: Place) -> None:
    """Whoever leaves the block finds its effect and its record in the file (§4.7)."""
    for number in range(3):
        attempt = calls.begin()
        calls.act(attempt, f"effect {number}")
        assert place.effects()[-1] == f"effect {number}"
        assert calls.store._main.read(attempt.call) == FIRST
        assert calls.end(attempt) == FIRST


def test_who_comes_together_is_waited_for(
    calls: Calls, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers that shared a commit share the next one, though none waits for a turn (§6)."""
    # Longer than any pause of this machine's: only the last to come ends the wait.
    monkeypatch.setattr(shared_transactions, "QUIET_S", 60.0)
    monkeypatch.setattr(write_queue, "LONGEST_S", 60.0)
    attempts, release = held(calls, pool, 8)
    for future in release():
        future.result()
    groups: set[SharedTransaction] = set()
    for _ in range(5):
        attempts = [calls.begin() for _ in range(8)]
        for future in [pool.submit(calls.act, attempt) for attempt in attempts]:
            future.result()
        groups.update(attempt.shared.group for attempt in attempts)  # type: ignore[union-attr]
    assert len(groups) == 5


def test_a_handler_that_raises_undoes_its_own_part_only(
    calls: Calls, place: Place, pool: ThreadPoolExecutor
) -> None:
    """A savepoint each: the others' effects stand, the call is new (§6)."""
    attempts, release = held(calls, pool, 2)
    fails = calls.begin()

    def fail() -> None:
        with calls.enter(fails) as connection:
            connection.execute(INSERT, ("undone",))
            calls.store.transactions.record(fails, FIRST, connection)
            raise LookupError("no such account")

    failing = pool.submit(fail)
    until(lambda: calls.waiting() == 2, "it waits for its turn")
    last = calls.begin()
    lasting = pool.submit(calls.act, last)
    until(lambda: calls.waiting() == 3, "it waits for its turn")
    for future in (*release(), lasting):
        future.result()
    with pytest.raises(LookupError):
        failing.result()
    assert place.effects() == [attempt.call.seq for attempt in (*attempts, last)]
    assert calls.end(fails) is None
    assert calls.end(last) == FIRST


def test_an_error_waits_for_the_commit_of_what_it_saw(
    calls: Calls, place: Place, pool: ThreadPoolExecutor
) -> None:
    """A handler sees what came before it; what it says of that waits until it stands (§4)."""
    attempts, release = held(calls, pool, 1)
    refused = calls.begin()
    seen: list[int] = []

    def refuse() -> None:
        with calls.enter(refused) as connection:
            seen.append(connection.execute("SELECT count(*) FROM effect").fetchone()[0])
            raise LookupError("there is one already")

    refusing = pool.submit(refuse)
    until(lambda: calls.waiting() == 1, "it waits for its turn")
    release()
    with pytest.raises(LookupError):
        refusing.result()
    assert seen == [1]
    assert place.effects() == [attempts[0].call.seq]


def test_a_block_without_a_record_is_undone(calls: Calls, place: Place) -> None:
    """No record, no effect: NOT_RECORDED, whatever the handler makes of it (§4)."""
    attempt = calls.begin()
    with pytest.raises(NotRecorded), calls.enter(attempt) as connection:
        connection.execute(INSERT, ("x",))
    assert place.effects() == []
    with pytest.raises(NotRecorded):
        wait(calls.store.committed(attempt))
    calls.store.abandon(attempt)


# -- whose connection it is ------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "END",
        "ROLLBACK",
        "BEGIN",
        "commit -- or so",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "PRAGMA synchronous=OFF",
        "PRAGMA foreign_keys=ON",
        "PRAGMA defer_foreign_keys=ON",
        "PRAGMA page_size=512",
        "VACUUM",
    ],
)
def test_a_handler_cannot_end_or_change_what_is_shared(
    calls: Calls, place: Place, statement: str
) -> None:
    """It is refused, in whichever words, before and after we did it ourselves (§6)."""
    for what in ("first", "second"):
        attempt = calls.begin()
        with calls.enter(attempt) as connection:
            connection.execute(INSERT, (what,))
            with pytest.raises(sqlite3.DatabaseError):
                connection.execute(statement)
            calls.store.transactions.record(attempt, FIRST, connection)
        assert calls.end(attempt) == FIRST
    assert place.effects() == ["first", "second"]


def test_nor_by_the_connections_methods(calls: Calls, place: Place) -> None:
    """Neither the block's connection nor the one under its cursors commits (§6)."""
    attempt = calls.begin()
    with calls.enter(attempt) as connection:
        cursor = connection.execute(INSERT, ("x",))
        under = cursor.connection
        for end in (
            connection.commit,
            connection.rollback,
            connection.close,
            under.commit,
            under.rollback,
            lambda: cursor.executescript("SELECT 1"),
            lambda: under.executescript("SELECT 1"),
        ):
            with pytest.raises(sqlite3.DatabaseError):
                end()
        assert connection.in_transaction
        assert place.effects() == []
        calls.store.transactions.record(attempt, FIRST, connection)
    assert place.effects() == ["x"]


def test_what_is_read_and_how(calls: Calls) -> None:
    """Savepoints of its own, pragmas that tell something, row factories for one turn (§6)."""
    attempt = calls.begin()
    with calls.enter(attempt) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("SAVEPOINT mine")
        connection.executemany(INSERT, [("a",), ("b",)])
        connection.execute("ROLLBACK TO mine")
        connection.execute("SAVEPOINT left_open")
        assert connection.execute("PRAGMA table_info(effect)").fetchone()["name"] == "what"
        # Left with rows to read, and one that writes: neither holds the commit up.
        connection.execute("INSERT INTO effect VALUES ('c'), ('d') RETURNING what").fetchone()
        connection.execute("SELECT what FROM effect")
        calls.store.transactions.record(attempt, FIRST, connection)
    other = calls.begin()
    with calls.enter(other) as connection:
        rows = connection.execute("SELECT what FROM effect ORDER BY what").fetchall()
        calls.store.transactions.record(other, FIRST, connection)
    assert rows == [("c",), ("d",)]


def test_a_turn_that_is_over_writes_nothing(
    calls: Calls, place: Place, pool: ThreadPoolExecutor
) -> None:
    """A connection or cursor kept beyond the block is closed, in any thread (§6)."""
    attempt, other = calls.begin(), calls.begin()
    with calls.enter(attempt) as kept:
        cursor = kept.execute("SELECT 1")
        calls.store.transactions.record(attempt, FIRST, kept)
    with calls.enter(other) as connection:
        for use in (
            lambda: kept.execute(INSERT, ("late",)),
            lambda: cursor.execute(INSERT, ("late",)),
            lambda: cursor.executemany(INSERT, [("late",)]),
            cursor.fetchone,
            kept.cursor,
            lambda: calls.store.transactions.record(other, FIRST, kept),
        ):
            with pytest.raises((sqlite3.ProgrammingError, WrongDatabase)):
                pool.submit(use).result()
        calls.store.transactions.record(other, FIRST, connection)
    assert place.effects() == []


def test_a_second_thread_of_the_handler_may_work_in_its_turn(
    calls: Calls, place: Place, pool: ThreadPoolExecutor
) -> None:
    """The connection is no thread's own (§6)."""
    attempt = calls.begin()
    with calls.enter(attempt) as connection:
        pool.submit(connection.execute, INSERT, ("x",)).result()
        pool.submit(calls.store.transactions.record, attempt, FIRST, connection).result()
    assert place.effects() == ["x"]


def test_another_calls_turn_takes_no_record(calls: Calls) -> None:
    """A connection is lent to one call: another's record would share its savepoint (§6)."""
    mine, other = calls.begin(), calls.begin()
    with pytest.raises(WrongDatabase), calls.enter(mine) as connection:
        calls.store.transactions.record(other, FIRST, connection)
    with pytest.raises(WrongDatabase, match="its turn"), calls.enter(mine):
        calls.enter(mine).__enter__()
    assert calls.end(mine) is None


def test_only_atomic_methods_share(calls: Calls) -> None:
    """Whose record is not part of a transaction of its own has none to share (§6)."""
    with pytest.raises(WrongDatabase):
        calls.enter(calls.begin(PLAIN))


# -- when it fails ---------------------------------------------------------------------------


def test_a_statement_that_rolls_everything_back_fails_everyone(
    calls: Calls, place: Place, pool: ThreadPoolExecutor
) -> None:
    """OR ROLLBACK ends the shared transaction: nobody's effect stands, and all are told (§4)."""
    attempts, release = held(calls, pool, 1)
    breaks, after = calls.begin(), calls.begin()

    def rollback() -> None:
        with calls.enter(breaks) as connection:
            with contextlib.suppress(sqlite3.IntegrityError):
                connection.execute(
                    "INSERT OR ROLLBACK INTO effect VALUES (?)", (attempts[0].call.seq,)
                )
            with pytest.raises(sqlite3.OperationalError, match="rolled back"):
                # It would commit by itself.
                connection.execute(INSERT, ("alone",))
            calls.store.transactions.record(breaks, FIRST, connection)

    breaking = pool.submit(rollback)
    until(lambda: calls.waiting() == 1, "it waits for its turn")
    following = pool.submit(calls.act, after)
    until(lambda: calls.waiting() == 2, "it waits for its turn")
    for future in (*release(), breaking):
        with pytest.raises(StoreUnavailable):
            future.result()
    following.result()
    assert place.effects() == [after.call.seq]
    for attempt in (*attempts, breaks):
        with pytest.raises(StoreUnavailable):
            calls.end(attempt)
        calls.store.abandon(attempt)
    assert calls.end(after) == FIRST


def test_a_commit_that_fails_for_certain_is_not_executed(
    calls: Calls, place: Place, pool: ThreadPoolExecutor
) -> None:
    """All of its calls are refused as not executed, and run when they come again (§3)."""
    failing(calls, "SQLITE_FULL")
    attempts, release = held(calls, pool, 4)
    for future in release():
        with pytest.raises(StoreUnavailable, match="FULL"):
            future.result()
    assert place.effects() == []
    for attempt in attempts:
        with pytest.raises(StoreUnavailable):
            calls.end(attempt)
        calls.store.abandon(attempt)
        again = calls.opened.begin(attempt.call, ATOMIC)
        calls.act(again)
        assert calls.end(again) == FIRST
    assert len(place.effects()) == 4


def test_a_failed_fsync_of_a_shared_commit_stops_the_store(
    calls: Calls, pool: ThreadPoolExecutor
) -> None:
    """Nobody can tell what is on the disk: unknown, and nothing is written after it (§6)."""
    failing(calls, "SQLITE_IOERR_FSYNC")
    late, plain = calls.begin(), calls.begin(PLAIN)
    attempts, release = held(calls, pool, 2)
    for future in release():
        with pytest.raises(RecordPending):
            future.result()
    for attempt in attempts:
        with pytest.raises(RecordPending):
            calls.end(attempt)
    with pytest.raises(StoreUnavailable):
        calls.act(late)
    with pytest.raises(RecordPending):
        wait(calls.store.finish(plain, FIRST))
    with pytest.raises(StoreUnavailable):
        calls.begin()


def test_an_owner_of_yesterday_leaves_nothing(calls: Calls, place: Place) -> None:
    """The record is conditional on the incarnation, as everywhere (§6)."""
    attempt = calls.begin()
    with contextlib.closing(sqlite3.connect(place.path)) as other, other:
        other.execute("UPDATE rifl_meta SET value=value+1 WHERE name='opening'")
    with pytest.raises(StaleRpc):
        calls.act(attempt)
    assert place.effects() == []


def test_a_record_that_stands_undoes_the_rest(calls: Calls, place: Place) -> None:
    """A second record raises, and the effects are undone (§6)."""
    attempt = calls.begin()
    with contextlib.closing(sqlite3.connect(place.path)) as own, own:
        calls.store.transactions.record(attempt, FIRST, own)
    with pytest.raises(StaleRpc):
        calls.act(attempt)
    assert place.effects() == []


def test_a_fall_back_to_an_own_transaction_counts(calls: Calls, place: Place) -> None:
    """Whose turn did not come may commit by itself: that record is the answer (§4)."""
    holder, attempt = calls.begin(), calls.begin()
    with calls.enter(holder) as connection:
        with pytest.raises(StoreUnavailable):
            calls.enter(attempt, 0.01).__enter__()
        calls.store.transactions.record(holder, FIRST, connection)
    with contextlib.closing(sqlite3.connect(place.path)) as own, own:
        own.execute(INSERT, ("own",))
        calls.store.transactions.record(attempt, FIRST, own)
    assert calls.end(attempt) == FIRST
    assert calls.end(holder) == FIRST


# -- waiting ---------------------------------------------------------------------------------


def test_a_turn_that_does_not_come_in_time_is_refused(
    calls: Calls, place: Place, pool: ThreadPoolExecutor
) -> None:
    """The deadline passes: nothing ran, also if the handler lets it pass; the rest goes on (§3)."""
    attempts, release = held(calls, pool, 3)
    late = calls.begin()
    with pytest.raises(StoreUnavailable, match="did not come"):
        calls.enter(late, 0.01).__enter__()
    for future in release():
        future.result()
    assert len(place.effects()) == 3
    with pytest.raises(StoreUnavailable):
        calls.end(late)
    assert [calls.end(attempt) for attempt in attempts] == [FIRST] * 3


def test_the_journal_has_its_turn_too(calls: Calls, place: Place, pool: ThreadPoolExecutor) -> None:
    """Journal and handlers write in the order they came, and nobody polls for a lock (§6)."""
    attempts, release = held(calls, pool, 2)
    entry = JournalEntry(
        JournalEntry.RECORD, (7, 1, b"f", "/m", None, b"r"), patient=False, failure=RuntimeError
    )
    pending = calls.store._main.journal.submit(entry)
    until(lambda: calls.waiting() == 2, "the journal waits")
    last = calls.begin()
    lasting = pool.submit(calls.act, last)
    until(lambda: calls.waiting() == 3, "the last one waits behind it")
    for future in (*release(), lasting):
        future.result()
    wait(pending)
    groups = [attempt.shared.group for attempt in (*attempts, last)]  # type: ignore[union-attr]
    assert groups[0] is groups[1]
    assert groups[1] is not groups[2]
    assert len(place.effects()) == 3


def test_a_handler_that_does_not_end_holds_no_plain_call_up_for_ever(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file cannot be written meanwhile: refused by type, and tried again (§3)."""
    monkeypatch.setattr(journal, "LONGEST_WAIT_S", 0.05)
    holder, late = calls.begin(), calls.opened.claim(call(calls.client, 100), PLAIN).attempt
    running = calls.begin(PLAIN)
    with calls.enter(holder) as connection:
        with pytest.raises(StoreUnavailable, match="too long"):
            wait(calls.store.start(late))
        with pytest.raises(RecordPending, match="too long"):
            wait(calls.store.finish(running, FIRST))
        calls.store.transactions.record(holder, FIRST, connection)
    until(lambda: calls.opened.claim(running.call).verdict.name == "COMPLETED", "it is written")
    assert calls.end(holder) == FIRST


def test_the_journal_is_not_starved(calls: Calls, pool: ThreadPoolExecutor) -> None:
    """Handlers that come without end do not keep acknowledgements from the disk (§4)."""
    stop = threading.Event()
    attempts = iter([calls.begin() for _ in range(400)])
    lock = threading.Lock()

    def storm() -> None:
        while not stop.is_set():
            with lock:
                attempt = next(attempts, None)
            if attempt is None:
                return
            calls.act(attempt)

    storming = [pool.submit(storm) for _ in range(8)]
    for seq in range(20):
        entry = JournalEntry(
            JournalEntry.RECORD, (7, seq, b"f", "/m", None, b"r"), patient=False, failure=ValueError
        )
        calls.store._main.journal.submit(entry, awaited=True).wait()
    stop.set()
    for future in storming:
        future.result()


# -- on an event loop ------------------------------------------------------------------------


async def act(calls: Calls, attempt: Attempt) -> None:
    """One effect and the record, by a coroutine."""
    async with calls.enter_async(attempt) as connection:
        connection.execute(INSERT, (attempt.call.seq,))
        await calls.store.transactions.record_async(attempt, FIRST, connection)


async def test_coroutines_share_a_commit(calls: Calls, place: Place) -> None:
    """The same turns for coroutines, beside threads (§6)."""
    attempts = [calls.begin() for _ in range(8)]
    await asyncio.gather(*(act(calls, attempt) for attempt in attempts[:4]))
    assert sorted(place.effects()) == [attempt.call.seq for attempt in attempts[:4]]
    await asyncio.gather(
        *(act(calls, attempt) for attempt in attempts[4:6]),
        *(asyncio.to_thread(calls.act, attempt) for attempt in attempts[6:]),
    )
    assert sorted(place.effects()) == [attempt.call.seq for attempt in attempts]
    for attempt in attempts:
        assert calls.end(attempt) == FIRST


def begun_in_a_run(calls: Calls, name: str) -> Attempt:
    """The run of a handler behind which more come."""
    made: Attempt = calls.store.rows.begin(RowCall("/s/m", name.encode(), more=True), ATOMIC)
    return made


async def run_of(calls: Calls, names: str) -> None:
    """Runs one after the other, each with an effect."""
    for name in names:
        attempt = begun_in_a_run(calls, name)
        async with calls.enter_async(attempt) as connection:
            connection.execute(INSERT, (name,))
            await calls.store.transactions.record_async(attempt, FIRST, connection)


async def test_what_follows_at_once_keeps_its_turn(calls: Calls, place: Place) -> None:
    """Of runs that meet the handlers of one follow each other, without a turn of the loop (§6)."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        attempt = calls.begin()
        async with calls.enter_async(attempt) as connection:
            entered.set()
            await go_on.wait()
            await calls.store.transactions.record_async(attempt, FIRST, connection)

    acting = [asyncio.create_task(first())]
    await entered.wait()
    for names in ("abc", "def"):
        acting.append(asyncio.create_task(run_of(calls, names)))
        await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*acting)
    await act(calls, calls.begin())
    assert place.effects()[:6] == list("abcdef")


async def test_a_run_that_waits_for_something_else_holds_nobody_up(calls: Calls) -> None:
    """Its turn is passed on when its handler awaits anything (§6)."""
    came, go_on = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        first = begun_in_a_run(calls, "a")
        async with calls.enter_async(first) as connection:
            came.set()
            while not calls.waiting():
                await asyncio.sleep(0)
            await calls.store.transactions.record_async(first, FIRST, connection)
        await go_on.wait()
        await run_of(calls, "b")

    running = asyncio.create_task(run())
    await came.wait()
    await asyncio.wait_for(act(calls, calls.begin()), 60)
    assert not running.done()
    go_on.set()
    await running


async def test_an_event_loop_never_waits_for_the_file(calls: Calls, place: Place) -> None:
    """While another connection holds the file the loop goes on (§6)."""
    attempt = calls.begin()
    with contextlib.closing(sqlite3.connect(place.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        acting = asyncio.create_task(act(calls, attempt))
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert not acting.done()
        other.execute("COMMIT")
        await acting
    assert calls.end(attempt) == FIRST


async def test_a_coroutine_cancelled_while_it_waits_holds_nobody_up(
    calls: Calls, place: Place
) -> None:
    """Cancelled in the queue, or with the turn just given: the next one has it (§4)."""
    attempts = [calls.begin() for _ in range(4)]
    async with calls.enter_async(attempts[0]) as connection:
        tasks = [asyncio.create_task(act(calls, attempt)) for attempt in attempts[1:]]
        while calls.waiting() < 3:
            await asyncio.sleep(0)
        tasks[1].cancel()
        connection.execute(INSERT, ("first",))
        await calls.store.transactions.record_async(attempts[0], FIRST, connection)
        # Given its turn by the end of the block, and cancelled before it knows.
        asyncio.get_running_loop().call_soon(tasks[0].cancel)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done[1], asyncio.CancelledError)
    assert done[2] is None
    assert "first" in place.effects()
    assert attempts[3].call.seq in place.effects()
    for attempt in (attempts[0], attempts[3]):
        assert calls.end(attempt) == FIRST


async def test_a_coroutine_cancelled_while_the_transaction_begins(
    calls: Calls, place: Place
) -> None:
    """The turn is given on once the file could be had (§4)."""
    gone, next_one = calls.begin(), calls.begin()
    with contextlib.closing(sqlite3.connect(place.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        cancelled = asyncio.create_task(act(calls, gone))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        acting = asyncio.create_task(act(calls, next_one))
        await asyncio.sleep(0)
        other.execute("COMMIT")
        await acting
    assert place.effects() == [next_one.call.seq]
    assert calls.end(gone) is None
    assert calls.end(next_one) == FIRST


async def test_a_coroutine_cancelled_while_it_is_committed_stands(
    calls: Calls, place: Place
) -> None:
    """Its record is in a commit under way: it is executed, whatever its handler raised (§4)."""
    attempt, other = calls.begin(), calls.begin()
    acting = asyncio.create_task(act(calls, attempt))

    async with calls.enter_async(other) as connection:
        while not calls.waiting():
            await asyncio.sleep(0)
        connection.execute(INSERT, ("other",))
        await calls.store.transactions.record_async(other, FIRST, connection)
    while attempt.shared is None or attempt.shared.connection.in_transaction:  # type: ignore[attr-defined]
        await asyncio.sleep(0)
    acting.cancel()
    await asyncio.gather(acting, return_exceptions=True)
    standing = calls.store.committed(attempt)
    assert (await standing if isinstance(standing, Later) else standing) == FIRST
    assert sorted(map(str, place.effects())) == sorted(["other", str(attempt.call.seq)])


# -- the public form -------------------------------------------------------------------------


def _handlers(kind: str, place: Place) -> dict[str, Any]:
    def act(request: bytes, context: Any) -> bytes:
        with rifl.transaction(context) as connection:
            connection.execute(INSERT, (request.decode(),))
            if request.startswith(b"abort"):
                context.abort(rifl_code(), "no")
            if not request.startswith(b"forget"):
                rifl.record(context, b"done " + request, connection)
            if request.startswith(b"raise"):
                raise LookupError("it raises")
        return b"done " + request

    async def act_async(request: bytes, context: Any) -> bytes:
        async with rifl.aio.transaction(context) as connection:
            connection.execute(INSERT, (request.decode(),))
            if request.startswith(b"abort"):
                await context.abort(rifl_code(), "no")
            if not request.startswith(b"forget"):
                await rifl.aio.record(context, b"done " + request, connection)
            if request.startswith(b"raise"):
                raise LookupError("it raises")
        return b"done " + request

    return {"Act": act_async if kind == "aio" else act}


def rifl_code() -> Any:
    import grpc

    return grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("kind", KINDS)
def test_handlers_of_every_kind_share(place: Place, kind: str) -> None:
    """Once each, the same answer to a retry; errors undo their own part (§1, §4)."""
    with (
        rifl.Deduplicator(place.url, methods={METHOD: "atomic"}) as dedup,
        serve(kind, [generic("t.S", _handlers(kind, place))], dedup=dedup, threads=16) as at,
        RawClient(at.address) as client,
    ):
        sent = {seq: b"%d" % seq for seq in range(1, 25)}
        calling = [client.future(METHOD, payload, seq) for seq, payload in sent.items()]
        assert [one.result() for one in calling] == [b"done " + data for data in sent.values()]
        for seq, payload in sent.items():
            reply = client.call(METHOD, payload, seq, attempt=2)
            assert (reply.response, reply.outcome) == (b"done " + payload, "replayed")
        raising = client.call(METHOD, b"raise", 30)
        assert (raising.code.name, raising.outcome) == ("UNKNOWN", "not-executed")
        forgetting = client.call(METHOD, b"forget", 31)
        assert forgetting.refusal == ("INTERNAL", "NOT_RECORDED", "not-executed")
        for attempt in (1, 2):
            aborting = client.call(METHOD, b"abort", 32, attempt=attempt)
            assert (aborting.code.name, aborting.details) == ("FAILED_PRECONDITION", "no")
        assert aborting.outcome == "replayed"
        # Without an identity there is no store to be had.
        assert "identity" in client.call(METHOD, b"bare", bare=True).details
    assert sorted(place.effects()) == sorted(data.decode() for data in sent.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_that_does_not_come_within_the_deadline_is_not_executed(
    place: Place, kind: str
) -> None:
    """The caller may come again under the same identity, and then it runs (§3)."""
    with (
        rifl.Deduplicator(place.url, methods={METHOD: "atomic"}) as dedup,
        serve(kind, [generic("t.S", _handlers(kind, place))], dedup=dedup) as at,
        RawClient(at.address) as client,
    ):
        assert client.call(METHOD, b"first", 1).ok
        shared = dedup._store._main.shared  # type: ignore[attr-defined]  # SQLite's
        assert shared.alone(1.0)
        assert not client.call(METHOD, b"second", 2, timeout=0.3).ok
        until(lambda: not shared._queue._waiting, "it gave up")
        shared.released()
        reply = until(
            lambda: (reply := client.call(METHOD, b"second", 2, attempt=2)).ok and reply,
            "it runs when it comes again",
        )
        assert reply.outcome == "executed"
    assert place.effects() == ["first", "second"]


def test_memory_has_no_transactions() -> None:
    """A store that keeps nothing has neither records in transactions nor blocks (§6)."""
    store = MemoryStore()
    assert (store.transactions, store.shared_blocks) == (None, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whose", ["shared", "own"])
def test_foreign_keys_are_enforced_where_the_service_enforces_them(
    tmp_path: Path, kind: str, whose: str
) -> None:
    """In a shared transaction by the store's URL, in the handler's by its connection (§6)."""
    path = tmp_path / "keys.db"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=10)
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    with contextlib.closing(connect()) as connection, connection:
        connection.execute("CREATE TABLE account (name TEXT PRIMARY KEY)")
        connection.execute("CREATE TABLE entry (account TEXT REFERENCES account (name))")
        connection.execute("INSERT INTO account VALUES ('alice')")

    def pay(request: bytes, context: Any) -> bytes:
        own = connect() if whose == "own" else None
        with rifl.transaction(context, own) as connection:
            assert connection.execute("PRAGMA foreign_keys").fetchone()[0] == 1
            connection.execute("INSERT INTO entry VALUES (?)", (request.decode(),))
            rifl.record(context, b"paid", connection)
        if own is not None:
            own.close()
        return b"paid"

    async def pay_async(request: bytes, context: Any) -> bytes:
        if whose == "own":
            return pay(request, context)
        async with rifl.aio.transaction(context) as connection:
            connection.execute("INSERT INTO entry VALUES (?)", (request.decode(),))
            await rifl.aio.record(context, b"paid", connection)
        return b"paid"

    url = f"sqlite:///{path}" + ("?foreign_keys=on" if whose == "shared" else "")
    handler = generic("t.S", {"Act": pay_async if kind == "aio" else pay})
    with (
        rifl.Deduplicator(url, methods={METHOD: "atomic"}) as dedup,
        serve(kind, [handler], dedup=dedup) as at,
        RawClient(at.address) as client,
    ):
        refused = client.call(METHOD, b"nobody", 1)
        assert (refused.code.name, refused.outcome) == ("UNKNOWN", "not-executed")
        assert "FOREIGN KEY" in refused.details
        assert client.call(METHOD, b"alice", 2).ok
    with contextlib.closing(connect()) as connection:
        assert connection.execute("SELECT account FROM entry").fetchall() == [("alice",)]
