"""A log in a real etcd cluster whose nodes die, hang, fill up, or are restored (§12, §18)."""

from __future__ import annotations

import contextlib
import shutil
import threading
from functools import partial

import pytest

from chaos.etcd_cluster import EtcdCluster
from sharedlog._core.commit import Commit, NewEntry
from sharedlog._core.errors import CorruptLog, LogExists, LogFull, LogUnavailable
from sharedlog._core.fences import raise_fence
from sharedlog._core.incarnation import new_log, read_incarnation
from sharedlog._core.producers import append
from sharedlog._engines.driving import carry_out
from sharedlog._engines.etcd.cluster import Cluster
from sharedlog._engines.etcd.opening import create_log, open_log
from sharedlog._engines.opening import accept_loss, defragment
from tests.helpers.etcd_backups import restore
from tests.helpers.waiting import until
from tests.sharedlog.logs import message, producer, texts

pytestmark = [pytest.mark.slow, pytest.mark.faults]

_PATIENCE_S = 60.0


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
def opened():
    """Open engines, and close them afterwards."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(contextlib.closing(open_log(url)))


@pytest.fixture
def url(cluster, name):
    """A log of the test's own."""
    return created(cluster.url(log=name, try_s=0.5, timeout_s=10))


def created(url):
    create_log(url, {}).close()
    return url


def patiently(work):
    """Do it again while the cluster cannot be asked; other errors pass."""

    def attempt():
        with contextlib.suppress(LogUnavailable):
            return (work(),)
        return None

    return until(attempt, "the cluster answers", _PATIENCE_S)[0]


def appended(engine, mine, seq, messages=None):
    return carry_out(engine, append(mine, seq, messages or [message(str(seq))])).lsn


@pytest.mark.parametrize("fault", ["kill", "suspend"])
@pytest.mark.parametrize("which", ["asked", "leads"])
def test_a_node_that_is_lost(cluster, url, opened, fault, which):
    """The one that is asked, or that leads: what was appended is there, once (L2, L3, L7)."""
    engine, reader = opened(url), opened(url)
    mine = producer(engine)
    assert appended(engine, mine, 1) == 1
    lost = cluster.nodes[engine._log.client._at] if which == "asked" else cluster.leader()
    getattr(lost, fault)()
    assert patiently(lambda: appended(engine, mine, 2)) == 2
    assert patiently(lambda: reader.wait(1, 30)) == 2
    assert patiently(lambda: texts(reader)) == ["1", "2"]
    assert appended(engine, mine, 2) == 2


def test_a_minority_neither_writes_nor_tells_what_may_be_stale(cluster, name, opened):
    """Cut off from the others, a node answers nothing; afterwards all is there once (L7)."""
    url = created(cluster.url(log=name, try_s=0.2, timeout_s=0.4))
    alone, *others = cluster.nodes
    engine = opened(url.replace(",".join(node.host for node in cluster.nodes), alone.host))
    mine = producer(engine)
    assert appended(engine, mine, 1) == 1
    for node in others:
        node.suspend()
    asked = (
        lambda: appended(engine, mine, 2),
        lambda: carry_out(engine, raise_fence("f")),
        engine.tail,
        lambda: engine.read(0, 10),
        lambda: engine.wait(1, 5),
        lambda: engine.get(("k",)),
    )
    for ask in asked:
        with pytest.raises(LogUnavailable) as caught:
            ask()
        assert caught.value.appended is None
    for node in others:
        node.resume()
    assert patiently(lambda: appended(engine, mine, 2)) == 2
    assert patiently(lambda: texts(engine)) == ["1", "2"]


def test_a_reply_that_is_lost(cluster, name, opened):
    """Its caller gives up, asks again, and is answered; it is there once (L3)."""
    node = cluster.nodes[0]
    url = created(cluster.url(log=name, try_s=0.3, timeout_s=0.5))
    engine = opened(url.replace(",".join(each.host for each in cluster.nodes), node.host))
    mine = producer(engine)
    node.suspend()
    with pytest.raises(LogUnavailable):
        appended(engine, mine, 1)
    node.resume()
    with contextlib.suppress(AssertionError):
        # What it had received it may still do, late.
        until(lambda: patiently(engine.tail) == 1, "it does", 2.0)
    assert patiently(lambda: appended(engine, mine, 1)) == 1
    assert patiently(lambda: texts(engine)) == ["1"]


def test_a_restart_of_the_whole_cluster(cluster, url, opened):
    """Everything acknowledged is there, and all go on (L2)."""
    engine, reader = opened(url), opened(url)
    mine = producer(engine)
    assert [appended(engine, mine, seq) for seq in (1, 2)] == [1, 2]
    for node in cluster.nodes:
        node.kill()
    with pytest.raises(LogUnavailable):
        open_log(url.replace("timeout_s=10", "timeout_s=0.5"))
    cluster.heal()
    assert patiently(lambda: appended(engine, mine, 3)) == 3
    assert patiently(lambda: texts(reader)) == ["1", "2", "3"]


def test_rivals_while_nodes_are_killed(cluster, url, opened):
    """The leader and another: nothing is lost, doubled, or out of its order (L1, L2, L3)."""
    over = threading.Event()
    highest = [0, 0, 0]

    def write(number):
        engine = opened(url)
        mine = patiently(lambda: producer(engine))
        while not over.is_set():
            seq = highest[number] + 1
            pair = [message(f"{number}.{seq}.{part}") for part in range(2)]
            patiently(partial(appended, engine, mine, seq, pair))
            highest[number] = seq

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for lost in (cluster.leader(), cluster.nodes[0]):
            for _ in range(2):
                before = sum(highest)
                until(lambda b=before: sum(highest) > b + 20, "they append", _PATIENCE_S)
                lost.kill()
            cluster.heal()
    finally:
        over.set()
        for thread in threads:
            thread.join(_PATIENCE_S)
    engine = opened(url)
    assert engine.tail() == 2 * sum(highest)
    found = texts(engine)
    for number in range(3):
        mine = [text for text in found if text.startswith(f"{number}.")]
        assert mine == [
            f"{number}.{seq}.{part}" for seq in range(1, highest[number] + 1) for part in range(2)
        ]


# Room.


@pytest.fixture
def small_etcd(tmp_path):
    """One node with room for 16 MiB."""
    flag = "--quota-backend-bytes=16777216"
    with EtcdCluster(tmp_path / "small", flag, nodes=1) as cluster:
        yield cluster


def test_entries_stop_at_half_of_the_quota_and_a_trim_makes_room(small_etcd, opened):
    """Fences are raised meanwhile; what is trimmed is compacted away (L4, L8, §18)."""
    engine = opened(created(small_etcd.url(log="l", quota_bytes=16 << 20)))
    body = Commit(entries=(NewEntry(b"x" * 900_000, ("t",)),))

    def filled():
        try:
            engine.commit(body)
        except LogFull as error:
            return error
        return None

    error = until(filled, "it is full", _PATIENCE_S)
    assert error.appended is False
    tail = engine.tail()
    # What was written a moment ago may be counted twice.
    assert 4 <= tail <= 9
    assert carry_out(engine, raise_fence("f")) == 1
    assert len(engine.read(tail - 1, 1).rows) == 1
    engine.remove(tail - 1)

    def again():
        with contextlib.suppress(LogFull):
            return engine.commit(body)
        return None

    assert until(again, "there is room again", _PATIENCE_S) == (tail + 1, tail + 1)


def test_a_cluster_that_takes_no_writes(small_etcd, opened):
    """NOSPACE is LogFull: what is there is read and removed, and all goes on with room (L8)."""
    engine = opened(created(small_etcd.url(log="l", compact="no")))
    mine, seq = producer(engine), 0

    def filled():
        nonlocal seq
        seq += 1
        try:
            carry_out(engine, append(mine, seq, [message("x" * 900_000)]))
        except LogFull as error:
            return error
        except LogUnavailable:
            # It may be there: the same is asked again.
            seq -= 1
        return None

    assert "NOSPACE" in str(until(filled, "it is full", _PATIENCE_S))
    for refused in (
        lambda: appended(engine, mine, seq),
        lambda: carry_out(engine, raise_fence("f")),
    ):
        with pytest.raises(LogFull) as caught:
            refused()
        assert caught.value.appended is False
    # Some releases refuse transactions that only read, too.
    tail = engine.tail()
    assert tail == seq - 1
    assert [row.lsn for row in engine.read(tail - 2, 10, "s/0").rows] == [tail - 1, tail]
    engine.remove(tail - 1)
    assert (engine.first(), engine.tail()) == (tail, tail)
    (member,) = defragment(small_etcd.url(log="l", quota_bytes=16 << 20))
    assert (member.host, member.error) == (small_etcd.nodes[0].host, "")
    assert member.after < member.before // 4
    assert appended(engine, mine, seq) == tail + 1
    assert carry_out(engine, raise_fence("f")) == 1
    engine.remove(tail)
    assert engine.first() == tail + 1


def test_an_append_that_is_done_and_told_that_there_is_no_room(url, opened, monkeypatch):
    """etcd says NOSPACE of the one by which it was full as well: it is looked for (L3, L8)."""
    engine = opened(url)
    mine = patiently(lambda: producer(engine))
    writes = engine._log.write
    meanwhile = []

    def full(*request, **options):
        # As its quota applier has it: applied, and an error all the same.
        monkeypatch.setattr(engine._log, "write", writes)
        writes(*request, **options)
        for one in meanwhile:
            one()
        raise LogFull("etcd: database space exceeded")

    def refused(*request, **options):
        monkeypatch.setattr(engine._log, "write", writes)
        for one in meanwhile:
            one()
        raise LogFull("etcd: database space exceeded")

    monkeypatch.setattr(engine._log, "write", full)
    assert appended(engine, mine, 1) == 1
    monkeypatch.setattr(engine._log, "write", full)
    assert carry_out(engine, raise_fence("f")) == 1
    monkeypatch.setattr(engine._log, "write", refused)
    with pytest.raises(LogFull):
        appended(engine, mine, 2)
    other = opened(url)
    theirs = producer(other)
    seqs = iter(range(1, 10))
    meanwhile.append(lambda: appended(other, theirs, next(seqs)))
    # Its mark is no longer the head's.
    monkeypatch.setattr(engine._log, "write", full)
    assert appended(engine, mine, 2) == 2
    monkeypatch.setattr(engine._log, "write", refused)
    with pytest.raises(LogFull):
        appended(engine, mine, 3)
    for each in (full, refused):
        # Of what appends nothing no more is known than that others wrote since.
        monkeypatch.setattr(engine._log, "write", each)
        with pytest.raises(LogUnavailable) as caught:
            carry_out(engine, raise_fence("f"))
        assert caught.value.appended is None
    meanwhile.append(lambda: other.remove(other.tail()))
    monkeypatch.setattr(engine._log, "write", full)
    with pytest.raises(LogUnavailable) as caught:
        appended(engine, mine, 3)
    assert caught.value.appended is None


@pytest.fixture
def told_full(monkeypatch):
    """Have etcd say NOSPACE of what decides, be it done or not, as its quota applier does."""
    send = Cluster.send

    @contextlib.contextmanager
    def within(*, is_done):
        def full(self, request, **options):
            if not request.compare:
                return send(self, request, **options)
            if is_done:
                send(self, request, **options)
            raise LogFull("etcd: database space exceeded")

        with monkeypatch.context() as patched:
            patched.setattr(Cluster, "send", full)
            yield

    return within


def test_a_log_that_is_made_and_told_that_there_is_no_room(cluster, name, told_full):
    """It is there, and its maker's; one that was refused is not, and is made later (L8)."""
    url = cluster.url(log=name)
    with told_full(is_done=False), pytest.raises(LogFull):
        create_log(url, {})
    with told_full(is_done=True):
        create_log(url, {}).close()
    with pytest.raises(LogExists):
        create_log(url, {})


def test_each_member_is_defragmented_the_one_that_leads_last(cluster, url, opened):
    """The log goes on; at a member that does not answer it stops, before the next ones (§18)."""
    engine = opened(url)
    mine = patiently(lambda: producer(engine))
    leader = cluster.leader().host
    found = defragment(url)
    assert [each.error for each in found] == ["", "", ""]
    assert (found[-1].host, len({each.host for each in found})) == (leader, 3)
    assert patiently(lambda: appended(engine, mine, 1)) == 1
    dead = next(node for node in cluster.nodes if node.host != leader)
    dead.kill()
    found = patiently(lambda: defragment(url))
    assert found[-1].error
    assert found[-1].host == dead.host


# Backups.


@pytest.mark.parametrize("token", ["", "another"])
def test_a_cluster_restored_from_a_backup(tmp_path, opened, token, told_full):
    """Whoever saw more stops, by the cluster's number or its revision (§12)."""
    with EtcdCluster(tmp_path / "lone", nodes=1) as lone:
        url = created(lone.url(log="l"))
        engine, reader = opened(url), opened(url)
        mine = producer(engine)
        appended(engine, mine, 1)
        lone.control("snapshot", "save", str(tmp_path / "backup"))
        appended(engine, mine, 2)
        assert texts(reader) == ["1", "2"]
        lone.stop()
        with restore(lone, tmp_path / "backup", tmp_path / "restored", token):
            asked = (
                lambda: appended(engine, mine, 3),
                lambda: texts(reader),
                reader.tail,
                lambda: reader.wait(2, 5),
            )
            for ask in asked:
                with pytest.raises(CorruptLog):
                    patiently(ask)
            if token:
                with pytest.raises(CorruptLog, match="was made in cluster"):
                    open_log(url)
                keys = new_log("0" * 16)
                with told_full(is_done=False), pytest.raises(LogFull):
                    accept_loss(url, keys)
                with told_full(is_done=True):
                    assert "was made in cluster" in accept_loss(url, keys)
                assert accept_loss(url, keys) == ""
                again = opened(url)
                assert (again.tail(), carry_out(again, read_incarnation())) == (1, "0" * 16)
            else:
                # The same number: one who saw nothing cannot tell.
                assert opened(url).tail() == 1


def test_a_cluster_that_is_not_there():
    """It is unavailable when it is opened, within the URL's time (§12)."""
    with pytest.raises(LogUnavailable):
        open_log("etcd://127.0.0.1:1,127.0.0.1:2?log=l&timeout_s=0.5")
