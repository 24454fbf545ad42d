"""A PostgreSQL that is weak, gone, read-only, another, or newer, or that drops connections."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import structlog

from _rifl_ground.refusals import Outcome
from lease_server import StorageUnavailable
from rifl._stores import (
    StoreCorrupt,
    StoreNotDurable,
    StoreSchemaTooNew,
    StoreUnreachable,
    UnsupportedStore,
    open_store,
)
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.serving import serve
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import InProgress, RecordPending, StoreUnavailable
from rifl.core._shared.record import CompletionRecord
from tests.helpers.waiting import until
from tests.stores.conformance import drive
from tests.stores.postgres.servers import DroppingProxy
from tests.stores.redis.replica import ATOMIC, FIRST, IDEMPOTENT, OTHER, Replica, call

FAST = {"timeout_s": 1, "beat_s": 0.1, "dead_after_s": 30, "max_connections": 2}


@pytest.fixture
def proxy(shared_server):
    """A way to the run's server on which connections can be dropped."""
    proxy = DroppingProxy(shared_server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def setting(own_server):
    """Change a setting of the server; it is reset afterwards."""
    changed = []

    def change(name, value):
        with own_server.connect(autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET {name} = {value}")
            connection.execute("SELECT pg_reload_conf()")
        changed.append(name)
        until(lambda: _shown(own_server, name) == value, "the setting is in force")

    yield change
    with own_server.connect(autocommit=True) as connection:
        for name in changed:
            connection.execute(f"ALTER SYSTEM RESET {name}")
        connection.execute("SELECT pg_reload_conf()")
    for name in changed:
        until(lambda name=name: not _is_set(own_server, name), "the setting is reset")


def _is_set(server, name):
    with server.connect() as connection:
        query = "SELECT source FROM pg_settings WHERE name = %s"
        return connection.execute(query, (name,)).fetchone()[0] == "configuration file"


def _shown(server, name):
    with server.connect() as connection:
        return connection.execute(f"SHOW {name}").fetchone()[0]


@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
def test_weak_settings_are_refused_or_named(own_server, setting, schema, name):
    """A setting that may lose commits is refused, or with ``warn`` said (DESIGN §6)."""
    setting(name, "off")
    with pytest.raises(StoreNotDurable, match=f"{name} is off.*may run again"):
        open_store(own_server.url(schema=schema))
    with structlog.testing.capture_logs() as logs:
        open_store(own_server.url(schema=schema, durability="warn")).close()
    said = [entry for entry in logs if entry["event"] == "store_not_durable"]
    assert [entry["setting"].split()[0] for entry in said] == [name]


@pytest.mark.parametrize("durability", ["require", "warn"])
def test_synchronous_commit_off_is_overridden_or_said(own_server, setting, schema, durability):
    """Ours and the handler's transactions commit durably all the same, or it is said (§6)."""
    setting("synchronous_commit", "off")
    with structlog.testing.capture_logs() as logs:
        one = Replica(own_server.url(schema=schema, durability=durability))
    said = {entry["event"] for entry in logs}
    attempt = one.begin(call(one.client(), 1), ATOMIC)
    shown = one.store.leases._one("SELECT current_setting('synchronous_commit')")
    with own_server.connect() as connection:
        one.store.transactions.record(attempt, FIRST, connection)
        inside = connection.execute("SHOW synchronous_commit").fetchone()[0]
    one.close()
    if durability == "require":
        assert "store_setting_overridden" in said
        assert (shown, inside) == ("on", "on")
    else:
        assert "store_not_durable" in said
        assert (shown, inside) == ("off", "off")


def test_a_newer_schema_is_refused(shared_server, url, schema):
    """A newer release's tables are not touched (DESIGN §6)."""
    open_store(url).close()
    with shared_server.connect() as connection:
        connection.execute(f"UPDATE {schema}.meta SET value = '2' WHERE name = 'layout'")
    with pytest.raises(StoreSchemaTooNew, match="layout 2"):
        open_store(url)


def test_a_table_that_is_none_of_ours_is_refused(shared_server, url, schema):
    """A schema of somebody else's is not written into (DESIGN §6)."""
    with shared_server.connect() as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.meta (x int)")
    with pytest.raises(StoreCorrupt):
        open_store(url)


def test_a_read_only_database_is_refused_at_start(shared_server, url, schema):
    """Read-only by its setting, or since its role may not write: said at start (§6)."""
    read_only = f"{url}&options=-c%20default_transaction_read_only%3Don"
    with pytest.raises(StoreUnreachable, match="read-only"):
        open_store(read_only)
    with shared_server.connect(autocommit=True) as connection:
        connection.execute(f"CREATE ROLE reader_{schema} LOGIN")
    with pytest.raises(StoreUnreachable, match="administrator"):
        open_store(url.replace("rifl@", f"reader_{schema}@"))


def test_a_database_that_becomes_read_only_is_unavailable(own_server, setting, schema):
    """STORE_UNAVAILABLE before a call ran, RECORD_PENDING after; then retried (DESIGN §3)."""
    one = Replica(own_server.url(schema=schema, **FAST))
    client = one.client()
    ran = one.begin(call(client, 9))
    setting("default_transaction_read_only", "on")
    with pytest.raises(StoreUnavailable) as refused:
        until(lambda: one.claim(call(client, 1)) and None, "sessions took the setting", 5)
    assert refused.value.outcome is Outcome.NOT_EXECUTED
    with pytest.raises(StorageUnavailable):
        one.client()
    with pytest.raises(RecordPending) as owed:
        one.finish(ran)
    assert owed.value.outcome is Outcome.UNKNOWN
    setting("default_transaction_read_only", "off")
    until(
        lambda: not one.store._attempts.unsettled(), "the record is retried, lost claims are let go"
    )
    assert one.claim(call(client, 9)).record == FIRST
    one.close()


def test_no_server_and_no_secret_in_what_is_said(shared_server):
    """An unreachable server or a bad URL is typed; no password is shown (DESIGN §9)."""
    for url, kind in (
        ("postgresql://user:hunter2@127.0.0.1:1/db?connect_timeout=2", StoreUnreachable),
        (f"postgresql://u:hunter2@127.0.0.1:{shared_server.port}/none", StoreUnreachable),
        ("postgresql://user:hunter2@127.0.0.1/db?nonsense=1", UnsupportedStore),
        ("postgresql://user:hunter2@127.0.0.1/db?schema=x;y", UnsupportedStore),
    ):
        with structlog.testing.capture_logs() as logs, pytest.raises(kind) as caught:
            open_store(url)
        assert "hunter2" not in str(caught.value) + str(logs)


@pytest.mark.parametrize("reached", [True, False], ids=["committed", "not committed"])
def test_a_connection_dropped_at_commit_is_read_back(
    replicas, database, proxy, shared_server, reached
):
    """Was it committed? The store knows: the reply, or unknown and new again (§6)."""
    one = replicas()
    arriving = call(one.client(), 1)
    url = shared_server.url(proxy.address)

    def run(attempt):
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO effects VALUES ('x')")
            one.store.transactions.record(attempt, FIRST, connection)
            proxy.drop_at(b"COMMIT", forward=reached)
            try:
                connection.commit()
            except psycopg.OperationalError:
                return HandlerResult(CompletionRecord(2, "lost"), raised=True)
        raise AssertionError("the commit was answered")

    answer = drive(serve(one.store, arriving, ATOMIC), one.store, run)
    effects = database.execute("SELECT count(*) FROM effects").fetchone()[0]
    if reached:
        assert (answer.record, answer.outcome, effects) == (FIRST, Outcome.EXECUTED, 1)
        assert one.claim(arriving, ATOMIC).record == FIRST
    else:
        # It was not committed, but in a transaction of the handler's own: who knows what else was.
        assert (answer.outcome, effects) == (Outcome.UNKNOWN, 0)
        assert one.claim(arriving, ATOMIC).verdict is Verdict.NEW


@pytest.mark.parametrize("reached", [True, False], ids=["committed", "not committed"])
@pytest.mark.parametrize("word", [b".claim_1(", b".finish_1("])
def test_a_connection_of_the_store_dropped_at_commit(
    replicas, shared_server, url, proxy, word, reached
):
    """A request whose reply was lost is repeated, and recognised as the same one (§6)."""
    one = replicas(url.replace(f"127.0.0.1:{shared_server.port}", proxy.address))
    client = one.client()
    if word == b".claim_1(":
        proxy.drop_at(word, forward=reached)
    attempt = one.begin(call(client, 1))
    if word == b".finish_1(":
        proxy.drop_at(word, forward=reached)
    assert one.finish(attempt) is None
    assert proxy.dropped.is_set()
    assert replicas().claim(call(client, 1)).record == FIRST


def test_a_crash_of_the_server_loses_nothing_acknowledged(own_server, schema):
    """Records and acknowledgements survive a crash; what ran is recorded after it (§1, §6)."""
    one = Replica(own_server.url(schema=schema, **FAST))
    client = one.client()
    one.finish(one.begin(call(client, 1)))
    one.finish(one.begin(call(client, 3, first=2)))
    running = one.begin(call(client, 4, first=2))
    own_server.crash()
    with pytest.raises(RecordPending):
        one.finish(running, OTHER)
    with pytest.raises(StoreUnavailable) as refused:
        one.claim(call(client, 5, first=2))
    assert refused.value.outcome is Outcome.NOT_EXECUTED
    own_server.start()
    until(lambda: not one.store._attempts.unsettled(), "the record is retried")
    assert one.claim(call(client, 4, first=2)).record == OTHER
    assert one.claim(call(client, 3, first=2)).record == FIRST
    assert one.claim(call(client, 1)).verdict is Verdict.STALE
    assert one.claim(call(client, 5, first=2)).verdict is Verdict.NEW
    one.close()


def test_a_server_that_is_suspended_is_given_up_in_time(own_server, schema):
    """No answer for long is no answer: the claim may stand, and is taken back (DESIGN §6)."""
    one, two = (Replica(own_server.url(schema=schema, **FAST)) for _ in range(2))
    client = one.client()
    one.store._heartbeat.stop()
    sessions = one.store._postgres.pools.blocking._pool
    pids = [connection.info.backend_pid for connection in sessions]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match="no answer"):
        one.claim(call(client, 1), IDEMPOTENT)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    one.close()
    until(
        lambda: two.claim(call(client, 1), IDEMPOTENT).verdict is Verdict.NEW,
        "the lost claim is taken back",
    )
    two.close()


def test_another_database_at_the_address_is_not_served_from(shared_server, replicas, schema):
    """A store that was made anew is another: old replicas stop, for good (DESIGN §6)."""
    one = replicas()
    client = one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    one.store._heartbeat.stop()
    with shared_server.connect() as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")
    anew = replicas()
    anew.client()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="lost what it acknowledged"):
            one.claim(call(client, 1), IDEMPOTENT)


def test_a_database_without_the_tables_is_not_served_from(shared_server, replicas, schema):
    """As a standby that was promoted far behind: no store that cannot be reached (DESIGN §6)."""
    one = replicas()
    client = one.client()
    one.finish(one.begin(call(client, 1), IDEMPOTENT))
    one.store._heartbeat.stop()
    sessions = [each.info.backend_pid for each in one.store._postgres.pools.blocking._pool]
    with shared_server.connect() as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")
        connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) pid", (sessions,))

    def refused():
        with pytest.raises(StoreUnavailable) as caught:
            one.claim(call(client, 1), IDEMPOTENT)
        return "lost what it acknowledged" in str(caught.value)

    until(refused, "a new connection finds out")


def test_a_database_that_lost_commits_is_not_served_from(shared_server, replicas, schema):
    """A replica whose own durable beats are missing stops: so may be records (DESIGN §6)."""
    one = replicas()
    client = one.client()
    until(lambda: one.store._postgres.continuity.beats > 3, "it has beaten")
    with shared_server.connect() as connection:
        connection.execute(f"UPDATE {schema}.replicas SET beats = 1")

    def stopped():
        try:
            one.claim(call(client, 1))
        except (StoreUnavailable, InProgress) as error:
            # The first claim of it runs here.
            return "lost what it acknowledged" in str(error)
        return False

    until(stopped, "the next beat finds out")


def test_the_schema_is_made_once_by_many(url):
    """Replicas that start at once agree on one store (DESIGN §6)."""
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: open_store(url), range(4)))
    assert len({store._postgres.store_id for store in stores}) == 1
    for store in stores:
        store.close()
