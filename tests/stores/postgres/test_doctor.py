"""``rifl doctor`` of a PostgreSQL: what a start would refuse, or is weak; it only reads (§6)."""

from __future__ import annotations

import secrets

import psycopg
import pytest

from _rifl_ground.exits import ExitCode
from rifl._stores import StoreError, open_store
from rifl.core._serving.verdict import Verdict
from tests.helpers.doctoring import goes_on, look
from tests.stores.postgres.pgbouncer import PgBouncer
from tests.stores.redis.replica import IDEMPOTENT, Replica, call


def _kept(server, schema):
    """All that is in a schema, and its tables and functions."""
    with server.connect(autocommit=True) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) "
            "AND relkind = 'r' ORDER BY relname",
            (schema,),
        ).fetchall()
        return {
            name: connection.execute(f"SELECT t::text FROM {schema}.{name} AS t").fetchall()
            for (name,) in tables
        }


@pytest.fixture
def store(shared_server, schema):
    """The URL of a store that no server has open."""
    url = shared_server.url(schema=schema)
    Replica(url).close()
    return url


@pytest.fixture
def role(shared_server):
    """Make roles; they go afterwards."""
    made = []

    def make(options=""):
        made.append(f"r{secrets.token_hex(4)}")
        with shared_server.connect(autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {made[-1]} LOGIN {options}")
        return made[-1]

    yield make
    with shared_server.connect(autocommit=True) as connection:
        for name in made:
            connection.execute(f"DROP OWNED BY {name}")
            connection.execute(f"DROP ROLE {name}")


def test_a_store_that_is_not_there_yet_is_not_made(shared_server, schema, role, capsys):
    """Whether the role may make it is told, too."""
    found = look(shared_server.url(schema=schema), capsys)
    assert (found.code, found.bad) == (ExitCode.DONE, [])
    assert "the first server makes it" in found.found[-1][2]
    found = look(shared_server.url(schema=schema, user=role()), capsys)
    assert found.code is ExitCode.REFUSED
    assert "may not make it" in found.only("error", "rights")
    with shared_server.connect(autocommit=True) as connection:
        row = connection.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone()
    assert row == (None,)


def test_running_servers_go_on_and_nothing_is_written(shared_server, schema, capsys):
    """Calls are answered before, during and after; no transaction stays open (DESIGN §6)."""
    url = shared_server.url(schema=schema)
    goes_on(url, capsys, lambda: _kept(shared_server, schema))
    with shared_server.connect(autocommit=True) as connection:
        idle = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
        assert connection.execute(idle).fetchone() == (0,)


def test_weak_settings_are_refused_or_weak_as_the_url_says(own_server, capsys):
    """By the start's own check (DESIGN §6)."""

    def change(statement):
        with own_server.connect(autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM {statement}")
            connection.execute("SELECT pg_reload_conf()")

    try:
        change("SET full_page_writes = off")
        found = look(own_server.url(), capsys)
        assert found.code is ExitCode.REFUSED
        assert "full_page_writes is off" in found.only("error", "settings")
        found = look(own_server.url(durability="warn"), capsys)
        assert found.code is ExitCode.DEGRADED
        assert "full_page_writes is off" in found.only("warning", "settings")
    finally:
        change("RESET ALL")


@pytest.mark.parametrize(("durability", "grade"), [("require", "note"), ("warn", "warning")])
def test_what_rifls_sessions_override_is_only_told(shared_server, role, durability, grade, capsys):
    """With durability=warn they do not override it."""
    name = role("SUPERUSER")
    with shared_server.connect(autocommit=True) as connection:
        connection.execute(f"ALTER ROLE {name} SET synchronous_commit = off")
    found = look(shared_server.url(schema="none", user=name, durability=durability), capsys)
    told = [each for each in found.found if each[1] == "settings"]
    assert [each[0] for each in told] == [grade]
    assert "synchronous_commit is off" in told[0][2]


def test_unlogged_tables_are_weak(shared_server, store, schema, capsys):
    """A crash empties them."""
    with shared_server.connect(autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {schema}.losses SET UNLOGGED")
    assert "unlogged" in look(store, capsys).only("error", "settings")
    with pytest.raises(StoreError, match="unlogged"):
        open_store(store)


def test_a_server_that_is_read_only_is_refused(shared_server, store, role, capsys):
    """As a standby is."""
    name = role("SUPERUSER")
    with shared_server.connect(autocommit=True) as connection:
        connection.execute(f"ALTER ROLE {name} SET default_transaction_read_only = on")
    found = look(f"{store}&user={name}", capsys)
    assert found.code is ExitCode.REFUSED
    assert "read-only" in found.only("error", "server")


def test_too_few_connections_are_left(shared_server, store, role, capsys):
    """A process may open as many as its pool has, and one that listens."""
    name = role("SUPERUSER CONNECTION LIMIT 5")
    found = look(f"{store}&user={name}", capsys)
    assert found.code is ExitCode.DEGRADED
    assert "may open 17" in found.only("warning", "connections")
    assert look(f"{store}&user={name}&max_connections=4", capsys).bad == []


def test_rights_that_are_missing_are_named(shared_server, store, schema, role, capsys):
    """USAGE of the schema, then each right to a table."""
    name = role()
    url = f"{store}&user={name}"
    assert "USAGE" in look(url, capsys).only("error", "rights")
    with shared_server.connect(autocommit=True) as connection:
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {name}")
        connection.execute(f"REVOKE DELETE ON {schema}.calls FROM {name}")
        found = look(url, capsys)
        assert found.code is ExitCode.REFUSED
        assert found.only("error", "rights") == f"the role lacks DELETE on {schema}.calls"
        connection.execute(f"GRANT DELETE ON {schema}.calls TO {name}")
        assert look(url, capsys).bad == []
        connection.execute(f"UPDATE {schema}.meta SET value = '0' WHERE name = 'functions'")
        assert "may not replace" in look(url, capsys).only("error", "rights")
    found = look(store, capsys)
    assert (found.code, found.bad) == (ExitCode.DONE, [])


@pytest.mark.parametrize(
    ("change", "about", "text"),
    [
        ("INSERT INTO {}.meta VALUES ('stopped', 'why')", "store", "may have lost records"),
        ("UPDATE {}.meta SET value = '99' WHERE name = 'layout'", "store", "upgrade it"),
        ("DELETE FROM {}.meta WHERE name = 'layout'", "store", "damaged"),
        ("UPDATE {}.meta SET value = '1/1' WHERE name = 'history'", "history", "another one"),
    ],
)
def test_a_store_that_a_start_refuses(shared_server, store, schema, change, about, text, capsys):
    """It stopped, is newer, is damaged, or is on another server; it is not stopped by a look."""
    with shared_server.connect(autocommit=True) as connection:
        connection.execute(change.format(schema))
    before = _kept(shared_server, schema)
    found = look(store, capsys)
    assert found.code is ExitCode.REFUSED
    assert text in found.only("error", about)
    assert _kept(shared_server, schema) == before
    if about == "history":
        assert look(f"{store}&durability=warn", capsys).only("warning", "history")
    with pytest.raises(StoreError):
        open_store(store)


def test_another_version_upgrades_the_store_beside_a_server(shared_server, store, schema, capsys):
    """Its functions serve this one, too; its layout does not: the server goes on (DESIGN §6)."""
    one = Replica(store)
    client = one.client()

    def upgraded(name, seq):
        with shared_server.connect(autocommit=True) as connection:
            connection.execute(f"UPDATE {schema}.meta SET value = '99' WHERE name = '{name}'")
        found = look(store, capsys)
        one.finish(one.begin(call(client, seq), IDEMPOTENT))
        assert one.claim(call(client, seq), IDEMPOTENT).verdict is Verdict.COMPLETED
        return found

    assert upgraded("functions", 1).bad == []
    open_store(store).close()
    assert "upgrade it" in upgraded("layout", 2).only("error", "store")
    one.close()
    with pytest.raises(StoreError, match="upgrade it"):
        open_store(store)


def test_poolers(shared_server, store, schema, capsys):
    """In transaction mode it is refused, and no setting leaks to its other users (DESIGN §6)."""
    pooler = PgBouncer(shared_server, "transaction")
    try:
        found = look(pooler.url(schema=schema, pooler="session"), capsys)
        assert found.code is ExitCode.REFUSED
        assert "transaction mode" in found.only("error", "pooler")
        with psycopg.connect(pooler.url(sslmode="disable"), autocommit=True) as other:
            for name, value in (
                ("default_transaction_read_only", "off"),
                ("statement_timeout", "0"),
                ("transaction_read_only", "off"),
            ):
                assert other.execute(f"SHOW {name}").fetchone() == (value,)
    finally:
        pooler.stop()
    pooler = PgBouncer(shared_server, "session", size=1)
    try:
        # It lends no second session, which would show its mode: nothing waits for that.
        found = look(pooler.url(schema=schema, timeout_s=0.5), capsys)
        assert found.code is ExitCode.UNAVAILABLE
        assert "no answer in" in found.only("unreachable", "connection")
    finally:
        pooler.stop()
    pooler = PgBouncer(shared_server, "session")
    try:
        assert "may be" in look(pooler.url(schema=schema), capsys).only("error", "pooler")
        assert look(pooler.url(schema=schema, pooler="session"), capsys).bad == []
    finally:
        pooler.stop()
