"""``rifl doctor`` of a MariaDB: what a start would refuse, or is weak; it only reads (§6)."""

from __future__ import annotations

import secrets

import pytest

from _rifl_ground.exits import ExitCode
from rifl._stores import StoreError, open_store
from tests.helpers.doctoring import goes_on, look
from tests.stores.redis.replica import Replica


@pytest.fixture
def run(shared_mariadb):
    """Run a statement; its rows."""

    def run(statement):
        with shared_mariadb.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()

    return run


@pytest.fixture
def store(shared_mariadb, prefix):
    """The URL of a store that no server has open."""
    url = shared_mariadb.url(prefix=prefix)
    Replica(url).close()
    return url


@pytest.fixture
def user(run):
    """Make users; they go afterwards."""
    made = []

    def make(*grants):
        made.append(f"u{secrets.token_hex(4)}")
        run(f"CREATE USER {made[-1]}@'%'")
        for grant in grants:
            run(grant.format(f"{made[-1]}@'%'"))
        return made[-1]

    yield make
    for name in made:
        run(f"DROP USER {name}@'%'")


def _kept(run, prefix):
    tables = run(f"SHOW TABLES LIKE '{prefix}%'")
    return {name: run(f"SELECT * FROM {name}") for (name,) in tables}


def test_a_store_that_is_not_there_yet_is_not_made(shared_mariadb, prefix, run, user, capsys):
    """Whether the user may make it is told, too."""
    url = shared_mariadb.url(prefix=prefix)
    found = look(url, capsys)
    assert (found.code, found.bad) == (ExitCode.DONE, [])
    assert "the first server makes it" in found.found[-1][2]
    name = user("GRANT SELECT, INSERT, UPDATE, DELETE ON rifl.* TO {}")
    found = look(url.replace("root@", f"{name}@"), capsys)
    assert found.code is ExitCode.REFUSED
    assert "the user lacks CREATE on" in found.only("error", "rights")
    run(f"GRANT CREATE ON rifl.* TO {name}@'%'")
    assert look(url.replace("root@", f"{name}@"), capsys).bad == []
    assert _kept(run, prefix) == {}


def test_running_servers_go_on_and_nothing_is_written(shared_mariadb, prefix, run, capsys):
    """Calls are answered before, during and after; no transaction stays open (DESIGN §6)."""
    url = shared_mariadb.url(prefix=prefix)
    goes_on(url, capsys, lambda: _kept(run, prefix))
    assert run("SELECT COUNT(*) FROM information_schema.innodb_trx") == ((0,),)


@pytest.mark.parametrize(
    ("name", "weak", "right", "about"),
    [
        ("innodb_flush_log_at_trx_commit", "2", "1", "settings"),
        ("max_allowed_packet", "1048576", "16777216", "settings"),
        ("read_only", "1", "0", "server"),
    ],
)
def test_a_server_that_a_start_refuses(store, run, name, weak, right, about, capsys):
    """By the start's own checks (DESIGN §6)."""
    run(f"SET GLOBAL {name} = {weak}")
    try:
        found = look(store, capsys)
        assert found.code is ExitCode.REFUSED
        assert ("read-only" if about == "server" else name) in found.only("error", about)
        if about == "settings":
            found = look(f"{store}&durability=warn", capsys)
            assert found.code is ExitCode.DEGRADED
            assert found.only("warning", about)
        with pytest.raises(StoreError):
            open_store(store)
    finally:
        run(f"SET GLOBAL {name} = {right}")


def test_rights_that_are_missing_are_named(store, prefix, run, user, capsys):
    """By statements that are explained, and not carried out."""
    name = user("GRANT SELECT, INSERT, UPDATE ON rifl.* TO {}")
    url = store.replace("root@", f"{name}@")
    before = _kept(run, prefix)
    found = look(url, capsys)
    assert found.code is ExitCode.REFUSED
    assert f"DELETE on {prefix}calls" in found.only("error", "rights")
    run(f"GRANT DELETE ON rifl.* TO {name}@'%'")
    assert look(url, capsys).bad == []
    assert _kept(run, prefix) == before


def test_too_few_connections_are_left(store, user, capsys):
    """A process may open as many as its pool has."""
    name = user("GRANT ALL ON rifl.* TO {} WITH MAX_USER_CONNECTIONS 5")
    found = look(store.replace("root@", f"{name}@"), capsys)
    assert found.code is ExitCode.DEGRADED
    assert "may open 16" in found.only("warning", "connections")


@pytest.mark.parametrize(
    ("change", "about", "text"),
    [
        ("INSERT INTO {}meta VALUES ('stopped', 'why')", "store", "may have lost records"),
        ("UPDATE {}meta SET value = '99' WHERE name = 'layout'", "store", "upgrade it"),
        ("UPDATE {}meta SET value = 'server 7' WHERE name = 'history'", "history", "another one"),
    ],
)
def test_a_store_that_a_start_refuses(store, prefix, run, change, about, text, capsys):
    """It stopped, is newer, or is on another server; it is not stopped by a look."""
    run(change.format(prefix))
    before = _kept(run, prefix)
    found = look(store, capsys)
    assert found.code is ExitCode.REFUSED
    assert text in found.only("error", about)
    assert _kept(run, prefix) == before
    if about == "history":
        assert look(f"{store}&durability=warn", capsys).only("warning", "history")
    with pytest.raises(StoreError):
        open_store(store)
