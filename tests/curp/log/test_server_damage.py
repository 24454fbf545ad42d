"""Damage to groups' logs in PostgreSQL and etcd, and older copies put back (DESIGN §7)."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from chaos.faulty_path import FaultyPath
from curp.log import create_log, open_engine
from curp.log._errors import (
    CorruptLog,
    InvalidRequest,
    LeadershipOver,
    LeaseHeld,
    LogError,
    LogExists,
    LogUnavailable,
    NewerFormat,
    NoSuchLog,
    TailMismatch,
    TrimmedLog,
)
from curp.log._values import LogEntry, NewLogEntry
from sharedlog._engines.checksums import kept, value_of
from tests.curp.log.conformance import Writer, append_id
from tests.curp.log.damage import etcd, postgres
from tests.curp.log.damage.place import Place, verified
from tests.curp.logs import created
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.running import replica
from tests.helpers.waiting import until

pytestmark = pytest.mark.faults

_KINDS = {"postgres": postgres.Damage, "etcd": etcd.Damage}
_DEADLINE_S = 60.0


@pytest.fixture(params=_KINDS)
def kind(request):
    """The store."""
    return request.param


@pytest.fixture
def damage(request, kind, group):
    """A log of the test's own in a shared server, not yet created."""
    return _KINDS[kind](request.getfixturevalue(f"shared_{kind}"), group)


@pytest.fixture
def damage_apart(kind, damage):
    """The same where damage reaches no log of another test: in a schema of its own."""
    return damage if kind == "etcd" else postgres.Damage(damage.server, damage.group, damage.group)


@pytest.fixture
def place(damage):
    """That log, created."""
    place = Place(damage)
    yield place
    place.close()


@pytest.fixture
def broken(place):
    """A log with a little of everything, to be damaged."""
    place.fill()
    assert verified(place.url) == ""
    return place


def _patiently(work):
    """Do it again while the store cannot be asked; other errors pass."""

    def attempt():
        with contextlib.suppress(LogUnavailable):
            return (work(),)
        return None

    return until(attempt, "the store answers", _DEADLINE_S)[0]


# Entries, and their listings under tags.


@pytest.mark.parametrize("lsn", [3, 7, 10])
def test_a_missing_entry(broken, lsn):
    """It is CorruptLog, by tag and without (DESIGN §7)."""
    broken.damage.drop_entry(lsn)
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            broken.open().read(2, tag=tag)
    assert verified(broken.url)


@pytest.mark.parametrize("how", ["bit", "torn", "empty", "tags"])
def test_a_changed_entry(broken, how):
    """What is before it is read, and nothing of it: it is CorruptLog (DESIGN §7)."""
    broken.damage.change_entry(7, how)
    assert len(broken.open().read(2, limit=4)) == 4
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            broken.open().read(2, tag=tag)
    assert verified(broken.url)


def test_a_tag_that_an_entry_does_not_carry(broken):
    """An index that lies is CorruptLog (DESIGN §7)."""
    broken.damage.list_entry(5, "u")
    with pytest.raises(CorruptLog):
        broken.open().read(2, tag="u")


def test_an_entry_that_is_not_listed_under_its_tag(broken):
    """No reader by tag can tell: a verification does (DESIGN §7)."""
    broken.damage.unlist_entry(5, "t")
    assert "entry 5 is not listed under its tag 't'" in verified(broken.url)


# Keys, and pieces of snapshots.


def _uses(place):
    """What a replica does with a log: each is CorruptLog if the log is damaged."""
    engine = place.open()
    number = engine.take_leadership("one", "one:1", term_s=100.0)
    entries = engine.read(engine.first() - 1)
    engine.append(
        [NewLogEntry(b"x")],
        configuration=number,
        expected_tail=entries[-1].lsn,
        append_id=append_id(),
    )
    list(engine.load_snapshot().chunks)
    engine.trim(4, configuration=number)


@pytest.mark.parametrize("key", ["configuration", "tail", "trimmed"])
def test_a_log_that_lacks_a_key(broken, key):
    """Nothing is guessed, and nothing is begun anew over what is left (DESIGN §7, §9)."""
    broken.damage.set_key(key, None)
    with pytest.raises(CorruptLog):
        _uses(broken)
    assert verified(broken.url)
    with pytest.raises(LogExists):
        create_log(broken.url)


@pytest.mark.parametrize("key", ["configuration", "tail", "trimmed", "snapshot", "leader"])
def test_a_key_that_makes_no_sense(broken, key):
    """It is CorruptLog, not an accident (DESIGN §9)."""
    broken.damage.set_key(key, b"\xff?")
    with pytest.raises(CorruptLog):
        _uses(broken)
    assert verified(broken.url)


@pytest.mark.parametrize("key", ["tail", "trimmed"])
@pytest.mark.parametrize("back", [True, False])
def test_a_key_that_says_another_number(broken, key, back):
    """What the entries say otherwise is damage, whatever its checksum (DESIGN §7)."""
    value = value_of(key, broken.damage.key(key))
    number = int.from_bytes(value[-8:], "big") + (-1 if back else 1)
    broken.damage.set_key(key, kept(key, value[:-8] + number.to_bytes(8, "big")))
    if (key, back) == ("trimmed", False):
        # So it is while a trim is under way.
        assert verified(broken.url) == ""
        return
    assert verified(broken.url)
    with pytest.raises((CorruptLog, TailMismatch)):
        _uses(broken)


def test_an_end_of_another_append(broken):
    """The entry that the log ends with is not that of the append that it names (DESIGN §7)."""
    value = value_of("tail", broken.damage.key("tail"))
    broken.damage.set_key("tail", kept("tail", bytes([value[0] ^ 1]) + value[1:]))
    assert verified(broken.url)
    with pytest.raises(CorruptLog, match="not the one"):
        _uses(broken)


def test_a_snapshot_that_is_gone(broken):
    """What was trimmed under it is missing (DESIGN §7, invariant 8)."""
    broken.damage.set_key("snapshot", None)
    assert "no snapshot reaches it" in verified(broken.url)


@pytest.mark.parametrize("piece", [0, 1])
@pytest.mark.parametrize("how", ["bit", "torn", "empty", "gone"])
def test_a_damaged_snapshot(broken, piece, how):
    """A piece that is missing or changed is CorruptLog (DESIGN §7, invariant 8)."""
    key = broken.damage.pieces()[piece]
    found = broken.damage.key(key)
    changed = {"bit": found[:-1] + bytes([found[-1] ^ 1]), "torn": found[:-1], "empty": b""}
    broken.damage.set_key(key, changed.get(how))
    with pytest.raises(CorruptLog):
        list(broken.open().load_snapshot().chunks)
    assert verified(broken.url)


def test_what_is_trimmed_is_gone(broken):
    """It gives its room back, and so do old snapshots (DESIGN §7)."""
    count = broken.damage.count
    assert (count("entries"), count("tags"), count("pieces")) == (8, 8, 2)
    writer = Writer(broken.open())
    writer.snapshot(10, b"all")
    writer.engine.trim(10, configuration=writer.configuration)
    assert (count("entries"), count("tags"), count("pieces")) == (0, 0, 1)
    with pytest.raises(TrimmedLog):
        broken.open().read(9)
    assert verified(broken.url) == ""


@pytest.mark.parametrize("how", ["bit", "torn", "empty", "tags", "gone"])
def test_a_snapshot_behind_a_damaged_entry_lets_the_log_go_on(broken, how):
    """A trim removes damaged entries as it does others (DESIGN §7)."""
    writer = Writer(broken.open())
    writer.append(b"more", tags=("u",))
    writer.snapshot(10, b"all")
    if how == "gone":
        broken.damage.drop_entry(7)
    else:
        broken.damage.change_entry(7, how)
    for through in (7, 10):
        broken.open().trim(through, configuration=writer.configuration)
    assert writer.append(b"and more") == 12
    assert [entry.body for entry in broken.open().read(10)] == [b"more", b"and more"]
    assert verified(broken.url) == ""


# Any bit.


def _answers(place):
    """What a log says that may be wrong of it, by what was asked; errors by type are right."""
    right = [LogEntry(lsn, b"body %d" % lsn, ("t",)) for lsn in range(3, 11)]
    with contextlib.ExitStack() as stack:
        try:
            engine = stack.enter_context(contextlib.closing(open_engine(place.url)))
        except LogError:
            return {}

        def snapshot():
            found = engine.load_snapshot()
            return found is None or [found.lsn, *found.chunks] == [4, b"one", b"two"]

        def more():
            leader = Writer(engine)
            leader.append(b"more")
            leader.snapshot(10, b"s")
            engine.trim(9, configuration=leader.configuration)
            return True

        asked = {
            "entries": lambda: engine.read(2) == right,
            "tagged": lambda: all(entry in right for entry in engine.read(2, tag="t")),
            "snapshot": snapshot,
            "metadata": lambda: engine.metadata("k") in (None, b"v"),
            "all metadata": lambda: engine.all_metadata().get("k") in (None, b"v"),
            "leader": lambda: engine.leadership() or True,
            "more": more,
        }
        found = {}
        for question, ask in asked.items():
            with contextlib.suppress(LogError):
                found[question] = ask()
        return found


@pytest.mark.slow
@pytest.mark.parametrize("bit", [0, 3, 7])
def test_any_bit_that_is_flipped(broken, bit):
    """No answer is wrong, and no error is without a type, whichever bit it is (DESIGN §7, §9)."""
    Writer(broken.open()).engine.put_metadata({"k": b"v"}, configuration=2)
    restore = broken.damage.keep()
    flipped = 0
    for stored in broken.damage.stored():
        if broken.damage.flip(stored, bit):
            flipped += 1
            answers = _answers(broken)
            assert False not in answers.values(), (stored, answers)
        restore()
    assert flipped > 20
    assert verified(broken.url) == ""


# Logs that are others, or were put back.


def test_groups_in_one_place_are_apart(damage):
    """Each has numbers, entries, tags, keys and snapshots of its own (DESIGN §7)."""
    server, group = damage.server, damage.group
    names = [group, f"{group}-other", f"{group}/other", f"{group}%"]
    places = [Place(type(damage)(server, name)) for name in names]
    writers = [Writer(each.open()) for each in places]
    for count, writer in enumerate(writers, 2):
        writer.append(*[b"%d" % count] * count, tags=("t",), metadata={"k": b"%d" % count})
        writer.snapshot(1, b"%d" % count)
        writer.engine.trim(1, configuration=1)
    for count, writer in enumerate(writers, 2):
        engine, body = writer.engine, b"%d" % count
        assert (engine.tail(), engine.first(), engine.metadata("k")) == (count, 2, body)
        assert engine.read(count - 1, tag="t") == [LogEntry(count, body, ("t",))]
        assert list(engine.load_snapshot().chunks) == [body]
    for each in places:
        each.close()


def test_logs_created_at_once(damage):
    """Of several who begin at the same time, one creates it (DESIGN §7)."""
    made, refused = [], []

    def create():
        try:
            made.append(create_log(damage.url()))
        except LogExists:
            refused.append(1)

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(made), len(refused)) == (1, 5)


def test_a_log_that_is_dropped(damage_apart):
    """Writer and readers stop by type; opening it begins no new one (DESIGN §7)."""
    damage = damage_apart
    place = Place(damage)
    writer, reader = Writer(place.open()), place.open()
    writer.append(b"a")
    reader.read(0)
    damage.drop()
    asked = (lambda: writer.append(b"b"), lambda: reader.read(1), reader.tail)
    for ask in asked:
        with pytest.raises(CorruptLog):
            ask()
    with pytest.raises(NoSuchLog, match="curp init"):
        open_engine(place.url)
    # Also when a log of the same name was created in its place.
    created(place.url)
    for ask in asked:
        with pytest.raises(CorruptLog, match="another one"):
            ask()
    place.close()


def test_a_newer_format(damage_apart):
    """A log written by a newer release is refused, and left as it is (DESIGN §7)."""
    damage = damage_apart
    url = created(damage.url())
    damage.set_format(99)
    for ask in (open_engine, create_log):
        with pytest.raises((NewerFormat, LogExists)):
            ask(url)
    assert "format 99" in verified(url)
    damage.set_format(0)
    with pytest.raises(CorruptLog, match="no format number"):
        open_engine(url)


def test_a_log_that_went_back(place):
    """Entries that are gone, as after a restore: those who saw them notice (DESIGN §7)."""
    writer, reader = Writer(place.open()), place.open()
    writer.append(b"a")
    restore = place.damage.keep()
    writer.append(b"b")
    reader.read(0)
    restore()
    with pytest.raises((CorruptLog, TailMismatch)):
        writer.append(b"c")
    for ask in (lambda: reader.read(2), lambda: reader.wait(2, timeout_s=0.0)):
        with pytest.raises(CorruptLog, match="went back"):
            ask()


def test_another_history_of_the_same_length(place):
    """What was read once is read again or noticed: LSNs alone do not tell (DESIGN §7)."""
    writer, reader = Writer(place.open()), place.open()
    writer.append(b"a")
    restore = place.damage.keep()
    writer.append(b"b")
    reader.read(0)
    restore()
    other = Writer(place.open(), "one")
    other.append(b"x")
    other.append(b"y")
    with pytest.raises(CorruptLog):
        reader.read(2)
    with pytest.raises((CorruptLog, LeadershipOver)):
        writer.append(b"c")
    assert verified(place.url) == ""


def test_an_older_copy_stops_leader_and_standby(damage):
    """Going on would make that final; they say what they found (DESIGN §7)."""
    url = created(damage.url())
    with replica(url) as leader:
        leader.until_leading()
        client = ByHand(leader.address)
        assert client.deposit("1", "alice", 1).ok
        restore = damage.keep()
        for seq in (2, 3):
            assert client.deposit(str(seq), "alice", seq).ok
        with replica(url, "r2") as standby:
            until(lambda: standby.bank.balances == {"alice": 3}, "it follows", _DEADLINE_S)
            restore()
            assert not client.deposit("4", "alice", 4).ok
            for each in (leader, standby):
                until(lambda each=each: each.replica.role == "stopped", "it stops", _DEADLINE_S)
                said = each.replica.waiting_for
                assert "CorruptLog" in said or "TailMismatch" in said


@pytest.mark.parametrize("what", ["entry", "configuration", "leader", "tail", "snapshot"])
def test_a_replica_stops_over_a_damaged_log(damage, what):
    """It says so by type, and serves nothing over it (DESIGN §7)."""
    url = created(damage.url())
    with replica(url) as running:
        running.until_leading()
        client = ByHand(running.address)
        for seq in (1, 2, 3):
            assert client.deposit(str(seq), "alice", seq).ok
    with contextlib.closing(open_engine(url)) as engine:
        last = engine.tail()
    if what == "entry":
        damage.change_entry(last)
    else:
        damage.set_key(what, b"\xff?")
    with replica(url, "r2") as running:
        until(lambda: running.replica.role == "stopped", "it stops", _DEADLINE_S)
        assert "CorruptLog" in running.replica.waiting_for
    assert verified(url)


# Servers that cannot be asked, and who waits.


def test_a_server_that_falls_silent(damage):
    """Each step is LogUnavailable in time, and an append is there once (DESIGN §7, §9)."""
    with FaultyPath() as path:
        place = Place(damage)
        place.url = damage.behind(path)
        writer = Writer(place.open())
        writer.append(b"a")
        name = append_id()
        path.fall_silent()
        for ask in (
            lambda: writer.append(b"b", append_id=name),
            writer.engine.tail,
            lambda: writer.engine.renew_leadership(1, term_s=5),
        ):
            began = time.monotonic()
            with pytest.raises(LogUnavailable):
                ask()
            assert time.monotonic() < began + 20
        path.speak()
        assert _patiently(lambda: writer.append(b"b", append_id=name)) == 2
        assert [entry.body for entry in writer.engine.read(0)] == [b"a", b"b"]
        place.close()


def test_a_wait_ends_with_an_append(place, monkeypatch):
    """The store tells a reader of it, not a timer (DESIGN §7)."""
    monkeypatch.setattr("sharedlog._engines.postgres.engine._LOOK_S", 300.0)
    monkeypatch.setattr("sharedlog._engines.etcd.engine._LOOK_S", 300.0)
    writer, reader = Writer(place.open()), place.open()
    woken = []
    waiter = threading.Thread(target=lambda: woken.append(reader.wait(0, timeout_s=300)))
    waiter.start()
    until(lambda: place.damage.hears(reader), "it hears")
    writer.append(b"a")
    waiter.join(60)
    assert woken == [1]


@pytest.mark.slow
def test_a_restart_of_all_that_holds_the_log(request, kind, group):
    """What was acknowledged is there, the lease runs on, and all go on (DESIGN §7)."""
    server = request.getfixturevalue(f"own_{kind}")
    place = Place(_KINDS[kind](server, group), timeout_s=10)
    writer, reader = Writer(place.open()), place.open()
    writer.append(b"a", b"b", tags=("t",), metadata={"k": b"v"})
    writer.snapshot(1, b"s")
    assert len(reader.read(0)) == 2
    (server.crash if kind == "postgres" else server.stop)()
    try:
        for ask in (lambda: writer.append(b"c"), lambda: open_engine(place.damage.url())):
            with pytest.raises(LogUnavailable):
                ask()
    finally:
        (server.start if kind == "postgres" else server.heal)()
    assert _patiently(lambda: writer.append(b"c", append_id=b"%16d" % 1)) == 3
    assert _patiently(lambda: reader.read(2)) == [LogEntry(3, b"c")]
    assert reader.read(0, tag="t")[1] == LogEntry(2, b"b", ("t",))
    assert (reader.metadata("k"), list(reader.load_snapshot().chunks)) == (b"v", [b"s"])
    with pytest.raises(LeaseHeld):
        place.open().take_leadership("two", "two:1", term_s=100.0)
    assert verified(place.url) == ""
    place.close()


# Addresses.


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@127.0.0.1:1/d?group=a&beat_s=1",
        "postgresql://u:hunter2@127.0.0.1:1/d?group=a&durability=maybe",
        "postgresql://u:hunter2@127.0.0.1:1/d?group=a&schema=No%20Schema",
        "etcd://127.0.0.1",
        "etcd:///curp?group=a",
        "etcd://h:port?group=a",
        "etcd://h?group=a&colour=red",
        "etcd://h?group=a&timeout_s=0",
        "etcd://h?group=a&try_s=soon",
        "etcd://h?group=a&max_request_bytes=10",
        "etcd://h?group=a&compact=maybe",
        "etcd://h?group=a&ca=/ca.pem",
        "etcds://h?group=a&cert=/c.pem",
        "etcds://h?group=a&ca=/no/such/file",
        "etcd://hunter2@h?group=a",
    ],
)
def test_a_url_that_names_no_log(url):
    """It is InvalidRequest, and a password in it is in no message (DESIGN §9)."""
    with pytest.raises(InvalidRequest) as refused:
        open_engine(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@127.0.0.1:1/d?group=a&timeout_s=2",
        "etcd://127.0.0.1:1,127.0.0.1:2?group=a&timeout_s=0.5",
    ],
)
def test_a_server_that_is_not_there(url):
    """It is LogUnavailable, in the URL's time and without its password (DESIGN §9)."""
    for ask in (open_engine, create_log):
        began = time.monotonic()
        with pytest.raises(LogUnavailable) as refused:
            ask(url)
        assert "hunter2" not in str(refused.value)
        assert time.monotonic() < began + 5
