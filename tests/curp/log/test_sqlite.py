"""The log in a SQLite file: boots, its files, and a bad disk (DESIGN §7)."""

from __future__ import annotations

import contextlib
import sqlite3
import time

import pytest

from curp._cli.command import main
from curp.log import create_log, open_engine
from curp.log._errors import (
    CorruptLog,
    LeaseHeld,
    LogFull,
    LogStopped,
    LogUnavailable,
    NoSuchLog,
)
from curp.log._values import LogEntry
from sharedlog._engines.terms import BootClock
from tests.curp.log.conformance import TERM_S, Writer, append_id
from tests.curp.log.damage.sqlite import NOTE, SHM, WAL, Machine, SqliteLog, cut, hold_pages
from tests.curp.logs import created
from tests.curp.replica.by_hand import ByHand
from tests.curp.replica.running import replica
from tests.helpers.processes import started
from tests.helpers.waiting import until


@pytest.fixture
def log(tmp_path):
    """A group's log in a file of its own."""
    log = SqliteLog(tmp_path)
    yield log
    log.close()


@pytest.fixture
def machine(monkeypatch):
    """This machine's clock and boot, as engines see them that open from now on."""
    return Machine(monkeypatch)


# Boots.


def test_a_reboot_gives_the_lease_a_full_term(log, machine):
    """Dates of another boot say nothing: late is safe, early is not (DESIGN §7, inv. 10)."""
    Writer(log.open())
    machine.clock.advance(TERM_S / 2)
    machine.boot = "the next"
    rebooted = log.open()
    assert rebooted.leadership().expires_in_s == TERM_S
    machine.clock.advance(TERM_S * 0.9)
    with pytest.raises(LeaseHeld) as caught:
        rebooted.take_leadership("two", "b:1", term_s=TERM_S)
    assert caught.value.remaining_s == pytest.approx(TERM_S * 0.1)
    machine.clock.advance(TERM_S * 0.2)
    assert rebooted.take_leadership("two", "b:1", term_s=TERM_S) == 2


def test_a_renewal_under_another_boot_begins_the_wait_anew(log, machine):
    """A holder whose clock cannot be compared is alive as long as it renews (inv. 10)."""
    writer = Writer(log.open())
    machine.boot = "another"
    other = log.open()
    other.leadership()
    for _ in range(3):
        machine.clock.advance(TERM_S * 0.9)
        writer.engine.renew_leadership(1, term_s=TERM_S)
        assert other.leadership().expires_in_s == TERM_S


def test_a_lease_given_back_is_over_in_every_boot(log, machine):
    """No replica waits for a leader that ended its lease (DESIGN §7)."""
    writer = Writer(log.open())
    writer.engine.end_leadership(1)
    machine.boot = "the next"
    assert log.open().leadership().expires_in_s <= 0


def test_the_machines_own_clock():
    """It counts suspension, and goes on between processes (DESIGN §7, invariant 10)."""
    one, two = BootClock.of_this_machine(), BootClock.of_this_machine()
    assert one.boot == two.boot
    assert len(one.boot) > 36
    before, after = one.now(), two.now()
    assert 0 <= after - before < 60
    assert before >= time.monotonic() - 1


# Several logs.


def test_groups_in_one_file_are_apart(tmp_path):
    """Each has numbers, entries, tags, keys and snapshots of its own (DESIGN §7)."""
    logs = [SqliteLog(tmp_path, group) for group in ("bank", "shop")]
    writers = [Writer(each.open()) for each in logs]
    for count, writer in enumerate(writers, 2):
        writer.append(*[b"%d" % count] * count, tags=("t",), metadata={"k": b"%d" % count})
        writer.snapshot(count - 1, b"%d" % count)
        writer.engine.trim(count - 1, configuration=1)
    for count, writer in enumerate(writers, 2):
        engine = writer.engine
        told = (engine.tail(), engine.first(), engine.metadata("k"))
        assert told == (count, count, b"%d" % count)
        assert engine.read(count - 1, tag="t") == [LogEntry(count, b"%d" % count, ("t",))]
        assert list(engine.load_snapshot().chunks) == [b"%d" % count]
    for each in logs:
        each.close()


def test_opening_creates_nothing(tmp_path):
    """Neither a file nor a group (DESIGN §7, §9)."""
    path = tmp_path / "log.db"
    bank, shop = (f"sqlite:///{path}?group={group}" for group in ("bank", "shop"))
    with pytest.raises(NoSuchLog, match="curp init"):
        open_engine(bank)
    assert not path.exists()
    created(bank)
    with pytest.raises(NoSuchLog, match="curp init"):
        open_engine(shop)
    open_engine(bank).close()


def test_a_log_beside_an_applications_tables(tmp_path):
    """A group's log is created in a file that is there, and leaves its tables alone (§7)."""
    path = tmp_path / "log.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE account (name)")
    with contextlib.closing(open_engine(created(f"sqlite:///{path}?group=bank"))) as engine:
        assert Writer(engine).append(b"a") == 1
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM account").fetchone() == (0,)


# Files that are cut off, or are none of SQLite's.


@pytest.mark.parametrize("size", [0, 1, 100, 511, 4096, 9000, -1, -4096])
def test_a_file_that_is_cut_off(log, size):
    """It is an error when it is opened or read, never an empty log (DESIGN §7)."""
    writer = Writer(log.open())
    writer.append(*(b"x" * 1000 for _ in range(20)), tags=("t",))
    log.close()
    cut(log.path, size)
    with pytest.raises((CorruptLog, NoSuchLog)):
        log.open().read(0)
    assert main(["log", "verify", log.url]) == 1


def test_a_file_that_is_no_database(tmp_path):
    """It is CorruptLog, and stays unchanged (DESIGN §9)."""
    path = tmp_path / "log.db"
    url = f"sqlite:///{path}?group=bank"
    path.write_bytes(b"not a database, " * 100)
    for ask in (open_engine, create_log):
        with pytest.raises(CorruptLog):
            ask(url)
    assert main(["log", "verify", url]) == 1
    assert path.read_bytes() == b"not a database, " * 100


def test_a_directory_in_the_place_of_the_file(tmp_path):
    """A path that cannot be opened now is LogUnavailable (DESIGN §9)."""
    for path in (tmp_path, tmp_path / "no" / "log.db"):
        with pytest.raises(LogUnavailable):
            create_log(f"sqlite:///{path}?group=bank")


# Files that others copied, moved, cut off or removed.


def test_a_file_that_was_replaced_under_its_writer(log):
    """Two files under one name would be two logs: the engine stops for good (DESIGN §7)."""
    writer = Writer(log.open())
    writer.append(b"a")
    log.path.rename(log.path.with_name("moved.db"))
    for _ in range(2):
        with pytest.raises(LogStopped):
            writer.append(b"b")
    with pytest.raises(LogStopped):
        writer.engine.read(0)


def test_another_log_in_the_place_of_a_replicas(tmp_path):
    """A replica stops by type when its file becomes another group's or another log (§7)."""
    other, log = SqliteLog(tmp_path, name="other.db"), SqliteLog(tmp_path)
    with replica(log.url) as running:
        running.until_leading()
        client = ByHand(running.address)
        assert client.deposit("1", "alice", 1).ok
        other.path.replace(log.path)
        assert not client.deposit("2", "alice", 2).ok
        until(lambda: running.replica.role == "stopped", "it stops", 60.0)
        assert "LogStopped" in running.replica.waiting_for


@pytest.mark.parametrize("suffix", [WAL, SHM])
def test_a_file_beside_the_log_that_is_gone(log, suffix):
    """What is committed without the WAL's name is nowhere after a restart: it stops (§6, §7)."""
    writer, reader = Writer(log.open()), log.open()
    writer.append(b"a")
    log.beside(suffix).rename(log.path.with_name("kept"))
    with pytest.raises(LogStopped, match="gone"):
        writer.append(b"b")
    with pytest.raises(LogStopped, match="gone"):
        reader.tail()


def _as_a_crash_leaves_it(log, to):
    """Copy all files of a log that is open."""
    log.copy_to(to, "", WAL, NOTE)
    log.close()
    for suffix in (WAL, SHM):
        log.beside(suffix).unlink(missing_ok=True)
    log.copy_back(to)


def _goes_on_without(log, writer, lacks):
    """It is refused until an operator accepts the loss, and goes on under a higher number."""
    for _ in range(2):
        with pytest.raises(CorruptLog, match=f"lacks {lacks} commits.*accept-loss"):
            log.open()
    asked = ["log", "accept-loss", log.url, "--why", "a bad disk"]
    assert main(asked) == 0
    assert main(["log", "verify", log.url]) == 0
    again = Writer(log.open())
    assert again.configuration > writer.configuration
    assert [entry.body for entry in again.engine.read(0)] == [b"a"]
    assert again.append(b"c") == 2
    log.close()
    assert main(asked) == 1


@pytest.mark.parametrize("how", ["cut off", "a flipped bit", "missing"])
def test_a_torn_wal(log, tmp_path, how):
    """SQLite opens the file without its last commits: they are missed by the note (§6, §7)."""
    writer = Writer(log.open())
    writer.append(b"a")
    with log.connection() as connection:
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
    writer.append(b"b")
    writer.append(b"b" * 500)
    _as_a_crash_leaves_it(log, tmp_path / "crash")
    wal = log.beside(WAL)
    if how == "cut off":
        cut(wal, 32)
    elif how == "missing":
        wal.unlink()
    else:
        with wal.open("r+b") as file:
            # In the first page behind the headers.
            file.seek(100)
            byte = file.read(1)[0]
            file.seek(100)
            file.write(bytes((byte ^ 1,)))
    _goes_on_without(log, writer, 2)


def test_a_crash_loses_nothing(log, tmp_path):
    """All files as a killed process leaves them hold what was acknowledged (§6, §7)."""
    writer = Writer(log.open())
    writer.append(b"a", b"b")
    _as_a_crash_leaves_it(log, tmp_path / "crash")
    assert [entry.body for entry in log.open().read(0)] == [b"a", b"b"]
    assert main(["log", "verify", log.url]) == 0


def test_a_copy_without_its_wal_is_noticed(log, tmp_path):
    """The file alone lacks what was acknowledged since the last checkpoint (§6, §7)."""
    Writer(log.open()).append(b"a")
    copy = tmp_path / "copy"
    log.copy_to(copy, "", NOTE)
    url = f"sqlite:///{copy / log.path.name}?group=bank"
    with pytest.raises((CorruptLog, NoSuchLog)):
        open_engine(url)
    log.copy_to(copy, "", WAL, NOTE)
    with contextlib.closing(open_engine(url)) as engine:
        assert engine.tail() == 1


def test_a_log_created_where_one_was_lost(log):
    """What is noted of the lost one is not held against the new one (DESIGN §7)."""
    Writer(log.open()).append(b"a", b"b")
    log.close()
    log.path.unlink()
    with pytest.raises(NoSuchLog, match="curp init"):
        log.open()
    created(log.url)
    for _ in range(2):
        assert log.open().tail() == 0
        log.close()


# A bad disk.


def _faulty(tmp_path, log, fault):
    with started("tests.curp.log.faulty", log.url, fault, log=tmp_path / "errors") as process:
        return [process.line(60) for _ in range(3)]


def test_a_file_that_may_not_grow(log):
    """It is LogFull; with room again the same append happens once (DESIGN §9)."""
    writer, name = Writer(log.open()), append_id()
    hold_pages(writer.engine, 1)
    with pytest.raises(LogFull, match="no room"):
        writer.append(b"x" * 500_000, append_id=name)
    # A snapshot of a full log is refused the same way.
    with pytest.raises(LogFull, match="no room"):
        writer.snapshot(0, b"x" * 500_000)
    hold_pages(writer.engine, 1 << 20)
    assert writer.append(b"x" * 500_000, append_id=name) == 1
    writer.snapshot(1, b"s")
    assert list(log.open().load_snapshot().chunks) == [b"s"]
    assert main(["log", "verify", log.url]) == 0


@pytest.mark.slow
def test_a_full_disk(tmp_path, log):
    """An append that finds no room may be asked again, and happens once (DESIGN §7)."""
    assert _faulty(tmp_path, log, "full") == ["LogFull", "2", "3"]
    found = [entry.body for entry in log.open().read(0)]
    assert found == [b"before", b"during", b"after"]


@pytest.mark.slow
def test_a_disk_that_does_not_sync(tmp_path, log):
    """A failed sync stops the engine, and is never tried again (DESIGN §6)."""
    assert _faulty(tmp_path, log, "sync") == ["LogStopped"] * 3
    found = [entry.body for entry in log.open().read(0)]
    assert found in ([b"before"], [b"before", b"during"])
