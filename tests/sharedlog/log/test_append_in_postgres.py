"""``log.append_in`` on connections to the PostgreSQL that holds the log (DESIGN-LOG §12)."""

import asyncio
import secrets
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from psycopg.pq import TransactionStatus
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sharedlog
import sharedlog.aio
from sharedlog._cli import main
from sharedlog._core.named import highest_of
from sharedlog._core.restoring import restore
from sharedlog._core.within import NAME
from tests.helpers.at_a_line import DRIVERS, OURS, at_a_line, bounded
from tests.helpers.waiting import until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def url(shared_postgres):
    """Of a log that is not there yet."""
    return shared_postgres.url(log=secrets.token_hex(8))


@pytest.fixture
def log(url):
    """A log in the run's server, with a stream."""
    with sharedlog.create(url) as made:
        made.stream("orders", substreams=1)
        yield made


@pytest.fixture
def connection(shared_postgres):
    """The application's connection, with a table of its own, whose constraint is deferred."""
    with shared_postgres.connect() as made:
        made.execute("DROP TABLE IF EXISTS app_orders, app_customers CASCADE")
        made.execute("CREATE TABLE app_customers (name text PRIMARY KEY)")
        made.execute(
            "CREATE TABLE app_orders (name text REFERENCES app_customers "
            "DEFERRABLE INITIALLY DEFERRED)"
        )
        made.execute("INSERT INTO app_customers VALUES ('anna')")
        made.commit()
        yield made


def texts(log):
    """What readers get."""
    return [message.text for message in log.read("orders", 0)]


def orders(connection):
    """How many effects the application's table holds."""
    found = connection.execute("SELECT count(*) FROM app_orders").fetchone()[0]
    connection.rollback()
    return found


def order(log, connection, name):
    """An effect, and its event."""
    connection.execute("INSERT INTO app_orders VALUES ('anna')")
    log.append_in(connection, "orders", name, key="customer")


def test_effect_and_event_commit_together_or_not_at_all(log, connection):
    """What is rolled back publishes nothing; what commits is read once, in its order (§12)."""
    order(log, connection, "one")
    assert texts(log) == []
    log.append_in(connection, "orders", "more of it", headers={"source": "shop"})
    connection.commit()
    order(log, connection, "never")
    connection.rollback()
    with connection.transaction():
        order(log, connection, "two")
    assert texts(log) == ["one", "more of it", "two"]
    assert orders(connection) == 2
    assert log.read("orders", 0)[1].headers == {"source": b"shop"}
    assert log._run(highest_of(NAME)) == 3


def test_it_is_whole_for_who_verifies_the_log(url, log, connection, capsys):
    """Checksums and seqs are those of an append of the engine's own, past a byte's end (§12)."""
    for number in range(130):
        log.append_in(connection, "orders", f"{number}")
    connection.commit()
    log.publish("orders", "published")
    assert texts(log) == [*map(str, range(130)), "published"]
    assert log._run(highest_of(NAME)) == 130
    assert main(["verify", url]) == 0
    assert "131" in capsys.readouterr().out


def test_a_savepoint_that_is_rolled_back_takes_its_events_along(log, connection):
    """And leaves those before and behind it."""
    with connection.transaction():
        log.append_in(connection, "orders", "before")
        with suppress(psycopg.Rollback), connection.transaction():
            log.append_in(connection, "orders", "undone")
            raise psycopg.Rollback
        log.append_in(connection.cursor(), "orders", "behind")
    assert texts(log) == ["before", "behind"]


@pytest.mark.parametrize(
    "refused",
    ["autocommit", "repeatable read", "read only", "failed", "pipeline", "other", "closed", "none"],
)
def test_what_could_not_commit_with_the_effect_is_refused(shared_postgres, log, refused):
    """Each with a typed error that says that nothing was appended (§12)."""
    with shared_postgres.connect() as given:
        if refused == "autocommit":
            given.autocommit = True
        if refused == "repeatable read":
            given.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        if refused == "read only":
            given.read_only = True
        if refused == "failed":
            with suppress(psycopg.Error):
                given.execute("SELECT 1 / 0")
        if refused == "closed":
            given.close()
        with ExitStack() as stack:
            if refused == "pipeline":
                stack.enter_context(given.pipeline())
            if refused == "other":
                given = stack.enter_context(shared_postgres.connect(dbname="template1"))
            if refused == "none":
                given = object()
            with pytest.raises(sharedlog.WrongTransaction) as caught:
                log.append_in(given, "orders", "lost")
        assert caught.value.appended is False
    assert texts(log) == []


def test_constraints_are_checked_before_the_log_is_locked(log, connection):
    """A deferred one that fails is the driver's error, and holds nobody up (§12)."""
    connection.execute("INSERT INTO app_orders VALUES ('nobody')")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        log.append_in(connection, "orders", "lost")
    log.publish("orders", "meanwhile")
    connection.rollback()
    assert texts(log) == ["meanwhile"]


def test_what_cannot_be_is_refused_before_anything_is_sent(log, connection):
    """A giant value, a stream that is not there: the transaction stays as it was (§12)."""
    log.append_in(connection, "orders", b"x" * 1_000_000)
    with pytest.raises(sharedlog.InvalidRequest):
        log.append_in(connection, "orders", b"x" * (1 << 20))
    with pytest.raises(sharedlog.NoSuchStream):
        log.append_in(connection, "nothing", "lost")
    connection.commit()
    assert [len(message.value) for message in log.read("orders", 0)] == [1_000_000]


def test_a_fence_that_was_raised_refuses_it(log, connection):
    """Judged under the log's lock, so that nothing of an older holder is written (L4)."""
    old = log.raise_fence("writer")
    log.append_in(connection, "orders", "held", fence=old)
    connection.commit()
    new = log.raise_fence("writer")
    with pytest.raises(sharedlog.Fenced) as caught:
        log.append_in(connection, "orders", "late", fence=old)
    assert caught.value.number == new.number
    connection.rollback()
    log.append_in(connection, "orders", "new", fence=new)
    connection.commit()
    assert texts(log) == ["held", "new"]


def test_a_log_of_another_incarnation_is_refused(log, connection):
    """It was restored, and an operator said so: this handle knows the old one (§12)."""
    log._run(restore("0123456789abcdef"))
    with pytest.raises(sharedlog.LogForked) as caught:
        order(log, connection, "lost")
    assert caught.value.appended is False
    connection.rollback()
    assert orders(connection) == 0


def test_writers_wait_for_the_transaction_and_keep_one_order(shared_postgres, log):
    """Transactions and publishers at once: each once, LSNs without a gap (L1)."""

    def work(writer):
        with shared_postgres.connect() as mine:
            for number in range(20):
                log.append_in(mine, "orders", f"{writer}.{number}")
                if number % 5:
                    mine.commit()
                else:
                    mine.rollback()

    threads = [threading.Thread(target=work, args=(each,)) for each in range(4)]
    for each in threads:
        each.start()
    for number in range(20):
        log.publish("orders", f"p.{number}")
    for each in threads:
        each.join()
    found = log.read("orders", 0)
    for writer in range(4):
        mine = [each.text for each in found if each.text.startswith(f"{writer}.")]
        assert mine == [f"{writer}.{number}" for number in range(20) if number % 5]
    assert [each.position.lsn for each in found] == list(range(1, 16 * 4 + 21))


def test_threads_on_one_connection_take_turns(log, connection):
    """psycopg has a connection's statements one after the other: each append is whole (L1)."""

    def work(thread):
        for number in range(10):
            log.append_in(connection, "orders", f"{thread}.{number}")

    threads = [threading.Thread(target=work, args=(each,)) for each in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    connection.commit()
    assert len(set(texts(log))) == 40


def test_followers_in_other_processes_wake(url, log, connection):
    """They hear of the commit as of any (L5)."""
    following = subprocess.Popen(
        [sys.executable, "-m", "sharedlog", "tail", url, "orders", "-f"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for number in range(2):
            order(log, connection, f"event {number}")
            connection.commit()
            assert f"event {number}" in following.stdout.readline()
    finally:
        following.kill()
        following.wait()
        following.stdout.close()


def test_sqlalchemy_connections_and_sessions(shared_postgres, log, connection):
    """They hold a psycopg connection, whose transaction they begin and end."""
    engine = sqlalchemy.create_engine(_alchemy(shared_postgres))
    with engine.begin() as mine:
        mine.execute(sqlalchemy.text("INSERT INTO app_orders VALUES ('anna')"))
        log.append_in(mine, "orders", "core")
    with Session(engine) as session:
        log.append_in(session, "orders", "undone")
        session.rollback()
        log.append_in(session, "orders", "orm")
        session.commit()
    engine.dispose()
    assert texts(log) == ["core", "orm"]
    assert orders(connection) == 1


def test_asynchronous_connections(url, shared_postgres, log, connection):
    """psycopg's, and SQLAlchemy's over it; blocking ones, too."""

    async def work():
        async with await sharedlog.aio.open(url) as mine:
            async with await psycopg.AsyncConnection.connect(connection.info.dsn) as own:
                await mine.append_in(own, "orders", "aio")
                await own.commit()
                await mine.append_in(own, "orders", "undone")
                await own.rollback()
                with pytest.raises(sharedlog.WrongTransaction, match="aio"):
                    log.append_in(own, "orders", "lost")
            engine = create_async_engine(_alchemy(shared_postgres))
            async with engine.begin() as own:
                await mine.append_in(own, "orders", "alchemy")
            async with AsyncSession(engine) as own:
                await mine.append_in(own, "orders", "session")
                await own.commit()
            await engine.dispose()
            await mine.append_in(connection, "orders", "blocking")
            connection.commit()
            log._run(restore("0123456789abcdef"))
            async with await psycopg.AsyncConnection.connect(connection.info.dsn) as own:
                with pytest.raises(sharedlog.LogForked):
                    await mine.append_in(own, "orders", "lost")
                await own.rollback()

    asyncio.run(work())
    assert texts(log) == ["aio", "alchemy", "session", "blocking"]


def test_a_role_without_the_log_is_told_so(shared_postgres, log):
    """It may not write the log's tables: its transaction cannot take the append along (§12)."""
    role = f"r{secrets.token_hex(4)}"
    with shared_postgres.connect(autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN")
    with (
        shared_postgres.connect(user=role) as given,
        pytest.raises(sharedlog.WrongTransaction, match="role"),
    ):
        log.append_in(given, "orders", "lost")


def test_a_session_that_hangs_with_the_log_is_ended(log, connection):
    """The server ends one that says nothing; other settings of its client come back (§12)."""
    connection.execute("SET idle_in_transaction_session_timeout = '7min'")
    connection.commit()
    log.append_in(connection, "orders", "kept")
    assert _idle(connection) == "5s"
    connection.commit()
    assert _idle(connection) == "7min"
    connection.execute("SET LOCAL idle_in_transaction_session_timeout = '100ms'")
    log.append_in(connection, "orders", "lost")
    assert _idle(connection) == "100ms"
    log.publish("orders", "behind it")
    with pytest.raises(psycopg.Error):
        connection.commit()
    assert texts(log) == ["kept", "behind it"]


def test_raising_a_fence_ends_a_session_that_hangs(shared_postgres, log):
    """Whoever takes over does not wait for who left the log locked (§12)."""
    with closing(shared_postgres.connect()) as hung, shared_postgres.connect() as looking:
        log.append_in(hung, "orders", "lost")
        until(lambda: _idle_s(looking, hung) > 1.1, "it hangs")
        # The server would end it after five seconds, by itself and in other words.
        assert log.raise_fence("x").number == 1
        with pytest.raises(psycopg.errors.AdminShutdown):
            hung.execute("SELECT 1")
    assert texts(log) == []


def test_without_the_privilege_it_says_for_whom_it_waits(shared_postgres, url, log, caplog):
    """A session of another role may only be waited for: the event names it (§12)."""
    role = f"r{secrets.token_hex(4)}"
    with shared_postgres.connect(autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN")
        admin.execute(f"GRANT USAGE ON SCHEMA sharedlog TO {role}")
        admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA sharedlog TO {role}")
    with (
        sharedlog.open(url.replace("rifl@", f"{role}@")) as weak,
        shared_postgres.connect(application_name="checkout") as hung,
        shared_postgres.connect() as looking,
    ):
        log.append_in(hung, "orders", "slow")
        until(lambda: _idle_s(looking, hung) > 1.1, "it hangs")
        raising = threading.Thread(target=lambda: weak.raise_fence("x"))
        raising.start()
        until(lambda: "log_waits_for_session" in caplog.text, "it says for whom")
        assert str(hung.info.backend_pid) in caplog.text
        hung.commit()
        raising.join()
    assert texts(log) == ["slow"]


def _idle(connection):
    return connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()[0]


def _idle_s(looking, hung):
    found = looking.execute(
        "SELECT extract(epoch FROM clock_timestamp() - state_change) FROM pg_stat_activity "
        "WHERE pid = %s AND state = 'idle in transaction'",
        (hung.info.backend_pid,),
    ).fetchone()
    looking.rollback()
    return found[0] if found else 0


def _alchemy(server):
    with server.connect() as connection:
        info = connection.info
        return f"postgresql+psycopg://{info.user}@{info.host}:{info.port}/{info.dbname}"


def test_a_failed_append_leaves_a_transaction_to_be_rolled_back(log, connection):
    """As any statement that fails: nothing of it commits by mistake."""
    fence = sharedlog.Fence("never-raised", 7)
    with pytest.raises(sharedlog.Fenced):
        log.append_in(connection, "orders", "lost", fence=fence)
    assert connection.info.transaction_status == TransactionStatus.INERROR


def test_an_append_in_within_one_on_its_connection(log, connection):
    """By a signal's handler, at some lines of ours and psycopg's: refused, nothing hangs (L3)."""
    told, refused = [], []

    def within():
        try:
            log.append_in(connection, "orders", "within")
        except sharedlog.ReentrantUse as error:
            refused.append(error.appended)
        else:
            told.append("within")

    def walk():
        number, line = 1, None
        while line is None or line.came:
            with at_a_line(number, within, files=(*OURS, *DRIVERS)) as line:
                log.append_in(connection, "orders", "outer")
            told.append("outer")
            connection.commit()
            number += 11
        return number

    assert bounded(walk, 60) > 300
    assert set(refused) == {False}
    assert texts(log) == told
