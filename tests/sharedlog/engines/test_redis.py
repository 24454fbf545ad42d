"""A log in Redis: servers that restart, forget, hang, fill up, or are set up weakly (§12, §18)."""

from __future__ import annotations

import contextlib
import threading

import pytest

from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused
from sharedlog._core.errors import (
    CorruptLog,
    InvalidRequest,
    LogExists,
    LogFull,
    LogUnavailable,
    NewerFormat,
    NoSuchLog,
    NotDurable,
    TrimmedLog,
)
from sharedlog._core.fences import raise_fence
from sharedlog._core.producers import append
from sharedlog._engines.driving import carry_out
from sharedlog._engines.redis.opening import create_log, open_log
from tests.helpers.waiting import until
from tests.sharedlog.logs import message, producer, texts
from tests.stores.redis.servers import Backup, RedisServer, SentinelServer


@pytest.fixture
def opened():
    """Open engines, and close them afterwards."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(contextlib.closing(open_log(url)))


def create(url, keys):
    create_log(url, keys).close()


def created(url):
    """Create the log at a URL; return the URL."""
    create(url, {})
    return url


def entries(*bodies, tags=("t",)):
    return Commit(entries=tuple(NewEntry(body, tags) for body in bodies))


def bodies(engine, after=0, tag=None):
    return [row.body for row in engine.read(after, 1000, tag).rows]


def patiently(work, *late):
    """Do it again while the server is away, or something else is late; other errors pass."""

    def attempt():
        with contextlib.suppress(LogUnavailable, *late):
            return (work(),)
        return None

    return until(attempt, "the server is back")[0]


# Which log it is.


def test_creating_is_explicit_happens_once_and_begins_with_its_keys(shared_redis, name, opened):
    """In one step; other logs of the server are others (§12)."""
    url = shared_redis.url(log=name)
    with pytest.raises(NoSuchLog):
        open_log(url)
    create(url, {"incarnation": b"\x00\xff", "b": b""})
    with pytest.raises(LogExists):
        create(url, {"incarnation": b"other"})
    engine, other = opened(url), opened(created(shared_redis.url(log=name + ".other")))
    assert engine.scan("") == {"incarnation": b"\x00\xff", "b": b""}
    engine.commit(entries(b"a"))
    assert (other.tail(), other.scan("")) == (0, {})


def test_a_newer_format_is_left_as_it_is(shared_redis, name):
    """A newer release made it (§12)."""
    url = created(shared_redis.url(log=name))
    with shared_redis.client() as client:
        client.hset(f"sharedlog:{{{name}}}:head", "format", "2")
    with pytest.raises(NewerFormat):
        open_log(url)


@pytest.mark.parametrize(
    "query",
    [
        "log=",
        "log={a}",
        "log=a&log=b",
        "log=a&replicas=-1",
        "log=a&namespace=b",
        "log=a&durability=maybe",
        "log=a&colour=red",
        "log",
    ],
)
def test_a_url_that_names_no_log(query):
    """It is refused by type, without the password that it may have (§12)."""
    with pytest.raises(InvalidRequest) as caught:
        open_log(f"redis://u:hunter2@127.0.0.1:1?{query}")
    assert "hunter2" not in str(caught.value)


# Restarts.


def test_a_restart_of_a_durable_server(own_redis, opened):
    """What was acknowledged is there, scripts are sent again, and all go on (L2, L7)."""
    url = created(own_redis.url(log="l"))
    writer, reader = opened(url), opened(url)
    mine = producer(writer)
    carry_out(writer, append(mine, 1, [message("a"), message("b")]))
    assert texts(reader) == ["a", "b"]
    own_redis.stop()
    with pytest.raises(LogUnavailable):
        carry_out(writer, append(mine, 2, [message("c")]))
    own_redis.start()
    assert patiently(lambda: carry_out(writer, append(mine, 2, [message("c")]))).lsn == 3
    assert patiently(lambda: texts(reader)) == ["a", "b", "c"]


def test_a_restart_that_forgot_everything(tmp_path, opened):
    """All stop by type, and nobody takes the empty server for the log (§12)."""
    server = RedisServer(tmp_path, appendonly="no")
    try:
        url = created(server.url(log="l", durability="warn"))
        writer, reader = opened(url), opened(url)
        writer.commit(entries(b"a"))
        server.stop()
        server.start()
        asked = (
            lambda: writer.commit(entries(b"b")),
            lambda: reader.read(0, 10),
            lambda: reader.wait(1, 5),
            lambda: writer.get(("k",)),
            reader.tail,
        )
        for ask in asked:
            with pytest.raises(CorruptLog):
                patiently(ask)
        with pytest.raises(NoSuchLog):
            open_log(url)
        # Also when a log of that name was created in it.
        assert opened(created(url)).tail() == 0
        with pytest.raises(CorruptLog):
            writer.commit(entries(b"b"))
    finally:
        server.stop()


@pytest.fixture
def backup(own_redis, tmp_path_factory):
    """Make a backup now."""
    return lambda: Backup(own_redis, tmp_path_factory.mktemp("backup") / "data")


def test_a_log_that_went_back(own_redis, opened, backup):
    """Whoever saw more stops (§12): a restored backup, or a replica that lagged behind."""
    url = created(own_redis.url(log="l"))
    writer, reader = opened(url), opened(url)
    writer.commit(entries(b"a"))
    older = backup()
    patiently(lambda: writer.commit(entries(b"b", b"c")))
    assert patiently(lambda: bodies(reader)) == [b"a", b"b", b"c"]
    older.restore()
    for ask in (lambda: writer.commit(entries(b"d")), reader.tail, lambda: bodies(reader)):
        with pytest.raises(CorruptLog, match="went back"):
            patiently(ask)


def test_a_fence_that_went_back(own_redis, opened, backup):
    """Steps without entries count, too: the same number would be given twice (L4)."""
    url = created(own_redis.url(log="l"))
    engine = opened(url)
    assert carry_out(engine, raise_fence("f")) == 1
    older = backup()
    assert patiently(lambda: carry_out(engine, raise_fence("f"))) == 2
    older.restore()
    with pytest.raises(CorruptLog, match="went back"):
        patiently(lambda: carry_out(engine, raise_fence("f")))


def test_another_history_of_the_same_length(own_redis, opened, backup):
    """Written on by others from an older copy: LSNs alone do not tell (§12)."""
    url = created(own_redis.url(log="l"))
    writer = opened(url)
    writer.commit(entries(b"a"))
    older = backup()
    patiently(lambda: writer.commit(entries(b"b")))
    older.restore()
    other = patiently(lambda: opened(url))
    assert other.commit(entries(b"x")) == (2, 2)
    with pytest.raises(CorruptLog, match="not the one"):
        patiently(lambda: writer.read(0, 10))


# Replies that get lost, and a server without room.


def test_a_lost_reply(own_redis, opened):
    """Its caller does not know; sent again it is answered, and there once (L3)."""
    engine = opened(created(own_redis.url(log="l", timeout_s=0.5)))
    mine = producer(engine)
    own_redis.suspend()
    try:
        with pytest.raises(LogUnavailable) as caught:
            carry_out(engine, append(mine, 1, [message("a")]))
        assert caught.value.appended is None
    finally:
        own_redis.resume()
    until(lambda: patiently(engine.tail) == 1, "the server catches up")
    again = carry_out(engine, append(mine, 1, [message("a")]))
    assert (again.lsn, again.first) == (1, None)
    assert texts(engine) == ["a"]


def test_a_server_without_room_refuses_entries_and_lets_room_be_made(own_redis, opened):
    """Nothing of a refused append is there; fences are raised, and trims give room (L4, L8)."""
    engine = opened(created(own_redis.url(log="l")))
    for _ in range(4):
        engine.commit(entries(b"x" * 500_000))
    with own_redis.client() as client:
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", str(used - 700_000))
        with pytest.raises(LogFull, match="OOM") as caught:
            engine.commit(Commit((Condition("k", None),), (Put("k", b"v"),), entries(b"y").entries))
        assert caught.value.appended is False
        assert (engine.tail(), engine.get(("k",))) == (4, {"k": None})
        assert len(engine.read(0, 10).rows) == 4
        assert carry_out(engine, raise_fence("f")) == 1
        engine.remove(3)
        assert until(lambda: patiently(lambda: engine.commit(entries(b"y"))), "room") == (5, 5)
    assert engine.first() == 4


@pytest.mark.parametrize("stale", ["yes", "no"])
def test_a_server_that_became_a_replica_is_unavailable_and_not_damaged(own_redis, opened, stale):
    """READONLY and MASTERDOWN, from within a script, too (L4)."""
    engine = opened(created(own_redis.url(log="l")))
    assert engine.commit(entries(b"a")) == (1, 1)
    with own_redis.client() as client:
        client.config_set("replica-serve-stale-data", stale)
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(LogUnavailable, match="READONLY" if stale == "yes" else "MASTERDOWN"):
            engine.commit(entries(b"b"))
        client.execute_command("REPLICAOF", "NO", "ONE")
    assert patiently(lambda: engine.commit(entries(b"b"))) == (2, 2)


# Settings.


@pytest.mark.parametrize(
    ("setting", "value"),
    [("appendonly", "no"), ("appendfsync", "everysec"), ("maxmemory-policy", "allkeys-lru")],
)
def test_weak_settings_are_refused_or_told(own_redis, opened, setting, value):
    """Each is named with its cost; with durability=warn the log says so itself (L2)."""
    with own_redis.client() as client:
        client.config_set(setting, value)
    with pytest.raises(NotDurable, match=f"{setting} is {value}"):
        create(own_redis.url(log="l"), {})
    weak = opened(created(own_redis.url(log="l", durability="warn")))
    assert f"{setting} is {value}" in weak.durability
    assert weak.commit(entries(b"a")) == (1, 1)


def test_settings_that_become_weak_stop_writes_until_they_are_mended(
    own_redis, opened, monkeypatch
):
    """They are looked at now and then (L2)."""
    monkeypatch.setattr("_rifl_ground.redis.clients._LOOK_EVERY_S", 0.0)
    engine = opened(created(own_redis.url(log="l")))
    with own_redis.client() as client:
        client.config_set("appendfsync", "everysec")
        with pytest.raises(LogUnavailable, match="appendfsync is everysec"):
            engine.commit(entries(b"a"))
        client.config_set("appendfsync", "always")
    assert engine.commit(entries(b"a")) == (1, 1)
    assert "on the server's disk" in engine.durability


def test_replicas_must_have_a_commit_where_that_was_asked_for(own_redis, tmp_path_factory, opened):
    """Fewer in time is an unknown fate; it counts once they have it, found again or not (L2)."""
    url = own_redis.url(log="l", replicas=1, timeout_s=2)
    with pytest.raises(NotDurable, match="0 of 1 replicas"):
        create(url, {})
    with own_redis.client() as client:
        client.config_set("repl-diskless-sync-delay", "0")
    replica = RedisServer(
        tmp_path_factory.mktemp("replica"), replicaof=f"127.0.0.1 {own_redis.port}"
    )
    try:
        with own_redis.client() as client:
            until(lambda: client.wait(1, 100) == 1, "the replica follows")
        engine = patiently(lambda: opened(url), NotDurable)
        mine = patiently(lambda: producer(engine))
        replica.suspend()
        for _ in range(2):
            with pytest.raises(LogUnavailable, match="0 of 1 replicas"):
                carry_out(engine, append(mine, 1, [message("a")]))
        replica.resume()
        assert patiently(lambda: carry_out(engine, append(mine, 1, [message("a")]))).lsn == 1
        with replica.client() as client:
            assert client.xlen("sharedlog:{l}:entries") == 1
        assert texts(engine) == ["a"]
    finally:
        replica.stop()


# Damage.


@pytest.fixture
def broken(shared_redis, name, opened):
    """A log of ten entries without the first two, and a client to break it with."""
    url = created(shared_redis.url(log=name))
    engine = opened(url)
    for number in range(1, 11):
        engine.commit(entries(b"body %d" % number))
    engine.remove(2)
    engine.prefix = f"sharedlog:{{{name}}}:"
    with shared_redis.client() as engine.client:
        yield engine


@pytest.mark.parametrize("lsn", [3, 7, 10])
def test_a_missing_entry_is_never_skipped(broken, lsn):
    """By tag and without (L1)."""
    broken.client.xdel(broken.prefix + "entries", f"{lsn}-0")
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            broken.read(2, 1000, tag)


def test_a_changed_entry_is_found(broken):
    """By its checksum; what is before it is read (L1)."""
    stream = broken.prefix + "entries"
    rows = broken.client.xrange(stream)
    broken.client.delete(stream)
    for lsn, fields in rows:
        if lsn == b"7-0":
            fields[b"b"] = b"bodY 7"
        broken.client.xadd(stream, fields, id=lsn)
    assert len(broken.read(2, 4).rows) == 4
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            broken.read(2, 1000, tag)


def test_an_index_that_lies_is_found(broken):
    """An entry is not returned under a tag that it does not have (L5)."""
    broken.client.zadd(broken.prefix + "tag:u", {"5": 5})
    with pytest.raises(CorruptLog):
        broken.read(2, 10, "u")


@pytest.mark.parametrize("part", ["head", "entries", "tag:t"])
def test_a_key_of_another_type_is_damage(broken, part):
    """And no accident of the client library (§12)."""
    broken.client.delete(broken.prefix + part)
    broken.client.set(broken.prefix + part, "x")
    with pytest.raises(CorruptLog):
        broken.read(2, 10, "t" if "tag" in part else None)


def test_a_head_that_lacks_something_is_damage(broken):
    """Nothing is guessed, nor begun anew over what is left (§12)."""
    broken.client.hdel(broken.prefix + "head", "tail")
    with pytest.raises(CorruptLog):
        broken.tail()
    broken.client.delete(broken.prefix + "head")
    with pytest.raises(CorruptLog):
        broken.tail()


def test_what_is_removed_gives_its_room_back(broken, monkeypatch):
    """Tags too; in pieces, of which each leaves the log whole (the interface's bound)."""
    monkeypatch.setattr("sharedlog._engines.redis.engine._PIECE", 3)
    assert broken.client.zcard(broken.prefix + "tag:t") == 8
    broken.remove(9)
    assert (broken.first(), broken.client.xlen(broken.prefix + "entries")) == (10, 1)
    assert broken.client.zrange(broken.prefix + "tag:t", 0, -1) == [b"10"]
    with pytest.raises(TrimmedLog):
        broken.read(2, 10)
    assert bodies(broken, 9, "t") == [b"body 10"]


# The rest.


def test_who_waits_is_woken_by_another_process(shared_redis, name, opened, monkeypatch):
    """By the server, and not by a timer (L5)."""
    monkeypatch.setattr("sharedlog._engines.redis.engine._LOOK_S", 300.0)
    monkeypatch.setattr("sharedlog._engines.redis.engine._BLOCK_S", 300.0)
    url = created(shared_redis.url(log=name, timeout_s=600))
    writer, reader = opened(url), opened(url)
    woken = []
    waiters = [threading.Thread(target=lambda: woken.append(reader.wait(0, 300))) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    with shared_redis.client() as client:
        until(lambda: any(c["cmd"] == "xread" for c in client.client_list()), "it sleeps there")
    writer.commit(entries(b"a"))
    for waiter in waiters:
        waiter.join(60)
    assert woken == [1, 1]


def test_who_waits_hears_of_appends_after_a_restart(own_redis, opened):
    """What it had asked for was lost with the server; it asks again, from where it was (L5)."""
    url = created(own_redis.url(log="l"))
    writer, reader = opened(url), opened(url)
    assert reader.wait(0, 0.01) == 0
    own_redis.stop()
    with pytest.raises(LogUnavailable):
        reader.wait(0, 30)
    own_redis.start()
    assert patiently(lambda: writer.commit(entries(b"a"))) == (1, 1)
    assert patiently(lambda: reader.wait(0, 30)) == 1


def test_many_threads_have_their_appends_once(shared_redis, name, opened):
    """More of them than there are connections (L1, L3)."""
    engine = opened(created(shared_redis.url(log=name, max_connections=4)))

    def write():
        mine = producer(engine)
        for seq in range(1, 6):
            carry_out(engine, append(mine, seq, [message(f"{mine.id}.{seq}")]))

    threads = [threading.Thread(target=write) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(texts(engine))) == 80


def test_a_log_in_a_cluster(tmp_path, opened):
    """All keys of a log are in one slot; WAIT is not to be had there (§12)."""
    server = RedisServer(tmp_path, **{"cluster-enabled": "yes"})
    try:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            until(
                lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"),
                "the cluster is up",
            )
        url = f"redis+cluster://127.0.0.1:{server.port}?log=l"
        engine = opened(created(url))
        engine.commit(entries(b"a", b"b", tags=("t", "u")))
        with pytest.raises(Refused):
            engine.commit(Commit((Condition("k", b""),)))
        engine.remove(1)
        assert bodies(opened(url), 1, "u") == [b"b"]
        assert opened(url).wait(1, 30) == 2
        with pytest.raises(InvalidRequest):
            open_log(url + "&replicas=1")
    finally:
        server.stop()


def test_a_log_behind_sentinel(own_redis, tmp_path_factory, opened):
    """The primary is found by its name (§12)."""
    sentinel = SentinelServer(tmp_path_factory.mktemp("sentinel"), own_redis.port)
    try:
        url = created(f"redis+sentinel://127.0.0.1:{sentinel.port}/main?log=l")
        assert opened(url).commit(entries(b"a")) == (1, 1)
        assert opened(url).wait(0, 30) == 1
    finally:
        sentinel.stop()


def test_a_server_that_is_not_there(own_redis):
    """It is unavailable when it is opened (§12)."""
    own_redis.stop()
    with pytest.raises(LogUnavailable):
        open_log(own_redis.url(log="l"))
