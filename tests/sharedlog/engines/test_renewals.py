"""Terms that run anew while nothing else changes: no thread is woken (DESIGN-LOG §18)."""

import errno
import os
import threading
import time
from contextlib import closing

import pytest

from rifl.testing import FakeClock
from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused
from sharedlog._core.errors import LogUnavailable
from sharedlog._engines.etcd import engine as etcd_engine
from sharedlog._engines.etcd.client import Client
from sharedlog._engines.memory import MemoryEngine, MemoryLog
from sharedlog._engines.opening import create_engine, open_engine
from sharedlog._engines.sqlite import SqliteEngine, create
from sharedlog._engines.terms import BootClock
from sharedlog._engines.waiting import Waiters
from tests.helpers.waiting import until
from tests.sharedlog.places import ENGINES, url_of

LONG_S = 1000.0


@pytest.fixture(params=ENGINES)
def url(request, tmp_path):
    return url_of(request.param, tmp_path, request.getfixturevalue)


def renewal(key, value=b"v", term_s=LONG_S):
    """A step that changes nothing but a term."""
    conditions = (Condition(key, value), Condition("other", None))
    return Commit(conditions, (Put(key, value, term_s=term_s),))


def begin(engine, key="k", term_s=LONG_S):
    engine.commit(Commit(puts=(Put(key, b"v", term_s=term_s),)))


def test_a_renewal_is_a_commit_like_any_other(url):
    """Judged, answered, and seen by another process, in every engine (the interface, 1, 3, 5)."""
    with closing(create_engine(url, {})) as engine, closing(open_engine(url)) as other:
        begin(engine, term_s=LONG_S / 2)
        engine.commit(Commit(entries=(NewEntry(b"a", ("t",)),)))
        assert engine.commit(renewal("k")) == (1, 1)
        for each in (engine, other):
            assert each.remaining("k") > 0.9 * LONG_S
            assert (each.get(("k",)), each.scan("k")) == ({"k": b"v"}, {"k": b"v"})
        with pytest.raises(Refused) as caught:
            other.commit(Commit((Condition("k", None),), (Put("k", b"w"),)))
        assert caught.value.found == {"k": b"v"}
        with pytest.raises(Refused) as caught:
            other.commit(renewal("k", b"another"))
        assert caught.value.found == {"k": b"v", "other": None}
        other.commit(renewal("k", term_s=LONG_S / 2))
        assert engine.remaining("k") <= LONG_S / 2
        # A put ends what was renewed, and begins anew.
        engine.commit(Commit(puts=(Put("k", b"v"),)))
        assert other.remaining("k") == float("inf")
        begin(engine)
        assert other.remaining("k") > 0.9 * LONG_S
        engine.commit(Commit(puts=(Put("k", None),)))
        with pytest.raises(Refused):
            other.commit(renewal("k"))


def test_a_renewal_joins_a_commit_of_another_one(url):
    """Steps of threads that meet: each is judged, and all happen (the interface, 1)."""
    with closing(create_engine(url, {})) as engine:
        begin(engine)
        steps = [renewal("k"), Commit(entries=(NewEntry(b"a", ("t",)),))] * 8
        threads = [threading.Thread(target=engine.commit, args=(each,)) for each in steps]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert engine.tail() == 8
        assert engine.remaining("k") > 0.9 * LONG_S


# Who waits is woken by entries alone.


def test_in_memory_a_commit_without_entries_wakes_no_thread():
    """One with entries does (L5)."""
    log = MemoryLog()
    engine = MemoryEngine(log)
    woken, notify = [], log.changed.notify_all
    log.changed.notify_all = lambda: (woken.append(len(log.rows)), notify())
    waiter = threading.Thread(target=engine.wait, args=(0, 60))
    waiter.start()
    until(lambda: log.waiting, "it waits")
    engine.commit(Commit(puts=(Put("k", b"v"),)))
    begin(engine, "lease")
    engine.commit(renewal("lease"))
    assert woken == []
    engine.commit(Commit(entries=(NewEntry(b"a", ("t",)),)))
    waiter.join(60)
    assert woken == [1]


def test_in_sqlite_a_commit_without_entries_wakes_no_thread(tmp_path, monkeypatch):
    """Of another process the watch alone looks; a renewal it does not even see."""
    path = tmp_path / "log.db"
    create(path)
    with closing(SqliteEngine(path)) as engine, closing(SqliteEngine(path)) as other:
        begin(other)
        versions, looked = [], engine._watcher._looked

        def look(seen, tail):
            found = looked(seen, tail)
            versions.append(found[0])
            return found

        monkeypatch.setattr(engine._watcher, "_looked", look)
        waiter = threading.Thread(target=engine.wait, args=(0, 60))
        waiter.start()
        until(lambda: versions and engine._waiters._count, "it watches")
        hints, wal = engine._waiters._count, path.with_name("log.db-wal")
        for number in range(5):
            known = versions[-1]
            other.commit(Commit(puts=(Put(f"k{number}", b"v"),)))
            until(lambda known=known: versions[-1] != known, "the watch looks")
        known, size = versions[-1], (wal.stat().st_size, wal.stat().st_mtime_ns)
        other.commit(renewal("k"))
        assert (wal.stat().st_size, wal.stat().st_mtime_ns) == size
        assert engine._waiters._count == hints
        other.commit(Commit(entries=(NewEntry(b"a", ("t",)),)))
        waiter.join(60)
        assert engine._waiters._count == hints + 1
        assert not waiter.is_alive()


def test_in_etcd_a_commit_without_entries_wakes_no_thread(tmp_path, request, monkeypatch):
    """The watch of the head tells where the log ends; a renewal does not write the head."""
    monkeypatch.setattr("sharedlog._engines.etcd.engine._LOOK_S", 300.0)
    url = url_of("etcd", tmp_path, request.getfixturevalue)
    with closing(create_engine(url, {})) as engine, closing(open_engine(url)) as other:
        begin(other)
        waiter = threading.Thread(target=engine.wait, args=(0, 300))
        waiter.start()
        until(lambda: engine._watch.news, "it watches")
        other.commit(Commit(puts=(Put("a", b"v"),)))
        # Of the first event it is not known what was before.
        first = other._log.seen.revision
        until(lambda: engine._watch.news == first, "the watch tells")
        for number in range(5):
            other.commit(Commit(puts=(Put("a", b"%d" % number),)))
        revision = other._log.seen.revision
        other.commit(renewal("k"))
        assert other._log.read()[0].head_revision == revision
        until(lambda: engine._watch._through == revision, "the watch has seen all of them")
        assert engine._watch.news == first
        other.commit(Commit(entries=(NewEntry(b"a", ("t",)),)))
        waiter.join(60)
        assert not waiter.is_alive()


@pytest.fixture
def asked(monkeypatch):
    """What requests are sent to etcd, by the names of the methods."""
    found, call = [], Client.call

    def noted(self, method, *request, **how):
        found.append(method.path.rpartition("/")[2])
        return call(self, method, *request, **how)

    monkeypatch.setattr(Client, "call", noted)
    return found


def test_in_etcd_terms_of_one_length_begin_with_one_request(tmp_path, request, asked):
    """However many memberships a process renews; each is ended by itself (§14, §18)."""
    url, names = url_of("etcd", tmp_path, request.getfixturevalue), ("a", "b", "c")
    with closing(create_engine(url, {})) as engine:
        puts = tuple(Put(name, b"v", term_s=LONG_S) for name in names)
        asked.clear()
        engine.commit(Commit(puts=(*puts, Put("d", b"v", term_s=LONG_S / 2), Put("e", b"v"))))
        assert asked == ["Txn", "LeaseGrant", "LeaseGrant", "Txn"]
        asked.clear()
        engine.commit(Commit(tuple(Condition(name, b"v") for name in names), puts))
        assert asked == ["LeaseGrant", "Txn"]
        engine.commit(Commit(puts=(Put("a", None), Put("b", b"v", term_s=LONG_S / 2))))
        assert engine.get(names) == {"a": None, "b": b"v", "c": b"v"}
        found = [engine.remaining(name) for name in ("b", "c", "d", "e")]
        assert [round(left_s / LONG_S, 1) for left_s in found[:3]] == [0.5, 1.0, 0.5]
        assert found[3] == float("inf")


@pytest.fixture
def deaf(tmp_path, request, monkeypatch):
    """An engine of etcd whose watch tells nothing, and what happens while it waits; another one."""
    url, meanwhile = url_of("etcd", tmp_path, request.getfixturevalue), []
    with closing(create_engine(url, {})) as engine, closing(open_engine(url)) as other:
        engine.wait(0, 0.0)
        engine._watch.news = engine._log.seen.revision

        def wait(revision, timeout_s):
            end, never = time.monotonic() + timeout_s, threading.Event()
            for each in meanwhile:
                each()
            while (left_s := end - time.monotonic()) > 0:
                never.wait(left_s)
            return False

        monkeypatch.setattr(engine._watch, "wait", wait)
        yield engine, other, meanwhile


def test_in_etcd_a_wait_asks_nothing_that_was_told_meanwhile(deaf, asked):
    """By a renewal, or whatever else its process has asked for since the wait began (§18)."""
    engine, _, meanwhile = deaf
    begin(engine)
    asked.clear()
    assert engine.wait(0, 0.01) == 0
    assert asked == ["Txn"]
    for other in (lambda: engine.commit(renewal("k")), lambda: engine.scan("k")):
        meanwhile[:] = [other]
        asked.clear()
        other()
        alone = len(asked)
        assert engine.wait(0, 0.01) == 0
        assert len(asked) == 2 * alone


def test_in_etcd_a_wait_knows_of_what_was_appended_before_it(deaf):
    """Though the watch tells nothing: what was asked before the wait began is too old (L7)."""
    engine, other, meanwhile = deaf
    begin(engine)
    engine.commit(renewal("k"))
    other.commit(Commit(entries=(NewEntry(b"a", ("t",)),)))
    assert engine.wait(0, 0.0) == 1
    other.commit(Commit(entries=(NewEntry(b"b", ("t",)),)))
    assert engine.wait(1, 0.01) == 2
    for after in (0, 2):
        # It was told of 3 once, and of no more.
        other.commit(Commit(entries=(NewEntry(b"c", ("t",)),)))
        engine.commit(renewal("k"))
        other.commit(Commit(entries=(NewEntry(b"d", ("t",)),)))
        tail = other.tail()
        assert engine.wait(after, 60) == tail
    # What is appended while it waits is told by a renewal.
    other.commit(Commit(entries=(NewEntry(b"e", ("t",)),)))
    meanwhile[:] = [lambda: engine.commit(renewal("k"))]
    assert engine.wait(tail, 0.01) == tail + 1


def test_in_etcd_one_who_waits_again_and_again_asks_seldom(deaf, asked, monkeypatch):
    """Once a second, if its process was told nothing meanwhile, and the watch hears (§18)."""
    engine, other, _ = deaf
    engine._watch._begun = len(engine._watch._watched)
    monkeypatch.setattr(etcd_engine, "_LOOK_S", 1000.0)
    engine.tail()
    other.commit(Commit(entries=(NewEntry(b"a", ("t",)),)))
    asked.clear()
    assert engine.hear(0, 0.01) == 0
    assert not asked
    # What the watch tells of is there at once.
    engine._watch.news = other._log.seen.revision
    assert engine.hear(0, 300) == 1
    other.commit(Commit(entries=(NewEntry(b"b", ("t",)),)))
    monkeypatch.setattr(etcd_engine, "_LOOK_S", 0.0)
    assert engine.hear(1, 0.0) == 2
    monkeypatch.setattr(etcd_engine, "_LOOK_S", 1000.0)
    other.commit(Commit(entries=(NewEntry(b"c", ("t",)),)))
    engine._watch._begun = 0
    assert engine.hear(2, 0.01) == 3


def test_in_etcd_news_of_what_is_known_wake_no_thread(tmp_path, request, asked):
    """The watch tells late of an append whose answer was here before (§18)."""
    url = url_of("etcd", tmp_path, request.getfixturevalue)
    with closing(create_engine(url, {})) as engine:
        engine.wait(0, 0.0)
        until(lambda: engine.wait(0, 0.01) == 0 and engine._watch.news, "it watches")
        engine.commit(Commit(entries=(NewEntry(b"a", ("t",)),)))
        until(lambda: engine._watch.news == engine._log.seen.revision, "it has told")
        asked.clear()
        assert not engine._watch.wait(engine._log.seen.revision, 0.01)
        assert engine.wait(1, 0.01) == 1
        assert asked == ["Txn"]


def test_who_heard_nothing_looks_once():
    """The end of the time is no news; a hint is."""
    waiters, looks = Waiters(), []

    def look():
        looks.append(1)
        return 7

    assert waiters.wait(look, 7, 0.01) == 7
    assert len(looks) == 1
    assert waiters.wait(look, 6, 60) == 7
    assert len(looks) == 2


# The file beside a SQLite file.


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def opened(tmp_path, clock):
    """Opens the log as another process would, of some boot."""
    create(tmp_path / "log.db")
    engines = []

    def open_it(boot="this"):
        engines.append(SqliteEngine(tmp_path / "log.db", clock=BootClock(clock, boot)))
        return engines[-1]

    yield open_it
    for each in engines:
        each.close()


@pytest.fixture
def beside(tmp_path):
    return tmp_path / "log.db.sharedlog-terms"


def test_a_renewed_term_is_judged_where_it_ends(opened, clock):
    """By commits and reads of another process: never early, and not later either."""
    one, two = opened(), opened()
    begin(one, term_s=10.0)
    for _ in range(3):
        clock.advance(8)
        one.commit(renewal("k", term_s=10.0))
    taken = Commit((Condition("k", None),), (Put("k", b"w", term_s=10.0),))
    clock.advance(9)
    assert two.remaining("k") == 1.0
    with pytest.raises(Refused):
        two.commit(taken)
    clock.advance(1)
    assert two.get(("k",)) == {"k": None}
    with pytest.raises(Refused) as caught:
        one.commit(renewal("k", term_s=10.0))
    assert caught.value.found == {"k": None, "other": None}
    two.commit(taken)
    assert one.remaining("k") == 10.0


def test_a_shorter_renewal_counts(opened, clock):
    """The newest term is the one (the interface, 5)."""
    one, two = opened(), opened()
    begin(one, term_s=100.0)
    one.commit(renewal("k", term_s=1.0))
    clock.advance(1)
    assert two.get(("k",)) == {"k": None}


def test_a_term_that_was_renewed_in_another_boot_runs_in_full(opened, clock):
    """From when it is first seen: late is safe (DESIGN §7, invariant 10)."""
    one = opened()
    begin(one, term_s=10.0)
    one.commit(renewal("k", term_s=5.0))
    later = opened("the next")
    assert later.remaining("k") == 5.0
    clock.advance(4)
    later.commit(renewal("k", term_s=3.0))
    assert later.remaining("k") == 3.0


def test_places_of_terms_that_are_over_are_used_again(opened, clock, beside):
    """However many processes come and go; those of keys that are renewed stay theirs."""
    engine = opened()
    begin(engine, "stays", term_s=10.0)
    for number in range(50):
        begin(engine, f"k{number}", term_s=1.0)
        engine.commit(renewal(f"k{number}", term_s=2.0))
        clock.advance(3)
        engine.commit(renewal("stays", term_s=10.0))
        assert engine.scan("") == {"stays": b"v"}
    assert beside.stat().st_size == 2 * 64
    # Also after a boot, and of keys that are gone.
    engine.commit(Commit(puts=(Put("stays", None),)))
    later = opened("the next")
    begin(later, "new", term_s=10.0)
    later.commit(renewal("new", term_s=5.0))
    assert later.remaining("new") == 5.0
    assert beside.stat().st_size <= 3 * 64


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_renewal_that_is_lost_ends_with_the_term_before_it(opened, clock, beside, harm):
    """Its process finds that out, and begins anew: the log's fences do not depend on it."""
    one, two = opened(), opened()
    begin(one, term_s=10.0)
    clock.advance(8)
    one.commit(renewal("k", term_s=10.0))
    data = beside.read_bytes()
    if harm == "remove":
        beside.unlink()
    else:
        beside.write_bytes(data[:40] if harm == "cut" else data[:40] + b"x" + data[41:])
    assert two.remaining("k") == 2.0
    clock.advance(3)
    with pytest.raises(Refused):
        one.commit(renewal("k", term_s=10.0))
    begin(one, term_s=10.0)
    one.commit(renewal("k", term_s=20.0))
    assert two.remaining("k") == 20.0


@pytest.mark.parametrize("room", [0, 40])
def test_what_cannot_be_written_beside_goes_into_the_file(opened, clock, monkeypatch, room):
    """As a commit like any other (the interface, 1); also if there is room for a part."""
    one, two = opened(), opened()
    begin(one, term_s=10.0)
    one.commit(renewal("k", term_s=10.0))
    pwrite = os.pwrite

    def full(file, data, at):
        if not room:
            raise OSError(errno.ENOSPC, "no room")
        return pwrite(file, data[:room], at)

    with monkeypatch.context() as patched:
        patched.setattr("sharedlog._engines.sqlite.renewals.os.pwrite", full)
        clock.advance(5)
        one.commit(renewal("k", term_s=20.0))
    assert two.remaining("k") == 20.0


def test_what_cannot_be_read_beside_refuses(opened, beside):
    """No process that lives is taken for gone, and nothing was done."""
    one = opened()
    begin(one, term_s=10.0)
    beside.mkdir()
    for act in (
        lambda: one.remaining("k"),
        lambda: one.scan("k"),
        lambda: one.commit(Commit((Condition("k", None),), (Put("k", b"w"),))),
    ):
        with pytest.raises(LogUnavailable, match="cannot read") as caught:
            act()
        assert caught.value.appended is False
    beside.rmdir()
    assert one.get(("k",)) == {"k": b"v"}
