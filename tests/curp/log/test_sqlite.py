"""The log in a SQLite file: the conformance suite, boots, damage, formats (DESIGN §7)."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time

import pytest

from curp._cli.command import main
from curp.log._creation import new_log
from curp.log._engine import Entry
from curp.log._errors import (
    CorruptLog,
    EngineFull,
    EngineStopped,
    EngineUnavailable,
    LeaseHeld,
    NoSuchLog,
)
from curp.log._sqlite import SqliteEngine
from rifl.testing import FakeClock
from sharedlog._engines.terms import BootClock
from tests.curp.log.conformance import TERM_S, LogConformance, Writer, append_id
from tests.helpers.processes import started


class Place:
    """A group's log in a file, under a clock that is told."""

    def __init__(self, path, group="bank"):
        self.path = path
        self.group = group
        self.clock = FakeClock()
        self.opened = []
        self.new = new_log()

    def open(self, boot="this", **options):
        """One more engine; another ``boot``: after a restart of the machine."""
        options.setdefault("clock", BootClock(self.clock, boot))
        self.opened.append(SqliteEngine(self.path, self.group, new=self.new, **options))
        self.new = None
        return self.opened[-1]

    def pass_time(self, seconds):
        """Let time pass."""
        self.clock.advance(seconds)

    def close(self):
        """Close all engines."""
        for engine in self.opened:
            engine.close()


@pytest.fixture
def place(tmp_path):
    """A log in a file of its own."""
    place = Place(tmp_path / "log.db")
    yield place
    place.close()


class TestSqliteConformance(LogConformance):
    """``SqliteEngine``."""


# Boots.


def test_a_reboot_gives_the_lease_a_full_term(place):
    """Dates of another boot say nothing: late is safe, early is not (DESIGN §7, inv. 10)."""
    Writer(place.open())
    place.pass_time(TERM_S / 2)
    rebooted = place.open("next boot")
    assert rebooted.leadership().expires_in_s == TERM_S
    place.pass_time(TERM_S * 0.9)
    with pytest.raises(LeaseHeld) as caught:
        rebooted.take_leadership("two", "b:1", term_s=TERM_S)
    assert caught.value.remaining_s == pytest.approx(TERM_S * 0.1)
    place.pass_time(TERM_S * 0.2)
    assert rebooted.take_leadership("two", "b:1", term_s=TERM_S) == 2


def test_a_renewal_under_another_boot_begins_the_wait_anew(place):
    """A holder whose clock cannot be compared is alive as long as it renews (inv. 10)."""
    writer = Writer(place.open())
    other = place.open("elsewhere")
    other.leadership()
    for _ in range(3):
        place.pass_time(TERM_S * 0.9)
        writer.engine.renew_leadership(1, term_s=TERM_S)
        assert other.leadership().expires_in_s == TERM_S


def test_a_lease_given_back_is_over_in_every_boot(place):
    """Nobody waits for a leader that said it is gone (DESIGN §7)."""
    writer = Writer(place.open())
    writer.engine.end_leadership(1)
    assert place.open("next boot").leadership().expires_in_s <= 0


def test_the_machines_own_clock():
    """It counts suspension, and goes on between processes (DESIGN §7, invariant 10)."""
    one, two = BootClock.of_this_machine(), BootClock.of_this_machine()
    assert one.boot == two.boot
    assert len(one.boot) > 36
    before, after = one.now(), two.now()
    assert 0 <= after - before < 60
    assert before >= time.monotonic() - 1


# Several logs, several processes.


def test_groups_in_one_file_are_apart(place):
    """Each has numbers, entries, tags, keys and snapshots of its own (DESIGN §7)."""
    other = Place(place.path, "shop")
    writers = [Writer(place.open()), Writer(other.open())]
    for count, writer in enumerate(writers, 2):
        writer.append(*[b"%d" % count] * count, tags=("t",), metadata={"k": b"%d" % count})
        writer.snapshot(count - 1, b"%d" % count)
        writer.engine.trim(count - 1, configuration=1)
    for count, writer in enumerate(writers, 2):
        engine = writer.engine
        assert (engine.tail(), engine.first(), engine.metadata("k")) == (
            count,
            count,
            b"%d" % count,
        )
        assert engine.read(count - 1, tag="t") == [Entry(count, b"%d" % count, ("t",))]
        assert list(engine.load_snapshot().chunks) == [b"%d" % count]
    other.close()


def test_opening_without_making(tmp_path):
    """Neither a file nor a group is made by looking for them (DESIGN §7, §9)."""
    path = tmp_path / "log.db"
    with pytest.raises(NoSuchLog, match="curp init"):
        SqliteEngine(path, "bank")
    assert not path.exists()
    SqliteEngine(path, "bank", new=new_log()).close()
    with pytest.raises(NoSuchLog):
        SqliteEngine(path, "shop")
    SqliteEngine(path, "bank").close()


# Damage. Whole: nothing of it is skipped or taken for good.


@pytest.fixture
def broken(place):
    """A log with a little of everything, and a way to change its file behind its back."""
    writer = Writer(place.open())
    writer.append(*(b"body %d" % n for n in range(1, 11)), tags=("t",))
    writer.snapshot(4, b"one", b"two")
    writer.engine.trim(2, configuration=1)
    writer.engine.close()

    def change(*statements):
        with contextlib.closing(sqlite3.connect(place.path, isolation_level=None)) as connection:
            for statement in statements:
                assert connection.execute(statement).rowcount == 1

    return change


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE curp_entry SET body=CAST('bodY 7' AS BLOB) WHERE place=(1<<48)+7",
        "UPDATE curp_entry SET body='body 7' WHERE place=(1<<48)+7",
        "UPDATE curp_entry SET body=zeroblob(6) WHERE place=(1<<48)+7",
        "UPDATE curp_entry SET tags='[\"u\"]' WHERE place=(1<<48)+7",
        "UPDATE curp_entry SET tags='[' WHERE place=(1<<48)+7",
        "UPDATE curp_entry SET append_id=zeroblob(16) WHERE place=(1<<48)+7",
        "UPDATE curp_entry SET checksum=checksum+1 WHERE place=(1<<48)+7",
        "UPDATE curp_entry SET place=(1<<48)+11 WHERE place=(1<<48)+7",
        "DELETE FROM curp_entry WHERE place=(1<<48)+7",
        "DELETE FROM curp_entry WHERE place=(1<<48)+3",
        "DELETE FROM curp_entry WHERE place=(1<<48)+10",
    ],
)
def test_a_damaged_or_missing_entry(place, broken, statement):
    """It is CorruptLog, by tag and without; what stands before it can be read (DESIGN §7)."""
    broken(statement)
    engine = place.open()
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            engine.read(2, tag=tag)
    # By parts: up to the damage, and no further.
    found = []

    def read_on():
        while True:
            found.extend(engine.read(2 + len(found), limit=1))

    with pytest.raises(CorruptLog):
        read_on()
    assert found == [Entry(n, b"body %d" % n, ("t",)) for n in range(3, 3 + len(found))]
    assert len(found) in (0, 4, 7)


def test_a_tag_that_an_entry_does_not_carry(place, broken):
    """An index row that lies is CorruptLog (DESIGN §7)."""
    broken("INSERT INTO curp_tag VALUES (1, 'u', 5)")
    with pytest.raises(CorruptLog):
        place.open().read(2, tag="u")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE curp_chunk SET body=CAST('onE' AS BLOB) WHERE number=0",
        "UPDATE curp_chunk SET number=5 WHERE number=1",
        "DELETE FROM curp_chunk WHERE number=1",
    ],
)
def test_a_damaged_snapshot(place, broken, statement):
    """A chunk that is missing or changed is CorruptLog (DESIGN §7, invariant 8)."""
    broken(statement)
    snapshot = place.open().load_snapshot()
    with pytest.raises(CorruptLog):
        list(snapshot.chunks)


def test_a_newer_format(place, broken):
    """A log written by a newer release is refused, and left as it is (DESIGN §7)."""
    broken("UPDATE curp_meta SET value=2")
    for new in (None, new_log()):
        place.new = new
        with pytest.raises(CorruptLog, match="newer release"):
            place.open()


@pytest.mark.parametrize("statement", ["UPDATE curp_meta SET value='x'", "DELETE FROM curp_meta"])
def test_a_log_without_its_format(place, broken, statement):
    """No guess is made (DESIGN §9)."""
    broken(statement)
    with pytest.raises(CorruptLog):
        place.open()


@pytest.mark.parametrize("size", [1, 100, 511, 4096, 9000])
def test_a_file_that_is_cut_off(place, broken, size):
    """It is CorruptLog when it is opened or read, never an empty log (DESIGN §7)."""
    os.truncate(place.path, size)
    with pytest.raises(CorruptLog):
        place.open().read(2)


def test_a_file_that_is_no_database(place):
    """It is CorruptLog, and left alone (DESIGN §9)."""
    place.path.write_bytes(b"not a database, " * 100)
    with pytest.raises(CorruptLog):
        place.open()
    assert place.path.read_bytes() == b"not a database, " * 100


def test_a_database_of_another(place):
    """Tables of ours are added to it: a log may live beside an application's own (§7)."""
    with contextlib.closing(sqlite3.connect(place.path)) as connection:
        connection.execute("CREATE TABLE account (name)")
    Writer(place.open()).append(b"a")


def test_a_directory_in_the_place_of_the_file(tmp_path):
    """What cannot be opened now is EngineUnavailable (DESIGN §9)."""
    for path in (tmp_path, tmp_path / "no" / "log.db"):
        with pytest.raises(EngineUnavailable):
            SqliteEngine(path, "bank", new=new_log())


def test_a_file_that_was_replaced_under_its_writer(place):
    """Two files under one name would be two logs: the engine stops for good (DESIGN §7)."""
    writer = Writer(place.open())
    writer.append(b"a")
    place.path.rename(place.path.with_name("moved.db"))
    for _ in range(2):
        with pytest.raises(EngineStopped):
            writer.append(b"b")
    with pytest.raises(EngineStopped):
        writer.engine.read(0)


# Files that others copied, moved or removed.


def _copied(path, to, *suffixes):
    for suffix in suffixes:
        shutil.copy(f"{path}{suffix}", f"{to}{suffix}")


def test_a_file_beside_the_log_that_is_gone(place):
    """What is committed without the WAL's name is nowhere after a restart: it stops (§6, §7)."""
    for suffix in ("-wal", "-shm"):
        writer, reader = Writer(place.open(), suffix), place.open()
        writer.append(b"a")
        kept = place.path.with_name("kept")
        os.rename(f"{place.path}{suffix}", kept)
        with pytest.raises(EngineStopped, match="gone"):
            writer.append(b"b")
        with pytest.raises(EngineStopped, match="gone"):
            reader.tail()
        os.rename(kept, f"{place.path}{suffix}")
        place.close()
        place.pass_time(TERM_S)


def test_an_older_copy_is_noticed_when_it_is_opened(place, capsys):
    """It lacks what was acknowledged: refused, until an operator accepts the loss (§6, §7)."""
    Writer(place.open()).append(b"a")
    place.close()
    older = place.path.with_name("older")
    _copied(place.path, older, "")
    writer = Writer(place.open())
    writer.append(b"b")
    number = writer.configuration
    place.close()
    _copied(older, place.path, "")
    for _ in range(2):
        with pytest.raises(CorruptLog, match="lacks 2 commits"):
            place.open()
    # It can be looked at, and that changes nothing.
    assert main(["log", "verify", f"sqlite:///{place.path}?group=bank"]) == 0
    asked = ["log", "accept-loss", f"sqlite:///{place.path}?group=bank", "--why", "a backup"]
    assert main(asked) == 0
    assert "lacks 2 commits" in capsys.readouterr().out
    again = Writer(place.open())
    # A number that was not given by what is lost.
    assert again.configuration > number
    assert [entry.body for entry in again.engine.read(0)] == [b"a"]
    place.close()
    assert main(asked) == 1
    place.open()


def test_a_copy_without_its_wal_is_noticed(place):
    """The file alone lacks what was acknowledged since the last checkpoint (§6, §7)."""
    writer = Writer(place.open())
    writer.append(b"a")
    copy = Place(place.path.with_name("copy.db"))
    copy.new = None
    _copied(place.path, copy.path, "", ".curp")
    with pytest.raises((CorruptLog, NoSuchLog)):
        copy.open()
    _copied(place.path, copy.path, "", "-wal", ".curp")
    assert copy.open().tail() == 1
    copy.close()


def test_a_file_of_an_earlier_release_counts_from_then_on(place):
    """It opens as it is, and both releases go on with it (DESIGN §7)."""
    Writer(place.open()).append(b"a")
    place.close()
    with contextlib.closing(sqlite3.connect(place.path)) as connection:
        connection.execute("ALTER TABLE curp_group DROP COLUMN commits")
    place.path.with_name("log.db.curp").unlink()
    engines = [place.open(), place.open()]
    assert Writer(engines[0]).append(b"b") == 2
    assert engines[1].tail() == 2


def test_a_log_created_where_one_was_lost(place):
    """What is noted of the lost one is not held against the new one (DESIGN §7)."""
    Writer(place.open()).append(b"a", b"b")
    place.close()
    place.path.unlink()
    place.new = new_log()
    assert place.open().tail() == 0
    place.close()
    assert place.open().tail() == 0


# A bad disk.


def _faulty(tmp_path, place, fault):
    url = f"sqlite:///{place.path}?group=bank"
    place.open()
    with started("tests.curp.log.faulty", url, fault, log=tmp_path / "errors") as process:
        return [process.line(60) for _ in range(3)]


def test_a_file_that_may_not_grow(place):
    """It is EngineFull; with room again the same append happens once (DESIGN §9)."""
    writer, name = Writer(place.open()), append_id()

    def pages(count):
        with writer.engine._file.writing() as connection:
            connection.execute(f"PRAGMA max_page_count={count}")

    pages(1)
    with pytest.raises(EngineFull, match="no room"):
        writer.append(b"x" * 500_000, append_id=name)
    pages(1 << 20)
    assert writer.append(b"x" * 500_000, append_id=name) == 1


@pytest.mark.slow
def test_a_full_disk(tmp_path, place):
    """An append that finds no room may be asked again, and happens once (DESIGN §7)."""
    assert _faulty(tmp_path, place, "full") == ["EngineFull", "2", "3"]
    found = [entry.body for entry in place.open().read(0)]
    assert found == [b"before", b"during", b"after"]


@pytest.mark.slow
def test_a_disk_that_does_not_sync(tmp_path, place):
    """A failed sync stops the engine, and is never tried again (DESIGN §6)."""
    assert _faulty(tmp_path, place, "sync") == ["EngineStopped"] * 3
    found = [entry.body for entry in place.open().read(0)]
    assert found in ([b"before"], [b"before", b"during"])
