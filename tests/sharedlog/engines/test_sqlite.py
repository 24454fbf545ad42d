"""A log in a SQLite file, as its processes and its operator meet it (DESIGN-LOG §12)."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from sharedlog._core.commit import Commit, Condition, NewEntry, Put, Refused
from sharedlog._core.errors import (
    CorruptLog,
    LogExists,
    LogFull,
    LogStopped,
    LogUnavailable,
    NewerFormat,
    NoSuchLog,
)
from sharedlog._engines.sqlite import SqliteEngine, accept_loss, create, watcher
from sharedlog._engines.waiting import Waiters
from tests.helpers.processes import started
from tests.helpers.waiting import until
from tests.sharedlog.logs import texts

ROOT = Path(__file__).parents[3]


def put(engine, *bodies, tags=("t",)):
    """Append them at once."""
    return engine.commit(Commit(entries=tuple(NewEntry(body, tags) for body in bodies)))


def bodies(engine, after=0):
    """All that is there."""
    return [row.body for row in engine.read(after, 1000).rows]


@pytest.fixture
def path(tmp_path):
    """The file of an empty log."""
    create(tmp_path / "log.db")
    return tmp_path / "log.db"


@pytest.fixture
def opened(path):
    """Opens it, any number of times, and closes it again."""
    with contextlib.ExitStack() as stack:
        yield lambda **how: stack.enter_context(contextlib.closing(SqliteEngine(path, **how)))


@contextlib.contextmanager
def database(path):
    """The file as SQLite sees it, behind the engine's back."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


# Creation.


def test_creating_is_explicit_and_happens_once(tmp_path):
    """An empty volume is no new log, and a log is not made anew (§12)."""
    path = tmp_path / "log.db"
    for _ in range(2):
        with pytest.raises(NoSuchLog):
            SqliteEngine(path)
        path.write_bytes(b"")
    create(path, {"incarnation": b"f00d"})
    for _ in range(2):
        with pytest.raises(LogExists):
            create(path, {"incarnation": b"another"})
    engine = SqliteEngine(path)
    assert engine.get(("incarnation",)) == {"incarnation": b"f00d"}
    engine.close()
    with pytest.raises(LogUnavailable):
        create(tmp_path / "missing" / "log.db")


def test_of_processes_that_create_at_once_one_does(tmp_path):
    """The others learn that it is there, and open it whole (§12)."""
    path = tmp_path / "log.db"
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(_created, [path] * 8, range(8)))
    assert sorted(found, key=str) == [*(each for each in found if each is not None), *[None] * 7]
    engine = SqliteEngine(path)
    made = next(each for each in found if each is not None)
    assert engine.get(("who",)) == {"who": b"%d" % made}
    engine.close()


def _created(path, number):
    try:
        create(path, {"who": b"%d" % number})
    except LogExists:
        return None
    return number


def test_a_creation_that_broke_off_is_done_again(tmp_path):
    """Whatever it left: an empty file, SQLite's first page, a WAL nobody committed (§12)."""
    empty, paged, hot = (tmp_path / name for name in ("empty.db", "paged.db", "hot.db"))
    empty.write_bytes(b"")
    with database(paged) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    crash = (
        "import os, pathlib, sys; from sharedlog._engines.sqlite import creation, rows\n"
        "made = rows.make\n"
        "def make(*all): made(*all); os.kill(os.getpid(), 9)\n"
        "rows.make = make; creation.create(pathlib.Path(sys.argv[1]), {'k': b'v'})"
    )
    done = subprocess.run([sys.executable, "-c", crash, str(hot)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    for path in (empty, paged, hot):
        with pytest.raises(NoSuchLog):
            SqliteEngine(path)
        create(path, {"k": b"w"})
        engine = SqliteEngine(path)
        assert (engine.get(("k",)), put(engine, b"a")) == ({"k": b"w"}, (1, 1))
        engine.close()


def test_a_log_created_where_one_was_lost(path):
    """It is an error until somebody creates one; what is noted is not held against that (§12)."""
    engine = SqliteEngine(path)
    put(engine, b"a", b"b")
    engine.close()
    for lose in (path.unlink, lambda: path.write_bytes(b"")):
        lose()
        with pytest.raises(CorruptLog, match="held a log of 2"):
            SqliteEngine(path)
    create(path)
    engine = SqliteEngine(path)
    assert (bodies(engine), put(engine, b"c")) == ([], (1, 1))
    engine.close()


def test_a_log_stands_beside_the_tables_of_others(tmp_path):
    """An application's file gets a log, and keeps what it had, its versions too (§12)."""
    path = tmp_path / "app.db"
    with database(path) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.execute("PRAGMA application_id = 7")
        connection.execute("PRAGMA user_version = 8")
    with pytest.raises(NoSuchLog):
        SqliteEngine(path)
    create(path)
    engine = SqliteEngine(path)
    put(engine, b"a")
    with database(path) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        names.remove("rifl_file")
        assert {name.partition("_")[0] for name in names} <= {"t", "sharedlog", "sqlite"}
        assert connection.execute("PRAGMA application_id").fetchone() == (7,)
        assert connection.execute("PRAGMA user_version").fetchone() == (8,)
    engine.close()


# Damage.


def test_newer_logs_and_other_files_are_told_apart(tmp_path, path):
    """Each is a typed error, and the file stays as it is (§12)."""
    with database(path) as connection:
        connection.execute("UPDATE sharedlog_meta SET value = 99")
    with pytest.raises(NewerFormat):
        SqliteEngine(path)
    with database(path) as connection:
        connection.execute("UPDATE sharedlog_meta SET value = 'x'")
    with pytest.raises(CorruptLog):
        SqliteEngine(path)
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"no database at all " * 100)
    for attempt in (SqliteEngine, create):
        with pytest.raises(CorruptLog):
            attempt(garbage)
    assert garbage.read_bytes() == b"no database at all " * 100


@pytest.mark.parametrize("size", [1, 100, 511, 4096, 9000])
def test_a_file_that_is_cut_off(path, size):
    """It is CorruptLog when it is opened or read, never an empty log (§12)."""
    engine = SqliteEngine(path)
    put(engine, *(b"x" * 1000 for _ in range(20)))
    engine.close()
    os.truncate(path, size)
    with pytest.raises(CorruptLog):
        SqliteEngine(path).read(0, 100)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sharedlog_entry SET body = CAST('X' AS BLOB) WHERE lsn = 2",
        "UPDATE sharedlog_entry SET body = 'b' WHERE lsn = 2",
        "UPDATE sharedlog_entry SET tags = 'u' WHERE lsn = 2",
        "UPDATE sharedlog_entry SET at_us = at_us + 1 WHERE lsn = 2",
        "UPDATE sharedlog_entry SET lsn = 9 WHERE lsn = 2",
        "DELETE FROM sharedlog_entry WHERE lsn = 1",
        "DELETE FROM sharedlog_entry WHERE lsn = 2",
        "DELETE FROM sharedlog_entry WHERE lsn = 3",
        "DELETE FROM sharedlog_head",
    ],
)
def test_a_damaged_or_missing_row_is_never_skipped(path, opened, statement):
    """By tag and without; also the last one, by whoever had seen it (L1)."""
    engine = opened()
    put(engine, b"a", b"b", b"c")
    with database(path) as connection:
        assert connection.execute(statement).rowcount == 1
    for tag in (None, "t"):
        with pytest.raises(CorruptLog):
            engine.read(0, 10, tag)


def test_who_keeps_an_error_sees_what_was_written_since(path, opened):
    """A read that damage ends leaves no cursor behind, by which the next one sees the past (L7)."""
    engine = opened()
    for number in range(3):
        put(engine, b"%d" % number)
    with database(path) as connection:
        connection.execute("UPDATE sharedlog_entry SET body = x'00' WHERE lsn = 2")
    for tag in (None, "t"):
        with pytest.raises(CorruptLog) as kept:
            engine.read(0, 1000, tag)
        before = engine.tail()
        opened().commit(Commit(entries=(NewEntry(b"more"),)))
        assert (engine.tail(), kept.type) == (before + 1, CorruptLog)


def test_a_tag_that_an_entry_does_not_carry(path, opened):
    """An index row that lies is CorruptLog (L5)."""
    engine = opened()
    put(engine, b"a", b"b")
    with database(path) as connection:
        connection.execute("INSERT INTO sharedlog_tag VALUES ('u', 2, NULL)")
    with pytest.raises(CorruptLog):
        engine.read(0, 10, "u")


# Files that others copied, moved or removed.


def test_a_file_that_is_gone_or_another_stops_the_engine(path):
    """What is committed there is nowhere after a restart: nothing is written or read again."""
    for suffix in ("", "-wal", "-shm"):
        engine = SqliteEngine(path)
        put(engine, b"a")
        kept = path.with_name("kept")
        os.rename(f"{path}{suffix}", kept)
        for _ in range(2):
            with pytest.raises(LogStopped):
                put(engine, b"b")
            with pytest.raises(LogStopped):
                engine.tail()
        os.rename(kept, f"{path}{suffix}")
        engine.close()


def test_an_older_copy_is_noticed_until_its_loss_is_accepted(path):
    """It lacks what was acknowledged; who accepts that puts another incarnation (§12)."""
    assert accept_loss(path, {"incarnation": b"2"}) == ""
    engine = SqliteEngine(path)
    put(engine, b"a")
    engine.close()
    older = path.with_name("older")
    shutil.copy(path, older)
    engine = SqliteEngine(path)
    put(engine, b"b")
    engine.commit(Commit(puts=(Put("k", b"v"),)))
    engine.close()
    shutil.copy(older, path)
    for _ in range(2):
        with pytest.raises(CorruptLog, match="lacks 2 commits"):
            SqliteEngine(path)
    assert accept_loss(path, {"incarnation": b"2"}) == "it lacks 2 commits"
    assert accept_loss(path, {"incarnation": b"3"}) == ""
    engine = SqliteEngine(path)
    assert engine.get(("incarnation",)) == {"incarnation": b"2"}
    assert (bodies(engine), put(engine, b"c")) == ([b"a"], (2, 2))
    engine.close()


def test_a_copy_without_its_wal_is_noticed(path, opened):
    """The file alone lacks what was acknowledged since the last checkpoint (§12)."""
    put(opened(), b"a")
    copy = path.with_name("copy.db")
    for suffix in ("", ".sharedlog"):
        shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    with pytest.raises((CorruptLog, NoSuchLog)):
        SqliteEngine(copy)
    shutil.copy(f"{path}-wal", f"{copy}-wal")
    engine = SqliteEngine(copy)
    assert engine.tail() == 1
    engine.close()


def test_a_note_that_was_removed_is_missed(path, caplog):
    """Without it nobody knows whether the file is an older copy: it is not opened (§12)."""
    engine = SqliteEngine(path)
    note = path.with_name(path.name + ".sharedlog")
    note.unlink()
    put(engine, b"a")
    assert "commit_note_gone" in caplog.text
    older = path.with_name("older")
    with database(path) as connection, database(older) as copy:
        connection.backup(copy)
    put(engine, b"b")
    engine.close()
    kept = note.read_bytes()
    note.unlink()
    for where in (path, older):
        with pytest.raises(CorruptLog, match="sharedlog is missing"):
            SqliteEngine(where)
    note.write_bytes(kept)
    engine = SqliteEngine(path)
    assert bodies(engine) == [b"a", b"b"]
    engine.close()
    assert accept_loss(older, {"incarnation": b"2"}) == "the note beside it is missing"
    engine = SqliteEngine(older)
    assert (bodies(engine), put(engine, b"c")) == ([b"a"], (2, 2))
    assert engine.get(("incarnation",)) == {"incarnation": b"2"}
    engine.close()


@pytest.mark.parametrize("mode", ["TRUNCATE", "RESTART"])
def test_a_wal_that_begins_anew_is_no_cut(path, opened, mode):
    """SQLite's own checkpoints shorten it, ours and others' (L2)."""
    one, other = opened(), opened()
    for round_ in range(3):
        for engine in (one, other):
            put(engine, b"x" * 10_000)
        with database(path) as connection:
            assert connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[0] == 0
        for engine in (other, one):
            put(engine, b"y")
        assert one.tail() == 4 * (round_ + 1)


# A bad disk, and a busy one.


@pytest.mark.parametrize(
    ("fault", "told", "kept"),
    [
        ("full", ["1", "LogFull", "2", "3"], [["before", "during", "after"]]),
        ("sync", ["1", *["LogStopped"] * 3], [["before"], ["before", "during"]]),
    ],
)
def test_a_disk_that_is_full_or_does_not_sync(tmp_path, path, fault, told, kept):
    """Room lets it go on, and once; a failed sync ends it: nobody knows what is there (L2, L3)."""
    module = "tests.sharedlog.engines.faulty"
    with started(module, str(path), fault, log=tmp_path / "errors") as process:
        assert [process.line(60) for _ in range(4)] == told
    engine = SqliteEngine(path)
    assert texts(engine) in kept
    engine.close()


def test_a_full_disk_refuses_what_has_no_room_and_harms_nothing_else(opened):
    """Of appends that meet, too: those that fit are there (L8; SQLite's bound is the disk here)."""
    engine = opened()
    put(engine, b"first")

    def pages(count):
        with engine._file.writing() as connection:
            found = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count={found + count}")

    pages(3)
    with ThreadPoolExecutor(4) as pool:
        # While the file is another's, they gather.
        with engine._file.writing():
            large = [pool.submit(put, engine, b"x" * 1_000_000) for _ in range(3)]
            small = pool.submit(put, engine, b"small")
        for each in large:
            with pytest.raises(LogFull) as caught:
                each.result(60)
            assert caught.value.appended is False
        assert small.result(60) == (2, 2)
    assert bodies(engine) == [b"first", b"small"]
    pages(1_000_000)
    assert put(engine, b"x" * 1_000_000) == (3, 3)


def test_a_file_that_others_hold_too_long_is_unavailable(path, opened):
    """For writing; reads and waits go on, and so does it afterwards (L7)."""
    engine = opened(timeout_s=0.05)
    with database(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(LogUnavailable, match=r"not free within 0.05 s: this process") as caught:
            put(engine, b"a")
        assert caught.value.appended is False
        assert engine.tail() == engine.wait(0, 0.01) == 0
        connection.execute("ROLLBACK")
    assert put(engine, b"a") == (1, 1)


def test_the_wal_gives_its_room_back(path, opened):
    """After what was large once (the engine's bound)."""
    engine = opened()
    put(engine, b"x" * ((64 << 20) - 1))
    most = Path(f"{path}-wal").stat().st_size
    for _ in range(2):
        put(engine, b"small")
    assert Path(f"{path}-wal").stat().st_size <= (64 << 20) + 4096 < most


# Threads and processes.


def test_what_is_kept_of_keys_is_forgotten_when_another_process_writes(opened):
    """A condition is judged by what is there, whoever put it (L2, L7)."""
    one, two = opened(), opened()
    for number in range(20):
        before, after = b"%d" % number, b"%d" % (number + 1)
        mine, other = (one, two) if number % 2 else (two, one)
        condition = Condition("k", None if number == 0 else before)
        mine.commit(Commit((condition,), (Put("k", after),)))
        for each in (other, mine):
            with pytest.raises(Refused) as caught:
                each.commit(Commit((condition,), (Put("k", b"wrong"),)))
            assert caught.value.found == {"k": after}


def test_a_forked_child_has_no_part_in_its_parents_log(path, opened):
    """Nor opens the file while it has inherited it: SQLite would mix up their locks."""
    opened().close()
    command = [sys.executable, "-m", "tests.sharedlog.engines.forking", f"sqlite:///{path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_closed_engine_does_nothing(path):
    """Closing again is nothing either."""
    engine = SqliteEngine(path)
    put(engine, b"a")
    for _ in range(2):
        engine.close()
    for attempt in (
        lambda: put(engine, b"b"),
        engine.tail,
        lambda: engine.read(0, 1),
        lambda: engine.wait(0, 60),
        lambda: engine.remove(1),
    ):
        with pytest.raises(LogStopped):
            attempt()


def test_nobody_looks_while_nobody_waits(opened, monkeypatch):
    """Commits of a process that once followed cost it no looks; a later wait hears again (L5)."""
    monkeypatch.setattr("sharedlog._engines.waiting._LOOK_S", 300.0)
    engine, other = opened(), opened()
    looks, look = [], engine._file.watching
    monkeypatch.setattr(engine._file, "watching", lambda: looks.append(1) or look())
    assert engine.wait(0, 0.0) == 0
    until(lambda: engine._watcher.rests, "it rests")
    before = len(looks)
    assert before > 0
    for each in (engine, other):
        put(each, b"a")
    assert len(looks) == before
    with ThreadPoolExecutor(1) as pool:
        woken = pool.submit(engine.wait, 2, 300.0)
        until(lambda: len(looks) > before, "it looks")
        put(other, b"b")
        assert woken.result(60) == 3


class _Script:
    """The file's events and its version, as they are looked at in turn; pauses are noted."""

    heard = True

    def __init__(self, steps):
        self.steps = list(steps)
        self.pauses = []
        self.version = 0
        self.done = threading.Event()

    def __call__(self, path):
        return self

    def wait(self, timeout_s):
        self.pauses.append(timeout_s)
        if not self.steps:
            self.done.set()
            return False
        wrote, self.version = self.steps.pop(0)
        return wrote

    def wake(self):
        self.done.set()

    def close(self):
        pass

    def execute(self, asked):
        self.asked = asked
        return self

    def fetchone(self):
        # A version, or a head.
        return (self.version,) if self.asked.startswith("PRAGMA") else (self.version, 0, 0, 0, 0)


def test_a_commit_is_looked_for_until_it_is_there(path, monkeypatch):
    """In ever longer steps behind a write; where it was found behind none, the next write says."""
    script = _Script([(True, 0), (False, 0), (False, 0), (False, 1), (False, 1), (True, 2)])
    monkeypatch.setattr(watcher, "FileEvents", script)
    hints = Waiters()
    file = SimpleNamespace(path=path, watching=lambda: contextlib.nullcontext(script))
    watching = watcher.Watcher(file, hints)
    with watching.watching():
        assert script.done.wait(60)
    watching.close()
    short, longest = watcher._SHORTEST_S, watcher._LONGEST_S
    grown = short * watcher._GROWTH
    # At first; behind a write; twice without anything; found, and nothing wrote meanwhile.
    assert script.pauses[:6] == [short, short, grown, grown * watcher._GROWTH, longest, longest]
    # Found behind a write, which may be the next one's.
    assert script.pauses[6] == short
