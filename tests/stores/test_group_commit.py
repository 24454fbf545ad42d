"""Group commits: their entries, and their number of steps (rifl._stores.sqlite; DESIGN §6)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rifl._stores.sqlite import journal
from rifl._stores.sqlite.file_guard import Guard
from rifl._stores.sqlite.journal import Journal
from rifl._stores.sqlite.journal_entries import JournalEntry
from rifl._stores.sqlite.schema import open_database
from rifl._stores.sqlite.statements import MOST_AT_ONCE
from rifl._stores.sqlite.write_queue import ExpectedCommit
from tests.helpers.waiting import until


class _Steps(sqlite3.Connection):
    """Notes every statement that is executed, and in whose thread; fails if told to."""

    seen: list[str]
    threads: list[int]
    error: sqlite3.Error | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        self.seen.append(sql.split()[0])
        self.threads.append(threading.get_ident())
        if self.error is not None:
            raise self.error
        return super().execute(sql, parameters)


class _Bench:
    """A journal over a file, and what it was told."""

    def __init__(self, folder: Path) -> None:
        guard = Guard()
        connection, _, _ = open_database(folder / "s.db", None, guard=guard)
        connection.close()
        self.connection: _Steps = sqlite3.connect(
            folder / "s.db", isolation_level=None, check_same_thread=False, factory=_Steps
        )
        self.connection.seen, self.connection.threads = [], []
        self.commits: list[int] = []
        self.errors: list[Exception | None] = []
        self.journal = Journal(
            self.connection,
            self.errors.append,
            "test",
            guard,
            lambda entries, seconds, error: self.commits.append(entries),
        )
        self.reader = sqlite3.connect(folder / "s.db")

    @property
    def steps(self) -> list[str]:
        """What was executed since the last time."""
        seen = self.connection.seen
        steps, seen[:] = list(seen), []
        return steps

    def record(self, *seqs: int, record: bytes = b"r", patient: bool = False) -> JournalEntry:
        """An entry of so many records."""
        rows = [(7, seq, b"f", "/m", None, record) for seq in seqs]
        return JournalEntry(JournalEntry.RECORD, *rows, patient=patient, failure=RuntimeError)

    def records(self) -> dict[int, bytes]:
        """What is durable."""
        return dict(self.reader.execute("SELECT identity, record FROM rifl_call"))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[_Bench]:
    """A journal of its own."""
    bench = _Bench(tmp_path)
    yield bench
    bench.journal.close()
    bench.reader.close()


def test_a_commit_expects_what_came_with_the_last_two() -> None:
    """A caller on its own is never made to wait; who stays away is waited for twice."""
    expected_commit = ExpectedCommit()
    expected = []
    for entries in (1, 5, 4, 0, 1, 1, 1):
        expected_commit.taken(entries)
        expected.append(expected_commit.expected)
    assert expected == [1, 5, 5, 5, 4, 1, 1]


@pytest.mark.parametrize("count", [1, 2, MOST_AT_ONCE])
def test_records_alone_are_one_step(bench: _Bench, count: int) -> None:
    """What the calls of one commit wait for is one statement, its own transaction (§6)."""
    bench.journal.submit(bench.record(*range(count))).wait()
    assert bench.steps == ["INSERT"]
    assert bench.records() == dict.fromkeys(range(count), b"r")


def test_more_rows_than_one_step_takes_are_one_transaction(bench: _Bench) -> None:
    """A batch is durable as a whole, however many steps it takes (§4)."""
    bench.journal.submit(bench.record(*range(MOST_AT_ONCE + 1))).wait()
    steps = bench.steps
    assert steps[0] == "BEGIN"
    assert steps[-1] == "COMMIT"
    assert len(bench.records()) == MOST_AT_ONCE + 1


def test_a_record_that_stands_is_no_new_owner(bench: _Bench) -> None:
    """Fewer rows written than given: the owner is asked for, and the first record stays (§4)."""
    bench.journal.submit(bench.record(1, record=b"first")).wait()
    bench.journal.submit(bench.record(1, 2, record=b"second")).wait()
    assert bench.records() == {1: b"first", 2: b"second"}
    assert bench.errors == []


def test_another_owner_of_the_file_ends_a_step_too(bench: _Bench) -> None:
    """One step writes nothing into a file that has a new owner, and says so (§4, §6)."""
    bench.journal.submit(bench.record(1)).wait()
    with bench.reader:
        bench.reader.execute("UPDATE rifl_meta SET value=value+1 WHERE name='opening'")
    with pytest.raises(RuntimeError, match="another incarnation"):
        bench.journal.submit(bench.record(2)).wait()
    with pytest.raises(RuntimeError, match="another incarnation"):
        bench.journal.submit(bench.record(3)).wait()
    assert bench.records() == {1: b"r"}


def test_a_client_is_registered_with_its_first_record(bench: _Bench) -> None:
    """Never a record whose client the next start does not know (§4)."""
    bench.journal.register(7, 1, b"")
    bench.journal.submit(bench.record(1)).wait()
    assert bench.reader.execute("SELECT client_id FROM rifl_client").fetchall() == [(7,)]
    assert bench.steps[0] == "BEGIN"


def test_acknowledgements_wait_for_company(bench: _Bench) -> None:
    """A few ride along with a transaction, many with any commit, with their rows' deletion (§4)."""
    bench.journal.submit(bench.record(*range(32))).wait()
    bench.journal.submit(bench.record(*range(32, 64))).wait()
    bench.journal.acknowledge(7, 3, b"", [0, 1, 2])
    bench.journal.submit(bench.record(100)).wait()
    assert len(bench.records()) == 65
    bench.journal.acknowledge(7, 64, b"", list(range(3, 64)))
    bench.journal.submit(bench.record(101)).wait()
    assert bench.records() == {100: b"r", 101: b"r"}
    assert bench.reader.execute("SELECT first_incomplete FROM rifl_client").fetchall() == [(64,)]


def test_what_is_noted_is_durable_when_the_journal_closes(tmp_path: Path) -> None:
    """A stop loses no acknowledgement (§4)."""
    bench = _Bench(tmp_path)
    bench.journal.submit(bench.record(1, 2)).wait()
    bench.journal.acknowledge(7, 2, b"", [1])
    bench.journal.close()
    assert bench.records() == {2: b"r"}
    bench.reader.close()


def test_callers_that_came_together_are_waited_for(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first to come again waits for the others: one commit, not two (§6)."""
    # Longer than any pause of this machine's: only the last to come ends the wait.
    monkeypatch.setattr(journal, "QUIET_S", 60.0)
    monkeypatch.setattr(journal, "LONGEST_S", 60.0)
    bench.reader.execute("BEGIN IMMEDIATE")  # holds every commit
    first = bench.journal.submit(bench.record(0))
    until(lambda: bench.steps == ["INSERT"], "the first is under way")
    entries = [bench.journal.submit(bench.record(seq)) for seq in (1, 2, 3)]
    bench.reader.execute("COMMIT")
    for pending in (first, *entries):
        pending.wait()
    assert bench.commits == [1, 3]
    entries = [bench.journal.submit(bench.record(seq)) for seq in (4, 5, 6)]
    for pending in entries:
        pending.wait()
    assert bench.commits == [1, 3, 3]


def test_one_commit_carries_the_intent_of_one_call_and_the_record_of_another(
    bench: _Bench,
) -> None:
    """What came while a commit was under way shares the next, of whichever kind (§4.6, §6)."""
    bench.reader.execute("BEGIN IMMEDIATE")  # holds every commit
    entries = [bench.journal.submit(bench.record(0))]
    until(lambda: bench.steps == ["INSERT"], "the first is under way")
    intent = JournalEntry(
        JournalEntry.INTENT, (7, 1, b"f", "/m", None), patient=False, failure=RuntimeError
    )
    entries += [bench.journal.submit(each) for each in (intent, bench.record(2))]
    bench.reader.execute("COMMIT")
    for pending in entries:
        pending.wait()
    assert bench.records() == {0: b"r", 1: None, 2: b"r"}
    assert bench.commits == [1, 2]
    steps = bench.steps
    assert (steps.count("BEGIN"), steps.count("COMMIT")) == (1, 1)
    assert (steps[0], steps[-1]) == ("BEGIN", "COMMIT")


def test_a_caller_left_alone_is_not_held_up_for_good(bench: _Bench) -> None:
    """Who is waited for and does not come costs two waits, then nothing (§6)."""
    bench.journal.submit(bench.record(1)).wait()
    bench.reader.execute("BEGIN IMMEDIATE")
    pending = [bench.journal.submit(bench.record(seq)) for seq in (2, 3, 4)]
    bench.reader.execute("COMMIT")
    for one in pending:
        one.wait()
    for seq in range(5, 9):
        bench.journal.submit(bench.record(seq)).wait()
    assert len(bench.records()) == 8
    assert bench.commits[-4:] == [1, 1, 1, 1]


# -- who commits -----------------------------------------------------------------------------


def test_a_lone_caller_commits_in_its_own_thread(bench: _Bench) -> None:
    """Who blocks for its entry, and finds nobody at work, changes no thread (§6)."""
    for seq in range(3):
        bench.journal.submit(bench.record(seq), awaited=True).wait()
    assert bench.commits == [1, 1, 1]
    assert set(bench.connection.threads) == {threading.get_ident()}


def test_what_comes_during_a_callers_commit_is_committed_after_it(bench: _Bench) -> None:
    """One commit at a time; those who came meanwhile share the next one (§6)."""
    bench.reader.execute("BEGIN IMMEDIATE")  # holds every commit

    def record(seq: int) -> None:
        bench.journal.submit(bench.record(seq), awaited=True).wait()

    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(record, 0)]
        until(lambda: bench.steps == ["INSERT"], "the first is under way")
        calls += [pool.submit(record, seq) for seq in range(1, 8)]
        until(lambda: len(bench.journal._queue) == 7, "the others wait")
        bench.reader.execute("COMMIT")
        for call in calls:
            call.result()
    assert bench.commits == [1, 7]
    assert sorted(bench.records()) == list(range(8))


def test_what_nobody_blocks_for_is_committed_all_the_same(bench: _Bench) -> None:
    """The journal's own thread commits what is only submitted, or awaited on a loop (§6)."""
    pending = bench.journal.submit(bench.record(1))
    until(lambda: pending.done, "it is durable")

    async def record() -> None:
        await bench.journal.submit(bench.record(2), awaited=True)

    asyncio.run(record())
    assert sorted(bench.records()) == [1, 2]
    assert threading.get_ident() not in bench.connection.threads


def test_a_loop_is_told_once_of_a_commit(bench: _Bench) -> None:
    """Coroutines whose entries share a commit go on in one turn of their loop (§6)."""
    bench.reader.execute("BEGIN IMMEDIATE")  # holds every commit
    told: list[Any] = []
    early: list[int] = []
    tell_entries = bench.journal._told

    def tell(batch: list[JournalEntry]) -> None:
        before = len(told)
        tell_entries(batch)
        early.append(len(told) - before)

    bench.journal._told = tell  # type: ignore[method-assign]

    async def record() -> None:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *given, **more: (  # type: ignore[method-assign]
            told.append(given),
            wake(*given, **more),
        )

        async def one(seq: int) -> None:
            await bench.journal.submit(bench.record(seq), awaited=True)

        waiting = asyncio.gather(*map(one, range(16)))
        await asyncio.sleep(0)
        assert not told
        bench.reader.execute("COMMIT")
        await waiting
        assert 1 <= len(told) <= len(bench.commits)

    asyncio.run(asyncio.wait_for(record(), 60.0))
    assert early == [0] * len(bench.commits)
    assert sorted(bench.records()) == list(range(16))


def test_what_a_caller_could_not_commit_is_tried_again_for_it(bench: _Bench) -> None:
    """A caller is told at once; its patient entry and the acknowledgements stay queued (§6)."""
    bench.connection.error = sqlite3.OperationalError("disk is full")
    bench.journal.register(7, 1, b"")
    with pytest.raises(RuntimeError, match="full"):
        bench.journal.submit(bench.record(1, patient=True), awaited=True).wait()
    with pytest.raises(RuntimeError, match="full"):
        bench.journal.submit(bench.record(2), awaited=True).wait()
    bench.connection.error = None
    until(lambda: bench.errors[-1] is None, "writes work again")
    assert bench.records() == {1: b"r"}
    assert bench.reader.execute("SELECT client_id FROM rifl_client").fetchall() == [(7,)]
    bench.journal.submit(bench.record(3), awaited=True).wait()
    assert bench.connection.threads[-1] == threading.get_ident()


def test_a_failed_fsync_in_a_callers_thread_stops_the_journal(bench: _Bench) -> None:
    """It is never retried, whoever met it (§6)."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
    bench.connection.error = error
    with pytest.raises(RuntimeError, match="I/O"):
        bench.journal.submit(bench.record(1, patient=True), awaited=True).wait()
    bench.connection.error = None
    with pytest.raises(RuntimeError, match="I/O"):
        bench.journal.submit(bench.record(2), awaited=True).wait()
    bench.journal.close()
    assert bench.records() == {}


def test_the_journal_closes_after_a_callers_commit(bench: _Bench) -> None:
    """What a caller is committing, and what waits behind it, is durable before the end (§4)."""
    bench.reader.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: bench.journal.submit(bench.record(1), awaited=True).wait())
        until(lambda: bench.steps == ["INSERT"], "it is under way")
        second = bench.journal.submit(bench.record(2), awaited=True)
        closing = pool.submit(bench.journal.close)
        until(lambda: bench.journal._closing, "it is closing")
        bench.reader.execute("COMMIT")
        first.result()
        closing.result()
    assert second.done
    assert sorted(bench.records()) == [1, 2]
