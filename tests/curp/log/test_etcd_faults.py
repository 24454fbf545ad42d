"""Real etcd clusters whose nodes are killed, hang, fill up, or are restored (DESIGN §7)."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time

import pytest
import structlog

from chaos.etcd_cluster import EtcdCluster
from curp._cli.command import main
from curp.log import open_engine
from curp.log._errors import (
    CorruptLog,
    LeadershipOver,
    LeaseHeld,
    LogError,
    LogFull,
    LogUnavailable,
)
from curp.log._values import NewLogEntry
from tests.curp.log.conformance import Writer, append_id
from tests.curp.log.damage.etcd import Damage
from tests.curp.log.damage.place import verified
from tests.curp.log.histories import check_history, events
from tests.curp.logs import created
from tests.helpers.etcd_backups import restore
from tests.helpers.processes import started
from tests.helpers.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.faults]

_PATIENCE_S = 60.0
_WRITER = "tests.curp.log.writer"


@pytest.fixture(scope="module")
def module_etcd(tmp_path_factory):
    """A cluster for this module."""
    folder = tmp_path_factory.mktemp("faulty-etcd")
    with EtcdCluster(folder) as cluster:
        yield cluster
    shutil.rmtree(folder)


@pytest.fixture
def cluster(module_etcd):
    """A whole cluster, whatever the test before did to it."""
    module_etcd.heal()
    yield module_etcd
    for node in module_etcd.nodes:
        node.resume()


@pytest.fixture
def url(cluster, group):
    """A log of the test's own."""
    return created(cluster.url(group=group, try_s=0.5, timeout_s=10))


@pytest.fixture
def opened():
    """Open engines, and close them afterwards."""
    with contextlib.ExitStack() as stack:
        yield lambda url, **options: stack.enter_context(
            contextlib.closing(open_engine(url, **options))
        )


def _patiently(work):
    """Do it again while the cluster cannot be asked; other errors pass."""

    def attempt():
        with contextlib.suppress(LogUnavailable):
            return (work(),)
        return None

    return until(attempt, "the cluster answers", _PATIENCE_S)[0]


@pytest.fixture
def damage(cluster, group):
    """The log of the test's own, past all rules."""
    return Damage(cluster, group)


# Nodes that die, or hang.


@pytest.mark.parametrize("fault", ["kill", "suspend"])
def test_a_node_that_is_lost(damage, url, opened, fault):
    """The one asked, killed or cut off: the next one is asked, nothing is lost (DESIGN §7)."""
    writer, reader = Writer(opened(url)), opened(url)
    writer.append(b"a")
    getattr(damage.asked(writer.engine), fault)()
    assert _patiently(lambda: writer.append(b"b", append_id=b"%16d" % 1)) == 2
    assert [entry.body for entry in _patiently(lambda: reader.read(0))] == [b"a", b"b"]
    assert _patiently(lambda: reader.wait(1, timeout_s=5)) == 2


@pytest.mark.parametrize("fault", ["kill", "suspend"])
def test_the_leader_of_etcd_is_lost(cluster, url, opened, fault):
    """Another one is elected, and an append on its way is there once (DESIGN §7)."""
    writer, reader = Writer(opened(url)), opened(url)
    writer.append(b"a")
    lost = cluster.leader()
    getattr(lost, fault)()
    name = append_id()
    assert _patiently(lambda: writer.append(b"b", append_id=name)) == 2
    assert cluster.leader(not_=lost) is not lost
    assert writer.append(b"b", append_id=name, expected_tail=1) == 2
    assert [entry.body for entry in reader.read(0)] == [b"a", b"b"]


def test_a_minority_answers_nothing(cluster, group, opened):
    """Cut off from the others a node neither writes nor tells what may be stale (DESIGN §7)."""
    created(cluster.url(group=group))
    alone, *others = cluster.nodes
    url = cluster.url(group=group, try_s=0.2, timeout_s=0.4)
    url = url.replace(",".join(node.host for node in cluster.nodes), alone.host)
    cut_off = _patiently(lambda: opened(url))
    writer = _patiently(lambda: Writer(cut_off))
    first = append_id()
    _patiently(lambda: writer.append(b"a", append_id=first))
    for node in others:
        node.suspend()
    name = append_id()
    for asked in (
        lambda: writer.append(b"b", append_id=name),
        lambda: cut_off.renew_leadership(writer.configuration, term_s=5),
        cut_off.tail,
        cut_off.leadership,
        lambda: cut_off.read(1),
    ):
        with pytest.raises(LogUnavailable):
            asked()
    for node in others:
        node.resume()
    # Whether or not it happened while nobody knew: it is there once.
    assert _patiently(lambda: writer.append(b"b", append_id=name)) == 2
    assert [entry.body for entry in _patiently(lambda: cut_off.read(0))] == [b"a", b"b"]


def test_a_lost_reply(cluster, group, opened):
    """The append happened though its caller gave up; asked again it is there once (DESIGN §7)."""
    reader = opened(created(cluster.url(group=group)))
    node = cluster.nodes[0]
    url = cluster.url(group=group, try_s=0.3, timeout_s=0.5)
    url = url.replace(",".join(each.host for each in cluster.nodes), node.host)
    cut_off = _patiently(lambda: opened(url))
    writer = _patiently(lambda: Writer(cut_off))
    first = append_id()
    _patiently(lambda: writer.append(b"a", append_id=first))
    name = append_id()
    node.suspend()
    with pytest.raises(LogUnavailable):
        writer.append(b"b", b"c", append_id=name)
    node.resume()
    with contextlib.suppress(AssertionError):
        # What it had received it may still do, late.
        until(lambda: _patiently(reader.tail) == 3, "it does", 2.0)
    assert _patiently(lambda: writer.append(b"b", b"c", append_id=name)) == 3
    assert [entry.body for entry in reader.read(0)] == [b"a", b"b", b"c"]


def test_a_watch_that_became_deaf(damage, url, opened):
    """A follower whose node hangs hears of appends all the same (DESIGN §7)."""
    writer, reader = Writer(opened(url)), opened(url)
    writer.append(b"a")
    assert reader.wait(1, timeout_s=0.1) == 1
    damage.asked(reader).suspend()
    assert _patiently(lambda: writer.append(b"b", append_id=b"%16d" % 1)) == 2
    assert _patiently(lambda: reader.wait(1, timeout_s=10)) == 2
    # It hears again: another node is watched from then on.
    told, over = {damage.told(reader)}, threading.Event()

    def write():
        while not over.wait(0.15):
            _patiently(lambda: writer.append(b"c", append_id=append_id()))

    def heard():
        # As a follower does: it waits for what follows.
        _patiently(lambda: reader.wait(reader.tail(), timeout_s=0.3))
        told.add(damage.told(reader))
        return len(told) > 4

    writing = threading.Thread(target=write)
    writing.start()
    try:
        until(heard, "it is told again", _PATIENCE_S)
    finally:
        over.set()
        writing.join()


# Leases.


def test_a_lease_outlives_the_leader_of_etcd(cluster, url, opened):
    """No successor before a term after the last renewal was sent (DESIGN §7, invariant 10)."""
    term_s = 2.0
    engine, other = opened(url), opened(url)
    number = engine.take_leadership("one", "a:1", term_s=term_s)
    sent_at = time.monotonic()
    engine.renew_leadership(number, term_s=term_s)
    cluster.leader().kill()

    def taken():
        with contextlib.suppress(LeaseHeld, LogUnavailable):
            return other.take_leadership("two", "b:1", term_s=term_s)
        return None

    assert until(taken, "the lease ends", _PATIENCE_S) == number + 1
    assert time.monotonic() - sent_at >= term_s


def test_a_stuck_leader_of_etcd_ends_no_lease_that_was_renewed_elsewhere(cluster, url, opened):
    """Stopped for longer than a term, and continued: the old leader ends nothing (inv. 10)."""
    term_s = 2.0
    engine, other = opened(url), opened(url)
    numbers = [engine.take_leadership("one", "a:1", term_s=term_s)]
    renewed_at = [time.monotonic()]
    over = threading.Event()

    def renew():
        while not over.wait(0.2):
            sent_at = time.monotonic()
            with contextlib.suppress(LogUnavailable, LeadershipOver):
                engine.renew_leadership(numbers[-1], term_s=term_s)
                renewed_at[0] = sent_at

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        stuck = cluster.leader()
        stuck.suspend()
        cluster.leader(not_=stuck)
        began = time.monotonic()
        until(lambda: renewed_at[0] > began + term_s + 1, "it is renewed elsewhere", _PATIENCE_S)
        stuck.resume()
        woken = time.monotonic()
        while time.monotonic() < woken + 2.0:
            last_s = renewed_at[0]
            try:
                taken = other.take_leadership("two", "b:1", term_s=term_s)
            except (LeaseHeld, LogUnavailable):
                continue
            # A thread that had no CPU for a term has not renewed it.
            assert time.monotonic() >= last_s + term_s, "it was ended while it was renewed"
            other.end_leadership(taken)
            numbers.append(engine.take_leadership("one", "a:1", term_s=term_s))
            renewed_at[0] = time.monotonic()
    finally:
        over.set()
        renewing.join(_PATIENCE_S)
    assert engine.leadership().configuration == numbers[-1]


# Rivals.


def _rivals(folder, stack, url):
    for name in ("one", "two"):
        stack.enter_context(
            started(_WRITER, url, name, str(folder / name), log=folder / f"{name}.log")
        )
    return [folder / "one", folder / "two"]


def _survive(cluster, url, folder, kills, *, appends):
    """Kill nodes, the leader every other time, under two writers; count the entries."""
    with contextlib.ExitStack() as stack:
        files = _rivals(folder, stack, url)

        def acknowledged():
            return sum(len(events(file, "ack")) for file in files)

        for turn in range(kills):
            before = acknowledged()
            until(lambda b=before: acknowledged() >= b + appends, "appends", _PATIENCE_S)
            node = cluster.leader() if turn % 2 == 0 else cluster.nodes[turn % 3]
            node.kill()
            before = acknowledged()
            until(lambda b=before: acknowledged() >= b + appends, "appends", _PATIENCE_S)
            cluster.start(node)
            cluster.wait_ready(node)
    with contextlib.closing(_patiently(lambda: open_engine(url))) as engine:
        return _patiently(lambda: check_history(engine, files))


def test_rivals_while_nodes_are_killed(cluster, url, tmp_path):
    """Nothing acknowledged is lost or moved, nothing is doubled, there is no gap (DESIGN §7)."""
    assert _survive(cluster, url, tmp_path, 3, appends=20) > 60


@pytest.mark.long
@pytest.mark.timeout(600)
def test_rivals_while_nodes_are_killed_for_long(cluster, url, tmp_path):
    """The same over fourteen kills and thousands of appends (DESIGN §7)."""
    assert _survive(cluster, url, tmp_path, 14, appends=200) > 2800


# Room.


@pytest.fixture
def small_etcd(tmp_path):
    """One node with room for 16 MiB."""
    flag = "--quota-backend-bytes=16777216"
    with EtcdCluster(tmp_path / "small", flag, nodes=1) as cluster:
        yield cluster


def test_a_cluster_that_is_full(small_etcd, opened):
    """LogFull names it; with room again the append happens once (DESIGN §7, §9)."""
    writer = Writer(opened(created(small_etcd.url(group="bank", compact="no"))))
    name = append_id()

    def filled():
        try:
            writer.append(b"x" * 900_000)
            writer.snapshot(writer.tail, b"s")
            writer.engine.trim(writer.tail, configuration=1)
        except LogFull as error:
            return error
        return None

    assert "NOSPACE" in str(until(filled, "it is full", _PATIENCE_S))
    for refused in (
        lambda: writer.append(b"a", append_id=name),
        lambda: writer.engine.renew_leadership(1, term_s=5),
        lambda: writer.engine.put_metadata({"k": b"v"}, configuration=1),
    ):
        with pytest.raises(LogFull):
            refused()
    # Some releases refuse transactions that only read, too: what is there is read all the same.
    assert writer.engine.tail() >= writer.tail
    assert writer.engine.leadership().configuration == 1
    assert writer.engine.load_snapshot() is not None
    revision = str(small_etcd.nodes[0].status().header.revision)
    small_etcd.control("compact", revision, "--physical")
    small_etcd.control("defrag")
    small_etcd.control("alarm", "disarm")
    tail = writer.tail = writer.engine.tail()
    assert writer.append(b"a", append_id=name) == tail + 1
    assert writer.append(b"a", append_id=name, expected_tail=tail) == tail + 1
    assert len(writer.engine.read(tail)) == 1


def test_a_leader_makes_room(small_etcd, opened, monkeypatch):
    """Trimmed many times over, the log outgrows no quota: old revisions go (DESIGN §7)."""
    monkeypatch.setattr("sharedlog._engines.etcd.compaction._KEPT", 10)
    monkeypatch.setattr("sharedlog._engines.etcd.compaction._COMPACTED_AT", 20)
    writer = Writer(opened(created(small_etcd.url(group="bank"))))
    for _ in range(40):
        writer.append(b"x" * 900_000)
        writer.snapshot(writer.tail, b"s")
        writer.engine.trim(writer.tail, configuration=1)
        status = small_etcd.nodes[0].status()
        # Compacted room is used again; freed a moment later, by etcd's own pace.
        until(lambda: small_etcd.nodes[0].status().db_size_in_use < 8 << 20, "it is freed")
    assert status.db_size < 16 << 20


def test_a_leader_warns_before_entries_are_refused(small_etcd, opened, monkeypatch):
    """From four fifths on of what entries get, with what is in use and what is refused (§9)."""
    monkeypatch.setattr("sharedlog._engines.etcd.compaction._LOOK_S", 0.0)
    url = created(small_etcd.url(group="bank", quota_bytes=4 << 20))
    with structlog.testing.capture_logs() as logged:
        writer = Writer(opened(url))

        def warned():
            # What was just written is counted twice, for a second.
            with contextlib.suppress(LogFull):
                writer.append(b"x" * 100_000)
            # A leader looks beside its renewals.
            writer.engine.renew_leadership(1, term_s=5)
            return [each for each in logged if each["event"] == "log_store_nearly_full"]

        (told, *_) = until(warned, "it warns", _PATIENCE_S)
    assert told["log_level"] == "warning"
    # Entries get half of it.
    assert told["bytes_in_use"] >= 0.8 * told["quota_bytes"] / 2
    assert told["quota_bytes"] == 4 << 20
    assert "50 %" in told["cost"]


# Backups.


@pytest.fixture
def lone_etcd(tmp_path):
    """A cluster of one node, to be restored from backups."""
    with EtcdCluster(tmp_path / "lone", nodes=1) as cluster:
        yield cluster


@pytest.mark.parametrize("token", ["", "another"])
def test_a_cluster_restored_from_a_backup(lone_etcd, opened, tmp_path, token):
    """Whoever saw more stops, by the cluster's number or its revision (DESIGN §7)."""
    url = created(lone_etcd.url(group="bank"))
    writer, reader = Writer(opened(url)), opened(url)
    writer.append(b"a")
    lone_etcd.control("snapshot", "save", str(tmp_path / "backup"))
    writer.append(b"b", b"c")
    assert len(reader.read(0)) == 3
    lone_etcd.stop()
    with restore(lone_etcd, tmp_path / "backup", tmp_path / "restored", token):
        for asked in (
            lambda: writer.append(b"d"),
            lambda: writer.engine.renew_leadership(1, term_s=1),
            lambda: reader.read(3),
            reader.tail,
        ):
            with pytest.raises(CorruptLog):
                _patiently(asked)
        if not token:
            # The same number: one who saw nothing cannot tell.
            assert opened(url).tail() == 1
            return
        with pytest.raises(CorruptLog, match="accept-loss"):
            opened(url)
        assert opened(url, read_only=True).tail() == 1
        assert verified(url) == ""
        assert main(["recover", url]) == 1
        asked = ["log", "accept-loss", url, "--who", "ann", "--why", "the disk burnt"]
        assert main(asked) == 0
        assert main(asked) == 1
        # Under numbers that the lost cluster cannot have given, and a name of its own.
        other = Writer(opened(url), "two")
        assert other.configuration > 1 << 32
        assert other.append(b"e") == 2
        told = json.loads(other.engine.metadata("curp-log-loss"))
        assert (told["who"], told["why"]) == ("ann", "the disk burnt")
        for asked in (reader.tail, lambda: writer.append(b"d")):
            with pytest.raises(CorruptLog):
                asked()


def test_another_history_of_the_same_length(lone_etcd, opened, tmp_path):
    """What was read once is read again or noticed: LSNs alone do not tell (DESIGN §7)."""
    url = created(lone_etcd.url(group="bank"))
    writer, reader = Writer(opened(url)), opened(url)
    writer.append(b"a")
    lone_etcd.control("snapshot", "save", str(tmp_path / "backup"))
    writer.append(b"b")
    assert len(reader.read(0)) == 2
    lone_etcd.stop()
    with restore(lone_etcd, tmp_path / "backup", tmp_path / "restored", ""):
        other = _patiently(lambda: opened(url))
        for lsn, body in enumerate((b"x", b"y", b"z"), 1):
            new = [NewLogEntry(body)]
            name = append_id()
            other.append(new, configuration=1, expected_tail=lsn, append_id=name)
        with pytest.raises(CorruptLog):
            _patiently(lambda: reader.read(2))
        with pytest.raises(LogError):
            writer.append(b"c")
