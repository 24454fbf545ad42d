"""The SQLite store's own promises: transactions, several databases, opening (DESIGN §6)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rifl
from lease_server import Acknowledgements, LeaseAuthority, StorageUnavailable
from rifl._stores import StoreLocked, WrongDatabase, open_store
from rifl._stores.pending import wake_on_loop
from rifl._stores.sqlite import journal, lease_storage
from rifl._stores.sqlite.journal_entries import JournalEntry
from rifl.core._serving.bounds import Bounds, KeyBounds
from rifl.core._serving.later import Later
from rifl.core._serving.policy import MethodPolicies
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import (
    InProgress,
    LeaseExpired,
    RecordPending,
    RiflError,
    StaleRpc,
    StoreUnavailable,
    WindowExceeded,
)
from rifl.core._shared.record import CompletionRecord
from tests.helpers.servers import generic, serve
from tests.helpers.waiting import until
from tests.stores.conformance import FIRST, IDEMPOTENT, OTHER, PLAIN, TERM_S, call, keyed, wait

ATOMIC = rifl.MethodPolicy(kind=rifl.Kind.ATOMIC)


class Files:
    """A store over two files, with a clock that is told."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.main = folder / "main.db"
        self.other = folder / "other.db"
        self.elsewhere = rifl.MethodPolicy(
            kind=rifl.Kind.ATOMIC, database=f"sqlite:///{self.other}"
        )
        self.open()

    def open(self):
        """Open, or open again."""
        self.store = open_store(f"sqlite:///{self.main}")
        self.authority = LeaseAuthority(
            self.store.leases, term_s=TERM_S, clock=lambda: self.now, id_block=4
        )
        self.store.bind(
            self.authority,
            MethodPolicies({"/s/M": self.elsewhere}, "plain"),
            clock=lambda: self.now,
            bounds=Bounds(window=16),
        )

    def client(self):
        """Grant a client id."""
        return self.authority.grant().client_id

    def connect(self, file):
        """A handler's own connection."""
        connection = sqlite3.connect(file, timeout=10, check_same_thread=False)
        # Without it a commit of this connection does not wait for the disk, on a Mac.
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("CREATE TABLE IF NOT EXISTS effect (what)")
        return connection

    def begin(self, one, policy):
        """Claim and start."""
        decision = self.store.claim(one, policy)
        decision = wait(decision) if isinstance(decision, Later) else decision
        assert decision.verdict is Verdict.NEW
        wait(self.store.start(decision.attempt))
        return decision.attempt

    def atomic(self, one, policy, record=FIRST):
        """Run an atomic call to its end."""
        attempt = self.begin(one, policy)
        connection = self.connect(self.other if policy.database else self.main)
        with connection:
            connection.execute("INSERT INTO effect VALUES (?)", (str(one.rpc_id),))
            self.store.transactions.record(attempt, record, connection)
        connection.close()
        standing = self.store.committed(attempt)
        assert standing == record
        self.store.adopt(attempt, standing)

    def rows(self, file, table="rifl_call"):
        """The identities in a file's table, as another reader sees them."""
        connection = sqlite3.connect(file)
        try:
            column = "identity" if table == "rifl_call" else "client_id"
            query = f"SELECT {column} FROM {table}"  # noqa: S608 - constants of this test
            return [row[0] for row in connection.execute(query)]
        finally:
            connection.close()


@pytest.fixture
def files(tmp_path):
    """Two files and a store over them."""
    files = Files(tmp_path)
    yield files
    files.store.close()


def flush(files):
    """Have every journal commit what was acknowledged before, and wait for it."""
    files.store.expire_keys()
    for database in files.store._databases:
        entry = JournalEntry(JournalEntry.DELETE, (0, 0), patient=False, failure=RuntimeError)
        database.journal.submit(entry).wait()


def test_what_renewals_acknowledge_goes_though_no_call_is_made(files):
    """With the next sweeps; nothing is written where nothing changed (§4, §5)."""
    grant = files.authority.grant()
    client = grant.client_id
    for seq in (1, 2, 3):
        wait(files.store.finish(files.begin(call(client, seq), PLAIN), FIRST))
    files.store.expire_keys()
    told = Acknowledgements(2, [(3, 3)])
    for _ in range(3):
        files.authority.heartbeat(client, grant.token, b"", told)
        files.store.expire_keys()
    until(lambda: files.rows(files.main) == [2], "the rows are deleted")
    journal = files.store._main.journal
    committed = []
    journal._on_commit = lambda *commit: committed.append(commit)
    for _ in range(3):
        files.authority.heartbeat(client, grant.token, b"", told)
        files.store.expire_keys()
    assert not journal._acknowledged
    assert committed == []
    files.store.close()
    files.open()
    verdicts = [files.store.claim(call(client, seq), PLAIN).verdict for seq in (1, 2, 3)]
    assert verdicts == [Verdict.STALE, Verdict.COMPLETED, Verdict.STALE]


# -- the record in the handler's own transaction ------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True])
def test_record_and_effect_commit_together(files, elsewhere):
    """After a commit both stand and are replayed, also after a restart (§6)."""
    policy = files.elsewhere if elsewhere else ATOMIC
    client = files.client()
    files.atomic(call(client, 1), policy)
    files.store.close()
    files.open()
    decision = files.store.claim(call(client, 1), policy)
    assert decision.verdict is Verdict.COMPLETED
    assert files.store.fetch(call(client, 1)) == FIRST


@pytest.mark.parametrize("elsewhere", [False, True])
def test_record_and_effect_roll_back_together(files, elsewhere):
    """After a rollback neither stands and the call is new (§6)."""
    policy = files.elsewhere if elsewhere else ATOMIC
    one = call(files.client(), 1)
    attempt = files.begin(one, policy)
    connection = files.connect(files.other if elsewhere else files.main)
    connection.execute("INSERT INTO effect VALUES ('x')")
    files.store.transactions.record(attempt, FIRST, connection)
    connection.rollback()
    assert files.store.committed(attempt).wait() is None
    wait(files.store.abandon(attempt))
    assert connection.execute("SELECT count(*) FROM effect").fetchone() == (0,)
    files.atomic(one, policy, OTHER)


def test_a_record_needs_a_transaction_of_the_right_database(files, tmp_path):
    """Autocommit, another file, memory and other objects are refused (§6)."""
    attempt = files.begin(call(files.client(), 1), ATOMIC)
    auto = sqlite3.connect(files.main, isolation_level=None)
    for wrong in (
        auto,
        sqlite3.connect(":memory:"),
        files.connect(tmp_path / "third.db"),
        files.connect(files.other),
        "a string",
        None,
    ):
        with pytest.raises(WrongDatabase):
            files.store.transactions.record(attempt, FIRST, wrong)
    auto.execute("BEGIN")
    files.store.transactions.record(attempt, FIRST, auto)
    auto.execute("COMMIT")
    files.store.adopt(attempt, files.store.committed(attempt))


def test_only_an_atomic_method_records(files):
    """A record of a method not declared atomic is refused: recovery would miss it (§6)."""
    attempt = files.begin(call(files.client(), 1), PLAIN)
    with pytest.raises(WrongDatabase):
        files.store.transactions.record(attempt, FIRST, files.connect(files.main))
    wait(files.store.finish(attempt, FIRST))


@pytest.mark.parametrize(
    "factory",
    [
        sqlite3.Row,
        lambda cursor, row: {column[0]: row[at] for at, column in enumerate(cursor.description)},
        lambda cursor, row: row[0],
    ],
    ids=["Row", "dict", "first column"],
)
def test_any_row_factory_will_do(files, factory):
    """A handler's connection may return rows as it likes (§6)."""
    attempt = files.begin(call(files.client(), 1), ATOMIC)
    connection = files.connect(files.main)
    connection.row_factory = factory
    connection.text_factory = bytes
    with connection:
        files.store.transactions.record(attempt, FIRST, connection)
    files.store.adopt(attempt, files.store.committed(attempt))


def test_a_record_is_fenced(files):
    """A settled or acknowledged attempt cannot record, and rolls back (§6)."""
    client = files.client()
    late = files.begin(call(client, 1), ATOMIC)
    wait(files.store.abandon(late))
    connection = files.connect(files.main)
    with pytest.raises(StaleRpc):
        files.store.transactions.record(late, FIRST, connection)
    slow = files.begin(call(client, 2), ATOMIC)
    files.atomic(call(client, 3, first=3), ATOMIC)
    with pytest.raises(StaleRpc):
        files.store.transactions.record(slow, FIRST, connection)
    connection.rollback()
    wait(files.store.abandon(slow))


def test_an_owner_of_yesterday_cannot_commit(files):
    """A transaction of an earlier incarnation is refused by the row itself (§6)."""
    attempt = files.begin(call(files.client(), 1), ATOMIC)
    with sqlite3.connect(files.main) as connection:
        connection.execute("UPDATE rifl_meta SET value=value+1 WHERE name='opening'")
    connection = files.connect(files.main)
    with pytest.raises(StaleRpc):
        files.store.transactions.record(attempt, FIRST, connection)
    connection.rollback()
    wait(files.store.abandon(attempt))


def test_an_atomic_call_elsewhere_costs_one_commit(files):
    """Once a client is registered an atomic call commits in its database only (§1)."""
    client = files.client()
    files.atomic(call(client, 1), files.elsewhere)
    reader = sqlite3.connect(files.main)
    reader.execute("SELECT 1 FROM rifl_meta").fetchone()
    version = reader.execute("PRAGMA data_version").fetchone()
    for seq in range(2, 6):
        files.atomic(call(client, seq), files.elsewhere)
    assert reader.execute("PRAGMA data_version").fetchone() == version


# -- what is left over ----------------------------------------------------------------------


def test_acknowledged_rows_are_deleted(files):
    """Rows of acknowledged calls go, in every database, however the calls ran (§4)."""
    client = files.client()
    files.atomic(call(client, 1), files.elsewhere)
    files.atomic(call(client, 2), ATOMIC)
    wait(files.store.finish(files.begin(call(client, 3), PLAIN), FIRST))
    wait(files.store.finish(files.begin(call(client, 4), IDEMPOTENT), FIRST))
    wait(files.store.finish(files.begin(call(client, 5, first=5), PLAIN), FIRST))
    flush(files)
    assert files.rows(files.main) == [5]
    assert files.rows(files.other) == []


@pytest.mark.parametrize("policy", [PLAIN, IDEMPOTENT, ATOMIC], ids=lambda each: each.kind.value)
def test_the_rows_of_many_acknowledged_calls_go_with_the_next_commit(files, policy):
    """Of 64 calls: what waits for company is bounded, also where nobody looks for leases (§4)."""
    client = files.client()
    for seq in range(1, 66):
        if policy is ATOMIC:
            files.atomic(call(client, seq, first=seq), ATOMIC)
        else:
            wait(files.store.finish(files.begin(call(client, seq, first=seq), policy), FIRST))
    if policy is ATOMIC:
        # Of the journal's: a handler's own commit takes nothing along.
        wait(files.store.finish(files.begin(call(client, 66, first=65), IDEMPOTENT), FIRST))
    assert files.rows(files.main) == [65, *([66] if policy is ATOMIC else [])]


def test_a_few_acknowledged_calls_are_noted_at_the_end(files):
    """A stop leaves no row of theirs, and a copy that comes late is STALE after it (§4)."""
    client = files.client()
    for seq in (1, 2):
        wait(files.store.finish(files.begin(call(client, seq, first=seq), IDEMPOTENT), FIRST))
    files.store.close()
    assert files.rows(files.main) == [2]
    files.open()
    assert files.store.claim(call(client, 1), IDEMPOTENT).verdict is Verdict.STALE


@pytest.mark.parametrize("policy", [PLAIN, IDEMPOTENT], ids=["plain", "idempotent"])
def test_a_running_call_that_is_acknowledged_leaves_no_row(files, policy):
    """Acknowledged before its intent, or before its record: no row stays behind (§4)."""
    client = files.client()
    early = files.store.claim(call(client, 1), policy).attempt
    running = files.begin(call(client, 2), policy)
    wait(files.store.finish(files.begin(call(client, 3, first=3), policy), FIRST))
    wait(files.store.start(early))
    wait(files.store.finish(early, FIRST))
    wait(files.store.finish(running, FIRST))
    wait(files.store.finish(files.begin(call(client, 4, first=4), policy), FIRST))
    flush(files)
    assert files.rows(files.main) == [4]
    for seq in (1, 2, 3):
        assert files.store.claim(call(client, seq), policy).verdict is Verdict.STALE


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_record_committed_after_its_acknowledgement_leaves_no_row(files, elsewhere):
    """Acknowledged between record and commit: the row goes once the call ends (§4, §6)."""
    policy = files.elsewhere if elsewhere else ATOMIC
    client = files.client()
    running = files.begin(call(client, 1), policy)
    connection = files.connect(files.other if elsewhere else files.main)
    files.store.transactions.record(running, FIRST, connection)
    acknowledging = files.store.claim(call(client, 2, first=2), PLAIN).attempt
    intent = files.store.start(acknowledging)
    connection.commit()
    wait(intent)
    wait(files.store.abandon(acknowledging))
    files.store.adopt(running, files.store.committed(running))
    flush(files)
    assert files.rows(files.main) == files.rows(files.other) == []
    files.store.close()
    files.open()
    assert files.store.claim(call(client, 1), policy).verdict is Verdict.STALE


def test_a_client_is_dropped_in_the_stores_own_file_first(files):
    """Records elsewhere outlive the client's row: a crash in between loses none (§5, §6).

    Else the client would be known after the restart, its records gone, and a retry
    would run again.
    """
    client = files.client()
    files.atomic(call(client, 1), files.elsewhere)
    files.now = TERM_S * 3
    expired = files.authority.expire()
    holder = sqlite3.connect(files.main, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    files.store.clients_ended(expired)
    entry = JournalEntry(JournalEntry.DELETE, (0, 0), patient=False, failure=RuntimeError)
    other = next(d for d in files.store._databases if d is not files.store._main)
    other.journal.submit(entry).wait()
    assert files.rows(files.main, "rifl_client") == [client]
    assert files.rows(files.other) == [1], "a crash now would make the call new again"
    holder.execute("ROLLBACK")
    until(lambda: not files.rows(files.other), "then the other file's rows go, too")
    assert files.rows(files.main, "rifl_client") == []


def test_what_is_only_elsewhere_is_forgotten_at_start(files):
    """Rows of a client the store does not know go at the next start (§5)."""
    client = files.client()
    files.atomic(call(client, 1), files.elsewhere)
    files.store.close()
    with sqlite3.connect(files.main) as connection:
        connection.execute("DELETE FROM rifl_client")
    files.open()
    assert files.rows(files.other) == []
    with pytest.raises(LeaseExpired):
        files.store.claim(call(client, 1), files.elsewhere)


# -- opening and closing ---------------------------------------------------------------------


def test_a_failed_opening_lets_go_of_everything(tmp_path):
    """An opening that fails half-way leaves nothing locked behind it (§6)."""
    url, other = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    # The second file belongs to another store.
    rifl.Deduplicator(other).close()
    policy = rifl.MethodPolicy(kind=rifl.Kind.ATOMIC, database=other)
    for _ in range(2):
        with pytest.raises(WrongDatabase):
            rifl.Deduplicator(url, methods={"/s.S/M": policy}, lock_timeout_s=0.1)
    rifl.Deduplicator(url).close()
    rifl.Deduplicator(other).close()


def test_a_locked_second_database_is_said_and_let_go(tmp_path):
    """A second database that is held elsewhere is StoreLocked, and the first is let go (§6)."""
    url, other = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    policy = rifl.MethodPolicy(kind=rifl.Kind.ATOMIC, database=other)
    with rifl.Deduplicator(other), pytest.raises(StoreLocked):
        rifl.Deduplicator(url, methods={"/s.S/M": policy}, lock_timeout_s=0.1)
    rifl.Deduplicator(url).close()


def test_one_file_by_two_names_is_one_store(tmp_path):
    """A relative name, a symbolic link: the same file is owned once (§6)."""
    file, link = tmp_path / "a.db", tmp_path / "link.db"
    with rifl.Deduplicator(f"sqlite:///{file}"):
        link.symlink_to(file)
        for name in (link, tmp_path / "." / "x" / ".." / "a.db"):
            with pytest.raises(StoreLocked):
                rifl.Deduplicator(f"sqlite:///{name}", lock_timeout_s=0.1)


def test_closing_twice_is_closing_once(tmp_path):
    """``close`` is idempotent, and the file can be opened again (§6)."""
    for _ in range(2):
        dedup = rifl.Deduplicator(f"sqlite:///{tmp_path}/a.db")
        dedup.close()
        dedup.close()


def test_closing_from_two_threads_is_closing_once(tmp_path):
    """``close`` from several threads lets go of everything exactly once (§6)."""
    for _ in range(5):
        dedup = rifl.Deduplicator(f"sqlite:///{tmp_path}/a.db")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _, one=dedup: one.close(), range(4)))


# -- the journal ------------------------------------------------------------------------------


def test_an_event_loop_that_is_gone_does_not_stop_the_journal(files):
    """Waking a loop that was closed meanwhile harms nobody else's commits (§6)."""

    async def told(pending):
        await pending

    client = files.client()
    holder = sqlite3.connect(files.main, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    decision = files.store.claim(call(client, 1), PLAIN)
    pending = files.store.start(decision.attempt)
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(told(pending))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    holder.execute("ROLLBACK")
    until(lambda: pending.done, "the commit goes through")
    wait(files.store.finish(decision.attempt, FIRST))
    wait(files.store.finish(files.begin(call(client, 2), PLAIN), FIRST))
    del waiting


def test_a_waiter_that_fails_does_not_stop_the_others(files):
    """One waiter's error leaves the record durable, and the others woken (§4)."""
    attempt = files.begin(keyed(files.client(), b"k"), PLAIN)
    loop = asyncio.new_event_loop()
    gone = loop.create_future()
    files.store.wait(attempt, lambda: wake_on_loop(loop, gone))
    woken = []
    files.store.wait(attempt, lambda: woken.append(1))
    loop.close()
    wait(files.store.finish(attempt, CompletionRecord(response=b"x")))
    until(lambda: woken, "the second waiter is woken")
    wait(files.store.finish(files.begin(keyed(attempt.call.client_id, b"l"), PLAIN), FIRST))


def test_a_broken_rule_stops_new_calls_and_no_others(files):
    """One of our own rules broken: no new calls, but those running still end (§9)."""
    client = files.client()
    twice, running = (files.begin(call(client, seq), PLAIN) for seq in (1, 2))
    wait(files.store.finish(twice, FIRST))
    with pytest.raises(RecordPending):
        wait(files.store.finish(twice, OTHER))
    wait(files.store.finish(running, FIRST))
    assert files.store.fetch(call(client, 2)) == FIRST
    with pytest.raises(StoreUnavailable):
        files.store.claim(call(client, 3), PLAIN)


def test_a_journal_whose_file_has_a_new_owner_writes_nothing(files):
    """What the next incarnation recovered is never overwritten by the last one's (§4, §6)."""
    client = files.client()
    late, other = (files.begin(call(client, seq), PLAIN) for seq in (1, 2))
    with sqlite3.connect(files.main) as connection:
        # What the next owner does at its start.
        connection.execute("UPDATE rifl_meta SET value=value+1 WHERE name='opening'")
        connection.execute("UPDATE rifl_call SET record=x'00'")
    for attempt in (late, other):
        with pytest.raises(RecordPending):
            wait(files.store.finish(attempt, FIRST))
    with pytest.raises(StoreUnavailable):
        files.store.claim(call(client, 3), PLAIN)
    connection = sqlite3.connect(files.main)
    assert set(connection.execute("SELECT record FROM rifl_call")) == {(b"\x00",)}
    connection.close()


def test_a_batch_is_two_commits(tmp_path: Path) -> None:
    """All intents of a plain batch are one commit, all records another (DESIGN §4)."""
    commits: list[int] = []

    class Commits(rifl.Observer):
        def committed(self, entries: int, seconds: float, error: Exception | None) -> None:
            commits.append(entries)

    def put(request: bytes, context: object) -> bytes:
        return request

    methods = {"/t.Rows/Idempotent": "idempotent"}
    url = f"sqlite:///{tmp_path}/s.db"
    items = [rifl.BatchItem(b"r", b"%d" % at) for at in range(300)]
    with (
        rifl.Deduplicator(url, methods=methods, observer=Commits()) as dedup,
        serve("sync", [generic("t.Rows", {"Plain": put, "Idempotent": put})], dedup=dedup) as at,
        rifl.connect(at.address, session="s") as channel,
    ):
        channel.session.open()
        del commits[:]
        assert all(result.ok for result in channel.batch("/t.Rows/Plain", items))
        assert commits == [300, 300]
        del commits[:]
        items = [rifl.BatchItem(b"r", f"again-{at}") for at in range(300)]
        assert all(result.ok for result in channel.batch("/t.Rows/Idempotent", items))
        assert commits == [300]


# -- what a crash must not bring back ---------------------------------------------------------


class _Holder:
    """Somebody else's write lock on the file, so that nothing is committed."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)

    def __enter__(self):
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, *exc: object):
        self._connection.execute("ROLLBACK")
        self._connection.close()


def recorded(files):
    """A client with a record in the file."""
    client = files.client()
    attempt = files.begin(call(client, 1), IDEMPOTENT)
    wait(files.store.finish(attempt, FIRST))
    return client


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("called", [True, False])
def test_a_client_is_expired_once_that_is_durable(files, swept, batched, called):
    """Told before, a first attempt is sent anew, and runs twice if a crash brings it back (§4)."""
    client = recorded(files) if called else files.client()
    files.now = TERM_S + 1
    late = call(client, 2)
    over = files.authority.expire() if swept else []
    with _Holder(files.main):
        files.store.clients_ended(over)
        later = files.store.claim_all([late], PLAIN) if batched else files.store.claim(late, PLAIN)
        told: list[object] = []

        def ask() -> None:
            try:
                told.extend(later.wait() if batched else [later.wait()])
            except RiflError as error:
                told.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        assert files.rows(files.main, "rifl_client") == [client]
        assert told == []
    thread.join()
    assert isinstance(told[0], LeaseExpired)
    assert files.rows(files.main, "rifl_client") == []
    # From now on nobody waits.
    with pytest.raises(LeaseExpired):
        files.store.claim(late, PLAIN)


def test_a_client_is_in_the_file_before_its_id_is_told(files):
    """What is promised for a crash holds from its first call on, which waits for no row (§5)."""
    client = files.client()
    assert files.rows(files.main, "rifl_client") == [client]
    decision = files.store.claim(call(client, 1), IDEMPOTENT)
    assert files.store.start(decision.attempt) is None


def test_no_id_is_told_while_the_file_cannot_be_written(files, monkeypatch):
    """Nobody waits for ever, and what came of the row later is dropped (§5)."""
    # Of the same block of ids.
    known = [files.client()]
    with monkeypatch.context() as patched:
        patched.setattr(lease_storage, "_PATIENCE_S", 0.05)
        with _Holder(files.main), pytest.raises(StorageUnavailable):
            files.client()
    known.append(files.client())
    assert len(files.rows(files.main, "rifl_client")) == 3
    files.store.clients_ended(files.authority.expire())
    until(lambda: files.rows(files.main, "rifl_client") == known, "the other's row goes")


def test_clients_that_come_together_share_a_commit(files):
    """A grant costs a row, and not each a sync of its own (§5, §6)."""
    first = files.client()
    commits = []
    files.store._main.journal._on_commit = lambda entries, seconds, error: commits.append(entries)
    with ThreadPoolExecutor(3) as pool:
        with _Holder(files.main):
            granted = [pool.submit(files.client) for _ in range(3)]
            until(lambda: files.store.statistics()[0] == 4, "all wait")
        clients = sorted([first, *(each.result() for each in granted)])
    assert sorted(files.rows(files.main, "rifl_client")) == clients
    assert len(commits) <= 2


def test_nobody_is_expired_while_the_file_cannot_be_written(files, monkeypatch):
    """Then nothing ran, and asking again helps: no thread waits for the disk for ever (§3)."""
    monkeypatch.setattr(journal, "BUSY_S", 0.1)
    client = recorded(files)
    files.now = TERM_S + 1
    with _Holder(files.main), pytest.raises(StoreUnavailable):
        files.store.claim(call(client, 2), PLAIN).wait()
    until(lambda: not files.rows(files.main, "rifl_client"), "it is removed later")


def test_a_client_with_a_running_call_is_not_expired_yet(files):
    """Its row stays until that ends, and a crash meanwhile brings it back (§4)."""
    client = recorded(files)
    attempt = files.begin(call(client, 2), IDEMPOTENT)
    files.now = TERM_S + 1
    files.store.clients_ended(files.authority.expire())
    with pytest.raises(InProgress):
        files.store.claim(call(client, 3), PLAIN)
    wait(files.store.finish(attempt, FIRST))
    with pytest.raises(LeaseExpired):
        wait(files.store.claim(call(client, 3), PLAIN))
    assert files.rows(files.main, "rifl_client") == []


@pytest.mark.parametrize("policy", [IDEMPOTENT, PLAIN])
def test_an_acknowledgement_is_durable_before_the_late_answer_leaves(files, policy):
    """Else a copy of the call that comes after a crash looks new, and runs (§4)."""
    client = recorded(files)
    attempt = files.begin(call(client, 2), policy)
    files.begin(call(client, 3, first=3), IDEMPOTENT)
    wait(files.store.finish(attempt, OTHER))
    connection = sqlite3.connect(files.main)
    (first_incomplete,) = connection.execute("SELECT first_incomplete FROM rifl_client").fetchone()
    connection.close()
    assert first_incomplete == 3
    assert files.rows(files.main) == []


@pytest.mark.parametrize("in_a_batch", [False, True])
@pytest.mark.parametrize(
    ("kind", "client_id"), [("idempotent", -5), ("idempotent", 0), ("plain", -5)]
)
def test_a_key_without_room_may_have_run_before_a_restart(
    tmp_path: Path, in_a_batch: bool, kind: str, client_id: int
) -> None:
    """No row tells of an idempotent call that a crash ended: of its key, asked for again,
    WINDOW_EXCEEDED is not the store's word that it did not run (DESIGN §3)."""
    client = client_id
    for outcome in ("NOT_EXECUTED", "UNKNOWN"):
        store = open_store(f"sqlite:///{tmp_path / 's.db'}")
        authority = LeaseAuthority(store.leases, term_s=TERM_S, clock=lambda: 0.0)
        policies = MethodPolicies({}, kind)
        store.bind(
            authority,
            policies,
            clock=lambda: 0.0,
            bounds=Bounds(window=16),
            key_bounds=KeyBounds(max_keys=1),
        )
        policy = policies.find("/s/M")
        client = client or authority.grant().client_id
        decision = wait(store.claim(keyed(client, b"first"), policy))
        if decision.verdict is Verdict.NEW:
            wait(store.start(decision.attempt))
            wait(store.finish(decision.attempt, FIRST))
        if in_a_batch:
            [refusal] = wait(store.claim_all([keyed(client, b"second")], policy))
        else:
            with pytest.raises(WindowExceeded) as raised:
                wait(store.claim(keyed(client, b"second"), policy))
            refusal = raised.value
        assert refusal.outcome.name == (outcome if kind == "idempotent" else "NOT_EXECUTED")
        store.close()
