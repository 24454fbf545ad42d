"""A log in PostgreSQL whose server is crashed, weakened, damaged or failed over (DESIGN §7)."""

from __future__ import annotations

import contextlib
import threading

import pytest

from curp._cli.command import main
from curp.log import create_log, open_engine
from curp.log._engine import Entry
from curp.log._errors import (
    CorruptLog,
    EngineUnavailable,
    InvalidRequest,
    LogExists,
    NoSuchLog,
    NotDurable,
)
from tests.curp.log.conformance import Writer, append_id
from tests.curp.log.test_postgres import Place
from tests.curp.logs import created, created_older
from tests.helpers.waiting import until
from tests.stores.postgres.pgbouncer import PgBouncer
from tests.stores.postgres.servers import DroppingProxy
from tests.stores.postgres.test_standby import Pair

_OLDER = pytest.param(created_older, id="format1", marks=pytest.mark.long)
_FORMATS = pytest.mark.parametrize("make", [_OLDER, pytest.param(created, id="format2")])
# What locks the row that each write locks, which its function then waits for.
_WRITES = pytest.mark.parametrize(
    ("make", "lock", "as_name", "function"),
    [
        pytest.param(
            created_older,
            "SELECT 1 FROM curp.log WHERE name = %s FOR UPDATE",
            str.encode,
            "append_1",
            id="format1",
            marks=pytest.mark.long,
        ),
        pytest.param(
            created,
            "SELECT 1 FROM curp_2.log WHERE name = %s FOR UPDATE",
            str,
            "commit_1",
            id="format2",
        ),
    ],
)


@pytest.fixture
def place(shared_postgres, group):
    """A log of its own in the shared server."""
    place = Place(shared_postgres, group, timeout_s=5)
    yield place
    place.close()


@pytest.fixture
def opened():
    """Open engines, and close them afterwards."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(contextlib.closing(open_engine(url)))


def _patiently(work):
    """Do it again while the server is away; other errors pass."""

    def attempt():
        with contextlib.suppress(EngineUnavailable):
            return (work(),)
        return None

    return until(attempt, "the server is back", 60)[0]


# Crashes, lost connections.


def test_a_crash_of_the_server(own_postgres, group, opened):
    """Everything acknowledged is there, and writer and readers just go on (DESIGN §7)."""
    url = created_older(own_postgres.url(group=group))
    writer, reader = Writer(opened(url)), opened(url)
    writer.append(b"a", b"b", tags=("t",), metadata={"k": b"v"})
    writer.snapshot(1, b"s")
    assert len(reader.read(0)) == 2
    own_postgres.crash()
    try:
        with pytest.raises(EngineUnavailable):
            writer.append(b"c")
        with pytest.raises(EngineUnavailable):
            open_engine(url)
    finally:
        own_postgres.start()
    assert _patiently(lambda: writer.append(b"c")) == 3
    assert _patiently(lambda: reader.read(2)) == [Entry(3, b"c")]
    assert reader.read(0, tag="t")[1] == Entry(2, b"b", ("t",))
    assert (reader.metadata("k"), list(reader.load_snapshot().chunks)) == (b"v", [b"s"])


@pytest.mark.parametrize("forward", [True, False], ids=["reply lost", "request lost"])
def test_an_append_whose_connection_is_lost(shared_postgres, group, opened, forward):
    """Asked again under its id it is there once, whether it happened or not (DESIGN §7)."""
    proxy = DroppingProxy(shared_postgres.port)
    try:
        writer = Writer(opened(created_older(shared_postgres.url(proxy.address, group=group))))
        writer.append(b"a")
        name = append_id()
        proxy.drop_at(b"the body", forward=forward)
        with pytest.raises(EngineUnavailable):
            writer.append(b"the body", b"c", append_id=name)
        assert _patiently(lambda: writer.append(b"the body", b"c", append_id=name)) == 3
        assert [entry.body for entry in writer.engine.read(0)] == [b"a", b"the body", b"c"]
    finally:
        proxy.close()


@_WRITES
def test_a_backend_terminated_in_the_middle_of_an_append(
    shared_postgres, group, opened, make, lock, as_name, function
):
    """Nothing of it is there, and the writer goes on (DESIGN §7, invariant 3 of LogEngine)."""
    writer = Writer(opened(make(shared_postgres.url(group=group, timeout_s=5))))
    writer.append(b"a")
    name = append_id()
    failures = []
    with shared_postgres.connect() as holder:
        # Holds the log's row, so that the append waits within its function.
        holder.execute(lock, (as_name(group),))

        def append():
            try:
                writer.append(b"b", append_id=name)
            except EngineUnavailable as error:
                failures.append(error)

        thread = threading.Thread(target=append)
        thread.start()

        def terminated():
            with shared_postgres.connect(autocommit=True) as other:
                return other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE wait_event_type = 'Lock' AND query LIKE %s AND pid <> pg_backend_pid()",
                    (f"%{function}%",),
                ).fetchall()

        until(terminated, "the append waits, and is terminated", 30)
        thread.join(30)
        holder.rollback()
    assert len(failures) == 1
    assert writer.engine.tail() == 1
    assert _patiently(lambda: writer.append(b"b", append_id=name)) == 2


@_WRITES
def test_a_session_that_holds_the_log_delays_and_harms_nothing(
    shared_postgres, group, opened, make, lock, as_name, function
):
    """A write that waits too long for the row is EngineUnavailable, and may be asked again (§7)."""
    url = make(shared_postgres.url(group=group, timeout_s=0.4))
    writer = Writer(opened(url))
    with shared_postgres.connect() as holder:
        holder.execute(lock, (as_name(group),))
        with pytest.raises(EngineUnavailable):
            writer.append(b"a")
        # Readers wait for nobody.
        assert writer.engine.read(0) == []
        holder.rollback()
    assert writer.append(b"a") == 1


def test_a_wait_ends_with_an_append(place, monkeypatch):
    """A reader is woken by the append's NOTIFY, not by a timer (DESIGN §7)."""
    monkeypatch.setattr("sharedlog._engines.postgres.listener._LOOK_S", 300.0)
    writer, reader = Writer(place.open()), place.open()
    woken = []
    waiter = threading.Thread(target=lambda: woken.append(reader.wait(0, timeout_s=300)))
    waiter.start()
    until(lambda: reader._listener._listens, "it listens", 30)
    writer.append(b"a")
    waiter.join(60)
    assert woken == [1]


def test_a_listener_whose_session_ends_is_made_anew(place):
    """Meanwhile a waiter looks by itself: no append is missed (DESIGN §7)."""
    writer, reader = Writer(place.open()), place.open()
    assert reader.wait(0, timeout_s=0) == 0
    until(lambda: reader._listener._listens, "it listens", 30)
    place.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE query LIKE 'LISTEN%%' AND {0} = {0}"
    )
    writer.append(b"a")
    assert reader.wait(0, timeout_s=30) == 1
    writer.append(b"b")
    assert reader.wait(1, timeout_s=30) == 2


# A database that is another, or lost something.


def test_a_log_whose_schema_is_dropped(own_postgres, group, opened):
    """Writer and readers stop by type; nobody begins a new one by opening it (DESIGN §7)."""
    url = created_older(own_postgres.url(group=group, schema="dropped"))
    writer, reader = Writer(opened(url)), opened(url)
    writer.append(b"a")
    reader.read(0)
    with own_postgres.connect(autocommit=True) as connection:
        connection.execute("DROP SCHEMA dropped CASCADE")
    for ask in (lambda: writer.append(b"b"), lambda: reader.read(1), reader.tail):
        with pytest.raises(CorruptLog):
            ask()
    with pytest.raises(NoSuchLog, match="curp init"):
        open_engine(url)
    # Also when a log of the same name was created in its place.
    created_older(url)
    with pytest.raises(CorruptLog, match="another one"):
        writer.append(b"b")


def test_a_log_that_went_back(place):
    """Rows that are gone, as after a restore: noticed by whoever saw them (DESIGN §7)."""
    writer, reader = Writer(place.open()), place.open()
    writer.append(b"a", b"b")
    reader.read(0)
    place.run("UPDATE curp.log SET tail = 1 WHERE log_id = {}")
    place.run("DELETE FROM curp.entry WHERE log_id = {} AND lsn = 2")
    with pytest.raises(CorruptLog, match="went back"):
        writer.append(b"c")
    with pytest.raises(CorruptLog, match="went back"):
        reader.read(2)


def test_another_history_of_the_same_length(place):
    """What was read once is read again or noticed: LSNs alone do not tell (DESIGN §7)."""
    writer, reader = Writer(place.open()), place.open()
    writer.append(b"a", b"b")
    reader.read(0)
    place.run("UPDATE curp.entry SET append_id = 'other' WHERE log_id = {} AND lsn = 2")
    with pytest.raises(CorruptLog, match="not the one"):
        reader.read(2)
    with pytest.raises(CorruptLog, match="not the one"):
        writer.append(b"c")


@pytest.mark.slow
@_FORMATS
def test_a_promoted_standby_that_may_lack_entries_stops_the_log(opened, capsys, make):
    """For everyone, until an operator accepts it; who knew more stays away (DESIGN §6, §7)."""
    pair = Pair(synchronous=False)
    try:
        url = make(_log_of(pair))
        writer = Writer(opened(url))
        writer.append(b"a")
        until(lambda: _replayed(pair), "the standby has it", 60)
        assert "standbys get it later" in writer.engine.durability
        pair.fail_over()
        with pytest.raises(CorruptLog, match="accept-loss"):
            _patiently(lambda: writer.append(b"b"))
        with pytest.raises(CorruptLog, match="accept-loss"):
            _patiently(lambda: open_engine(url))
        # It can be looked at.
        assert _patiently(lambda: main(["log", "verify", url])) == 0
        asked = ["log", "accept-loss", url, "--who", "ann", "--why", "the primary burnt"]
        assert main(asked) == 0
        assert "goes on" in capsys.readouterr().out
        with pytest.raises(CorruptLog):
            writer.append(b"b")
        newer = Writer(opened(url), "two")
        # A number that the lost primary cannot have given.
        assert newer.configuration > 1 << 32
        assert newer.append(b"c") == 2
        assert main(asked) == 1
    finally:
        pair.stop()


@pytest.mark.slow
@_FORMATS
def test_a_synchronous_standby_that_is_promoted_goes_on(opened, make):
    """It has all that was acknowledged, and the log says so and goes on (DESIGN §6, §7)."""
    pair = Pair(synchronous=True)
    try:
        url = make(_log_of(pair))
        writer, reader = Writer(opened(url)), opened(url)
        assert "synchronous standby has it" in writer.engine.durability
        name = append_id()
        writer.append(b"a", append_id=name)
        reader.read(0)
        _cut_short(pair, writer)
        pair.fail_over()
        with pair.standby.connect(autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            connection.execute("SELECT pg_reload_conf()")
        assert _patiently(lambda: writer.append(b"c")) == 3
        assert [entry.body for entry in _patiently(lambda: reader.read(0))] == [b"a", b"b", b"c"]
        assert Writer(opened(url), "one").configuration == 2
    finally:
        pair.stop()


def _cut_short(pair, writer):
    """A commit whose wait for the standby somebody cancels is visible, and does not count."""
    pair.standby.crash()
    name, failures = append_id(), []

    def append():
        try:
            writer.append(b"b", append_id=name)
        except EngineUnavailable as error:
            failures.append(str(error))

    thread = threading.Thread(target=append)
    thread.start()

    def cancelled():
        with pair.primary.connect(autocommit=True) as connection:
            return connection.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            ).fetchall()

    until(cancelled, "the commit waits, and is cancelled", 30)
    thread.join(30)
    assert len(failures) == 1
    assert "cut short" in failures[0]
    pair.standby.start()
    until(lambda: pair.follows() == "sync", "the standby follows", 60)
    # Asked again it is found, and waited for.
    assert _patiently(lambda: writer.append(b"b", append_id=name)) == 2


def _log_of(pair):
    return f"{pair.url}&group=bank".replace("beat_s=0.1&dead_after_s=30&", "")


def _replayed(pair):
    with pair.primary.connect() as connection:
        return connection.execute(
            "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication"
        ).fetchone()[0]


# Settings.


def test_weak_settings_are_refused_or_told(own_postgres, group, opened):
    """When it opens, and by a writer that was there before: nothing is written (DESIGN §6, §7)."""
    url = created_older(own_postgres.url(group=group))
    writer = Writer(opened(url))
    _set(own_postgres, "full_page_writes", "off")
    try:
        with pytest.raises(NotDurable, match="full_page_writes"):
            open_engine(url)
        with pytest.raises(EngineUnavailable, match="full_page_writes"):
            writer.append(b"a")
        weak = opened(url + "&durability=warn")
        assert "full_page_writes is off" in weak.durability
        assert weak.tail() == 0
    finally:
        _set(own_postgres, "full_page_writes", "on")
    assert writer.append(b"a") == 1


def test_synchronous_commit_is_seen_to(own_postgres, group, opened):
    """Off by default on the server, it is on in what the log commits (DESIGN §6)."""
    url = created_older(own_postgres.url(group=group))
    early = Writer(opened(url))
    _set(own_postgres, "synchronous_commit", "off")
    try:
        late = opened(url)
        assert "synchronous_commit=on" in late.durability
        before = _flushed(own_postgres)
        early.append(b"a" * 100)
        assert _flushed(own_postgres) > before
    finally:
        _set(own_postgres, "synchronous_commit", "on")


def _set(server, name, value):
    with server.connect(autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET {name} = {value}")
        connection.execute("SELECT pg_reload_conf()")
    until(lambda: _setting(server, name) == value, "the setting is in force", 30)


def _setting(server, name):
    with server.connect() as connection:
        return connection.execute("SELECT current_setting(%s)", (name,)).fetchone()[0]


def _flushed(server):
    with server.connect() as connection:
        return connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchone()[0]


# Damage. Whole: nothing of it is skipped or taken for good.


@pytest.fixture
def broken(place):
    """A log with a little of everything, to be broken by statements."""
    writer = Writer(place.open())
    writer.append(*(b"body %d" % n for n in range(1, 11)), tags=("t",))
    writer.snapshot(4, b"one", b"two")
    writer.engine.trim(2, configuration=1)
    return place


@pytest.mark.parametrize("lsn", [3, 7, 10])
def test_a_missing_entry(broken, lsn):
    """It is CorruptLog, by tag and without (DESIGN §7)."""
    broken.run("DELETE FROM curp.entry WHERE log_id = {} AND lsn = %s", lsn)
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            broken.open().read(2, tag=tag)


def test_a_changed_entry(broken):
    """One byte that changed is CorruptLog, where it is read (DESIGN §7)."""
    broken.run("UPDATE curp.entry SET body = 'bodY 7' WHERE log_id = {} AND lsn = 7")
    assert len(broken.open().read(2, limit=4)) == 4
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            broken.open().read(2, tag=tag)


def test_a_tag_that_an_entry_does_not_carry(broken):
    """An index that lies is CorruptLog (DESIGN §7)."""
    broken.run("INSERT INTO curp.tag VALUES ({}, 'u', 5)")
    with pytest.raises(CorruptLog):
        broken.open().read(2, tag="u")


def test_a_damaged_snapshot(broken):
    """A chunk that is missing or changed is CorruptLog (DESIGN §7, invariant 8)."""
    (snapshot,) = broken.run("SELECT snapshot_id FROM curp.snapshot WHERE log_id = {}").fetchone()
    of_it = "WHERE snapshot_id = %s AND number = 1"
    broken.run("UPDATE curp.chunk SET body = body || '!' " + of_it, snapshot)  # noqa: S608
    with pytest.raises(CorruptLog):
        list(broken.open().load_snapshot().chunks)
    broken.run("DELETE FROM curp.chunk " + of_it, snapshot)  # noqa: S608
    with pytest.raises(CorruptLog):
        list(broken.open().load_snapshot().chunks)


def test_trimmed_rows_are_gone(broken):
    """What is trimmed gives its room back, tags and old snapshots included (DESIGN §7)."""

    def rows(table):
        counted = "SELECT count(*) FROM curp." + table + " WHERE log_id = {}"  # noqa: S608
        return broken.run(counted).fetchone()[0]

    assert (rows("entry"), rows("tag"), rows("snapshot")) == (8, 8, 1)
    writer = Writer(broken.open())
    writer.snapshot(10, b"all")
    writer.engine.trim(10, configuration=writer.configuration)
    assert (rows("entry"), rows("tag"), rows("snapshot")) == (0, 0, 1)


def test_a_newer_format(own_postgres, group):
    """A log written by a newer release is refused, and left as it is (DESIGN §7)."""
    url = created_older(own_postgres.url(group=group, schema="newer"))
    with own_postgres.connect(autocommit=True) as connection:
        connection.execute("UPDATE newer.meta SET value = '2'")
    for ask in (open_engine, create_log, created_older):
        with pytest.raises(CorruptLog, match="newer release"):
            ask(url)


# Several logs, roles, URLs.


def test_groups_in_one_schema_are_apart(shared_postgres, place):
    """Each has numbers, entries, tags, keys and snapshots of its own (DESIGN §7)."""
    other = Place(shared_postgres, f"{place.group}-other")
    writers = [Writer(place.open()), Writer(other.open())]
    for count, writer in enumerate(writers, 2):
        writer.append(*[b"%d" % count] * count, tags=("t",), metadata={"k": b"%d" % count})
        writer.snapshot(1, b"%d" % count)
        writer.engine.trim(1, configuration=1)
    for count, writer in enumerate(writers, 2):
        engine = writer.engine
        assert (engine.tail(), engine.first(), engine.metadata("k")) == (
            count,
            2,
            b"%d" % count,
        )
        assert engine.read(count - 1, tag="t") == [Entry(count, b"%d" % count, ("t",))]
        assert list(engine.load_snapshot().chunks) == [b"%d" % count]
    other.close()


def test_logs_created_at_once(own_postgres, group):
    """Of several who begin at the same time, one creates each (DESIGN §7)."""
    url = own_postgres.url(group=group, schema="at_once")
    made, refused = [], []

    def create():
        try:
            made.append(create_log(url))
        except LogExists:
            refused.append(1)

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(made), len(refused)) == (1, 5)


def test_a_pooler_is_refused_unless_it_lends_whole_sessions(shared_postgres, group, opened):
    """In transaction mode whatever the URL says; in session mode it has to be named (§6)."""
    for mode, declared in (("transaction", {"pooler": "session"}), ("session", {})):
        pooler = PgBouncer(shared_postgres, mode)
        try:
            with pytest.raises(InvalidRequest, match="pooler"):
                create_log(pooler.url(group=group, **declared))
        finally:
            pooler.stop()
    pooler = PgBouncer(shared_postgres, "session")
    try:
        url = created_older(pooler.url(group=group, pooler="session"))
        writer, reader = Writer(opened(url)), opened(url)
        writer.append(b"a")
        assert reader.wait(0, timeout_s=30) == 1
    finally:
        pooler.stop()


@pytest.mark.parametrize(
    "query", ["group=a&beat_s=1", "group=a&durability=maybe", "group=a&schema=No%20Schema"]
)
def test_a_url_that_is_wrong(query):
    """It is InvalidRequest, and a password in it is in no message (DESIGN §9)."""
    with pytest.raises(InvalidRequest) as refused:
        open_engine(f"postgresql://u:hunter2@127.0.0.1:1/d?{query}")
    assert "hunter2" not in str(refused.value)


def test_a_server_that_is_not_there():
    """It is EngineUnavailable, without the password of the URL (DESIGN §9)."""
    with pytest.raises(EngineUnavailable) as refused:
        open_engine("postgresql://u:hunter2@127.0.0.1:1/d?group=a&timeout_s=2")
    assert "hunter2" not in str(refused.value)
