"""A log in a SQLite file, as its processes and its operator meet it (DESIGN-LOG §12)."""

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sharedlog._core.commit import Commit, NewEntry
from sharedlog._core.errors import CorruptLog, LogExists, LogUnavailable, NewerFormat, NoSuchLog
from sharedlog._core.spans import retire
from sharedlog._engines.driving import carry_out
from sharedlog._engines.sqlite import SqliteEngine, create
from tests.sharedlog.logs import texts

ROOT = Path(__file__).parents[3]


def test_processes_that_are_killed_leave_what_was_acknowledged_and_whole_appends(tmp_path):
    """Three at once, each by SIGKILL in the middle of its work (L1, L2, L7)."""
    path = tmp_path / "log.db"
    create(path)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.sharedlog.engines.writer", str(path), name],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    told: dict[str, list[int]] = {}
    try:
        for name, process in zip("abc", running, strict=True):
            assert process.stdout is not None
            told[name] = [int(process.stdout.readline().split()[0]) for _ in range(10)]
    finally:
        for process in running:
            process.send_signal(signal.SIGKILL)
    for name, process in zip("abc", running, strict=True):
        assert process.stdout is not None
        lines = process.stdout.read().split("\n")
        # The last line may be cut.
        told[name] += [int(line.split()[0]) for line in lines[:-1]]
        assert process.wait(20) == -signal.SIGKILL
        process.stdout.close()
    engine = SqliteEngine(path)
    for substream in (0, 1):
        found = texts(engine, substream)
        assert len(found) == len(set(found))
        for name, acknowledged in told.items():
            mine = [tuple(map(int, text.split(".")[1:])) for text in found if text[0] == name]
            seqs = sorted({seq for seq, _ in mine})
            assert mine == [(seq, part) for seq in seqs for part in range(3)]
            assert {seq for seq in acknowledged if seq % 2 == substream} <= set(seqs)
    for producer in (1, 2, 3):
        assert carry_out(engine, retire(producer)) >= 10
    engine.close()


def test_creating_is_explicit_and_happens_once(tmp_path):
    """An empty volume is no new log, and a log is not made anew (§12)."""
    path = tmp_path / "log.db"
    with pytest.raises(NoSuchLog):
        SqliteEngine(path)
    path.write_bytes(b"")
    with pytest.raises(NoSuchLog):
        SqliteEngine(path)
    with pytest.raises(LogExists):
        create(path)
    path.unlink()
    create(path)
    with pytest.raises(LogExists):
        create(path)
    with pytest.raises(LogUnavailable):
        create(tmp_path / "missing" / "log.db")


def test_other_files_newer_logs_and_damage_are_told_apart(tmp_path):
    """Each is a typed error, and the file stays as it is (§12)."""
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (a)")
    connection.commit()
    connection.close()
    with pytest.raises(NoSuchLog):
        SqliteEngine(other)
    newer = tmp_path / "newer.db"
    create(newer)
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(NewerFormat):
        SqliteEngine(newer)
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"no database at all " * 100)
    with pytest.raises(CorruptLog):
        SqliteEngine(garbage)
    holed = tmp_path / "holed.db"
    create(holed)
    engine = SqliteEngine(holed)
    for body in (b"a", b"b", b"c"):
        engine.commit(Commit(entries=(NewEntry(body),)))
    connection = sqlite3.connect(holed)
    connection.execute("DELETE FROM log_entry WHERE lsn = 2")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptLog):
        engine.read(0, 10)
    engine.close()


def test_a_full_disk_refuses_and_harms_nothing(tmp_path):
    """What was there is read, and room lets it go on (L8; SQLite's own bound is the disk here)."""
    path = tmp_path / "log.db"
    create(path)
    engine = SqliteEngine(path)
    engine.commit(Commit(entries=(NewEntry(b"first"),)))
    pages = engine._writer.execute("PRAGMA page_count").fetchone()[0]
    engine._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(LogUnavailable):
        engine.commit(Commit(entries=(NewEntry(b"x" * 1_000_000),)))
    assert [row.body for row in engine.read(0, 10).rows] == [b"first"]
    engine._writer.execute("PRAGMA max_page_count = 1000000")
    assert engine.commit(Commit(entries=(NewEntry(b"second"),))) == (2, 2)
    engine.close()
