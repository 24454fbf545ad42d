"""A Redis that restarts, forgets, hangs, or is set up weakly (DESIGN §7)."""

from __future__ import annotations

import contextlib
import threading

import pytest
import redis

from curp._cli.command import main
from curp.log import open_engine
from curp.log._errors import (
    CorruptLog,
    InvalidRequest,
    LogFull,
    LogUnavailable,
    NoSuchLog,
    NotDurable,
    TailMismatch,
    TrimmedLog,
)
from curp.log._values import LogEntry, NewLogEntry
from rifl.testing import FakeClock
from sharedlog._engines.terms import ServerTerms, Term
from tests.curp.log.conformance import Writer, append_id
from tests.curp.log.damage.redis import RedisLog, cut_append_file, entries_of
from tests.curp.logs import created
from tests.helpers.waiting import until
from tests.stores.redis.servers import Backup, RedisServer
from tests.stores.redis.test_failover import Watched

pytestmark = pytest.mark.faults


@pytest.fixture
def opened():
    """Open engines, and close them afterwards."""
    with contextlib.ExitStack() as stack:
        yield lambda url, **options: stack.enter_context(
            contextlib.closing(open_engine(url, **options))
        )


def _patiently(work):
    """Do it again while the server is away; other errors pass."""

    def attempt():
        with contextlib.suppress(LogUnavailable):
            return (work(),)
        return None

    return until(attempt, "the server is back")[0]


# Restarts.


def test_a_restart_of_a_durable_server(own_redis, opened):
    """Everything acknowledged is there, and writer and readers just go on (DESIGN §7)."""
    url = created(own_redis.url(group="bank"))
    writer, reader = Writer(opened(url)), opened(url)
    writer.append(b"a", b"b", tags=("t",), metadata={"k": b"v"})
    writer.snapshot(1, b"s")
    assert len(reader.read(0)) == 2
    own_redis.stop()
    with pytest.raises(LogUnavailable):
        writer.append(b"c")
    own_redis.start()
    assert _patiently(lambda: writer.append(b"c")) == 3
    assert _patiently(lambda: reader.read(2)) == [LogEntry(3, b"c")]
    assert reader.read(0, tag="t")[1] == LogEntry(2, b"b", ("t",))
    assert (reader.metadata("k"), list(reader.load_snapshot().chunks)) == (b"v", [b"s"])


def test_a_restart_that_forgot_everything(tmp_path, opened):
    """Writer and readers stop by type; nobody takes the empty server for the log (§7)."""
    server = RedisServer(tmp_path, appendonly="no")
    try:
        url = created(server.url(group="bank", durability="warn"))
        writer, reader = Writer(opened(url)), opened(url)
        writer.append(b"a")
        reader.read(0)
        server.stop()
        server.start()
        for ask in (
            lambda: writer.append(b"b"),
            lambda: writer.engine.renew_leadership(1, term_s=1),
            lambda: reader.read(1),
            lambda: reader.wait(1, timeout_s=1),
            reader.tail,
        ):
            with pytest.raises(CorruptLog):
                _patiently(ask)
        # Nobody begins a new one by opening it.
        with pytest.raises(NoSuchLog, match="curp init"):
            opened(url)
        # Also when a log of the same name was created in it.
        assert opened(created(url)).tail() == 0
        with pytest.raises(CorruptLog):
            writer.append(b"b")
    finally:
        server.stop()


@pytest.fixture
def backup(own_redis, tmp_path_factory):
    """Make a backup now."""
    return lambda: Backup(own_redis, tmp_path_factory.mktemp("backup") / "data")


def test_a_tail_that_went_back(own_redis, opened, backup):
    """The writer finds it below what it expects, readers below what they read (DESIGN §7)."""
    url = created(own_redis.url(group="bank"))
    writer, reader, late = Writer(opened(url)), opened(url), opened(url)
    writer.append(b"a")
    older = backup()
    _patiently(lambda: writer.append(b"b", b"c"))
    assert _patiently(lambda: len(reader.read(0))) == 3
    older.restore()
    with pytest.raises(CorruptLog):
        _patiently(lambda: writer.append(b"d"))
    for ask in (lambda: reader.read(3), lambda: reader.read(0), reader.tail):
        with pytest.raises(CorruptLog):
            _patiently(ask)
    # One that had seen less knows only what its caller tells.
    with pytest.raises(TailMismatch) as caught:
        _patiently(lambda: Writer(late).append(b"d", expected_tail=3))
    assert caught.value.tail == 1
    with pytest.raises(CorruptLog):
        late.read(3)


def test_another_history_of_the_same_length(own_redis, opened, backup):
    """What was read once is read again or noticed: LSNs alone do not tell (DESIGN §7)."""
    url = created(own_redis.url(group="bank"))
    writer, reader = Writer(opened(url)), opened(url)
    writer.append(b"a")
    older = backup()
    _patiently(lambda: writer.append(b"b"))
    assert _patiently(lambda: len(reader.read(0))) == 2
    older.restore()
    other = _patiently(lambda: opened(url))
    other.append(
        [NewLogEntry(b"x"), NewLogEntry(b"y")],
        configuration=1,
        expected_tail=1,
        append_id=append_id(),
    )
    with pytest.raises(CorruptLog):
        _patiently(lambda: reader.read(2))
    # By then the tail is at least where the old writer expects it.
    with pytest.raises((CorruptLog, TailMismatch)):
        writer.append(b"c")
    assert [entry.body for entry in other.read(0)] == [b"a", b"x", b"y"]


def test_a_configuration_number_that_went_back(own_redis, opened, backup):
    """It might be given twice: its holder stops (DESIGN §7, invariant 2 of GroupLog)."""
    url = created(own_redis.url(group="bank"))
    first = Writer(opened(url))
    older = backup()
    second = _patiently(lambda: Writer(opened(url)))
    assert second.configuration == first.configuration + 1
    older.restore()
    with pytest.raises(CorruptLog):
        _patiently(lambda: second.append(b"a"))


@pytest.mark.parametrize("size", [1, 20, 400])
def test_a_torn_append_only_file(own_redis, opened, size):
    """Redis starts without what was cut off: writer and readers tell that it is missing (§7)."""
    url = created(own_redis.url(group="bank"))
    writer, reader = Writer(opened(url)), opened(url)
    writer.append(b"a", tags=("t",))
    writer.append(b"b" * 200, tags=("t",))
    assert len(reader.read(0)) == 2
    own_redis.stop()
    cut_append_file(own_redis, size)
    own_redis.start()
    for ask in (lambda: writer.append(b"c"), lambda: reader.read(1), reader.tail):
        with pytest.raises(CorruptLog):
            _patiently(ask)
    # The commits before it are whole, and a replica that knew no more goes on behind them.
    late = opened(url)
    assert late.read(0) == [LogEntry(1, b"a", ("t",))]
    assert Writer(late).append(b"d") == 2
    assert main(["log", "verify", url]) == 0


# Failovers.


@pytest.fixture
def watched(tmp_path):
    """A primary, its replica, and a Sentinel; and the URL of a log there."""
    servers = Watched(tmp_path)
    servers.log = f"redis+sentinel://127.0.0.1:{servers.sentinel.port}/main/0?group=bank"
    yield servers
    servers.stop()


@pytest.mark.slow
@pytest.mark.parametrize("lags", [False, True])
def test_a_failover(watched, opened, lags):
    """To a replica that has all, the log goes on; to one that lagged, it is missed (§6, §7)."""
    url = created(watched.log)
    writer, reader = Writer(opened(url)), opened(url)
    writer.append(b"a")
    with watched.primary.client() as client:
        until(lambda: client.wait(1, 100) == 1, "the replica follows")
        if lags:
            watched.cut_off()
        writer.append(b"b")
        assert len(reader.read(0)) == 2
        if not lags:
            until(lambda: client.wait(1, 100) == 1, "the replica follows")
    watched.fail_over()
    if lags:
        for ask in (lambda: writer.append(b"c"), lambda: reader.read(1), reader.tail):
            with pytest.raises(CorruptLog, match="went back"):
                _patiently(ask)
        # Opened anew, nothing tells it: the lost entry was known to others only.
        assert [entry.body for entry in _patiently(lambda: opened(url)).read(0)] == [b"a"]
    else:
        assert _patiently(lambda: writer.append(b"c")) == 3
        assert reader.read(2) == [LogEntry(3, b"c")]


# Replies that get lost.


def test_a_lost_reply(own_redis, opened):
    """The append happened though its caller gave up; asked again it is there once (DESIGN §7)."""
    writer = Writer(opened(created(own_redis.url(group="bank", timeout_s=0.5))))
    writer.append(b"a")
    name = append_id()
    own_redis.suspend()
    try:
        with pytest.raises(LogUnavailable):
            writer.append(b"b", b"c", append_id=name)
    finally:
        own_redis.resume()
    until(lambda: _patiently(writer.engine.tail) == 3, "the server catches up")
    assert writer.append(b"b", b"c", append_id=name) == 3
    assert [entry.body for entry in writer.engine.read(0)] == [b"a", b"b", b"c"]


def test_a_server_that_is_full(own_redis, opened):
    """It is LogFull, and when there is room again the append happens once (§7)."""
    writer = Writer(opened(created(own_redis.url(group="bank"))))
    with own_redis.client() as client:
        client.config_set("maxmemory", "100kb")
        name = append_id()
        with pytest.raises(LogFull, match="OOM"):
            writer.append(b"a", append_id=name)
        assert writer.engine.read(0) == []
        client.config_set("maxmemory", "0")
    assert writer.append(b"a", append_id=name) == 1


# Settings.


@pytest.mark.parametrize(
    ("setting", "value"),
    [("appendonly", "no"), ("appendfsync", "everysec"), ("maxmemory-policy", "allkeys-lru")],
)
def test_weak_settings_are_refused_or_told(own_redis, opened, setting, value):
    """Each is named with its cost; with durability=warn the log says so itself (DESIGN §7)."""
    with own_redis.client() as client:
        client.config_set(setting, value)
    with pytest.raises(NotDurable, match=f"{setting} is {value}"):
        open_engine(own_redis.url(group="bank"))
    weak = opened(created(own_redis.url(group="bank", durability="warn")))
    assert f"{setting} is {value}" in weak.durability
    Writer(weak).append(b"a")


@pytest.mark.parametrize("connections", ["those that stay", "new ones"])
def test_settings_that_become_weak_are_noticed(own_redis, opened, monkeypatch, connections):
    """Now and then, and on new connections: nothing is written until they are mended (§6, §7)."""
    stay = connections == "those that stay"
    monkeypatch.setattr("_rifl_ground.redis.clients._LOOK_EVERY_S", 0.0 if stay else 1e9)
    writer = Writer(opened(created(own_redis.url(group="bank"))))
    writer.append(b"a")
    with own_redis.client() as client:
        client.config_set("appendfsync", "everysec")
        if not stay:
            client.client_kill_filter(_type="normal", skipme=True)
        name = append_id()
        for _ in range(2):
            # The first may find only that its connection is gone.
            with pytest.raises(LogUnavailable):
                writer.append(b"b", append_id=name)
        with pytest.raises(LogUnavailable, match="appendfsync is everysec"):
            writer.append(b"b", append_id=name)
        client.config_set("appendfsync", "always")
    assert writer.append(b"b", append_id=name) == 2


def test_good_settings_are_told(own_redis, opened):
    """What is promised, and what is not: a failover may lose it (DESIGN §7)."""
    told = opened(created(own_redis.url(group="bank"))).durability
    assert "on the server's disk" in told
    assert "failover" in told


def test_replicas_must_acknowledge_where_that_was_asked_for(own_redis, tmp_path_factory, opened):
    """Fewer in time is LogUnavailable; asked again, the append is found and waited for (§7)."""
    url = own_redis.url(group="bank", replicas=1, timeout_s=2)
    with pytest.raises(NotDurable, match="0 of 1 replicas"):
        created(url)
    with own_redis.client() as client:
        client.config_set("repl-diskless-sync-delay", "0")
    replica = RedisServer(
        tmp_path_factory.mktemp("replica"), replicaof=f"127.0.0.1 {own_redis.port}"
    )
    try:
        with own_redis.client() as client:
            until(lambda: client.wait(1, 100) == 1, "the replica follows")
        writer = Writer(opened(url))
        assert "1 of its replicas" in writer.engine.durability
        assert _patiently(lambda: writer.append(b"a")) == 1
        replica.suspend()
        name = append_id()
        for _ in range(2):
            with pytest.raises(LogUnavailable, match="0 of 1 replicas"):
                writer.append(b"b", append_id=name)
        with pytest.raises(LogUnavailable):
            writer.engine.renew_leadership(1, term_s=1)
        replica.resume()
        assert _patiently(lambda: writer.append(b"b", append_id=name)) == 2
        with replica.client() as client:
            assert client.xlen(entries_of("bank")) == 2
        assert len(writer.engine.read(0)) == 2
    finally:
        replica.stop()


# Room.


def test_trimmed_entries_and_older_snapshots_give_their_room_back(shared_redis, group):
    """Their keys and those of their tags are removed (DESIGN §7)."""
    log = RedisLog(shared_redis, group)
    writer = Writer(log.open())
    writer.append(*(b"body %d" % n for n in range(1, 11)), tags=("t",))
    writer.snapshot(4, b"one", b"two")
    writer.engine.trim(2, configuration=writer.configuration)
    assert (log.count(), log.pieces()) == ((8, 8), 2)
    writer.snapshot(10, b"all")
    writer.engine.trim(10, configuration=writer.configuration)
    assert (log.count(), log.pieces()) == ((0, 0), 1)
    assert not any(key.startswith("tag") for key in log.parts())
    with pytest.raises(TrimmedLog):
        log.open().read(9)
    log.close()


# The rest.


def test_a_log_in_a_cluster(tmp_path, opened):
    """All keys of a group are in one slot; WAIT is not to be had there (DESIGN §7)."""
    server = RedisServer(tmp_path, **{"cluster-enabled": "yes"})
    try:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            until(lambda: _cluster_is_up(client), "the cluster is up")
        url = f"redis+cluster://127.0.0.1:{server.port}?group=bank"
        writer = Writer(opened(created(url)))
        writer.append(b"a", b"b", tags=("t", "u"), metadata={"k": b"v"})
        writer.snapshot(1, b"s")
        writer.engine.trim(1, configuration=1)
        assert opened(url).read(1, tag="u") == [LogEntry(2, b"b", ("t", "u"))]
        assert opened(url).wait(1, timeout_s=5) == 2
        with pytest.raises(InvalidRequest):
            open_engine(url + "&replicas=1")
    finally:
        server.stop()


def _cluster_is_up(client):
    return b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO")


def test_a_server_that_is_not_there(own_redis):
    """It is LogUnavailable when it is opened (DESIGN §9)."""
    own_redis.stop()
    with pytest.raises(LogUnavailable):
        open_engine(own_redis.url(group="bank"))


def test_a_wait_ends_with_an_append(shared_redis, group, opened, monkeypatch):
    """A reader asleep in the server is woken by the append, not by a timer (DESIGN §7)."""
    monkeypatch.setattr("sharedlog._engines.redis.engine._BLOCK_S", 300.0)
    monkeypatch.setattr("sharedlog._engines.redis.engine._LOOK_S", 300.0)
    url = created(shared_redis.url(group=group, timeout_s=600))
    writer, reader = Writer(opened(url)), opened(url)
    woken = []
    waiter = threading.Thread(target=lambda: woken.append(reader.wait(0, timeout_s=300)))
    waiter.start()
    with shared_redis.client() as client:
        until(lambda: any(c["cmd"] == "xread" for c in client.client_list()), "it sleeps there")
    writer.append(b"a")
    waiter.join(60)
    assert woken == [1]


def test_a_servers_clock_that_jumps_forward():
    """The lease at hand gets a full term from then; the next one is as before (inv. 10)."""
    clock = FakeClock()
    view = ServerTerms(clock)
    lease = Term(1, "", 110.0, 10.0)
    assert view.remaining_s(lease, 100.0) == 10.0
    clock.advance(1)
    assert view.remaining_s(lease, 101.0) == 9.0
    clock.advance(1)
    assert view.remaining_s(lease, 3700.0) == 10.0
    clock.advance(4)
    assert view.remaining_s(lease, 3704.0) == 6.0
    assert view.remaining_s(Term(1, "", 3713.0, 10.0), 3704.0) == 9.0
    clock.advance(1)
    assert view.remaining_s(lease, 3705.0) == 5.0


def test_a_servers_clock_that_jumps_back():
    """A lease gets longer: late is safe (DESIGN §7, invariant 10)."""
    clock = FakeClock()
    view = ServerTerms(clock)
    lease = Term(1, "", 110.0, 10.0)
    view.remaining_s(lease, 105.0)
    clock.advance(1)
    assert view.remaining_s(lease, 50.0) == 60.0


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1",
        "redis://127.0.0.1?group=",
        "redis://127.0.0.1?group=a&group=b",
        "redis://127.0.0.1?group={a}",
        "redis://127.0.0.1?group=a&replicas=-1",
        "redis://127.0.0.1?group=a&namespace=b",
        "redis://127.0.0.1?group=a&durability=maybe",
        "redis://u:hunter2@127.0.0.1:port?group=a",
        "sqlite:///?group=a",
        "sqlite:///log.db",
        "sqlite://host/log.db?group=a",
        "sqlite:///log.db?group=a&timeout_s=soon",
        "sqlite:///log.db?group=a&colour=red",
        "mysql://u:hunter2@host?group=a",
        "",
    ],
)
def test_a_url_that_names_no_log(url):
    """A typed error that does not repeat the URL's password (DESIGN §9)."""
    with pytest.raises(InvalidRequest) as caught:
        open_engine(url)
    assert "hunter2" not in str(caught.value)


def test_redis_py_is_what_was_tested():
    """Scripts whose reply was lost are not sent again by the library itself (DESIGN §7)."""
    from _rifl_ground.redis.address import RedisAddress
    from _rifl_ground.redis.clients import Clients

    clients = Clients(RedisAddress.parse("redis://127.0.0.1:1"), retries=0)
    connection = clients.blocking.connection_pool.make_connection()
    tried = []

    def work():
        tried.append(1)
        raise redis.ConnectionError("lost")

    with pytest.raises(redis.ConnectionError):
        connection.retry.call_with_retry(work, lambda error: None)
    assert len(tried) == 1
