"""A log in etcd: one transaction a commit, its limits, and damage (DESIGN-LOG §12, §18)."""

from __future__ import annotations

import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import grpc
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
    TrimmedLog,
)
from sharedlog._core.fences import raise_fence
from sharedlog._core.producers import append
from sharedlog._core.spans import pend, retire
from sharedlog._engines.driving import carry_out
from sharedlog._engines.etcd import compaction
from sharedlog._engines.etcd.calls import COMPACT, LEASE_GRANT, TXN, delete, get, put, scan
from sharedlog._engines.etcd.keys import AppendPlace
from sharedlog._engines.etcd.opening import create_log, open_log
from sharedlog._engines.etcd.v1 import etcd_pb2 as pb
from tests.helpers.waiting import until
from tests.sharedlog.logs import message, producer, texts


@pytest.fixture
def opened():
    """Open engines, and close them afterwards."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(contextlib.closing(open_log(url)))


@pytest.fixture
def url(shared_etcd, name):
    """A log of the test's own in the shared cluster, which may take its time."""
    url = shared_etcd.url(log=name, timeout_s=60)
    create_log(url, {}).close()
    return url


@pytest.fixture
def engine(opened, url):
    """That log."""
    return opened(url)


def entries(*bodies, tags=("t",)):
    return Commit(entries=tuple(NewEntry(body, tags) for body in bodies))


def change(engine, *steps):
    """Do something to the log's keys, past all rules."""
    return engine._log.client.call(TXN, pb.TxnRequest(success=steps), again=True)


def kept(engine):
    """The names of all keys, without what is before them."""
    keys = engine._log.keys
    found = change(engine, scan(keys.root, keys.end, 0, keys_only=True)).responses[0].range.kvs
    return [kv.key.removeprefix(keys.root).decode() for kv in found]


# Which log it is.


def test_creating_is_explicit_happens_once_and_begins_with_its_keys(shared_etcd, name, opened):
    """In one step; other logs of the cluster are others (§12)."""
    url = shared_etcd.url(log=name)
    with pytest.raises(NoSuchLog):
        open_log(url)
    keys = {f"k{number}": b"\x00\xff" for number in range(300)}
    create_log(url, keys).close()
    with pytest.raises(LogExists):
        create_log(url, {"incarnation": b"other"})
    engine, other = opened(url), create_log(shared_etcd.url(log=name + ".other"), {})
    assert engine.scan("") == keys
    engine.commit(entries(b"a"))
    assert (other.tail(), other.scan("")) == (0, {})
    other.close()


def test_a_newer_format_and_another_cluster_are_told_apart(engine, url):
    """And the log is left as it is (§12)."""
    (found,) = change(engine, get(engine._log.keys.id)).responses[0].range.kvs
    newer = found.value.replace(b'"format": 1', b'"format": 2')
    change(engine, put(engine._log.keys.id, newer))
    with pytest.raises(NewerFormat):
        open_log(url)
    moved = found.value.replace(b'"cluster": ', b'"cluster": 1')
    change(engine, put(engine._log.keys.id, moved))
    with pytest.raises(CorruptLog, match=r"was made in cluster.*sharedlog accept-loss"):
        open_log(url)
    with pytest.raises(CorruptLog, match="another one in its place"):
        engine.tail()


@pytest.mark.parametrize("query", ["log=", "log=a/b", "log=a&try_s=soon", "log=a&colour=red"])
def test_a_url_that_names_no_log(query):
    """It is refused by type, without the password that it may have (§12)."""
    with pytest.raises(InvalidRequest) as caught:
        open_log(f"etcd://u:hunter2@h?{query}")
    assert "hunter2" not in str(caught.value)


# Commits.


def test_commits_that_meet_share_a_transaction(engine):
    """While one is on its way the others gather; each has its own answer (§18)."""
    first, go = threading.Event(), threading.Event()
    sent = []
    write = engine._log.write

    def slow(*arguments, **options):
        sent.append(arguments)
        first.set()
        assert go.wait(60)
        return write(*arguments, **options)

    engine._log.write = slow
    with ThreadPoolExecutor(9) as pool:
        found = [pool.submit(engine.commit, entries(b"0"))]
        assert first.wait(60)
        found += [pool.submit(engine.commit, entries(b"x", b"y")) for _ in range(7)]
        wrong = pool.submit(engine.commit, Commit((Condition("k", b""),), entries=(NewEntry(b""),)))
        until(lambda: engine._commits._group_commit._lead.waiting == 8, "they wait")
        go.set()
        assert sorted(each.result(60) for each in found) == [
            (1, 1),
            *((lsn, lsn + 1) for lsn in range(2, 16, 2)),
        ]
        with pytest.raises(Refused):
            wrong.result(60)
    assert len(sent) <= 4
    assert engine.tail() == 15


def test_appends_of_one_producer_on_their_way_together_are_in_their_order(engine):
    """Each depends on what the one before it is about to write (L3)."""
    mine = producer(engine, window=16)
    lead = engine._commits._group_commit._lead
    go = threading.Event()
    write = engine._log.write

    def slow(*arguments, **options):
        assert go.wait(60)
        return write(*arguments, **options)

    engine._log.write = slow
    with ThreadPoolExecutor(9) as pool:
        found = []
        for seq in range(1, 9):
            rule = append(mine, seq, [message(str(seq))])
            found.append(pool.submit(carry_out, engine, rule))
            until(lambda n=seq - 1: lead._leader and lead.waiting == n, "it waits")
        go.set()
        assert [each.result(60).lsn for each in found] == list(range(1, 9))
    assert texts(engine) == [str(seq) for seq in range(1, 9)]


def test_rivals_of_several_processes_take_turns(opened, url):
    """Nothing is lost or doubled, and no LSN is given twice (L1, L2)."""

    def write(number):
        engine = opened(url)
        mine = producer(engine)
        return [
            carry_out(engine, append(mine, seq, [message(f"{number}.{seq}")])).lsn
            for seq in range(1, 21)
        ]

    with ThreadPoolExecutor(4) as pool:
        lsns = [each.result(120) for each in [pool.submit(write, n) for n in range(4)]]
    assert sorted(itertools.chain(*lsns)) == list(range(1, 81))
    found = texts(opened(url))
    assert len(found) == 80
    for number in range(4):
        mine = [text for text in found if text.startswith(f"{number}.")]
        assert mine == [f"{number}.{seq}" for seq in range(1, 21)]


def test_what_an_engine_wrote_last_refuses_nothing_by_itself(opened, url):
    """Another process may have written since: only what was looked at meanwhile refuses (L7)."""
    engine, other = opened(url), opened(url)
    engine.commit(Commit(puts=(Put("k", b"1"),)))
    other.commit(Commit((Condition("k", b"1"),), (Put("k", b"2"),)))
    engine.commit(Commit((Condition("k", b"2"),), (Put("k", b"3"),)))
    with pytest.raises(Refused) as caught:
        other.commit(Commit((Condition("k", b"2"),), (Put("k", b"4"),)))
    assert caught.value.found == {"k": b"3"}


def test_a_refusal_tells_what_all_keys_held_at_one_revision(opened, url):
    """Two keys that are always written together are never told apart (the interface, L2)."""
    engine, other = opened(url), opened(url)
    other.commit(Commit(puts=(Put("a", b"0"), Put("b", b"0"))))
    over = threading.Event()

    def move():
        number = 0
        while not over.is_set():
            number += 1
            other.commit(Commit(puts=(Put("a", b"%d" % number), Put("b", b"%d" % number))))

    moving = threading.Thread(target=move)
    moving.start()
    try:
        for _ in range(100):
            with pytest.raises(Refused) as caught:
                engine.commit(
                    Commit((Condition("a", b"?"), Condition("b", b"?")), (Put("c", b""),))
                )
            assert caught.value.found["a"] == caught.value.found["b"]
    finally:
        over.set()
        moving.join(60)


def test_keys_are_read_as_of_one_moment_though_others_commit_at_every_step(
    engine, opened, url, monkeypatch
):
    """More than one request takes: all have the revision of the first (the interface)."""
    other, keys = opened(url), tuple(f"k/{number}" for number in range(220))
    numbers = itertools.count()
    read = engine._log.read

    def overtaken(*asked):
        found = read(*asked)
        number = b"%d" % next(numbers)
        other.commit(Commit(puts=tuple(Put(key, number) for key in keys)))
        return found

    monkeypatch.setattr(engine._log, "read", overtaken)
    assert set(engine.get(keys).values()) == {None}
    assert set(engine.get(keys).values()) == {b"2"}


def test_a_commit_whose_reply_was_lost_is_recognised(engine, opened, url):
    """Sent to the next node it finds what it appended, also behind others' appends (L3)."""
    send, rival, between = engine._log.cluster.send, opened(url), []

    def twice(request, *, again, **more):
        if any(one.HasField("put") for one in request.success):
            assert send(request, again=again, **more).succeeded
            if between:
                rival.commit(entries(b"rival"))
        return send(request, again=again, **more)

    engine._log.cluster.send = twice
    engine.commit(entries(b"mine"))
    between.append("a rival")
    engine.commit(entries(b"mine"))
    engine._log.cluster.send = send
    assert engine.commit(entries(b"last")) == (4, 4)
    bodies = [row.body for row in engine.read(0, 10).rows]
    assert bodies == [b"mine", b"mine", b"rival", b"last"]


def test_a_step_without_entries_is_sent_once(engine, monkeypatch):
    """It could not be recognised: its fate is unknown, and the rule asks again (L4)."""
    send, lost = engine._log.cluster.send, []

    def lose(request, *, again, **more):
        response = send(request, again=again, **more)
        if request.success[0].HasField("put") and not lost:
            assert not again
            lost.append(request)
            raise LogUnavailable("the reply was lost")
        return response

    monkeypatch.setattr(engine._log.cluster, "send", lose)
    with pytest.raises(LogUnavailable):
        carry_out(engine, raise_fence("f"))
    assert carry_out(engine, raise_fence("f")) == 2


# Limits.


def test_the_largest_append_there_is(engine):
    """As many entries, bytes and tags as the limits allow fit into one request (§18)."""
    tags = [f"{number:03d}" + "/" * 7 for number in range(900)]
    body = b"x" * (engine.limits.append_bytes // engine.limits.entries - 5)
    new = tuple(
        NewEntry(body, (tags[number],) if number < 900 else ())
        for number in range(engine.limits.entries)
    )
    puts = tuple(Put(f"k{number}", b"v" * 100) for number in range(110))
    conditions = tuple(Condition(f"k{number}", None) for number in range(110))
    engine.commit(Commit(conditions, puts, new))
    assert engine.tail() == engine.limits.entries
    assert [row.lsn for row in engine.read(0, 10, tags[899]).rows] == [900]
    with pytest.raises(Refused) as caught:
        engine.commit(Commit(conditions, puts, new))
    assert caught.value.found["k7"] == b"v" * 100
    engine.remove(engine.limits.entries)
    assert not [each for each in kept(engine) if each.startswith(("log/", "tag/"))]


def test_a_producer_has_a_hundred_tags_pending_and_is_retired(engine):
    """Its spans and the marker fit into transactions, though etcd's have 128 operations (C2)."""
    mine = producer(engine)
    many = [message(str(number), number, pending=True) for number in range(100)]
    carry_out(engine, pend(mine, 1, many, ()))
    assert carry_out(engine, retire(mine.id)) == 1
    assert engine.tail() == 101
    assert len(engine.read(100, 1).rows[0].tags) == 100


def test_what_no_transaction_takes_is_refused_by_type(engine):
    """And nothing of it is written (the engine's limits)."""
    wrong = [
        Commit(tuple(Condition(str(number), None) for number in range(111))),
        Commit(entries=tuple(NewEntry(b"", (str(number),)) for number in range(901))),
        Commit(puts=tuple(Put(str(number), b"v" * (1 << 20)) for number in range(2))),
    ]
    for commit in wrong:
        with pytest.raises(InvalidRequest):
            engine.commit(commit)
    assert engine.scan("") == {}
    assert engine.commit(entries(b"a")) == (1, 1)


def test_a_server_that_takes_less_than_the_url_says(shared_etcd, url, name):
    """It is told when the log is opened, not by the first large append (§12)."""
    with pytest.raises(InvalidRequest, match=r"too large|larger than max"):
        open_log(shared_etcd.url(log=name, max_request_bytes=3 << 20))


def test_entries_get_half_of_the_quota(shared_etcd, name, opened, monkeypatch):
    """What is over it is refused; fences are raised and a trim declared (§18, L8)."""
    create_log(shared_etcd.url(log=name), {}).close()
    engine = opened(shared_etcd.url(log=name, quota_bytes=1 << 20))
    monkeypatch.setattr(engine._commits._budget, "_quota", 1)
    with pytest.raises(LogFull, match="half of its quota") as caught:
        engine.commit(entries(b"a"))
    assert caught.value.appended is False
    assert carry_out(engine, raise_fence("f")) == 1
    monkeypatch.setattr(engine._commits._budget, "_quota", 2 << 30)
    assert engine.commit(entries(b"a")) == (1, 1)


# Damage.


@pytest.fixture
def broken(engine):
    """A log of ten appends without the first two."""
    for number in range(1, 11):
        engine.commit(entries(b"body %d" % number))
    engine.remove(2)
    return engine


@pytest.mark.parametrize("lsn", [3, 7, 10])
def test_a_missing_entry_is_never_skipped(broken, lsn):
    """By tag and without (L1)."""
    change(broken, delete(broken._log.keys.append(AppendPlace(lsn, 1))))
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            broken.read(2, 1000, tag)


@pytest.mark.parametrize("damage", ["bit", "torn", "empty"])
def test_a_changed_entry_is_found(broken, damage):
    """By its checksum; what is before it is read (L1)."""
    key = broken._log.keys.append(AppendPlace(7, 1))
    (found,) = change(broken, get(key)).responses[0].range.kvs
    changed = {
        "bit": found.value.replace(b"body 7", b"bodY 7"),
        "torn": found.value[:-3],
        "empty": b"",
    }
    change(broken, put(key, changed[damage]))
    assert len(broken.read(2, 4).rows) == 4
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            broken.read(2, 1000, tag)


def test_an_index_that_lies_is_found(broken):
    """An entry is not returned under a tag that it does not have (L5)."""
    change(broken, put(broken._log.keys.tagged("u", AppendPlace(5, 1)), b""))
    with pytest.raises(CorruptLog):
        broken.read(2, 10, "u")


@pytest.mark.parametrize("part", ["id", "head"])
def test_a_log_that_lacks_a_key_is_damaged(broken, url, part):
    """Nothing is guessed, nor begun anew over what is left (§12)."""
    change(broken, delete(getattr(broken._log.keys, part)))
    asked = (broken.tail, lambda: broken.commit(entries(b"a")), lambda: open_log(url).tail())
    for ask in asked:
        with pytest.raises(CorruptLog):
            ask()


@pytest.mark.parametrize("part", ["id", "head", "removed"])
def test_a_key_that_makes_no_sense_is_damage(broken, part):
    """And no accident (§12)."""
    change(broken, put(getattr(broken._log.keys, part), b"\xff?"))
    with pytest.raises(CorruptLog):
        broken.tail()


def test_a_head_that_somebody_else_wrote_back_is_noticed(broken):
    """A cluster that went back and on: the head's revision is older than was seen (§12)."""
    broken._log.seen = seen = broken._log.seen._replace(mark=b"x" * 16)
    with pytest.raises(CorruptLog, match="not the one that was seen"):
        broken.tail()
    broken._log.seen = seen._replace(head_revision=seen.head_revision + 1000)
    with pytest.raises(CorruptLog, match="went back"):
        broken.tail()


# Removal.


def test_what_is_removed_gives_its_keys_back(broken, monkeypatch):
    """Tags' too; in pieces, of which each leaves the log whole (the interface's bound)."""
    monkeypatch.setattr("sharedlog._engines.etcd.engine._PAGE", 3)
    broken.remove(9)
    assert (broken.first(), broken.tail()) == (10, 10)
    names = [each.rpartition("/")[0] for each in kept(broken)]
    assert (names.count("log"), names.count("tag/t")) == (1, 1)
    for tag in (None, "t"):
        with pytest.raises(TrimmedLog):
            broken.read(2, 10, tag)
    assert [row.lsn for row in broken.read(9, 10, "t").rows] == [10]


def test_a_trim_amid_an_append_hides_what_is_before_it(engine):
    """Its key goes with its last entry (the interface's ``remove``)."""
    engine.commit(entries(b"a", b"b", b"c"))
    engine.remove(2)
    assert engine.first() == 3
    for tag in (None, "t"):
        with pytest.raises(TrimmedLog):
            engine.read(1, 10, tag)
        assert [row.body for row in engine.read(2, 10, tag).rows] == [b"c"]
    engine.remove(3)
    assert not [each for each in kept(engine) if each.startswith(("log/", "tag/"))]
    assert engine.first() == 4


def test_a_removal_needs_no_write(broken, monkeypatch):
    """etcd without room takes deletions; what is there then tells how far they went (§18)."""

    def full(*arguments, **options):
        raise LogFull("NOSPACE")

    with monkeypatch.context() as patched:
        patched.setattr(broken._log, "write", full)
        patched.setattr(broken._log.cluster, "send", full)
        broken.remove(5)
        assert (broken.first(), broken.tail()) == (6, 10)
        assert [row.lsn for row in broken.read(5, 2, "t").rows] == [6, 7]
        with pytest.raises(TrimmedLog):
            broken.read(4, 10, "t")
    assert "removed" not in kept(broken)
    broken.remove(10)
    assert (broken.first(), "removed" in kept(broken)) == (11, True)


# Waiting.


def test_who_waits_is_woken_by_another_process(engine, opened, url, monkeypatch):
    """By a watch, and not by a timer (L5)."""
    monkeypatch.setattr("sharedlog._engines.etcd.engine._LOOK_S", 300.0)
    writer, woken = opened(url), []
    waiter = threading.Thread(target=lambda: woken.append(engine.wait(0, 300)))
    waiter.start()
    until(lambda: engine._watch.news, "it watches")
    writer.commit(entries(b"a"))
    waiter.join(60)
    assert woken == [1]


class _Refused(grpc.RpcError):
    """What etcd answers, or its client in its place."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code, self.details = lambda: code, lambda: text


def test_a_refusal_says_nothing_of_a_try_before_it(engine, monkeypatch):
    """Its reply was lost, and it is in the log: so what NOSPACE refuses is not known (L3)."""
    mine, client = producer(engine), engine._log.client
    send, tries = client._send, []

    def losing(node, method, request, *more):
        if method is not TXN or not request.compare or len(tries) == 2:
            return send(node, method, request, *more)
        tries.append(request)
        if len(tries) == 1:
            send(node, method, request, *more)
            raise _Refused(grpc.StatusCode.UNAVAILABLE, "the connection was lost")
        text = "etcdserver: mvcc: database space exceeded"
        raise _Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, text)

    monkeypatch.setattr(client, "_send", losing)
    sent = append(mine, 1, [message("a")])
    with pytest.raises(LogUnavailable) as caught:
        carry_out(engine, sent)
    assert not isinstance(caught.value, LogFull)
    assert caught.value.appended is None
    assert len(tries) == 2
    carry_out(engine, append(mine, 1, [message("a")]))
    assert engine.tail() == 1


def test_what_was_freed_is_counted_though_nothing_else_is_written(monkeypatch):
    """Asked for room again after a compaction, it writes a little, now and then (§18)."""
    now, called = [100.0], []
    monkeypatch.setattr(compaction, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Client:
        address = SimpleNamespace(compact=True)
        owner = SimpleNamespace(errors=(LogUnavailable,))

        def call(self, method, request, *, again):
            called.append(method)

    space = compaction.Space(Client(), share=2)

    def asked(revision):
        space.make_room(revision)
        until(lambda: not space._busy, "its thread has ended")
        return called[-1]

    assert asked(7) == COMPACT
    assert (asked(7), len(called)) == (COMPACT, 1)
    now[0] += 2
    assert asked(7) == LEASE_GRANT
    assert (asked(7), len(called)) == (LEASE_GRANT, 2)
    assert asked(8) == COMPACT
