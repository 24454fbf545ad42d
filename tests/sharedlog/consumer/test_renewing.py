"""A process says that it is there once for all its consumers of a log (DESIGN-LOG §14, T1)."""

import secrets
import threading
import time
from datetime import timedelta

import pytest

import sharedlog
from rifl.testing import FakeClock
from sharedlog._consumer.membership import Membership
from sharedlog._core.commit import Refused
from sharedlog._core.consumer.members import MemberTerm, join, look, part
from sharedlog._engines.etcd import engine as etcd_engine
from sharedlog._engines.etcd.client import Client
from tests.helpers.waiting import until
from tests.sharedlog.consumer.world import World
from tests.sharedlog.places import url_of

LONG_S = 1000.0
STREAMS = b"orders/2"


@pytest.fixture
def log():
    with sharedlog.create(f"memory:{secrets.token_hex(8)}") as made:
        yield made


@pytest.fixture
def commits(log, monkeypatch):
    """What is committed: keys that are put, or None where it was refused."""
    found, commit = [], log._engine.commit

    def noted(step):
        try:
            lsns = commit(step)
        except Refused:
            found.append(None)
            raise
        found.append([each.key for each in step.puts])
        return lsns

    monkeypatch.setattr(log._engine, "commit", noted)
    return found


@pytest.fixture
def members(log):
    """Of three consumers, in one process; their threads wait."""
    made = [
        Membership(log._place, f"c{n}", f"w{n}", STREAMS, LONG_S, lambda: False) for n in range(3)
    ]
    for each in made:
        each.join()
        each.start()
    yield made
    for each in made:
        each.part()


def key(number):
    return f"consumer/c{number}/member/w{number}"


def there(log, number):
    return bool(log._run(look(f"c{number}")).members)


def test_one_step_renews_all_memberships(log, commits, members):
    """Those of another log, or of another handle, are not among them."""
    other = Membership(log._place, "c9", "w9", STREAMS, LONG_S, lambda: False)
    other.join()
    commits.clear()
    members[1]._say()
    assert [sorted(each) for each in commits] == [[key(0), key(1), key(2)]]
    assert len({each._said_s for each in members}) == 1
    members[0]._say()
    assert len(commits) == 2


def test_one_that_has_left_is_not_made_again(log, commits, members):
    """Also by a step that had begun to name it."""
    members[2].part()
    commits.clear()
    members[0]._say()
    assert [sorted(each) for each in commits] == [[key(0), key(1)]]
    members[0]._together.add(members[2])
    commits.clear()
    members[0]._say()
    assert commits == [None, [key(0)]]
    assert [there(log, number) for number in range(3)] == [True, True, False]


def test_one_that_was_taken_for_gone_becomes_a_member_again(log, commits, members):
    """The others are renewed by themselves meanwhile."""
    log._run(part("c1", "w1"))
    commits.clear()
    members[0]._say()
    members[1]._say()
    assert commits == [None, [key(0)], None, [key(1)]]
    commits.clear()
    members[2]._say()
    assert len(commits) == 1
    assert all(there(log, number) for number in range(3))


def test_one_whose_consumer_follows_others_by_now_is_told(log, members):
    """And no other one."""
    log._run(part("c1", "w1"))
    log._run(join(MemberTerm("c1", "new", b"{}", b"orders/4", LONG_S)))
    members[0]._say()
    with pytest.raises(sharedlog.InvalidRequest, match="another process started it anew"):
        members[1]._say()


class Turns:
    """In place of a membership's end: notes its waits, and ends it after the last turn."""

    def __init__(self, turns):
        self._turns = iter(turns)
        self.waits = []

    def wait(self, timeout_s):
        self.waits.append(timeout_s)
        turn = next(self._turns, None)
        if turn is not None:
            turn()
        return turn is None

    def set(self):
        """It is at its end."""


def test_processes_do_not_renew_in_step(log, commits):
    """A part of each pause is drawn; it only makes a renewal earlier (§14)."""
    membership = Membership(log._place, "c", "w", STREAMS, 1.2, lambda: False)
    membership.join()
    commits.clear()
    drawn = [0.0, 0.5, 0.999]
    membership.dice = iter(drawn).__next__
    membership._closing = turns = Turns([lambda: None] * 2)
    membership._clock = lambda: LONG_S * len(turns.waits)
    membership._renew()
    assert turns.waits == pytest.approx([0.3 * (1 - each / 4) for each in drawn])
    assert commits == [["consumer/c/member/w"]] * 2
    membership.part()


def test_who_was_renewed_of_late_says_nothing(log, commits, members):
    """Another membership of its process has said so for it, and says so again later (§14)."""
    now, (first, second, _) = 0.0, members
    for each in members:
        each._clock = lambda: now

    def later(seconds):
        nonlocal now
        now += seconds

    first._say()
    commits.clear()
    second._closing.set()
    second._thread.join()
    third = LONG_S / 4 / 3
    second._closing = Turns([lambda: later(third), lambda: later(third)])
    second._renew()
    assert [sorted(each) for each in commits] == [[key(0), key(1), key(2)]]


# An idle process.


def test_a_process_with_a_long_lease_moves_holds_as_soon_as_any(tmp_path, monkeypatch):
    """And its timers are looked for: the lease says only how often it looks who has what."""
    world = World(tmp_path, lease=timedelta(minutes=5))
    consumer, clock, waits = world.consumer(), FakeClock(), []

    def wait(after, timeout_s):
        waits.append(timeout_s)
        return after

    monkeypatch.setattr(consumer._log._place.engine, "wait", wait)

    def waited_s():
        with consumer._member(clock) as work:
            while work.round():
                pass
            consumer._wait(work)
        return waits[-1]

    assert 0 < waited_s() <= 0.5
    consumer.every(timedelta(seconds=1))(lambda effects: None)
    assert waited_s() <= 0.1


def test_a_round_after_a_wait_reads_no_log_that_has_not_moved(tmp_path, monkeypatch):
    """What the wait has seen the end of holds nothing new; what comes later is read (§14)."""
    world = World(tmp_path, lease=timedelta(minutes=5))
    consumer, reads = world.consumer(), []
    engine = consumer._log._place.engine
    read = engine.read
    monkeypatch.setattr(engine, "read", lambda *asked: (reads.append(asked), read(*asked))[1])
    with consumer._member(FakeClock()) as work:
        while work.round():
            pass
        tail = engine.tail()
        assert work.through == tail
        reads.clear()
        assert work.round(tail) == 0
        assert not reads
        world.order(1)
        assert work.round(engine.tail()) == 1
        assert reads


def test_what_an_idle_process_asks_etcd(tmp_path, request, monkeypatch):
    """Between two looks at who has what: it says that it is there, and looks again (§14)."""
    url = url_of("etcd", tmp_path, request.getfixturevalue)
    world = World(tmp_path, url=url, lease=timedelta(seconds=0.03))
    consumer, clock, asked = world.consumer(), FakeClock(), []
    engine, call = world.log._engine, Client.call
    with consumer._member(clock) as work:
        while work.round():
            pass
        consumer._wait(work)

        def noted(self, method, request, **how):
            asked.append(method.path.rpartition("/")[2])
            return call(self, method, request, **how)

        def silent(revision, timeout_s):
            end, never = time.monotonic() + timeout_s, threading.Event()
            consumer._membership._say()
            while (left_s := end - time.monotonic()) > 0:
                never.wait(left_s)
            return False

        monkeypatch.setattr(Client, "call", noted)
        monkeypatch.setattr(engine._watch, "wait", silent)
        engine._watch.news = engine._log.seen.revision

        def turn(count, after_s=0.011):
            asked.clear()
            for _ in range(count):
                tail = consumer._wait(work)
                clock.advance(after_s)
                assert work.round(tail) == 0
            return list(asked)

        renewal, look = ["LeaseGrant", "Txn"], ["Txn"]
        until(lambda: engine.stirs is not None, "it watches")
        assert turn(1) == renewal + look
        assert turn(10) == 10 * renewal
        # It looks again now and then, and once something has changed, or may have.
        assert turn(1, 2.0) + turn(1) == renewal + look + renewal
        stirs = engine.stirs
        world.log._run(part("another", "w"))
        until(lambda: engine.stirs != stirs, "it is told")
        assert turn(2) == renewal + look + renewal
        engine._watch._begun = 0
        assert turn(2) == 2 * (renewal + look)
        # Of what was told a moment ago nothing is asked, while etcd's watch hears.
        engine._watch._begun = len(engine._watch._watched)
        monkeypatch.setattr(etcd_engine, "_LOOK_S", 1000.0)
        monkeypatch.setattr(consumer._membership, "_say", lambda: None)
        assert turn(3) == look


def test_a_membership_is_renewed_by_the_time_that_its_key_is_kept(log, monkeypatch):
    """Where terms are rounded up, as etcd's, a process says less often that it is there (§14)."""
    membership = Membership(log._place, "c", "w", STREAMS, 1.2, lambda: False)
    assert membership._pause_s() == pytest.approx(0.3)
    monkeypatch.setattr(log._engine, "limits", log._engine.limits._replace(whole_terms=True))
    assert membership._pause_s() == pytest.approx(2 / 3)
    membership = Membership(log._place, "c", "w", STREAMS, 1.9, lambda: False)
    assert membership._pause_s() == pytest.approx(2 - 0.75 * 1.9)
