"""``sharedlog doctor``: what an opening refuses, or is weak; it only reads (DESIGN-LOG §12)."""

from __future__ import annotations

import contextlib
import secrets

import pytest

import sharedlog
from _rifl_ground.exits import ExitCode
from sharedlog._engines.etcd.budget import SHARE
from tests.helpers.doctoring import beside, look_at_log
from tests.helpers.ports import free_port
from tests.helpers.waiting import until
from tests.sharedlog.engines.test_postgres_rights import grant, role
from tests.sharedlog.engines.test_redis_rights import documented
from tests.sharedlog.places import url_of

__all__ = ["role"]

_SERVERS = ("redis", "postgres", "etcd")


@pytest.fixture(params=_SERVERS)
def engine(request):
    """A kind of server that keeps logs."""
    return request.param


@pytest.fixture
def url(engine, tmp_path, request):
    """The URL of a log that is not there yet."""
    return url_of(engine, tmp_path, request.getfixturevalue)


@pytest.fixture
def kept(engine, request):
    """Return all that the server has, or what changes with every write.

    What earlier tests left in a shared etcd ends first: keys of their leases go when time passes.
    """
    server = request.getfixturevalue(f"shared_{engine}")

    def redis():
        with server.client() as client:
            keys = {key: client.dump(key) for key in client.keys("*")}
            return keys, client.info("persistence")["aof_current_size"]

    def postgres():
        with server.connect(autocommit=True) as connection:
            spaces = connection.execute("SELECT nspname FROM pg_namespace").fetchall()
            if ("sharedlog",) not in spaces:
                return spaces
            return spaces, connection.execute("SELECT l::text FROM sharedlog.log AS l").fetchall()

    def etcd():
        return until(server.nodes[0].status, "it answers").header.revision

    def leases():
        return server.control("lease", "list").splitlines()[1:]

    if engine == "etcd":
        for lease in leases():
            # It may end by itself meanwhile.
            with contextlib.suppress(RuntimeError):
                server.control("lease", "revoke", lease)
        until(lambda: not leases(), "all leases have ended")
    return {"redis": redis, "postgres": postgres, "etcd": etcd}[engine]


def test_a_log_that_is_not_there_yet_is_not_made(url, kept, capsys):
    """An opening would be refused; ``create`` makes it."""
    before = kept()
    found = look_at_log(url, capsys)
    assert found.code is ExitCode.NOT_FOUND
    assert "has no log" in found.only("missing", "log")
    assert kept() == before


def test_programs_go_on_and_nothing_is_written(url, kept, capsys):
    """Appends are answered before, during and after (DESIGN-LOG §12)."""
    with sharedlog.create(url) as log:
        log.stream("s", 1)
        with beside(lambda: log.publish("s", b"one")):
            found = look_at_log(url, capsys)
        assert (found.code, found.found) == (ExitCode.DONE, [])
    before = kept()
    assert look_at_log(url, capsys).found == []
    assert kept() == before


# PostgreSQL


def test_a_role_that_lacks_a_right(shared_postgres, role, capsys):
    """The documented ones are enough; each that is missing is named."""
    name, connection = role
    url = shared_postgres.url(schema=name, log="one", user=name)
    assert "USAGE" in look_at_log(url, capsys).only("error", "rights")
    grant(connection, name, without="entry")
    found = look_at_log(url, capsys)
    assert found.code is ExitCode.REFUSED
    assert "INSERT on" in found.only("error", "rights")
    grant(connection, name)
    assert look_at_log(url, capsys).bad == []


@pytest.mark.parametrize(
    ("change", "about", "text"),
    [
        ("UPDATE {}.log SET stopped = 'why'", "history", "may have lost entries"),
        ("UPDATE {}.log SET history = '1/1'", "history", "the database server is another one"),
        ("UPDATE {}.log SET history = split_part({}.history_1(), '/', 1) || '/77'", "history", ""),
        ("UPDATE {}.meta SET value = '99'", "log", "newer"),
        ("ALTER TABLE {}.tag SET UNLOGGED", "settings", "unlogged"),
    ],
)
def test_a_log_in_postgresql_that_an_opening_refuses(
    shared_postgres, role, change, about, text, capsys
):
    """By its own judgement, which a look does not note (§12)."""
    name, connection = role
    url = shared_postgres.url(schema=name, log="one")
    connection.execute(change.replace("{}", name))
    rows = f"SELECT l::text FROM {name}.log AS l"  # noqa: S608 - our own
    before = connection.execute(rows).fetchall()
    found = look_at_log(url, capsys)
    assert found.code is ExitCode.REFUSED
    assert text in found.only("error", about)
    assert connection.execute(rows).fetchall() == before
    if "SET history" in change or about == "settings":
        found = look_at_log(f"{url}&durability=warn", capsys)
        assert found.code is ExitCode.DEGRADED
        assert found.only("warning", about)
    with pytest.raises(sharedlog.LogError):
        sharedlog.open(url)


# Redis


@pytest.mark.parametrize(
    ("rule", "missing"), [("+@all", ""), ("-xadd", "XADD"), ("-xread", "XREAD"), ("-info", "INFO")]
)
def test_a_redis_user_that_lacks_a_right(shared_redis, rule, missing, capsys):
    """The documented one has all; none is tried."""
    name = f"u{secrets.token_hex(4)}"
    sharedlog.create(shared_redis.url(log=name)).close()
    with shared_redis.client() as client:
        rules = [*documented(), rule] if missing else documented()
        client.execute_command("ACL", "SETUSER", name, "reset", *rules)
        url = f"redis://{name}:secret@127.0.0.1:{shared_redis.port}/0?log={name}"
        before = client.info("persistence")["aof_current_size"]
        found = look_at_log(url, capsys)
        assert client.info("persistence")["aof_current_size"] == before
        client.execute_command("ACL", "DELUSER", name)
    if missing:
        assert found.code in (ExitCode.REFUSED, ExitCode.UNAVAILABLE)
        assert any(missing in each[2] for each in found.bad if each[1] == "rights")
    else:
        assert (found.code, found.bad) == (ExitCode.DONE, [])


def test_replicas_that_are_missing(shared_redis, capsys):
    """No write would count."""
    url = shared_redis.url(log=secrets.token_hex(8))
    sharedlog.create(url).close()
    found = look_at_log(f"{url}&replicas=2", capsys)
    assert found.code is ExitCode.REFUSED
    assert "0 of 2 replicas" in found.only("error", "settings")
    found = look_at_log(f"{url}&replicas=2&durability=warn", capsys)
    assert found.code is ExitCode.DEGRADED


# etcd


def test_a_log_in_etcd_that_an_opening_refuses(shared_etcd, capsys):
    """It is of another cluster, or there is no room; a host that is silent is weak (§12)."""
    name = secrets.token_hex(8)
    url = shared_etcd.url(log=name, timeout_s=60)
    with sharedlog.create(url) as log:
        log.stream("s", 1)
        log.publish("s", bytes(700 << 10))
    # A member tells of it once it is in its file.
    full = f"{url}&quota_bytes={1 << 20}"
    until(lambda: look_at_log(full, capsys).code is ExitCode.REFUSED, "it is full")
    found = look_at_log(full, capsys)
    assert f"up to {(1 << 20) // SHARE}" in found.only("error", "room")
    silent = url.replace("etcd://", f"etcd://127.0.0.1:{free_port()},", 1)
    found = look_at_log(silent, capsys)
    assert found.code is ExitCode.DEGRADED
    assert "do not answer" in found.only("warning", "members")
    made = shared_etcd.control("get", f"sharedlog/log:{name}/id", "--print-value-only").strip()
    moved = made.replace('"cluster": ', '"cluster": 1')
    shared_etcd.control("put", f"sharedlog/log:{name}/id", moved)
    found = look_at_log(url, capsys)
    assert found.code is ExitCode.REFUSED
    assert "was made in cluster" in found.only("error", "history")
