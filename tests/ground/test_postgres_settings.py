"""PostgreSQL servers that may forget what they commit, for all that keep something there (§6).

One body for each user of a PostgreSQL: a store, a log, a group's log and a consumer's store.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import curp.log._errors as group_errors
from _rifl_ground.postgres.settings import WANTED
from curp.log import open_engine
from rifl._stores import StoreNotDurable
from rifl._stores.postgres.schema import script as store_script
from rifl.core._shared.errors import StoreUnavailable
from sharedlog._consumer.postgres import PostgresLane
from sharedlog._core.commit import Commit, NewEntry
from sharedlog._core.consumer.members import Gone
from sharedlog._core.errors import LogUnavailable, NotDurable, StoreAway
from sharedlog._engines.postgres.opening import create_log, open_log
from sharedlog._engines.postgres.schema import script as log_script
from tests.curp.log.conformance import Writer
from tests.curp.logs import created
from tests.helpers.pages import page
from tests.helpers.waiting import until
from tests.stores.postgres.servers import PostgresServer
from tests.stores.redis.replica import IDEMPOTENT, Replica, call

WEAK = {
    "fsync": "off",
    "full_page_writes": "off",
    "data_sync_retry": "on",
    "zero_damaged_pages": "on",
    "ignore_checksum_failure": "on",
    "ignore_invalid_pages": "on",
}
# A running server does not change these.
_AT_START = {"data_sync_retry", "ignore_invalid_pages"}


class User(NamedTuple):
    """What keeps something in a PostgreSQL.

    ``begin``: opens it there, and returns what writes once, and what closes it. ``refused``: the
    error where it does not open, ``unavailable``: where it does not write. ``table``: one of its
    tables.
    """

    begin: Callable[..., tuple[Callable[[], object], Callable[[], object]]]
    refused: type[Exception]
    unavailable: type[Exception]
    table: str


def _store(server: PostgresServer, schema: str, **options: Any) -> Any:
    given = {"timeout_s": 1, "beat_s": 0.05, "dead_after_s": 30, "max_connections": 3, **options}
    one = Replica(server.url(schema=schema, **given))
    client, seqs = one.client(), iter(range(1, 100))
    return lambda: one.finish(one.begin(call(client, next(seqs)), IDEMPOTENT)), one.close


def _log(server: PostgresServer, schema: str, **options: Any) -> Any:
    url = server.url(log="l", schema=schema, **options)
    with contextlib.suppress(Exception):
        create_log(url, {}).close()
    engine = open_log(url)
    return lambda: engine.commit(Commit(entries=(NewEntry(b"a", ("t",)),))), engine.close


def _group(server: PostgresServer, schema: str, **options: Any) -> Any:
    url = server.url(group="bank", schema=schema, **options)
    with contextlib.suppress(Exception):
        created(url)
    engine = open_engine(url)
    return lambda: Writer(engine).append(b"a"), engine.close


def _consumer(server: PostgresServer, schema: str, **options: Any) -> Any:
    store, numbers = PostgresLane(server.url(**options), schema), iter(range(1, 100))
    return lambda: store.take("t", next(numbers), gone=Gone.LEFT, anew=False), store.close


USERS = {
    "store": User(_store, StoreNotDurable, StoreUnavailable, "{}.calls"),
    "log": User(_log, NotDurable, LogUnavailable, "{}.entry"),
    "group": User(_group, group_errors.NotDurable, group_errors.LogUnavailable, "{}.entry"),
    "consumer": User(_consumer, NotDurable, StoreAway, "sharedlog_consumer"),
}


@pytest.fixture
def schema() -> str:
    """A name of the test's own."""
    return f"s{secrets.token_hex(6)}"


@pytest.fixture(scope="class", params=sorted(WEAK))
def weak_server(request: pytest.FixtureRequest, own_postgres: PostgresServer) -> Any:
    """A server, and which of its settings is weak."""
    name = request.param
    if name in _AT_START:
        own_postgres.crash()
        own_postgres.settings[name] = WEAK[name]
        own_postgres.start()
    else:
        _set(own_postgres, name, WEAK[name])
    yield own_postgres, name
    if name in _AT_START:
        own_postgres.crash()
        del own_postgres.settings[name]
        own_postgres.start()
    else:
        _set(own_postgres, name)


def _set(server: PostgresServer, name: str, value: str = "") -> None:
    with server.connect(autocommit=True) as connection:
        change = f"SET {name} = {value}" if value else f"RESET {name}"
        connection.execute(f"ALTER SYSTEM {change}".encode())
        connection.execute("SELECT pg_reload_conf()")
    wanted = value or WANTED[name][0]
    until(lambda: _shown(server, name) == wanted, "it is in force")


def _shown(server: PostgresServer, name: str) -> Any:
    with server.connect() as connection:
        return connection.execute(f"SHOW {name}".encode()).fetchone()[0]  # type: ignore[index]


class TestWeakServers:
    """A class, for the time that a setting is weak."""

    @pytest.mark.parametrize("user", USERS.values(), ids=USERS)
    def test_a_weak_server_is_refused_unless_one_says_so(
        self, weak_server: tuple[PostgresServer, str], user: User, schema: str
    ) -> None:
        """Each names the setting; with durability=warn all go on."""
        server, name = weak_server
        with pytest.raises(user.refused, match=f"{name} is {WEAK[name]}"):
            user.begin(server, schema)
        write, close = user.begin(server, schema, durability="warn")
        write()
        close()


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
def test_tables_that_a_crash_empties_are_refused(
    shared_postgres: PostgresServer, user: User, schema: str
) -> None:
    """Somebody made one UNLOGGED, which is quicker; with durability=warn it is used."""
    write, close = user.begin(shared_postgres, schema)
    write()
    close()
    table = user.table.format(schema)
    try:
        with shared_postgres.connect(autocommit=True) as connection:
            connection.execute(f"ALTER TABLE {table} SET UNLOGGED".encode())
        with pytest.raises(user.refused, match="tables is unlogged"):
            user.begin(shared_postgres, schema)
        write, close = user.begin(shared_postgres, schema, durability="warn")
        close()
    finally:
        with shared_postgres.connect(autocommit=True) as connection:
            connection.execute(f"ALTER TABLE {table} SET LOGGED".encode())


@pytest.mark.parametrize("name", ["zero_damaged_pages", "ignore_checksum_failure"])
@pytest.mark.parametrize("user", USERS)
def test_nothing_is_written_while_a_server_is_weak(
    own_postgres: PostgresServer,
    user: str,
    name: str,
    schema: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is noticed on connections that stay, too."""
    monkeypatch.setattr("sharedlog._consumer.postgres_session._LOOK_EVERY_S", 0.0)
    one = USERS[user]
    write, close = one.begin(own_postgres, schema)
    write()

    def refuses() -> bool:
        try:
            write()
        except Exception:  # noqa: BLE001 - which one it is, is asked afterwards
            return True
        return False

    try:
        _set(own_postgres, name, WEAK[name])
        until(refuses, "it is noticed")
        with pytest.raises(one.unavailable, match=f"{name} is {WEAK[name]}"):
            write()
    finally:
        _set(own_postgres, name)
    until(lambda: not refuses(), "it goes on")
    close()


def test_the_page_has_what_is_wanted() -> None:
    """The page of stores in PostgreSQL names each setting that is looked at, and its value."""
    text = page("stores-postgresql.md").read_text()
    for name, (wanted, _) in WANTED.items():
        assert f"| `{name}` | `{wanted}` |" in text
    assert set(WEAK) == set(WANTED)


@pytest.mark.parametrize("user", ["store", "log", "group"])
def test_what_is_made_by_another_meanwhile_is_seen_whatever_the_isolation(
    shared_postgres: PostgresServer, user: str, schema: str
) -> None:
    """Of two that make a schema at once, one waits; then it sees what the other one has made."""
    one = USERS[user]
    strict = {"options": "-c%20default_transaction_isolation%3Dserializable"}
    lock = f"{'rifl schema' if user == 'store' else 'logs'} {schema}"
    failed: list[BaseException] = []

    def begin() -> None:
        try:
            one.begin(shared_postgres, schema, **strict)[1]()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    with shared_postgres.connect() as holder:
        holder.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (lock,))
        other = threading.Thread(target=begin)
        other.start()
        with shared_postgres.connect(autocommit=True) as looking:
            until(lambda: looking.execute(_WAITS).fetchone() is not None, "it waits")
        made = store_script(schema) if user == "store" else log_script(schema)
        holder.execute(made.encode())
    other.join(20)
    assert failed == []


_WAITS = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
