"""A MariaDB that is weak, gone, killed, read-only or another, or that drops connections."""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import structlog

import rifl
from rifl._stores import (
    MissingExtra,
    StoreCorrupt,
    StoreNotDurable,
    StoreSchemaTooNew,
    StoreUnreachable,
    UnsupportedStore,
    open_store,
)
from rifl._stores.mysql.failures import failure_of
from rifl._stores.mysql.settings import refusal, weaknesses
from rifl._stores.opening import open_inspection
from rifl._stores.shared import BackendError
from rifl._stores.sql import schema
from rifl._stores.sql.dialect import Failure
from rifl.core._serving.answer import HandlerResult
from rifl.core._serving.serving import serve
from rifl.core._serving.verdict import Verdict
from rifl.core._shared.errors import RecordPending, RiflError, StoreUnavailable
from rifl.core._shared.record import CompletionRecord
from tests.helpers.waiting import until
from tests.stores.conformance import drive
from tests.stores.postgres.servers import DroppingProxy
from tests.stores.redis.replica import FIRST, IDEMPOTENT, Replica, call

FAST = {"timeout_s": 1, "beat_s": 0.1, "dead_after_s": 30, "max_connections": 4}
GOOD = {
    "version": "10.11.6-MariaDB",
    "innodb_flush_log_at_trx_commit": "1",
    "innodb_doublewrite": "ON",
    "innodb_flush_method": "O_DIRECT",
    "innodb_force_recovery": "0",
    "log_bin": "OFF",
    "sync_binlog": "0",
    "binlog_format": "MIXED",
    "max_allowed_packet": str(16 << 20),
    "wsrep_on": "OFF",
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"innodb_flush_log_at_trx_commit": "3"}, ""),
        ({"innodb_flush_log_at_trx_commit": "2"}, "innodb_flush_log_at_trx_commit is 2"),
        ({"innodb_doublewrite": "OFF"}, "innodb_doublewrite is OFF"),
        ({"innodb_flush_method": "nosync"}, "innodb_flush_method is nosync"),
        ({"innodb_force_recovery": "1"}, "innodb_force_recovery is 1"),
        ({"log_bin": "ON"}, "sync_binlog is 0, not 1"),
        ({"log_bin": "ON", "sync_binlog": "1"}, ""),
        ({"max_allowed_packet": "1048576"}, "max_allowed_packet is 1048576"),
    ],
)
def test_settings_that_weaken_are_named(changed, said):
    """What may lose a commit, and nothing else, is weak (DESIGN §6)."""
    found = weaknesses({**GOOD, **changed}, {"calls": "InnoDB"})
    assert [each.setting.startswith(said) for each in found] == [True] * bool(said)


def test_a_table_of_another_engine_is_weak():
    """Only InnoDB has transactions (DESIGN §6)."""
    found = weaknesses(GOOD, {"calls": "Aria", "meta": "InnoDB"})
    assert [each.setting for each in found] == ["table calls is Aria, not InnoDB"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"version": "10.5.1-MariaDB"}, "10.6"),
        ({"version": "5.7.44"}, "8.0"),
        ({"version": "8.4.3"}, ""),
        ({"wsrep_on": "ON"}, "Galera"),
        ({"log_bin": "ON", "binlog_format": "STATEMENT"}, "binlog_format"),
        ({"read_only": "ON"}, "read-only"),
        (
            {
                "version": "8.4.3",
                "group_replication_group_name": "a-group",
                "group_replication_single_primary_mode": "OFF",
            },
            "several primaries",
        ),
        (
            {
                "version": "8.4.3",
                "group_replication_group_name": "a-group",
                "group_replication_single_primary_mode": "ON",
            },
            "",
        ),
    ],
)
def test_servers_that_share_no_locks_are_refused(changed, said):
    """Galera, several primaries, releases without SKIP LOCKED, replicas (DESIGN §6)."""
    found = refusal({**GOOD, **changed})
    assert said in found
    assert bool(said) is bool(found)


@pytest.mark.parametrize(
    ("number", "text", "meant"),
    [
        (1213, "Deadlock found", Failure.AGAIN),
        (1020, "Record has changed since last read", Failure.AGAIN),
        (1205, "Lock wait timeout exceeded", Failure.LOCKED),
        (2006, "MySQL server has gone away", Failure.LOST),
        (2013, "Lost connection to MySQL server during query", Failure.LOST),
        (2013, "Lost connection to MySQL server during query (timed out)", Failure.SILENT),
        (1927, "Connection was killed", Failure.LOST),
        (1290, "running with the --read-only option", Failure.LOST),
        (1146, "Table doesn't exist", Failure.MISSING),
        (1064, "You have an error in your SQL syntax", Failure.OTHER),
    ],
)
def test_what_an_error_means(number, text, meant):
    """By its number: begun anew, refused, or in doubt (DESIGN §6)."""
    assert failure_of(Exception(number, text)) is meant


@pytest.mark.parametrize(
    "url",
    ["mysql://u:secret@h", "mysql://u:secret@h/d?nonsense=1", "mysql://u:secret@h/d?prefix=A-b",
     "mysql://u:secret@h/d?max_connections=1", "mysql://u:secret@h:x/d", "mysql://u:secret@a,b/d"],
)  # fmt: skip
def test_a_url_that_is_none_is_refused_without_its_password(url):
    """What cannot be understood names no secret (DESIGN §6)."""
    with pytest.raises(UnsupportedStore) as caught:
        open_store(url)
    assert not isinstance(caught.value, MissingExtra)
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_unreachable():
    """At the start it is said, with no password (DESIGN §6)."""
    with pytest.raises(StoreUnreachable) as caught:
        open_store("mysql://u:secret@127.0.0.1:1/d?timeout_s=1")
    assert "secret" not in str(caught.value)


def test_a_setting_that_becomes_weak_stops_new_calls_until_it_is_mended(own_mariadb, prefix):
    """It is judged at the start, and again while it is served from (DESIGN §6)."""
    url = own_mariadb.url(prefix=prefix, **FAST)
    with closing(Replica(url, window=512)) as one:
        client, seqs = one.client(), itertools.count(2)
        one.finish(one.begin(call(client, 1)))
        _set(own_mariadb, "innodb_flush_log_at_trx_commit", 0)
        weak = "the store is not durable: innodb_flush_log_at_trx_commit is 0"
        until(lambda: _refusal(one, client, seqs).startswith(weak), "new calls are refused")
        assert one.claim(call(client, 1)).record == FIRST
        with pytest.raises(StoreNotDurable, match="innodb_flush_log_at_trx_commit is 0"):
            open_store(url)
        with structlog.testing.capture_logs() as logs:
            open_store(f"{url}&durability=warn").close()
        assert [e["event"] for e in logs if e["log_level"] == "warning"] == ["store_not_durable"]
        _set(own_mariadb, "innodb_flush_log_at_trx_commit", 1)
        until(lambda: not _refusal(one, client, seqs), "new calls are taken again")


def _refusal(replica, client, seqs):
    """Return what a new call is refused with, empty if it is taken."""
    arriving = call(client, next(seqs))
    try:
        replica.finish(replica.begin(arriving))
    except RiflError as error:
        return str(error)
    return ""


def _set(server, name, value):
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL {name} = {value}")


def test_a_store_on_another_server_stops_for_everyone(shared_mariadb, url, prefix):
    """A failover may lose what was acknowledged: who opens it accepts the loss (DESIGN §6)."""
    with closing(Replica(url)) as one:
        client = one.client()
        one.finish(one.begin(call(client, 1)))
        with shared_mariadb.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"UPDATE {prefix}meta SET value = 'server 7' WHERE name = 'history'")
        with pytest.raises(StoreCorrupt, match=r"another one.*accept-loss"):
            open_store(url)
        # For those that run, too: the store's id is gone.
        seqs = itertools.count(2)
        until(lambda: "another than" in _refusal(one, client, seqs), "it stops")
    with closing(open_inspection(url)) as store:
        assert store.summary().stopped
        store.accept_loss("ops", "the replica had it all")
    with closing(Replica(url)) as after:
        assert after.claim(call(client, 1)).record == FIRST
        with pytest.raises(RiflError):
            after.claim(call(client, 3))
        after.finish(after.begin(call(after.client(), 1)))


def test_a_replica_of_the_database_that_is_behind_is_not_served_from(replicas, database, prefix):
    """It lacks beats that were confirmed, so it may lack records (DESIGN §6)."""
    one = replicas()
    client = one.client()
    until(lambda: one.store._sql.continuity.beats > 2, "it has beaten")
    with database.cursor() as cursor:
        cursor.execute(f"UPDATE {prefix}replicas SET beats = 1")
    database.commit()
    seqs = itertools.count(1)
    until(lambda: "has lost" in _refusal(one, client, seqs), "it is not served from")


def test_a_newer_or_foreign_schema_is_refused(shared_mariadb, url, prefix):
    """A newer release's tables are not touched, nor are somebody else's (DESIGN §6)."""
    open_store(url).close()
    with shared_mariadb.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"UPDATE {prefix}meta SET value = '2' WHERE name = 'layout'")
        with pytest.raises(StoreSchemaTooNew, match="layout 2"):
            open_store(url)
        cursor.execute(f"UPDATE {prefix}meta SET value = 'x' WHERE name = 'layout'")
        with pytest.raises(StoreCorrupt, match="damaged"):
            open_store(url)


@pytest.fixture
def proxy(shared_mariadb):
    """A way to the run's server on which connections can be dropped."""
    proxy = DroppingProxy(shared_mariadb.port)
    yield proxy
    proxy.close()


# What is said just before it: a claim's, a record's.
_WORDS = [b"FOR UPDATE", b"INSERT INTO", b"SET record", b"COMMIT"]


@pytest.mark.parametrize("forward", [False, True], ids=["not said", "answer lost"])
@pytest.mark.parametrize("word", _WORDS)
def test_a_connection_lost_anywhere_loses_and_doubles_nothing(
    shared_mariadb, prefix, proxy, word, forward
):
    """Rolled back and begun anew, or, at COMMIT, asked for again: one run, one answer (§6)."""
    # A beat would lose its connection in place of a call.
    rare = {"beat_s": 60, "dead_after_s": 600}
    url = shared_mariadb.url(proxy.address, prefix=prefix, **{**FAST, **rare})
    with closing(Replica(url)) as one:
        client, runs, dropped = one.client(), [], []

        def run(attempt):
            runs.append(attempt.call.seq)
            dropped.append(proxy.dropped.is_set())
            proxy.drop_at(word, forward=forward)
            return HandlerResult(CompletionRecord(response=b"%d" % len(runs)))

        for seq in range(1, 4):
            arriving = call(client, seq, first=seq)
            proxy.drop_at(word, forward=forward)
            answer = drive(serve(one.store, arriving, IDEMPOTENT), one.store, run)
            assert answer.record.response == b"%d" % seq
            again = drive(serve(one.store, arriving, IDEMPOTENT), one.store, run)
            assert again.record == answer.record
        assert runs == [1, 2, 3]
        assert dropped == [word != b"SET record"] * 3 or proxy.dropped.is_set()


def test_a_server_that_is_killed_under_load_keeps_what_it_acknowledged(own_mariadb, prefix):
    """SIGKILL, start, go on: each call ran once or is refused, none has two answers (§1, §6)."""
    url = own_mariadb.url(prefix=prefix, **{**FAST, "timeout_s": 2})
    with closing(Replica(url, window=64)) as one, closing(Replica(url, window=64)) as two:
        clients, runs, answers = [one.client() for _ in range(4)], Counter(), {}
        lock, killed = threading.Lock(), threading.Event()

        def run(attempt):
            with lock:
                runs[attempt.call.identity, attempt.call.client_id] += 1
                if len(runs) == 40:
                    killed.set()
            return HandlerResult(CompletionRecord(response=b"%d" % attempt.call.seq))

        def session(client):
            for seq in range(1, 25):
                arriving = call(client, seq, first=seq)
                for number in range(400):
                    store = (one, two)[number % 2].store
                    try:
                        answer = drive(serve(store, arriving, IDEMPOTENT), store, run)
                    except RiflError:
                        pause.wait(0.05)
                        continue
                    answers[client, seq] = answer.record.response
                    break

        pause = threading.Event()
        with ThreadPoolExecutor(4) as pool:
            working = [pool.submit(session, client) for client in clients]
            assert killed.wait(60)
            own_mariadb.kill()
            own_mariadb.start()
            for each in working:
                each.result()
        assert answers == {(c, seq): b"%d" % seq for c in clients for seq in range(1, 25)}
        # What ran and was told to be pending was recorded once the server was back.
        assert set(runs.values()) == {1}
        for store in (one, two):
            assert store.claim(call(clients[0], 24)).record.response == b"24"


def test_requests_fail_typed_while_the_server_is_gone(own_mariadb, prefix):
    """New calls are not executed, what ran is pending, and all goes on by itself (DESIGN §6)."""
    url = own_mariadb.url(prefix=prefix, **FAST)
    with closing(Replica(url)) as one:
        client = one.client()
        attempt = one.begin(call(client, 1), IDEMPOTENT)
        own_mariadb.kill()
        try:
            with pytest.raises(StoreUnavailable):
                one.claim(call(client, 2), IDEMPOTENT)
            with pytest.raises(RecordPending):
                one.finish(attempt)
            with pytest.raises(BackendError):
                one.store._sql.transact(lambda sql: None)
        finally:
            own_mariadb.start()
        until(lambda: not one.store.running(), "what ran is recorded, what did not is free")
        assert one.claim(call(client, 1), IDEMPOTENT).record == FIRST
        assert one.claim(call(client, 2), IDEMPOTENT).verdict is Verdict.NEW


def test_a_server_that_starts_again_is_asked_whether_a_block_was_committed(own_mariadb, prefix):
    """A connection that is lost within a block leaves no final outcome (transactions.md)."""
    with (
        closing(Replica(own_mariadb.url(prefix=prefix, **FAST))) as one,
        ThreadPoolExecutor(1) as pool,
    ):
        connection = own_mariadb.connect()
        one.store.transactions.begin(connection)
        own_mariadb.kill()
        try:
            undone = pool.submit(one.store.transactions.rollback, connection)
        finally:
            own_mariadb.start()
        assert undone.result(20) is False


def test_a_right_that_lacks_is_told_without_the_password(shared_mariadb, prefix):
    """What a deduplicator cannot be opened for names the place alone (DESIGN §6)."""
    with shared_mariadb.connect(autocommit=True) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE USER weak@'%' IDENTIFIED BY 'hush it'")
        cursor.execute("GRANT SELECT, INSERT, CREATE ON *.* TO weak@'%'")
    url = shared_mariadb.url(prefix=prefix)
    weak = re.sub("//[^@/]*@", "//weak:hush%20it@", url)
    assert weak != url
    with pytest.raises(rifl.StoreError) as refused:
        rifl.Deduplicator(weak)
    assert "denied" in str(refused.value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("times", [1, 2])
def test_an_opening_whose_connection_the_server_ends_begins_anew_once(
    shared_mariadb, prefix, monkeypatch, times
):
    """As for a process that was suspended in it; a second time, it is told what happened (§6)."""
    fill, ended = schema._fill, []

    def cut_off(session):
        if len(ended) < times:
            ended.append(session.connection.thread_id())
            with shared_mariadb.connect() as other, other.cursor() as cursor:
                cursor.execute(f"KILL {ended[-1]}")
        fill(session)

    monkeypatch.setattr(schema, "_fill", cut_off)
    url = shared_mariadb.url(prefix=prefix)
    if times == 1:
        open_store(url).close()
    else:
        with pytest.raises(StoreUnreachable, match=r"\(20(06|13), "):
            open_store(url)
        open_store(url).close()
    assert len(ended) == len(set(ended)) == times
