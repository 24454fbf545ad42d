"""``log.append_in`` on connections to the SQLite file that holds the log (DESIGN-LOG §12)."""

import asyncio
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import aiosqlite
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import sharedlog
import sharedlog.aio
from sharedlog._core.named import highest_of
from sharedlog._core.restoring import restore
from sharedlog._core.within import NAME
from tests.helpers.waiting import until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def path(tmp_path):
    """An application's own file, with a table."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE orders (name)")
    return path


@pytest.fixture
def log(path):
    """A log in that file, with a stream."""
    with sharedlog.create(f"sqlite:///{path}") as made:
        made.stream("orders", substreams=1)
        yield made


@pytest.fixture
def connection(path, log):
    """The application's connection."""
    with closing(sqlite3.connect(path, check_same_thread=False)) as made:
        yield made


def texts(log):
    """What readers get."""
    return [message.text for message in log.read("orders", 0)]


def orders(path):
    """What the application's table holds."""
    with closing(sqlite3.connect(path)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM orders")]


def order(log, connection, name):
    """An effect, and its event."""
    connection.execute("INSERT INTO orders VALUES (?)", (name,))
    log.append_in(connection, "orders", name, key="customer")


def test_effect_and_event_commit_together_or_not_at_all(path, log, connection):
    """What is rolled back publishes nothing; what commits is read once, in its order (§12)."""
    with connection:
        order(log, connection, "one")
        assert texts(log) == []
        log.append_in(connection, "orders", "more of it", headers={"source": "shop"})
    order(log, connection, "never")
    connection.rollback()
    with connection:
        order(log, connection, "two")
    assert texts(log) == ["one", "more of it", "two"]
    assert orders(path) == ["one", "two"]
    assert log.read("orders", 0)[1].headers == {"source": b"shop"}
    assert log._run(highest_of(NAME)) == 3


def test_it_begins_the_transaction_where_the_driver_would(log, connection):
    """As an INSERT does; the connection's commit ends it, its rollback undoes it."""
    log.append_in(connection, "orders", "first of all")
    assert connection.in_transaction
    connection.rollback()
    log.append_in(connection, "orders", "again")
    connection.commit()
    assert texts(log) == ["again"]


def test_publishers_and_transactions_share_one_order(log, connection):
    """LSNs have no gap, whoever appends; the log's own handle knows what others wrote (L1)."""
    for number in range(5):
        log.publish("orders", f"published {number}")
        with connection:
            log.append_in(connection, "orders", f"within {number}")
    found = log.read("orders", 0)
    assert [message.text for message in found] == [
        f"{how} {number}" for number in range(5) for how in ("published", "within")
    ]
    lsns = [message.position.lsn for message in found]
    assert lsns == list(range(lsns[0], lsns[0] + 10))


def test_a_savepoint_that_is_rolled_back_takes_its_events_along(log, connection):
    """And leaves those before and behind it."""
    with connection:
        log.append_in(connection, "orders", "before")
        connection.execute("SAVEPOINT mine")
        log.append_in(connection, "orders", "undone")
        connection.execute("ROLLBACK TO mine")
        log.append_in(connection, "orders", "behind")
    assert texts(log) == ["before", "behind"]


def test_cursors_and_savepoints_of_its_own_disturb_nothing(log, connection):
    """A row factory of the application's, and a cursor half read, stay as they are."""
    connection.row_factory = sqlite3.Row
    with connection:
        connection.executemany("INSERT INTO orders VALUES (?)", [("a",), ("b",), ("c",)])
    with connection:
        reading = connection.execute("SELECT name FROM orders")
        assert reading.fetchone()["name"] == "a"
        log.append_in(connection.cursor(), "orders", "event")
        assert [row["name"] for row in reading] == ["b", "c"]
    assert texts(log) == ["event"]


@pytest.mark.parametrize(
    "refused",
    ["autocommit", "other file", "memory", "attached", "synchronous", "read only", "no connection"],
)
def test_what_could_not_commit_with_the_effect_is_refused(path, log, tmp_path, refused):
    """Each with a typed error that says that nothing was appended (§12)."""
    if refused == "autocommit":
        given = sqlite3.connect(path, isolation_level=None)
    elif refused == "read only":
        given = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    else:
        other = {"other file": str(tmp_path / "other.db"), "memory": ":memory:"}
        given = sqlite3.connect(other.get(refused, path))
    if refused == "attached":
        given = sqlite3.connect(tmp_path / "other.db")
        given.execute("ATTACH ? AS app", (str(path),))
    if refused == "synchronous":
        given.execute("PRAGMA synchronous=NORMAL")
    with closing(given), pytest.raises(sharedlog.WrongTransaction) as caught:
        log.append_in(object() if refused == "no connection" else given, "orders", "lost")
    assert caught.value.appended is False
    assert type(pickle.loads(pickle.dumps(caught.value))) is sharedlog.WrongTransaction  # noqa: S301
    assert texts(log) == []


def test_a_log_elsewhere_is_refused_and_names_the_outbox(connection):
    """A log in memory has no transactions of the application's database (§12)."""
    with sharedlog.create("memory:") as elsewhere:
        elsewhere.stream("orders", substreams=1)
        with pytest.raises(sharedlog.WrongTransaction, match="outbox"):
            elsewhere.append_in(connection, "orders", "lost")


def test_a_transaction_that_was_begun_by_hand_is_one(path, log):
    """On a connection in autocommit, as Django and many others have it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        order(log, connection, "one")
        connection.execute("COMMIT")
    assert texts(log) == ["one"]
    assert orders(path) == ["one"]


def test_what_cannot_be_is_refused_before_anything_is_written(log, connection):
    """A giant value, a stream that is not there: the transaction stays as it was (§12)."""
    with connection:
        log.append_in(connection, "orders", "small")
        with pytest.raises(sharedlog.InvalidRequest):
            log.append_in(connection, "orders", b"x" * (1 << 20))
        with pytest.raises(sharedlog.NoSuchStream):
            log.append_in(connection, "nothing", "lost")
    assert texts(log) == ["small"]


def test_a_fence_that_was_raised_refuses_it(log, connection):
    """Judged under the file's lock, so that nothing of an older holder is written (L4)."""
    old = log.raise_fence("writer")
    with connection:
        log.append_in(connection, "orders", "held", fence=old)
    new = log.raise_fence("writer")
    with pytest.raises(sharedlog.Fenced) as caught, connection:
        log.append_in(connection, "orders", "late", fence=old)
    assert caught.value.number == new.number
    with connection:
        log.append_in(connection, "orders", "new", fence=new)
    assert texts(log) == ["held", "new"]


def test_threads_on_one_connection_take_turns(log, connection):
    """Each append is whole, none takes another's place (L1)."""
    connection.execute("BEGIN IMMEDIATE")

    def work(thread):
        for number in range(20):
            log.append_in(connection, "orders", f"{thread}.{number}")

    threads = [threading.Thread(target=work, args=(each,)) for each in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    connection.commit()
    found = texts(log)
    assert sorted(found) == sorted(f"{each}.{number}" for each in range(4) for number in range(20))
    for thread in range(4):
        assert [text for text in found if text.startswith(f"{thread}.")] == [
            f"{thread}.{number}" for number in range(20)
        ]


def test_two_who_write_take_turns_and_a_late_one_is_told(path, log, connection):
    """Who read before another committed cannot append behind it: unavailable, not appended."""
    with closing(sqlite3.connect(path, timeout=0)) as late:
        late.execute("BEGIN")
        late.execute("SELECT * FROM orders").fetchall()
        with connection:
            order(log, connection, "first")
        with pytest.raises(sharedlog.LogUnavailable) as caught:
            log.append_in(late, "orders", "late")
        assert caught.value.appended is False
        late.rollback()
        log.append_in(late, "orders", "again")
        late.commit()
    assert texts(log) == ["first", "again"]


def test_a_file_that_another_one_writes_is_unavailable(path, log, connection):
    """For as long as its connection waits; nothing is appended, and nothing left begun."""
    with connection, closing(sqlite3.connect(path, timeout=0)) as other:
        order(log, connection, "first")
        with pytest.raises(sharedlog.LogUnavailable) as caught:
            log.append_in(other, "orders", "second")
        assert caught.value.appended is False
        assert not other.in_transaction
    with pytest.raises(sharedlog.WrongTransaction):
        log.append_in(other, "orders", "closed")
    assert texts(log) == ["first"]


@pytest.mark.parametrize("flavour", ["sync", "aio"])
def test_who_publishes_beside_its_own_transaction_is_told_in_time(path, log, connection, flavour):
    """It waits for itself: after the log's timeout, and not SQLite's, it is told so (§12)."""
    url, patience = f"sqlite:///{path}", timedelta(seconds=0.5)

    async def publish_aio():
        async with await sharedlog.aio.open(url, timeout=patience) as mine:
            await mine.publish("orders", "beside")

    def publish():
        with sharedlog.open(url, timeout=patience) as mine:
            mine.publish("orders", "beside")

    with connection:
        order(log, connection, "within")
        began = time.monotonic()
        with pytest.raises(sharedlog.LogUnavailable, match="this process itself") as caught:
            asyncio.run(publish_aio()) if flavour == "aio" else publish()
        assert time.monotonic() - began < 15
        assert caught.value.appended is False
    assert texts(log) == ["within"]
    log.publish("orders", "behind")
    assert texts(log) == ["within", "behind"]


def test_a_log_of_another_incarnation_is_refused(path, log, connection):
    """The file was restored, and an operator said so: this handle knows the old one (§12)."""
    log._run(restore("0123456789abcdef"))
    with pytest.raises(sharedlog.LogForked) as caught, connection:
        order(log, connection, "lost")
    assert caught.value.appended is False
    assert orders(path) == []


def test_a_closed_log_appends_nothing(path):
    """``LogStopped``, and the transaction is the application's to end."""
    log = sharedlog.create(f"sqlite:///{path}")
    log.stream("orders", substreams=1)
    log.close()
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sharedlog.LogStopped):
        log.append_in(connection, "orders", "lost")


def test_a_trim_in_between_disturbs_nothing(log, connection):
    """What was removed meanwhile leaves the LSNs as they were (L1, L6)."""
    with connection:
        log.append_in(connection, "orders", "old")
    log.publish("orders", "older than the trim")
    log._engine.remove(log._engine.tail())
    with connection:
        log.append_in(connection, "orders", "new")
    assert [row.lsn for row in log._engine.read(log._engine.first() - 1, 10).rows] == [3]


def test_followers_in_other_processes_wake(path, log, connection):
    """They wait for the file's commits, whoever made them (L5)."""
    following = subprocess.Popen(
        [sys.executable, "-m", "sharedlog", "tail", f"sqlite:///{path}", "orders", "-f"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        for number in range(3):
            with connection:
                log.append_in(connection, "orders", f"event {number}")
            assert f"event {number}" in following.stdout.readline()
    finally:
        following.kill()
        following.wait()
        following.stdout.close()


def test_a_follower_here_wakes(log, connection):
    """A waiter of the same process hears of a connection that is not the log's (L5)."""
    with log.follow("orders") as following:
        got = []
        waiter = threading.Thread(target=lambda: got.append(next(following).text))
        waiter.start()
        with connection:
            log.append_in(connection, "orders", "event")
        until(lambda: got == ["event"], "the follower has it")
        waiter.join()


def test_its_events_carry_the_trace_of_who_appends_them(path, log, connection):
    """Those who watch see it as they see what is published; the envelope has the context."""

    class Watching(sharedlog.LogObserver):
        ended = ()

        def publish_begins(self, log, stream, about):
            about = about or sharedlog.About()
            return about._replace(trace_parent=f"00-{'1' * 32}-{'2' * 16}-01"), stream

        def publish_ended(self, begun, position, error):
            self.ended += ((begun, error),)

    watching = Watching()
    with sharedlog.open(f"sqlite:///{path}", observer=watching) as watched, connection:
        watched.append_in(connection, "orders", "event")
    assert watching.ended == (("orders", None),)
    assert log.read("orders", 0)[0].trace_parent.endswith("-01")


def test_sqlalchemy_connections_and_sessions(path, log):
    """They hold a sqlite3 connection; what the session has yet to write is written before."""
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("INSERT INTO orders VALUES ('core')"))
        log.append_in(connection, "orders", "core")
    with Session(engine) as session:
        session.execute(sqlalchemy.text("INSERT INTO orders VALUES ('orm')"))
        log.append_in(session, "orders", "orm")
        session.rollback()
        log.append_in(session, "orders", "orm again")
        session.commit()
    engine.dispose()
    assert texts(log) == ["core", "orm again"]
    assert orders(path) == ["core"]


def test_asynchronous_connections(path, log):
    """aiosqlite's, and SQLAlchemy's over it; blocking ones, too."""

    async def work():
        async with await sharedlog.aio.open(f"sqlite:///{path}") as mine:
            async with aiosqlite.connect(path) as connection:
                await connection.execute("INSERT INTO orders VALUES ('aio')")
                await mine.append_in(connection, "orders", "aio")
                await connection.commit()
                await asyncio.gather(
                    *(mine.append_in(connection, "orders", f"task {n}") for n in range(5))
                )
                await connection.rollback()
                with pytest.raises(sharedlog.WrongTransaction, match="aio"):
                    log.append_in(connection, "orders", "lost")
            engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
            async with engine.begin() as connection:
                await mine.append_in(connection, "orders", "alchemy")
            await engine.dispose()
            with closing(sqlite3.connect(path)) as connection, connection:
                await mine.append_in(connection, "orders", "blocking")
            log._run(restore("0123456789abcdef"))
            async with aiosqlite.connect(path) as connection:
                with pytest.raises(sharedlog.LogForked):
                    await mine.append_in(connection, "orders", "lost")

    asyncio.run(work())
    assert texts(log) == ["aio", "alchemy", "blocking"]


def test_a_log_that_went_back_is_noticed(path, log, connection):
    """A connection to a file that lacks what this log's handle saw gets ``CorruptLog`` (§12)."""
    log.publish("orders", "seen")
    connection.execute("DELETE FROM sharedlog_entry")
    with pytest.raises(sharedlog.CorruptLog):
        log.append_in(connection, "orders", "lost")
    connection.rollback()
    assert texts(log) == ["seen"]
